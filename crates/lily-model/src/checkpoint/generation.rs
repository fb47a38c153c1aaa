//! `generation_config.json`: which ids end a text, and the sampling defaults the model's makers recommend.

use serde_json::{Map, Value};

use super::CheckpointError;
use crate::json;

/// Sampling defaults and end ids. A field the file does not have is neutral: it changes nothing about the distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationConfig {
    /// Ids that end a text (`eos_token_id`, one id or a list). From config.json when there is no generation config.
    pub eos_token_ids: Vec<u32>,
    /// Divides the logits; 0 means greedy, and is what `do_sample: false` gives.
    pub temperature: f32,
    /// Most candidates; 0 means no limit.
    pub top_k: usize,
    /// Smallest set of candidates with at least this much probability; 1 means all.
    pub top_p: f32,
    /// Candidates with at least this share of the best one's probability; 0 means all.
    pub min_p: f32,
    /// Divides (or, when negative, multiplies) the logits of ids that have occurred; 1 means none.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of ids that have occurred; 0 means none.
    pub presence_penalty: f32,
    /// Subtracted from the logits of ids once for each occurrence; 0 means none.
    pub frequency_penalty: f32,
}

/// Reads the file's text; without one, the end ids of `config` (the top level of config.json).
pub(super) fn parse(
    text: Option<&[u8]>,
    config: &Value,
    vocab_size: usize,
) -> Result<GenerationConfig, CheckpointError> {
    let name = "generation_config.json";
    let own = match text {
        None => Value::Object(Map::new()),
        Some(bytes) => json::parse(bytes).map_err(|reason| CheckpointError::Json { file: name.into(), reason })?,
    };
    let Value::Object(map) = &own else {
        return Err(CheckpointError::Json { file: name.into(), reason: "not a JSON object".into() });
    };
    let fields = Fields { file: name, map };
    let mut eos_token_ids = fields.ids("eos_token_id", vocab_size)?;
    if eos_token_ids.is_empty() {
        for level in [Some(config), config.get("text_config")].into_iter().flatten() {
            if let (true, Value::Object(map)) = (eos_token_ids.is_empty(), level) {
                eos_token_ids = Fields { file: "config.json", map }.ids("eos_token_id", vocab_size)?;
            }
        }
    }
    let temperature = fields.number("temperature", 1.0, "a number from 0 to 100", |t| (0.0..=100.0).contains(&t))?;
    let penalty = |name| fields.number(name, 0.0, "a number from -100 to 100", |p| (-100.0..=100.0).contains(&p));
    Ok(GenerationConfig {
        eos_token_ids,
        temperature: if fields.sampling()? { temperature } else { 0.0 },
        top_k: fields.count("top_k")?,
        top_p: fields.number("top_p", 1.0, "a number above 0, at most 1", |p| p > 0.0 && p <= 1.0)?,
        min_p: fields.number("min_p", 0.0, "a number from 0 to 1", |p| (0.0..=1.0).contains(&p))?,
        repetition_penalty: fields
            .number("repetition_penalty", 1.0, "a number above 0, at most 100", |p| p > 0.0 && p <= 100.0)?,
        presence_penalty: penalty("presence_penalty")?,
        frequency_penalty: penalty("frequency_penalty")?,
    })
}

/// An object of a file, read field by field. `null` counts as absent.
struct Fields<'a> {
    file: &'static str,
    map: &'a Map<String, Value>,
}

impl Fields<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn refuse(&self, name: &str, value: &Value, accepted: &str) -> CheckpointError {
        CheckpointError::Field {
            file: self.file.into(),
            field: name.into(),
            value: json::shortened(value),
            accepted: accepted.into(),
        }
    }

    fn number(
        &self,
        name: &str,
        absent: f32,
        accepted: &str,
        is_accepted: impl Fn(f32) -> bool,
    ) -> Result<f32, CheckpointError> {
        let Some(value) = self.get(name) else { return Ok(absent) };
        match value.as_f64().map(|v| v as f32) {
            Some(number) if is_accepted(number) => Ok(number),
            _ => Err(self.refuse(name, value, accepted)),
        }
    }

    fn count(&self, name: &str) -> Result<usize, CheckpointError> {
        let Some(value) = self.get(name) else { return Ok(0) };
        match value.as_u64().and_then(|n| u32::try_from(n).ok()) {
            Some(n) => Ok(n as usize),
            None => Err(self.refuse(name, value, "a whole number from 0 to 4294967295")),
        }
    }

    fn sampling(&self) -> Result<bool, CheckpointError> {
        match self.get("do_sample") {
            None => Ok(true),
            Some(Value::Bool(sample)) => Ok(*sample),
            Some(value) => Err(self.refuse("do_sample", value, "true or false")),
        }
    }

    /// One id or a list of ids, in the order given, without repetitions.
    fn ids(&self, name: &str, vocab_size: usize) -> Result<Vec<u32>, CheckpointError> {
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let list = match value {
            Value::Array(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        let mut ids = Vec::with_capacity(list.len().min(vocab_size));
        for entry in list {
            match entry.as_u64() {
                Some(id) if id < vocab_size as u64 => {
                    if !ids.contains(&(id as u32)) {
                        ids.push(id as u32);
                    }
                }
                _ => {
                    let accepted = format!("an id below the vocab_size of {vocab_size}, or a list of them");
                    return Err(self.refuse(name, entry, &accepted));
                }
            }
        }
        Ok(ids)
    }
}
