//! Strict reading of a JSON object: every field is taken by name and type, errors carry its path, and what is left at the
//! end is refused by name unless the reader lists it as harmless. `null` counts as absent, as OpenAI's clients mean it.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;

/// The fields of one JSON object that have not been taken yet.
#[derive(Debug)]
pub struct Fields {
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// The fields of a request's top level.
    pub fn top(value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Fields { path: String::new(), map }),
            other => Err(ApiError::not_json(format!("the body is a JSON {} (accepted: an object)", type_name(&other)))),
        }
    }

    /// The fields of the object at `path`.
    pub fn of(path: impl Into<String>, value: Value) -> Result<Self, ApiError> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Fields { path, map }),
            other => Err(ApiError::value(&path, &other, "an object")),
        }
    }

    /// Path of a field of this object.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Path of this object.
    pub fn own_path(&self) -> &str {
        &self.path
    }

    /// Whether a field is there and has not been taken.
    pub fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// Takes a field as it is.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// Takes a text.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(ApiError::value(&self.path(name), &other, "a text")),
        }
    }

    /// Takes a text that must be there.
    pub fn required_text(&mut self, name: &str) -> Result<String, ApiError> {
        self.text(name)?.ok_or_else(|| ApiError::missing(&self.path(name), "a text"))
    }

    /// Takes true or false.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(ApiError::value(&self.path(name), &other, "true or false")),
        }
    }

    /// Takes a number within a range.
    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if range.contains(&number) => Ok(Some(number as f32)),
            _ => {
                let accepted = format!("a number from {} to {}", range.start(), range.end());
                Err(ApiError::value(&self.path(name), &value, &accepted))
            }
        }
    }

    /// Takes a whole number within a range.
    pub fn whole(&mut self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_u64() {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => {
                let accepted = format!("a whole number from {} to {}", range.start(), range.end());
                Err(ApiError::value(&self.path(name), &value, &accepted))
            }
        }
    }

    /// Takes a list.
    pub fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(ApiError::value(&self.path(name), &other, "a list")),
        }
    }

    /// Takes an object.
    pub fn object(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => Fields::of(self.path(name), value).map(Some),
        }
    }

    /// Takes one of some words.
    pub fn word(&mut self, name: &str, accepted: &[&'static str]) -> Result<Option<&'static str>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match accepted.iter().find(|word| value.as_str() == Some(word)) {
            Some(word) => Ok(Some(word)),
            None => Err(ApiError::value(&self.path(name), &value, &accepted.join(", "))),
        }
    }

    /// Drops fields that may be ignored.
    pub fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.map.remove(*name);
        }
    }

    /// Refuses whatever has not been taken.
    pub fn finish(self) -> Result<(), ApiError> {
        match self.map.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => Err(ApiError::unknown(&self.path(name))),
        }
    }

    /// What has not been taken.
    pub fn into_rest(self) -> Map<String, Value> {
        self.map
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

/// Parses a request body. The error names the nearest field before the place where the text stops being JSON.
pub fn parse(body: &[u8]) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(body).map_err(|error| {
        ApiError::not_json(format!("the body is not UTF-8 (first wrong byte at {})", error.valid_up_to()))
    })?;
    serde_json::from_str(text).map_err(|error| {
        let before: String =
            text.split_inclusive('\n').take(error.line()).enumerate().fold(String::new(), |mut all, (index, line)| {
                let whole = index + 1 < error.line();
                all.push_str(if whole { line } else { line.get(..error.column().min(line.len())).unwrap_or(line) });
                all
            });
        let near = field_before(&before);
        let place = near.as_deref().map(|name| format!(", near the field `{name}`")).unwrap_or_default();
        ApiError { param: near, ..ApiError::not_json(format!("the body is not valid JSON: {error}{place}")) }
    })
}

/// The last `"name":` of a JSON text, as far as it can be told from a broken one.
fn field_before(text: &str) -> Option<String> {
    let mut parts: Vec<&str> = text.split('"').collect();
    while parts.len() >= 3 {
        let after = parts.pop()?;
        if after.trim_start().starts_with(':') {
            return parts.pop().filter(|name| name.len() <= 64).map(str::to_owned);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_number_out_of_range_or_of_another_type_is_refused_with_the_range() {
        for value in [json!(-1), json!(3), json!("1"), json!(true)] {
            let mut fields = Fields::top(json!({"temperature": value})).expect("an object");
            let error = fields.number("temperature", 0.0..=2.0).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some("temperature"));
            assert!(error.message.contains("from 0 to 2"), "{}", error.message);
        }
    }

    #[test]
    fn what_is_left_is_refused_by_its_path_unless_it_is_null() {
        let mut fields = Fields::top(json!({"a": {"b": null, "c": 1}})).expect("an object");
        let inner = fields.object("a").expect("an object").expect("present");
        assert_eq!(inner.finish().expect_err("refused").param.as_deref(), Some("a.c"));
    }

    #[test]
    fn broken_json_names_the_field_where_it_breaks() {
        for (text, name) in [
            (r#"{"messages": [], "temperature": 1e400}"#, Some("temperature")),
            (r#"{"temperature": NaN}"#, Some("temperature")),
            ("{\n\"max_tokens\": -}", Some("max_tokens")),
            ("", None),
        ] {
            assert_eq!(parse(text.as_bytes()).expect_err("refused").param.as_deref(), name, "{text}");
        }
    }
}
