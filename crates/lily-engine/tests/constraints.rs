//! Constraints: whatever the model would say, the answer keeps its form; what cannot be kept is refused with the place.

mod oracle;

use std::time::{Duration, Instant};

use lily_engine::constraint::{ConstraintError, ConstraintSpec, TokenMask, ToolCallCount, ToolSpec};
use lily_engine::{Engine, FinishReason, Request, SamplingParams, Thinking};
use oracle::*;
use serde_json::{Value, json};

/// Walks at random through what a mask allows, ending as soon as it may (after `least` tokens). Gives the text.
fn walk(mask: &mut dyn TokenMask, seed: u64, least: usize) -> String {
    let tokenizer = tokenizer();
    let mut ids = Vec::new();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for step in 0..3000 {
        let allowed = mask.allowed().unwrap();
        if allowed.contains(EOS) && step >= least {
            return tokenizer.decode(&ids);
        }
        let choices: Vec<u32> =
            (0..VOCAB as u32).filter(|&id| allowed.contains(id) && id != EOS && id != 456).collect();
        if choices.is_empty() {
            return tokenizer.decode(&ids);
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Structure more often than filling, so that walks end.
        let closing = choices.iter().copied().filter(|&id| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            bytes.iter().any(|b| b"\"}]<>\n".contains(b))
        });
        let closing: Vec<u32> = closing.collect();
        // A raw value ends only by its closing tag, letter by letter.
        let text = tokenizer.decode(&ids);
        let close = "\n</parameter>\n";
        let done = (0..close.len()).rev().find(|&n| text.ends_with(&close[..n])).unwrap_or(0);
        let next =
            choices.iter().copied().find(|&id| tokenizer.token_bytes(id) == Some(&close.as_bytes()[done..done + 1]));
        if let (true, Some(id)) = (step > 12, next) {
            mask.advance(id).unwrap();
            ids.push(id);
            continue;
        }
        let pool = if !state.is_multiple_of(4) && !closing.is_empty() { &closing } else { &choices };
        let id = pool[(state >> 20) as usize % pool.len()];
        mask.advance(id).unwrap();
        ids.push(id);
    }
    panic!("the walk does not end: {}", tokenizer.decode(&ids));
}

fn compile(engine: &Engine, spec: &ConstraintSpec) -> Box<dyn TokenMask> {
    engine.compile_constraint(spec).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn any_walk_through_a_json_schema_gives_what_the_schema_says() {
    let (engine, _) = engine();
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "kind": {"enum": ["cat", "dog"]},
            "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}
        },
        "required": ["name", "age", "kind", "tags"],
        "additionalProperties": false
    });
    let mask = compile(&engine, &ConstraintSpec::JsonSchema(schema));
    for seed in 1..30 {
        let text = walk(&mut *mask.fork(), seed, 0);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(value["name"].is_string() && (0..=150).contains(&value["age"].as_i64().unwrap()), "{text}");
        assert!(["cat", "dog"].contains(&value["kind"].as_str().unwrap()), "{text}");
        let tags = value["tags"].as_array().unwrap();
        assert!((1..=3).contains(&tags.len()) && tags.iter().all(Value::is_boolean), "{text}");
    }
    let object = compile(&engine, &ConstraintSpec::JsonObject);
    for seed in 1..10 {
        let text = walk(&mut *object.fork(), seed, 0);
        assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
    }
}

#[test]
fn regex_and_lark_grammars_hold() {
    let (engine, _) = engine();
    let regex = compile(&engine, &ConstraintSpec::Regex("[a-f]{3}-[0-9]{2}".into()));
    let lark = compile(&engine, &ConstraintSpec::Lark("start: \"yes\" | \"no\" \"!\"+\n".into()));
    for seed in 1..10 {
        let text = walk(&mut *regex.fork(), seed, 0);
        assert!(text.len() == 6 && text.as_bytes()[3] == b'-', "{text}");
        let text = walk(&mut *lark.fork(), seed, 0);
        assert!(text == "yes" || text.trim_end_matches('!') == "no", "{text}");
    }
}

fn weather_tools() -> Vec<ToolSpec> {
    vec![
        ToolSpec {
            name: "get_weather".into(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "zip": {"type": "string"},
                    "days": {"type": "integer"},
                    "unit": {"type": "string", "enum": ["c", "f"]},
                    "where": {"$ref": "#/$defs/place"}
                },
                "required": ["zip", "unit"],
                "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "integer"}},
                    "required": ["lat"], "additionalProperties": false}}
            }),
        },
        ToolSpec {
            name: "now".into(),
            parameters: json!({"type": "object", "properties": {}, "additionalProperties": false}),
        },
        ToolSpec { name: "free".into(), parameters: json!({}) },
    ]
}

#[test]
fn any_walk_through_the_tool_grammar_is_a_call_in_the_models_format() {
    let (engine, _) = engine();
    for calls in [ToolCallCount::One, ToolCallCount::Many] {
        let mask = compile(&engine, &ConstraintSpec::ToolCalls { tools: weather_tools(), calls });
        for seed in 1..40 {
            let text = walk(&mut *mask.fork(), seed, 0);
            let body = text.strip_prefix("<tool_call>\n<function=").unwrap_or_else(|| panic!("{text}"));
            let body =
                body.strip_suffix("\n</function>\n</tool_call>").or(body.strip_suffix("</function>\n</tool_call>"));
            let body = body.unwrap_or_else(|| panic!("{text}"));
            let name = body.split('>').next().unwrap();
            assert!(["get_weather", "now", "free"].contains(&name), "{text}");
            if name == "get_weather" {
                assert!(body.contains("<parameter=zip>\n") && body.contains("<parameter=unit>\n"), "{text}");
            }
        }
    }
    // The first token is the control token, not its letters.
    let mut mask = compile(&engine, &ConstraintSpec::ToolCalls { tools: weather_tools(), calls: ToolCallCount::One });
    assert!(mask.allowed().unwrap().contains(470));
}

#[test]
fn a_constrained_answer_is_valid_whatever_the_model_prefers() {
    let (engine, control) = engine();
    control.lock().unwrap().favour = vec![(EOS, 11.0)];
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 22, 333]}},
        "required": ["ok", "n"], "additionalProperties": false});
    let spec = ConstraintSpec::JsonSchema(schema);
    for seed in 0..8 {
        let sampling = if seed == 0 {
            SamplingParams::greedy()
        } else {
            SamplingParams { seed: Some(seed), ..SamplingParams::default() }
        };
        let request = Request {
            max_tokens: Some(300),
            constraint: Some(compile(&engine, &spec)),
            thinking: if seed % 2 == 0 { Thinking::Closed } else { Thinking::Open { budget: Some(9) } },
            ..Request::new(tokens(seed, 30), sampling)
        };
        let answer = run(&engine, request);
        assert_eq!(answer.reason, FinishReason::Eos, "{answer:?}");
        let text = answer.text.rsplit("</think>").next().unwrap();
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(value["ok"].is_boolean() && value["n"].is_number());
        if seed % 2 == 1 {
            assert!(answer.text.contains("</think>\n\n{"), "{}", answer.text);
            assert!(answer.usage.reasoning <= 11);
        }
    }
}

#[test]
fn an_impossible_schema_is_refused_with_its_place() {
    let (engine, _) = engine();
    let refused =
        |schema: Value| engine.compile_constraint(&ConstraintSpec::JsonSchema(schema)).unwrap_err().to_string();
    let nested = json!({"type": "object", "properties": {"a": {"type": "object", "properties":
        {"b": {"type": "integer", "minimum": 5, "maximum": 1}}, "required": ["b"]}}, "required": ["a"]});
    let error = refused(nested);
    assert!(error.contains("/properties/a/properties/b"), "{error}");
    let error = refused(json!({"type": "object", "properties": {"x": {"type": "strnig"}}, "required": ["x"]}));
    assert!(error.contains("/properties/x"), "{error}");
    assert!(refused(json!(false)).contains("top level"));
    let error = engine.compile_constraint(&ConstraintSpec::Regex("(".into())).unwrap_err();
    assert!(matches!(error, ConstraintError::Invalid { .. }), "{error}");
    let error = engine.compile_constraint(&ConstraintSpec::Lark("start: nothing".into())).unwrap_err();
    assert!(error.to_string().contains("nothing"), "{error}");
}

#[test]
fn a_schema_that_explodes_ends_in_time() {
    let (engine, _) = engine();
    let wide: serde_json::Map<String, Value> =
        (0..30_000).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect();
    let mut deep = json!({"type": "string"});
    for _ in 0..100 {
        deep = json!({"type": "array", "items": deep});
    }
    let product = json!({"type": "string", "pattern": "^(a?){900}(b?){900}((c|d){1,500}e){1,500}$"});
    let all_of: Vec<Value> = (2..14).map(|n| json!({"type": "string", "pattern": format!("^(.{{{n}}})*$")})).collect();
    let cases = [
        json!({"type": "object", "properties": wide}),
        deep,
        json!({"type": "array", "items": {"type": "string"}, "minItems": 1_000_000_000u64}),
        product,
        json!({"allOf": all_of}),
    ];
    for (i, schema) in cases.into_iter().enumerate() {
        let start = Instant::now();
        let result = engine.compile_constraint(&ConstraintSpec::JsonSchema(schema));
        assert!(start.elapsed() < Duration::from_secs(30), "case {i}: {:?}", start.elapsed());
        if i < 3 {
            assert!(matches!(result, Err(ConstraintError::TooComplex { .. })), "case {i}: {result:?}");
        }
    }
    assert!(engine.compile_constraint(&ConstraintSpec::JsonObject).is_ok());
}
