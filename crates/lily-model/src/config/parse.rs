//! From the text of `config.json` to a [`ModelConfig`].

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{ConfigError, LayerType, ModelConfig, Quantization, QuantizationConfig};
use crate::json;

/// Largest value accepted for any size field: far above the family, far below overflow of a product of three.
const SIZE_LIMIT: u64 = 1 << 20;

impl ModelConfig {
    /// Parses `config.json` (MLX layout: geometry in `text_config`, `quantization` at the top) and checks that the
    /// geometry is one Lily supports.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let value = json::parse(text.as_bytes()).map_err(ConfigError::NotJson)?;
        Self::from_value(&value)
    }

    /// As [`ModelConfig::from_json`], from JSON already parsed.
    pub(crate) fn from_value(value: &Value) -> Result<Self, ConfigError> {
        let top = value.as_object().ok_or_else(|| ConfigError::NotJson("the top level is not an object".into()))?;
        expect_text(top, "model_type", "", &["qwen3_5_moe", "qwen3_5_moe_text"])?;
        let (text, prefix) = match top.get("text_config") {
            Some(Value::Object(inner)) => (inner, "text_config."),
            Some(other) => return Err(unsupported("text_config", other, "an object")),
            None => (top, ""),
        };
        let fields = Fields { map: text, prefix };
        if fields.map.contains_key("model_type") {
            expect_text(text, "model_type", prefix, &["qwen3_5_moe", "qwen3_5_moe_text"])?;
        }
        fields.expect_if_present("hidden_act", &Value::from("silu"))?;
        fields.expect_if_present("attention_bias", &Value::from(false))?;
        fields.expect_if_present("attn_output_gate", &Value::from(true))?;
        fields.expect_if_present("tie_word_embeddings", &Value::from(false))?;
        fields.expect_if_present("mlp_only_layers", &Value::Array(vec![]))?;

        let head_dim = fields.size("head_dim")?;
        let rope = match text.get("rope_parameters") {
            Some(Value::Object(rope)) => Fields { map: rope, prefix: "text_config.rope_parameters." },
            Some(other) => return Err(unsupported("text_config.rope_parameters", other, "an object")),
            None => fields,
        };
        for name in ["rope_type", "type"] {
            rope.expect_if_present(name, &Value::from("default"))?;
        }
        let factor = match rope.number_if_present("partial_rotary_factor")? {
            Some(factor) => factor,
            None => fields.number("partial_rotary_factor", "a number in (0, 1]")?,
        };
        if !(factor > 0.0 && factor <= 1.0) {
            return Err(unsupported("text_config.partial_rotary_factor", &Value::from(factor), "a number in (0, 1]"));
        }
        let config = ModelConfig {
            hidden_size: fields.size("hidden_size")?,
            layer_types: layer_types(fields)?,
            num_attention_heads: fields.size("num_attention_heads")?,
            num_key_value_heads: fields.size("num_key_value_heads")?,
            head_dim,
            rotary_dim: (head_dim as f64 * factor).round() as usize,
            rope_theta: rope.number("rope_theta", "a number above 1")?,
            linear_num_key_heads: fields.size("linear_num_key_heads")?,
            linear_num_value_heads: fields.size("linear_num_value_heads")?,
            linear_key_head_dim: fields.size("linear_key_head_dim")?,
            linear_value_head_dim: fields.size("linear_value_head_dim")?,
            linear_conv_kernel_dim: fields.size("linear_conv_kernel_dim")?,
            num_experts: fields.size("num_experts")?,
            num_experts_per_tok: fields.size("num_experts_per_tok")?,
            moe_intermediate_size: fields.size("moe_intermediate_size")?,
            shared_expert_intermediate_size: fields.size("shared_expert_intermediate_size")?,
            vocab_size: fields.size("vocab_size")?,
            rms_norm_eps: fields.number("rms_norm_eps", "a number in (0, 1)")? as f32,
            max_position_embeddings: fields.size("max_position_embeddings")?,
            quantization: quantization(top)?,
        };
        config.check_rules()?;
        Ok(config)
    }
}

/// The object a group of fields is read from, and its path for messages.
#[derive(Clone, Copy)]
struct Fields<'a> {
    map: &'a Map<String, Value>,
    prefix: &'static str,
}

impl Fields<'_> {
    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn get(&self, name: &str, accepted: &str) -> Result<&Value, ConfigError> {
        self.map
            .get(name)
            .filter(|v| !v.is_null())
            .ok_or_else(|| ConfigError::Missing { field: self.path(name), accepted: accepted.into() })
    }

    fn size(&self, name: &str) -> Result<usize, ConfigError> {
        let accepted = "a whole number from 1 to 1048576";
        let value = self.get(name, accepted)?;
        match value.as_u64() {
            Some(n) if (1..=SIZE_LIMIT).contains(&n) => Ok(n as usize),
            _ => Err(unsupported(&self.path(name), value, accepted)),
        }
    }

    fn number(&self, name: &str, accepted: &str) -> Result<f64, ConfigError> {
        let value = self.get(name, accepted)?;
        value.as_f64().ok_or_else(|| unsupported(&self.path(name), value, accepted))
    }

    fn number_if_present(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        match self.map.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| unsupported(&self.path(name), value, "a number")),
        }
    }

    fn expect_if_present(&self, name: &str, wanted: &Value) -> Result<(), ConfigError> {
        match self.map.get(name) {
            None | Some(Value::Null) => Ok(()),
            Some(value) if value == wanted => Ok(()),
            Some(value) => Err(unsupported(&self.path(name), value, &wanted.to_string())),
        }
    }
}

fn layer_types(fields: Fields<'_>) -> Result<Vec<LayerType>, ConfigError> {
    let layers = fields.size("num_hidden_layers")?;
    if layers > 1024 {
        return Err(unsupported(&fields.path("num_hidden_layers"), &Value::from(layers), "at most 1024 layers"));
    }
    let accepted = "a list of num_hidden_layers entries \"linear_attention\" or \"full_attention\"";
    match fields.map.get("layer_types") {
        Some(Value::Array(list)) if list.len() == layers => list
            .iter()
            .map(|entry| match entry.as_str() {
                Some("linear_attention") => Ok(LayerType::LinearAttention),
                Some("full_attention") => Ok(LayerType::FullAttention),
                _ => Err(unsupported(&fields.path("layer_types"), entry, accepted)),
            })
            .collect(),
        Some(Value::Null) | None => {
            let interval = fields.size("full_attention_interval")?;
            Ok((1..=layers)
                .map(|i| if i % interval == 0 { LayerType::FullAttention } else { LayerType::LinearAttention })
                .collect())
        }
        Some(other) => Err(unsupported(&fields.path("layer_types"), other, accepted)),
    }
}

fn quantization(top: &Map<String, Value>) -> Result<QuantizationConfig, ConfigError> {
    let object = match top.get("quantization").or_else(|| top.get("quantization_config")) {
        None | Some(Value::Null) => return Ok(QuantizationConfig::default()),
        Some(Value::Object(object)) => object,
        Some(other) => return Err(unsupported("quantization", other, "an object")),
    };
    let default = Some(quantization_entry("quantization", object)?);
    let mut modules = HashMap::new();
    for (name, value) in object {
        match value {
            Value::Object(entry) => {
                let entry = quantization_entry(&format!("quantization.{name}"), entry)?;
                modules.insert(name.clone(), Some(entry));
            }
            Value::Bool(false) => {
                modules.insert(name.clone(), None);
            }
            Value::Bool(true) => {
                modules.insert(name.clone(), default);
            }
            _ => {}
        }
    }
    Ok(QuantizationConfig { default, modules })
}

fn quantization_entry(path: &str, entry: &Map<String, Value>) -> Result<Quantization, ConfigError> {
    let whole = |name: &str, accepted: &[u64], absent: Option<u64>| {
        let field = format!("{path}.{name}");
        let list = accepted.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        match (entry.get(name), absent) {
            (Some(value), _) => match value.as_u64() {
                Some(n) if accepted.contains(&n) => Ok(n as usize),
                _ => Err(unsupported(&field, value, &list)),
            },
            (None, Some(n)) => Ok(n as usize),
            (None, None) => Err(ConfigError::Missing { field, accepted: list }),
        }
    };
    if let Some(mode) = entry.get("mode").filter(|mode| mode.as_str() != Some("affine")) {
        return Err(unsupported(&format!("{path}.mode"), mode, "\"affine\""));
    }
    Ok(Quantization { bits: whole("bits", &[4, 8], None)?, group_size: whole("group_size", &[32, 64, 128], Some(64))? })
}

fn expect_text(map: &Map<String, Value>, name: &str, prefix: &str, accepted: &[&str]) -> Result<(), ConfigError> {
    let field = format!("{prefix}{name}");
    match map.get(name) {
        None => Err(ConfigError::Missing { field, accepted: accepted.join(", ") }),
        Some(Value::String(found)) if accepted.contains(&found.as_str()) => Ok(()),
        Some(other) => Err(unsupported(&field, other, &accepted.join(", "))),
    }
}

pub(super) fn unsupported(field: &str, value: &Value, accepted: &str) -> ConfigError {
    ConfigError::Unsupported { field: field.into(), value: json::shortened(value), accepted: accepted.into() }
}
