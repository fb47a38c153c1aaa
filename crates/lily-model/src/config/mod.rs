//! `config.json` of the `qwen3_5_moe` family: geometry and quantization, under the names the file itself uses.
//!
//! Parsing and the rules a geometry must keep are here; which tensors follow from it is in [`crate::graph`].

mod parse;
mod preset;
mod rules;
mod write;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

/// A value of `config.json` that is missing, of the wrong type, or outside what Lily supports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not JSON, or its top level is not an object.
    #[error("config.json is not a JSON object: {0}")]
    NotJson(String),
    /// A field that must be there is not.
    #[error("config.json: `{field}` is missing (accepted: {accepted})")]
    Missing {
        /// Path of the field, dots between levels.
        field: String,
        /// What would have been accepted.
        accepted: String,
    },
    /// A field has a value that is not supported.
    #[error("config.json: `{field}` is {value} (accepted: {accepted})")]
    Unsupported {
        /// Path of the field, dots between levels.
        field: String,
        /// The value found, as JSON, shortened.
        value: String,
        /// What would have been accepted.
        accepted: String,
    },
}

/// What mixes tokens in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerType {
    /// `linear_attention`: Gated DeltaNet.
    LinearAttention,
    /// `full_attention`: gated grouped-query attention.
    FullAttention,
}

/// MLX affine quantization of one module: `w = q * scale + bias`, one scale and bias per `group_size` inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quantization {
    /// Bits a weight: 4 or 8.
    pub bits: usize,
    /// Inputs that share a scale and a bias: 32, 64 or 128.
    pub group_size: usize,
}

/// The `quantization` object: a default and per-module overrides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuantizationConfig {
    /// What holds for a module without an entry of its own; `None` when the checkpoint is not quantized.
    pub default: Option<Quantization>,
    /// Entries by module path (without `.weight`); `None` = the entry is `false`, the module is bf16.
    pub modules: HashMap<String, Option<Quantization>>,
}

impl QuantizationConfig {
    /// How `module` (for example `language_model.lm_head`) is stored; `None` = bf16.
    pub fn of(&self, module: &str) -> Option<Quantization> {
        match self.modules.get(module) {
            Some(entry) => *entry,
            None => self.default,
        }
    }
}

/// Geometry of the text model. Field names are those of `text_config`.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Mixer of each layer; its length is `num_hidden_layers`.
    pub layer_types: Vec<LayerType>,
    /// Query heads of a full-attention layer.
    pub num_attention_heads: usize,
    /// Key/value heads of a full-attention layer.
    pub num_key_value_heads: usize,
    /// Width of an attention head.
    pub head_dim: usize,
    /// Leading dimensions of a head that rotate (`head_dim * partial_rotary_factor`).
    pub rotary_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Key heads of a Gated DeltaNet layer.
    pub linear_num_key_heads: usize,
    /// Value heads of a Gated DeltaNet layer.
    pub linear_num_value_heads: usize,
    /// Width of a DeltaNet key head.
    pub linear_key_head_dim: usize,
    /// Width of a DeltaNet value head.
    pub linear_value_head_dim: usize,
    /// Taps of the causal depthwise convolution.
    pub linear_conv_kernel_dim: usize,
    /// Routed experts a layer.
    pub num_experts: usize,
    /// Experts a token uses.
    pub num_experts_per_tok: usize,
    /// Width inside a routed expert.
    pub moe_intermediate_size: usize,
    /// Width inside the shared expert.
    pub shared_expert_intermediate_size: usize,
    /// Rows of the embedding and of the head, padding included.
    pub vocab_size: usize,
    /// Epsilon of every RMS norm.
    pub rms_norm_eps: f32,
    /// Positions the model was made for.
    pub max_position_embeddings: usize,
    /// How modules are stored.
    pub quantization: QuantizationConfig,
}

impl ModelConfig {
    /// Layers of the model.
    pub fn num_hidden_layers(&self) -> usize {
        self.layer_types.len()
    }

    /// Width of all DeltaNet query (or key) heads together.
    pub fn linear_key_dim(&self) -> usize {
        self.linear_num_key_heads * self.linear_key_head_dim
    }

    /// Width of all DeltaNet value heads together.
    pub fn linear_value_dim(&self) -> usize {
        self.linear_num_value_heads * self.linear_value_head_dim
    }

    /// Channels of the convolution: queries, keys, values.
    pub fn linear_conv_dim(&self) -> usize {
        2 * self.linear_key_dim() + self.linear_value_dim()
    }

    /// Width of all attention heads' outputs together.
    pub fn attention_dim(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub fn kv_dim(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// Layers of one type.
    pub fn layers_of(&self, kind: LayerType) -> usize {
        self.layer_types.iter().filter(|&&t| t == kind).count()
    }

    /// Bytes of keys and values that one token adds, all layers, at `element_bytes` a number.
    pub fn kv_bytes_per_token(&self, element_bytes: usize) -> usize {
        2 * self.kv_dim() * element_bytes * self.layers_of(LayerType::FullAttention)
    }

    /// Bytes of recurrent state (f32) and convolution window (f32) of one sequence, all layers.
    pub fn recurrent_state_bytes(&self) -> usize {
        let state = self.linear_num_value_heads * self.linear_value_head_dim * self.linear_key_head_dim;
        let window = (self.linear_conv_kernel_dim - 1) * self.linear_conv_dim();
        (state + window) * 4 * self.layers_of(LayerType::LinearAttention)
    }
}
