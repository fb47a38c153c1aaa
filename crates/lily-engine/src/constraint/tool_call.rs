//! Qwen's tool-call format as a Lark grammar: parameters in the order in which the tool declares them, required ones
//! always, strings raw, everything else JSON of the parameter's schema.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::{ToolCallCount, ToolSpec};

/// The grammar of one or more calls to any of `tools`.
pub(super) fn grammar(tools: &[ToolSpec], calls: ToolCallCount) -> String {
    let mut g = String::new();
    g.push_str(match calls {
        ToolCallCount::One => "start: call\n",
        ToolCallCount::Many => "start: call (\"\\n\" call)*\n",
    });
    let names: Vec<String> = (0..tools.len()).map(|i| format!("function_{i}")).collect();
    let _ = writeln!(g, "call: \"<tool_call>\\n\" function \"\\n</tool_call>\"");
    let _ = writeln!(g, "function: {}", names.join(" | "));
    for (i, tool) in tools.iter().enumerate() {
        function(&mut g, i, tool);
    }
    // The end of a raw value is the first closing tag on a line of its own.
    g.push_str("raw[suffix=\"\\n</parameter>\\n\"]: /(?s:.*)/\n");
    g.push_str("any_name: /[A-Za-z_][A-Za-z0-9_.-]{0,63}/\n");
    g
}

/// Writing into a `String` cannot fail: the results of `write!` are dropped.
fn function(g: &mut String, index: usize, tool: &ToolSpec) {
    let open = literal(&format!("<function={}>\n", tool.name));
    let properties = tool.parameters.get("properties").and_then(Value::as_object);
    let required: Vec<&str> = tool
        .parameters
        .get("required")
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let closed = tool.parameters.get("additionalProperties") == Some(&Value::Bool(false));
    let mut parts = Vec::new();
    let mut rules = String::new();
    for (n, (key, schema)) in properties.into_iter().flatten().enumerate() {
        let name = format!("parameter_{index}_{n}");
        let mark = if required.contains(&key.as_str()) { "" } else { "?" };
        parts.push(format!("{name}{mark}"));
        let tag = literal(&format!("<parameter={key}>\n"));
        let _ = writeln!(rules, "{name}: {tag} {}", value(schema, &tool.parameters));
    }
    if properties.is_none_or(Map::is_empty) && !closed {
        parts.push("any_parameter*".into());
        if !g.contains("any_parameter:") {
            g.push_str("any_parameter: \"<parameter=\" any_name \">\\n\" raw\n");
        }
    }
    let _ = writeln!(g, "function_{index}: {open} {} \"</function>\"", parts.join(" "));
    g.push_str(&rules);
}

/// What a parameter of this schema may be, closing tag included.
fn value(schema: &Value, root: &Value) -> String {
    let close = "\"\\n</parameter>\\n\"";
    let choices =
        schema.get("enum").and_then(Value::as_array).cloned().or_else(|| schema.get("const").map(|c| vec![c.clone()]));
    if let Some(choices) = choices.filter(|c| !c.is_empty()) {
        let texts: Vec<String> = choices
            .iter()
            .map(|c| match c {
                Value::String(text) => literal(text),
                other => literal(&other.to_string()),
            })
            .collect();
        return format!("({}) {close}", texts.join(" | "));
    }
    if may_be_text(schema, root, 0) {
        return "raw".into();
    }
    format!("%json {} {close}", with_definitions(schema, root))
}

/// Whether a value may be a string, or of any type: such values are written raw.
fn may_be_text(schema: &Value, root: &Value, depth: usize) -> bool {
    if depth > 8 {
        return true;
    }
    let Some(object) = schema.as_object() else { return true };
    if let Some(target) = object.get("$ref").and_then(Value::as_str) {
        let found = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return found.is_none_or(|inner| may_be_text(inner, root, depth + 1));
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(list) = object.get(key).and_then(Value::as_array) {
            return list.iter().any(|inner| may_be_text(inner, root, depth + 1));
        }
    }
    match object.get("type") {
        Some(Value::String(name)) => name == "string",
        Some(Value::Array(names)) => names.iter().any(|n| n == "string"),
        _ => !object.contains_key("properties") && !object.contains_key("items"),
    }
}

/// The schema with the tool's own definitions, so that its references resolve.
fn with_definitions(schema: &Value, root: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(object) = schema.as_object_mut() {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(key).filter(|_| !object.contains_key(key)) {
                object.insert(key.into(), definitions.clone());
            }
        }
    }
    schema
}

/// A Lark string literal.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}
