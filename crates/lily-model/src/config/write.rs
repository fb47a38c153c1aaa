//! From a [`ModelConfig`] back to the text of a `config.json`, and to the same geometry with another depth.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use super::{LayerType, ModelConfig, Quantization, QuantizationConfig};

impl ModelConfig {
    /// `config.json` in the MLX layout. [`ModelConfig::from_json`] of it gives `self` again, for every config that
    /// `from_json` can give (a `rope_theta` of more than 15 digits may lose its last bit, as `serde_json` reads it).
    pub fn to_json(&self) -> String {
        let mut text = json!({
            "model_type": "qwen3_5_moe_text",
            "attention_bias": false,
            "attn_output_gate": true,
            "dtype": "bfloat16",
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "layer_types": self.layer_types.iter().map(|t| layer_type_name(*t)).collect::<Vec<_>>(),
            "linear_conv_kernel_dim": self.linear_conv_kernel_dim,
            "linear_key_head_dim": self.linear_key_head_dim,
            "linear_num_key_heads": self.linear_num_key_heads,
            "linear_num_value_heads": self.linear_num_value_heads,
            "linear_value_head_dim": self.linear_value_head_dim,
            "max_position_embeddings": self.max_position_embeddings,
            "moe_intermediate_size": self.moe_intermediate_size,
            "num_attention_heads": self.num_attention_heads,
            "num_experts": self.num_experts,
            "num_experts_per_tok": self.num_experts_per_tok,
            "num_hidden_layers": self.num_hidden_layers(),
            "num_key_value_heads": self.num_key_value_heads,
            "rms_norm_eps": decimal(self.rms_norm_eps),
            "rope_parameters": {
                "partial_rotary_factor": self.rotary_dim as f64 / self.head_dim as f64,
                "rope_theta": self.rope_theta,
                "rope_type": "default",
            },
            "shared_expert_intermediate_size": self.shared_expert_intermediate_size,
            "tie_word_embeddings": false,
            "vocab_size": self.vocab_size,
        });
        if let Some(interval) = self.full_attention_interval() {
            text["full_attention_interval"] = interval.into();
        }
        let mut top = json!({
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "model_type": "qwen3_5_moe",
            "text_config": text,
            "tie_word_embeddings": false,
        });
        if let Some(quantization) = self.quantization.to_value() {
            top["quantization"] = quantization;
        }
        format!("{top:#}\n")
    }

    /// The same geometry with `layers` layers: the first ones, or all of them again and again. Quantization entries of
    /// a layer go with it.
    pub fn with_layers(&self, layers: usize) -> Self {
        let period = self.num_hidden_layers().max(1);
        let mut modules = HashMap::new();
        for (name, entry) in &self.quantization.modules {
            match split_layer(name) {
                None => {
                    modules.insert(name.clone(), *entry);
                }
                Some((before, layer, after)) => {
                    for copy in (layer..layers).step_by(period) {
                        modules.insert(format!("{before}{copy}{after}"), *entry);
                    }
                }
            }
        }
        ModelConfig {
            layer_types: (0..layers).map(|layer| self.layer_types[layer % period]).collect(),
            quantization: QuantizationConfig { default: self.quantization.default, modules },
            ..self.clone()
        }
    }

    /// N when the layers of full attention are exactly every N-th.
    fn full_attention_interval(&self) -> Option<usize> {
        let interval = 1 + self.layer_types.iter().position(|t| *t == LayerType::FullAttention)?;
        let is_full = |layer: usize| (layer + 1).is_multiple_of(interval);
        let regular = self.layer_types.iter().enumerate().all(|(i, t)| is_full(i) == (*t == LayerType::FullAttention));
        regular.then_some(interval)
    }
}

impl QuantizationConfig {
    fn to_value(&self) -> Option<Value> {
        let entry = |q: Quantization| json!({"group_size": q.group_size, "bits": q.bits});
        let mut object: Map<String, Value> = entry(self.default?).as_object()?.clone();
        object.insert("mode".into(), "affine".into());
        for (name, module) in self.modules.iter().collect::<BTreeMap<_, _>>() {
            object.insert(name.clone(), module.map_or(Value::Bool(false), entry));
        }
        Some(Value::Object(object))
    }
}

fn layer_type_name(kind: LayerType) -> &'static str {
    match kind {
        LayerType::LinearAttention => "linear_attention",
        LayerType::FullAttention => "full_attention",
    }
}

/// The number as its shortest decimal, so that 1e-6 is not written as 9.999999974752427e-7.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// `("….layers.", 3, ".mlp.gate")` of `….layers.3.mlp.gate`.
fn split_layer(module: &str) -> Option<(&str, usize, &str)> {
    let start = module.find(".layers.")? + ".layers.".len();
    let digits = module[start..].find('.')?;
    let layer = module[start..start + digits].parse().ok()?;
    Some((&module[..start], layer, &module[start + digits..]))
}
