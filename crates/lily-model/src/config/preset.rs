//! The geometry of the published model, for use without a checkpoint.

use super::{LayerType, ModelConfig, Quantization, QuantizationConfig};

impl ModelConfig {
    /// Qwen3.6-35B-A3B in 4 bits, group 64, with 8-bit routers and shared-expert gates.
    pub fn qwen36_35b_a3b() -> Self {
        let layers = 40;
        let router = Some(Quantization { bits: 8, group_size: 64 });
        let modules = (0..layers)
            .flat_map(|l| ["gate", "shared_expert_gate"].map(|m| format!("language_model.model.layers.{l}.mlp.{m}")))
            .map(|name| (name, router))
            .collect();
        ModelConfig {
            hidden_size: 2048,
            layer_types: (1..=layers)
                .map(|i| if i % 4 == 0 { LayerType::FullAttention } else { LayerType::LinearAttention })
                .collect(),
            num_attention_heads: 16,
            num_key_value_heads: 2,
            head_dim: 256,
            rotary_dim: 64,
            rope_theta: 1e7,
            linear_num_key_heads: 16,
            linear_num_value_heads: 32,
            linear_key_head_dim: 128,
            linear_value_head_dim: 128,
            linear_conv_kernel_dim: 4,
            num_experts: 256,
            num_experts_per_tok: 8,
            moe_intermediate_size: 512,
            shared_expert_intermediate_size: 512,
            vocab_size: 248_320,
            rms_norm_eps: 1e-6,
            max_position_embeddings: 262_144,
            quantization: QuantizationConfig { default: Some(Quantization { bits: 4, group_size: 64 }), modules },
        }
    }

    /// A geometry small enough for tests in which everything occurs: both mixers, more value heads than key heads,
    /// grouped queries, several 4-bit groups a row, 8-bit routers, and a vocabulary with room for a byte-level tokenizer.
    pub fn tiny() -> Self {
        ModelConfig {
            hidden_size: 128,
            num_attention_heads: 4,
            head_dim: 64,
            rotary_dim: 16,
            linear_num_key_heads: 2,
            linear_num_value_heads: 4,
            linear_key_head_dim: 32,
            linear_value_head_dim: 32,
            num_experts: 8,
            num_experts_per_tok: 3,
            moe_intermediate_size: 64,
            shared_expert_intermediate_size: 64,
            vocab_size: 320,
            max_position_embeddings: 8192,
            ..Self::qwen36_35b_a3b().with_layers(4)
        }
    }
}
