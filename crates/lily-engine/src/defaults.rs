//! `generation_config.json`: end-of-sequence ids and sampling defaults.

use serde_json::Value;

use crate::sampler::{SamplingError, SamplingParams};

/// What a checkpoint says about generation.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationDefaults {
    /// Ids that end a generation.
    pub eos_token_ids: Vec<u32>,
    /// Sampling where the request does not say otherwise.
    pub sampling: SamplingParams,
}

/// Why a `generation_config.json` is not usable.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DefaultsError {
    /// Not a JSON object.
    #[error("generation_config.json is not a JSON object: {0}")]
    NotJson(String),
    /// A field has a value that is not supported.
    #[error("generation_config.json: `{field}` is {value} (accepted: {accepted})")]
    Unsupported {
        /// The field.
        field: &'static str,
        /// Its value as JSON.
        value: String,
        /// What would have been accepted.
        accepted: &'static str,
    },
    /// A sampling value is out of range.
    #[error("generation_config.json: {0}")]
    Sampling(#[from] SamplingError),
}

impl GenerationDefaults {
    /// Parses `generation_config.json`. Missing sampling fields keep [`SamplingParams::default`]; `do_sample: false` makes the
    /// default greedy; fields without a meaning here (`bos_token_id`, `pad_token_id`, …) are ignored.
    pub fn from_json(text: &str) -> Result<Self, DefaultsError> {
        let value: Value = serde_json::from_str(text).map_err(|e| DefaultsError::NotJson(e.to_string()))?;
        let object = value.as_object().ok_or_else(|| DefaultsError::NotJson("the top level is another type".into()))?;
        let present = |field: &'static str| object.get(field).filter(|v| !v.is_null());
        let number = |field: &'static str| match present(field) {
            None => Ok(None),
            Some(v) => v.as_f64().map(|n| Some(n as f32)).ok_or_else(|| unsupported(field, v, "a number")),
        };
        let mut sampling = SamplingParams::default();
        if let Some(t) = number("temperature")? {
            sampling.temperature = t;
        }
        if let Some(p) = number("top_p")? {
            sampling.top_p = p;
        }
        if let Some(p) = number("min_p")? {
            sampling.min_p = p;
        }
        if let Some(p) = number("repetition_penalty")? {
            sampling.repetition_penalty = p;
        }
        if let Some(v) = present("top_k") {
            sampling.top_k = match v.as_u64() {
                Some(k) if k <= u64::from(u32::MAX) => k as usize,
                _ => return Err(unsupported("top_k", v, "a whole number; 0 = off")),
            };
        }
        match present("do_sample") {
            None | Some(Value::Bool(true)) => {}
            Some(Value::Bool(false)) => sampling.temperature = 0.0,
            Some(v) => return Err(unsupported("do_sample", v, "true or false")),
        }
        sampling.validate()?;
        Ok(GenerationDefaults { eos_token_ids: eos_ids(present("eos_token_id"))?, sampling })
    }
}

fn eos_ids(value: Option<&Value>) -> Result<Vec<u32>, DefaultsError> {
    let accepted = "a token id or a list of token ids";
    let id = |v: &Value| {
        v.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(|| unsupported("eos_token_id", v, accepted))
    };
    match value {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(id).collect(),
        Some(one) => Ok(vec![id(one)?]),
    }
}

fn unsupported(field: &'static str, value: &Value, accepted: &'static str) -> DefaultsError {
    DefaultsError::Unsupported { field, value: value.to_string(), accepted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_file_gives_its_ids_and_sampling() {
        let text = r#"{"bos_token_id": 248044, "do_sample": true, "eos_token_id": [248046, 248044],
            "pad_token_id": 248044, "temperature": 1.0, "top_k": 20, "top_p": 0.95}"#;
        let defaults = GenerationDefaults::from_json(text).unwrap();
        assert_eq!(defaults.eos_token_ids, [248_046, 248_044]);
        assert_eq!((defaults.sampling.top_k, defaults.sampling.top_p), (20, 0.95));
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named() {
        for (text, field) in [
            (r#"{"top_k": "x"}"#, "top_k"),
            (r#"{"eos_token_id": [1, -2]}"#, "eos_token_id"),
            (r#"{"top_p": 7}"#, "top_p"),
            ("[]", "object"),
        ] {
            let error = GenerationDefaults::from_json(text).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
