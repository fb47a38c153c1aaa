//! What a schema or grammar may cost, checked before it is compiled.

use std::collections::BTreeSet;

use serde_json::Value;

use super::ConstraintError;

/// Bytes of a schema as JSON.
const MAX_SCHEMA_BYTES: usize = 256 << 10;
/// Bytes of a grammar or a regular expression: compiling one of 200 kB takes most of a second.
const MAX_GRAMMAR_BYTES: usize = 32 << 10;
/// Values in a schema.
const MAX_NODES: usize = 20_000;
/// Levels of a schema.
const MAX_DEPTH: usize = 64;
/// Bounds on lengths and counts: automata grow with them.
const MAX_COUNT: f64 = 10_000.0;
const COUNTED: [&str; 7] =
    ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "multipleOf"];

/// Schemas that join others. Divisors that meet need an automaton as large as their product.
const JOINING: [&str; 5] = ["allOf", "anyOf", "oneOf", "not", "$ref"];
/// Product of the different `multipleOf` of a schema that joins others: this many states take about four seconds.
const MAX_DIVISORS: f64 = 1e6;

/// Refuses a text that is too long.
pub(super) fn check_text(what: &str, text: &str) -> Result<(), ConstraintError> {
    if text.len() > MAX_GRAMMAR_BYTES {
        return Err(too_complex(what, format!("{} bytes (accepted: at most {MAX_GRAMMAR_BYTES})", text.len())));
    }
    Ok(())
}

/// Refuses a schema that is too large, too deep, or counts too far; says where.
pub(super) fn check_schema(what: &str, schema: &Value) -> Result<(), ConstraintError> {
    let mut nodes = 0;
    let mut bytes = 0;
    let (mut divisors, mut joins) = (BTreeSet::new(), false);
    let mut stack = vec![(schema, 0usize, String::new())];
    while let Some((value, depth, path)) = stack.pop() {
        nodes += 1;
        if nodes > MAX_NODES {
            return Err(too_complex(what, format!("more than {MAX_NODES} values (accepted: at most {MAX_NODES})")));
        }
        if depth > MAX_DEPTH {
            return Err(too_complex(
                what,
                format!("more than {MAX_DEPTH} levels at {} (accepted: at most {MAX_DEPTH})", shorten(&path)),
            ));
        }
        match value {
            Value::Object(map) => {
                for (key, inner) in map {
                    bytes += key.len() + 4;
                    joins |= JOINING.contains(&key.as_str());
                    if key == "multipleOf" {
                        divisors.extend(inner.as_u64());
                    }
                    if COUNTED.contains(&key.as_str()) && inner.as_f64().is_some_and(|n| n > MAX_COUNT) {
                        let reason = format!("{path}/{key} is {inner} (accepted: at most {MAX_COUNT})");
                        return Err(too_complex(what, reason));
                    }
                    stack.push((inner, depth + 1, format!("{path}/{}", escape(key))));
                }
            }
            Value::Array(list) => {
                let items = list.iter().enumerate();
                stack.extend(items.map(|(i, inner)| (inner, depth + 1, format!("{path}/{i}"))));
            }
            Value::String(text) => bytes += text.len(),
            _ => bytes += 4,
        }
        if bytes > MAX_SCHEMA_BYTES {
            return Err(too_complex(
                what,
                format!("more than {MAX_SCHEMA_BYTES} bytes (accepted: at most {MAX_SCHEMA_BYTES})"),
            ));
        }
    }
    let product: f64 = divisors.iter().map(|&divisor| divisor as f64).product();
    if joins && product > MAX_DIVISORS {
        return Err(too_complex(what, format!("its multipleOf come to {product} (accepted: at most {MAX_DIVISORS})")));
    }
    Ok(())
}

/// A key as part of a JSON pointer.
pub(super) fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn shorten(path: &str) -> String {
    path.chars().take(120).collect()
}

pub(super) fn too_complex(what: &str, reason: String) -> ConstraintError {
    ConstraintError::TooComplex { what: what.into(), reason }
}
