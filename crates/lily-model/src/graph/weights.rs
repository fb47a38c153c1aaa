//! Every weight of the model by name and shape, derived from the config alone. Where the bytes lie is the checkpoint's
//! business.

use crate::config::{ConfigError, LayerType, ModelConfig, Quantization};

/// Index into [`Model::weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// Shape and storage of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightKind {
    /// A matrix `[outputs, inputs]`, or `[experts, outputs, inputs]` when `experts` is given. Quantized: `weight` U32
    /// `[…, inputs * bits / 32]`, `scales` and `biases` BF16 `[…, inputs / group_size]`. Else: `weight` BF16.
    Matrix {
        /// Leading dimension of a stack of matrices.
        experts: Option<usize>,
        /// Rows.
        outputs: usize,
        /// Columns.
        inputs: usize,
        /// `None` = bf16.
        quantization: Option<Quantization>,
    },
    /// A vector `[len]` of BF16 or F32, stored under the module's own name plus `.weight` (norms).
    Gain {
        /// Elements.
        len: usize,
    },
    /// A vector `[len]` of BF16 or F32, stored under exactly the name (`A_log`, `dt_bias`).
    Vector {
        /// Elements.
        len: usize,
    },
    /// Depthwise convolution `[channels, taps, 1]` BF16 or F32 under `.weight`; the last tap meets the current token.
    Conv {
        /// Channels.
        channels: usize,
        /// Taps.
        taps: usize,
    },
}

/// One weight of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightSpec {
    /// Module path, for example `language_model.model.layers.0.mlp.gate` (leaves `.weight`, `.scales`, `.biases` follow).
    pub name: String,
    /// Shape and storage.
    pub kind: WeightKind,
}

impl WeightSpec {
    /// Bytes of one matrix (one expert of a stack), or of the whole vector with 2-byte elements.
    pub fn unit_bytes(&self) -> usize {
        match self.kind {
            WeightKind::Matrix { outputs, inputs, quantization: Some(q), .. } => {
                outputs * (inputs * q.bits / 8 + inputs / q.group_size * 4)
            }
            WeightKind::Matrix { outputs, inputs, quantization: None, .. } => outputs * inputs * 2,
            WeightKind::Gain { len } | WeightKind::Vector { len } => len * 2,
            WeightKind::Conv { channels, taps } => channels * taps * 2,
        }
    }
}

/// Weights of a Gated DeltaNet mixer.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // the names are the checkpoint's
pub struct GdnWeights {
    pub in_proj_qkv: WeightId,
    pub in_proj_z: WeightId,
    pub in_proj_b: WeightId,
    pub in_proj_a: WeightId,
    pub conv1d: WeightId,
    pub a_log: WeightId,
    pub dt_bias: WeightId,
    pub norm: WeightId,
    pub out_proj: WeightId,
}

/// Weights of a gated attention mixer.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // the names are the checkpoint's
pub struct AttentionWeights {
    pub q_proj: WeightId,
    pub k_proj: WeightId,
    pub v_proj: WeightId,
    pub q_norm: WeightId,
    pub k_norm: WeightId,
    pub o_proj: WeightId,
}

/// Weights of the mixer of one layer.
#[derive(Debug, Clone, Copy)]
pub enum MixerWeights {
    /// Gated DeltaNet.
    Gdn(GdnWeights),
    /// Gated attention.
    Attention(AttentionWeights),
}

/// Weights of the mixture of experts of one layer.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // the names are the checkpoint's
pub struct MoeWeights {
    pub gate: WeightId,
    pub shared_expert_gate: WeightId,
    pub switch_gate_proj: WeightId,
    pub switch_up_proj: WeightId,
    pub switch_down_proj: WeightId,
    pub shared_gate_proj: WeightId,
    pub shared_up_proj: WeightId,
    pub shared_down_proj: WeightId,
}

/// Weights of one layer.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // the names are the checkpoint's
pub struct LayerWeights {
    pub input_layernorm: WeightId,
    pub mixer: MixerWeights,
    pub post_attention_layernorm: WeightId,
    pub moe: MoeWeights,
}

impl LayerWeights {
    /// The matrices that a token meets in the layer, stacks of experts as one each.
    pub fn matrices(&self) -> Vec<WeightId> {
        let mut ids = match self.mixer {
            MixerWeights::Gdn(w) => vec![w.in_proj_qkv, w.in_proj_z, w.in_proj_b, w.in_proj_a, w.out_proj],
            MixerWeights::Attention(w) => vec![w.q_proj, w.k_proj, w.v_proj, w.o_proj],
        };
        let m = self.moe;
        ids.extend([m.gate, m.shared_expert_gate, m.switch_gate_proj, m.switch_up_proj, m.switch_down_proj]);
        ids.extend([m.shared_gate_proj, m.shared_up_proj, m.shared_down_proj]);
        ids
    }
}

/// The model: its geometry and its weights by name.
#[derive(Debug, Clone)]
pub struct Model {
    /// Geometry.
    pub config: ModelConfig,
    /// Every weight, in order of use.
    pub weights: Vec<WeightSpec>,
    /// `[vocab, hidden]`.
    pub embed_tokens: WeightId,
    /// Layers in order.
    pub layers: Vec<LayerWeights>,
    /// Final norm.
    pub norm: WeightId,
    /// `[vocab, hidden]`.
    pub lm_head: WeightId,
}

impl Model {
    /// Lists the weights that a config implies.
    ///
    /// # Errors
    /// A quantized matrix is not a whole number of groups wide, or no layer has full attention: a sequence is kept in pages
    /// of keys and values, of which such a model would have none.
    pub fn new(config: ModelConfig) -> Result<Self, ConfigError> {
        if config.layers_of(LayerType::FullAttention) == 0 {
            return Err(ConfigError::Unsupported {
                field: "layer_types".into(),
                value: format!("{} times linear_attention", config.num_hidden_layers()),
                accepted: "at least one full_attention".into(),
            });
        }
        let mut table = Table { config: &config, weights: Vec::new() };
        let hidden = config.hidden_size;
        let embed_tokens = table.matrix("model.embed_tokens", config.vocab_size, hidden);
        let layers = (0..config.num_hidden_layers()).map(|index| table.layer(index)).collect();
        let norm = table.gain("model.norm", hidden);
        let lm_head = table.matrix("lm_head", config.vocab_size, hidden);
        let weights = table.weights;
        for spec in &weights {
            if let WeightKind::Matrix { inputs, quantization: Some(q), .. } = spec.kind
                && !inputs.is_multiple_of(q.group_size)
            {
                return Err(ConfigError::Unsupported {
                    field: format!("quantization.{}.group_size", spec.name),
                    value: q.group_size.to_string(),
                    accepted: format!("a divisor of the module's {inputs} inputs"),
                });
            }
        }
        Ok(Model { weights, embed_tokens, layers, norm, lm_head, config })
    }

    /// The description of a weight.
    pub fn weight(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.0 as usize]
    }
}

/// Collects weights while the layers are listed.
struct Table<'a> {
    config: &'a ModelConfig,
    weights: Vec<WeightSpec>,
}

impl Table<'_> {
    fn push(&mut self, name: &str, kind: WeightKind) -> WeightId {
        self.weights.push(WeightSpec { name: format!("language_model.{name}"), kind });
        WeightId(self.weights.len() as u32 - 1)
    }

    fn stack(&mut self, name: &str, experts: Option<usize>, outputs: usize, inputs: usize) -> WeightId {
        let quantization = self.config.quantization.of(&format!("language_model.{name}"));
        self.push(name, WeightKind::Matrix { experts, outputs, inputs, quantization })
    }

    fn matrix(&mut self, name: &str, outputs: usize, inputs: usize) -> WeightId {
        self.stack(name, None, outputs, inputs)
    }

    fn gain(&mut self, name: &str, len: usize) -> WeightId {
        self.push(name, WeightKind::Gain { len })
    }

    fn layer(&mut self, index: usize) -> LayerWeights {
        let base = format!("model.layers.{index}");
        let hidden = self.config.hidden_size;
        let input_layernorm = self.gain(&format!("{base}.input_layernorm"), hidden);
        let mixer = match self.config.layer_types[index] {
            LayerType::LinearAttention => MixerWeights::Gdn(self.gdn(&format!("{base}.linear_attn"))),
            LayerType::FullAttention => MixerWeights::Attention(self.attention(&format!("{base}.self_attn"))),
        };
        let post_attention_layernorm = self.gain(&format!("{base}.post_attention_layernorm"), hidden);
        let moe = self.moe(&format!("{base}.mlp"));
        LayerWeights { input_layernorm, mixer, post_attention_layernorm, moe }
    }

    fn gdn(&mut self, base: &str) -> GdnWeights {
        let c = self.config;
        let (hidden, heads, value_dim) = (c.hidden_size, c.linear_num_value_heads, c.linear_value_dim());
        GdnWeights {
            in_proj_qkv: self.matrix(&format!("{base}.in_proj_qkv"), c.linear_conv_dim(), hidden),
            in_proj_z: self.matrix(&format!("{base}.in_proj_z"), value_dim, hidden),
            in_proj_b: self.matrix(&format!("{base}.in_proj_b"), heads, hidden),
            in_proj_a: self.matrix(&format!("{base}.in_proj_a"), heads, hidden),
            conv1d: self.push(
                &format!("{base}.conv1d"),
                WeightKind::Conv { channels: c.linear_conv_dim(), taps: c.linear_conv_kernel_dim },
            ),
            a_log: self.push(&format!("{base}.A_log"), WeightKind::Vector { len: heads }),
            dt_bias: self.push(&format!("{base}.dt_bias"), WeightKind::Vector { len: heads }),
            norm: self.gain(&format!("{base}.norm"), c.linear_value_head_dim),
            out_proj: self.matrix(&format!("{base}.out_proj"), hidden, value_dim),
        }
    }

    fn attention(&mut self, base: &str) -> AttentionWeights {
        let c = self.config;
        let hidden = c.hidden_size;
        AttentionWeights {
            q_proj: self.matrix(&format!("{base}.q_proj"), 2 * c.attention_dim(), hidden),
            k_proj: self.matrix(&format!("{base}.k_proj"), c.kv_dim(), hidden),
            v_proj: self.matrix(&format!("{base}.v_proj"), c.kv_dim(), hidden),
            q_norm: self.gain(&format!("{base}.q_norm"), c.head_dim),
            k_norm: self.gain(&format!("{base}.k_norm"), c.head_dim),
            o_proj: self.matrix(&format!("{base}.o_proj"), hidden, c.attention_dim()),
        }
    }

    fn moe(&mut self, base: &str) -> MoeWeights {
        let c = self.config;
        let (hidden, inner, shared) = (c.hidden_size, c.moe_intermediate_size, c.shared_expert_intermediate_size);
        let experts = Some(c.num_experts);
        MoeWeights {
            gate: self.matrix(&format!("{base}.gate"), c.num_experts, hidden),
            shared_expert_gate: self.matrix(&format!("{base}.shared_expert_gate"), 1, hidden),
            switch_gate_proj: self.stack(&format!("{base}.switch_mlp.gate_proj"), experts, inner, hidden),
            switch_up_proj: self.stack(&format!("{base}.switch_mlp.up_proj"), experts, inner, hidden),
            switch_down_proj: self.stack(&format!("{base}.switch_mlp.down_proj"), experts, hidden, inner),
            shared_gate_proj: self.matrix(&format!("{base}.shared_expert.gate_proj"), shared, hidden),
            shared_up_proj: self.matrix(&format!("{base}.shared_expert.up_proj"), shared, hidden),
            shared_down_proj: self.matrix(&format!("{base}.shared_expert.down_proj"), hidden, shared),
        }
    }
}
