//! JSON of files from strangers: UTF-8, no repeated key. `serde_json` alone lets the last of two equal keys win, so two
//! readers of one file could see two different models.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Parses JSON, refusing text that is not UTF-8 or repeats a key; the message names the key.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(bytes).map_err(|e| format!("not UTF-8 at byte {}", e.valid_up_to()))?;
    serde_json::from_str::<Strict>(text).map(|strict| strict.0).map_err(|e| format!("not valid JSON: {e}"))
}

/// The text of a value for an error message, cut to about 120 bytes.
pub(crate) fn shortened(value: &Value) -> String {
    let mut text = value.to_string();
    if text.len() > 120 {
        let cut = (0..=117).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
        text.truncate(cut);
        text.push_str("...");
    }
    text
}

/// A value whose objects repeat no key.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(value)) = seq.next_element()? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("key {key:?} appears twice")));
            }
            let Strict(value) = access.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_appears_twice_is_named() {
        let error = parse(br#"{"a": {"b": 1, "b": 2}}"#).unwrap_err();
        assert!(error.contains("\"b\" appears twice"), "{error}");
        assert_eq!(parse(br#"{"a": {"b": 1}, "b": [1, -2, 0.5, null, "x"]}"#).unwrap()["b"][1], -2);
    }

    #[test]
    fn bytes_that_are_not_utf8_are_refused_with_their_position() {
        assert_eq!(parse(b"{\"a\": \"\xff\"}").unwrap_err(), "not UTF-8 at byte 7");
    }

    #[test]
    fn nesting_is_bounded() {
        assert!(parse("[".repeat(100_000).as_bytes()).is_err());
    }
}
