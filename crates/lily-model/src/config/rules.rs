//! The rules a geometry must keep to be computable, each with the field it blames.

use serde_json::Value;

use super::parse::unsupported;
use super::{ConfigError, ModelConfig};

impl ModelConfig {
    /// Checks the geometry against what every device supports.
    pub(super) fn check_rules(&self) -> Result<(), ConfigError> {
        let multiple = |field: &str, value: usize, of: usize| {
            if value.is_multiple_of(of) {
                Ok(())
            } else {
                Err(unsupported(&format!("text_config.{field}"), &Value::from(value), &format!("a multiple of {of}")))
            }
        };
        let at_most = |field: &str, value: usize, limit: usize| {
            if value <= limit {
                Ok(())
            } else {
                Err(unsupported(&format!("text_config.{field}"), &Value::from(value), &format!("at most {limit}")))
            }
        };
        multiple("hidden_size", self.hidden_size, 64)?;
        multiple("moe_intermediate_size", self.moe_intermediate_size, 32)?;
        multiple("shared_expert_intermediate_size", self.shared_expert_intermediate_size, 32)?;
        multiple("head_dim", self.head_dim, 32)?;
        at_most("head_dim", self.head_dim, 256)?;
        multiple("num_attention_heads", self.num_attention_heads, self.num_key_value_heads)?;
        multiple("linear_num_value_heads", self.linear_num_value_heads, self.linear_num_key_heads)?;
        multiple("linear_key_head_dim", self.linear_key_head_dim, 32)?;
        at_most("linear_key_head_dim", self.linear_key_head_dim, 256)?;
        multiple("linear_value_head_dim", self.linear_value_head_dim, 32)?;
        at_most("linear_value_head_dim", self.linear_value_head_dim, 256)?;
        at_most("num_experts", self.num_experts, 1024)?;
        at_most("num_experts_per_tok", self.num_experts_per_tok, self.num_experts.min(32))?;
        if self.rotary_dim == 0 || !self.rotary_dim.is_multiple_of(2) || self.rotary_dim > self.head_dim {
            return Err(unsupported(
                "text_config.partial_rotary_factor",
                &Value::from(self.rotary_dim as f64 / self.head_dim as f64),
                "a factor that gives an even number of rotated dimensions",
            ));
        }
        if self.linear_conv_kernel_dim != 4 {
            let value = Value::from(self.linear_conv_kernel_dim);
            return Err(unsupported("text_config.linear_conv_kernel_dim", &value, "4"));
        }
        if !(self.rms_norm_eps > 0.0 && self.rms_norm_eps < 1.0) {
            let value = Value::from(self.rms_norm_eps);
            return Err(unsupported("text_config.rms_norm_eps", &value, "a number in (0, 1)"));
        }
        if !(self.rope_theta > 1.0 && self.rope_theta.is_finite()) {
            let value = Value::from(self.rope_theta);
            return Err(unsupported("text_config.rope_theta", &value, "a number above 1"));
        }
        Ok(())
    }
}
