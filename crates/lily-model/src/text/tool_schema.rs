//! The parameter types of the tools that a request offers.
//!
//! A call's values arrive as text; which of them are JSON and which are strings, the tool's JSON schema decides. This
//! file reduces a parameter's schema to the set of JSON types it allows, and decides what a value's text is.
//! The rules, in order:
//! - only strings allowed: the text, untouched (a zip code keeps its zero, `null` is a word);
//! - the text is JSON of an allowed type other than string: that JSON. `True`, `False` and `None` count where no string
//!   is allowed, and `5.0` counts as an integer;
//! - anything else: a string, also where the schema allows none (a number that does not parse is not lost).
//!
//! A schema that allows every type (`{}`) follows the same rules. A parameter that the schema does not list has the
//! type of `additionalProperties`, or else is a string, as is every parameter of an unknown tool.

use std::collections::HashMap;

use serde_json::Value as Json;

/// Schemas looked at for one parameter; more is a schema made to explode, and its parameter may be anything.
const MAX_STEPS: usize = 2_000;

/// A set of JSON types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Types(u8);

impl Types {
    const NONE: Self = Self(0);
    pub const STRING: Self = Self(1);
    pub const NULL: Self = Self(2);
    const BOOLEAN: Self = Self(4);
    const INTEGER: Self = Self(8);
    /// Includes integers.
    const NUMBER: Self = Self(16 | 8);
    const OBJECT: Self = Self(32);
    const ARRAY: Self = Self(64);
    const ANY: Self = Self(127);

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "null" => Self::NULL,
            "boolean" => Self::BOOLEAN,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "object" => Self::OBJECT,
            "array" => Self::ARRAY,
            _ => Self::NONE,
        }
    }

    fn of_value(value: &Json) -> Self {
        match value {
            Json::String(_) => Self::STRING,
            Json::Null => Self::NULL,
            Json::Bool(_) => Self::BOOLEAN,
            Json::Number(_) => Self::NUMBER,
            Json::Object(_) => Self::OBJECT,
            Json::Array(_) => Self::ARRAY,
        }
    }

    const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether every type of `self` is in `other`.
    pub const fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// String, or string and null: what can be shown before it is complete.
    pub const STRING_OR_NULL: Self = Self::STRING.or(Self::NULL);

    /// The JSON that `text` stands for; `None` if it is a string.
    pub fn json(self, text: &str) -> Option<&str> {
        let text = text.trim();
        let (json, found) = match text {
            "" => return None,
            "True" | "False" | "None" if Self::STRING.within(self) => return None,
            "True" => ("true", Self::BOOLEAN),
            "False" => ("false", Self::BOOLEAN),
            "None" => ("null", Self::NULL),
            _ => (text, json_type(text)?),
        };
        found.within(self).then_some(json)
    }
}

/// The type of a complete JSON text that is no string. Numbers are what fits a double.
fn json_type(text: &str) -> Option<Types> {
    // Parsed into a tree although only its type is wanted: that refuses nesting which a client could not read.
    match serde_json::from_str(text).ok()? {
        Json::String(_) => None,
        Json::Number(number) if number.as_f64().is_some_and(|n| n.fract() == 0.0) => Some(Types::INTEGER),
        value => Some(Types::of_value(&value)),
    }
}

/// The tools of a request, by name.
#[derive(Debug, Clone, Default)]
pub struct ToolSchemas {
    tools: HashMap<String, Parameters>,
}

#[derive(Debug, Clone)]
struct Parameters {
    named: HashMap<String, Types>,
    others: Types,
}

impl ToolSchemas {
    /// Reads OpenAI's tool definitions (`{"type": "function", "function": {…}}`, or the function alone). Entries that
    /// are no function are left out.
    pub fn new(tools: &[Json]) -> Self {
        let function = |tool: &Json| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            Some((name, Parameters::of(function.get("parameters").unwrap_or(&Json::Null))))
        };
        Self { tools: tools.iter().filter_map(function).collect() }
    }

    /// Whether a tool of this name is offered.
    pub fn contains(&self, name: &str) -> bool {
        self.tools.contains_key(name)
    }

    /// The types that parameter `key` of tool `name` allows.
    pub(crate) fn types(&self, name: &str, key: &str) -> Types {
        self.tools.get(name).map_or(Types::STRING, |p| p.named.get(key).copied().unwrap_or(p.others))
    }
}

impl Parameters {
    fn of(schema: &Json) -> Self {
        let mut named = HashMap::new();
        let mut object = schema;
        // A schema that is a reference to an object as a whole.
        for _ in 0..8 {
            match object.get("$ref").and_then(Json::as_str).and_then(|r| resolve(schema, r)) {
                Some(target) => object = target,
                None => break,
            }
        }
        if let Some(properties) = object.get("properties").and_then(Json::as_object) {
            for (key, property) in properties {
                named.insert(key.clone(), Reader { root: schema, steps: 0 }.types(property));
            }
        }
        let others = match object.get("additionalProperties") {
            Some(others @ Json::Object(_)) => Reader { root: schema, steps: 0 }.types(others),
            _ => Types::STRING,
        };
        Self { named, others }
    }
}

/// The target of a local reference (`#/$defs/Name`).
fn resolve<'a>(root: &'a Json, reference: &str) -> Option<&'a Json> {
    root.pointer(reference.strip_prefix('#')?)
}

struct Reader<'a> {
    root: &'a Json,
    steps: usize,
}

impl Reader<'_> {
    /// The types of a parameter: at least one.
    fn types(&mut self, schema: &Json) -> Types {
        match self.read(schema, 0) {
            Types::NONE => Types::STRING,
            types => types,
        }
    }

    fn read(&mut self, schema: &Json, depth: usize) -> Types {
        self.steps += 1;
        let Some(schema) = schema.as_object().filter(|_| self.steps <= MAX_STEPS && depth < 64) else {
            return Types::ANY;
        };
        let mut types = Types::ANY;
        for (keyword, value) in schema {
            types = types.and(match (keyword.as_str(), value) {
                ("$ref", Json::String(reference)) => match resolve(self.root, reference) {
                    Some(target) => self.read(target, depth + 1),
                    None => Types::ANY,
                },
                ("type", Json::String(name)) => Types::named(name),
                ("type", Json::Array(names)) => union(names.iter().filter_map(Json::as_str).map(Types::named)),
                ("const", value) => Types::of_value(value),
                ("enum", Json::Array(values)) => union(values.iter().map(Types::of_value)),
                ("anyOf" | "oneOf", Json::Array(schemas)) => union(schemas.iter().map(|s| self.read(s, depth + 1))),
                ("allOf", Json::Array(schemas)) => {
                    schemas.iter().fold(Types::ANY, |all, s| all.and(self.read(s, depth + 1)))
                }
                _ => Types::ANY,
            });
        }
        if types == Types::ANY {
            types = implied(schema);
        }
        match schema.get("nullable") {
            Some(Json::Bool(true)) => types.or(Types::NULL),
            _ => types,
        }
    }
}

fn union(types: impl Iterator<Item = Types>) -> Types {
    types.fold(Types::NONE, Types::or)
}

/// What the keywords of a schema without a type are about.
fn implied(schema: &serde_json::Map<String, Json>) -> Types {
    let about = |keyword: &str| match keyword {
        "properties" | "required" | "additionalProperties" | "patternProperties" => Types::OBJECT,
        "items" | "prefixItems" | "minItems" | "maxItems" => Types::ARRAY,
        "pattern" | "minLength" | "maxLength" | "format" => Types::STRING,
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => Types::NUMBER,
        _ => Types::NONE,
    };
    match union(schema.keys().map(|keyword| about(keyword))) {
        Types::NONE => Types::ANY,
        types => types,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What parameter `x` of schema `property` makes of `text`: JSON, or `None` for a string.
    fn value<'a>(property: &Json, text: &'a str) -> Option<&'a str> {
        let schema = json!({"type": "object", "properties": {"x": property}, "$defs": {
            "Color": {"enum": ["red", "blue"]}, "Point": {"properties": {"x": {}}}, "Loop": {"$ref": "#/$defs/Loop"},
            "Many": {"anyOf": [{"$ref": "#/$defs/Many"}, {"$ref": "#/$defs/Many"}]},
        }});
        let tools = ToolSchemas::new(&[json!({"type": "function", "function": {"name": "f", "parameters": schema}})]);
        tools.types("f", "x").json(text)
    }

    #[test]
    fn strings_stay_strings() {
        for text in ["02134", "12", "null", "true", "{}", "[1]", "\"quoted\"", "1e5"] {
            assert_eq!(value(&json!({"type": "string"}), text), None);
            assert_eq!(value(&json!({"enum": ["12", "null"]}), text), None);
            assert_eq!(value(&json!({"$ref": "#/$defs/Color"}), text), None);
        }
    }

    #[test]
    fn values_of_an_allowed_type_are_json() {
        let cases = [
            (json!({"type": "integer"}), " 42\n", Some("42")),
            (json!({"type": "integer"}), "123456789012345678901234567890", Some("123456789012345678901234567890")),
            (json!({"type": "integer"}), "5.0", Some("5.0")),
            (json!({"type": "integer"}), "5.5", None),
            (json!({"type": "integer"}), "five", None),
            (json!({"type": "integer"}), "02134", None),
            (json!({"type": "number"}), "-1.5e3", Some("-1.5e3")),
            (json!({"type": "number"}), "1e400", None),
            (json!({"type": "number"}), "NaN", None),
            (json!({"type": "number"}), "7", Some("7")),
            (json!({"type": "boolean"}), "true", Some("true")),
            (json!({"type": "boolean"}), "False", Some("false")),
            (json!({"type": "boolean"}), "yes", None),
            (json!({"type": "object"}), "{\"a\": [1, {}]}", Some("{\"a\": [1, {}]}")),
            (json!({"type": "object"}), "{\"a\": ", None),
            (json!({"type": "object"}), "[]", None),
            (json!({"type": "array"}), "[1, 2]", Some("[1, 2]")),
            (json!({"type": ["string", "null"]}), "null", Some("null")),
            (json!({"type": ["string", "null"]}), "None", None),
            (json!({"type": ["integer", "null"]}), "None", Some("null")),
            (json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), "7", Some("7")),
            (json!({"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}), "{\"x\": 1}", Some("{\"x\": 1}")),
            (json!({"oneOf": [{"type": "string"}, {"type": "array"}]}), "[\"a\"]", Some("[\"a\"]")),
            (json!({"allOf": [{"type": ["integer", "string"]}, {"type": "string"}]}), "7", None),
            (json!({"enum": [1, 2, "all"]}), "2", Some("2")),
            (json!({"const": true}), "true", Some("true")),
            (json!({"type": "string", "nullable": true}), "null", Some("null")),
            (json!({"minimum": 0}), "3", Some("3")),
            (json!({"description": "anything"}), "3", Some("3")),
            (json!({"description": "anything"}), "text", None),
            (json!(true), "[]", Some("[]")),
            (json!({"type": "integer"}), "", None),
        ];
        for (schema, text, expected) in cases {
            assert_eq!(value(&schema, text), expected, "{schema} {text:?}");
        }
    }

    #[test]
    fn schemas_made_to_explode_or_loop_end() {
        for name in ["Loop", "Many", "Missing"] {
            assert_eq!(value(&json!({"$ref": format!("#/$defs/{name}")}), "3"), Some("3"));
        }
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert_eq!(value(&json!({"type": "array"}), &deep), None);
    }

    #[test]
    fn unknown_tools_and_parameters_are_strings_unless_the_schema_says_otherwise() {
        let tools = [
            json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}}}}),
            json!({"name": "g", "parameters": {"additionalProperties": {"type": "integer"}}}),
            json!("not a tool"),
        ];
        let tools = ToolSchemas::new(&tools);
        assert_eq!(tools.types("f", "x").json("1"), Some("1"));
        assert_eq!(tools.types("f", "y"), Types::STRING);
        assert_eq!(tools.types("g", "y").json("1"), Some("1"));
        assert_eq!(tools.types("h", "x"), Types::STRING);
        assert!(tools.contains("g") && !tools.contains("h"));
    }
}
