//! Requests that must be refused, each with the field at fault.

use lily::api::{ApiSettings, App};
use serde_json::{Value, json};

use crate::client::{get, head, post, post_bytes, send};
use crate::server;

fn refused(path: &str, body: &Value, param: &str) {
    let response = post(server::shared(), path, body);
    assert_eq!(response.status, 400, "{body}: {}", response.body);
    let error = response.json()["error"].clone();
    assert_eq!(error["param"], param, "{body}: {error}");
    assert_eq!(error["type"], "invalid_request_error");
    assert!(error["message"].as_str().unwrap().contains(param.split('[').next().unwrap()), "{error}");
}

fn chat(extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[test]
fn fields_of_a_chat_completion_out_of_range_or_of_the_wrong_type_are_named() {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let cases = [
        (json!({"messages": []}), "messages"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": [{"role": "system", "content": "x"}]}), "messages"),
        (json!({"messages": [{"role": "wizard", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": 7}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": "x", "mood": 1}]}), "messages[0].mood"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls":
            [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "[1]"}}]}]}),
            "messages[1].tool_calls[0].function.arguments",
        ),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"max_tokens": 1e30}), "max_tokens"),
        (json!({"max_tokens": "4"}), "max_tokens"),
        (json!({"max_completion_tokens": -5}), "max_completion_tokens"),
        (json!({"min_tokens": 5}), "min_tokens"),
        (json!({"max_tokens": null, "max_completion_tokens": 3, "min_tokens": 4}), "min_tokens"),
        (json!({"temperature": -0.1}), "temperature"),
        (json!({"temperature": 1e30}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"top_k": -1}), "top_k"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"frequency_penalty": -3}), "frequency_penalty"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"seed": -1}), "seed"),
        (json!({"timeout": 0}), "timeout"),
        (json!({"n": 0}), "n"),
        (json!({"n": 1000}), "n"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": [1]}), "stop[0]"),
        (json!({"stop": vec!["x"; 17]}), "stop"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias.x"),
        (json!({"logit_bias": {"5": 1000}}), "logit_bias.5"),
        (json!({"logit_bias": {"99999999": 1}}), "logit_bias.99999999"),
        (json!({"logprobs": 3}), "logprobs"),
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 99}), "top_logprobs"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"tools": [{"type": "web"}]}), "tools[0].type"),
        (json!({"tools": [tool, tool]}), "tools[1]"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "g"}}}), "tool_choice"),
        (json!({"response_format": {"type": "yaml"}}), "response_format.type"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
        (json!({"chat_template_kwargs": {"enable_thinking": "no"}}), "chat_template_kwargs.enable_thinking"),
        (json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs.messages"),
        (json!({"functions": []}), "functions"),
        (json!({"audio": {"voice": "x"}}), "audio"),
        (json!({"frobnicate": 1}), "frobnicate"),
    ];
    for (extra, param) in cases {
        refused("/v1/chat/completions", &chat(extra), param);
    }
}

#[test]
fn fields_without_an_effect_are_accepted() {
    let extra = json!({"model": "gpt-4", "user": "u", "metadata": {"a": "b"}, "store": false, "service_tier": "auto",
        "prompt_cache_key": "k", "safety_identifier": "s", "parallel_tool_calls": true, "frequency_penalty": null});
    let response = post(server::shared(), "/v1/chat/completions", &chat(extra));
    assert_eq!(response.status, 200, "{}", response.body);
}

#[test]
fn other_endpoints_name_their_fields_too() {
    for (body, param) in [
        (json!({}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [1, -2]}), "prompt[1]"),
        (json!({"prompt": {"a": 1}}), "prompt"),
        (json!({"prompt": "x", "suffix": "y"}), "suffix"),
        (json!({"prompt": "x", "logprobs": 99}), "logprobs"),
        (json!({"prompt": "x", "max_tokens": -4}), "max_tokens"),
    ] {
        refused("/v1/completions", &body, param);
    }
    for (body, param) in [
        (json!({"input": []}), "input"),
        (json!({"input": "x", "previous_response_id": "r"}), "previous_response_id"),
        (json!({"input": "x", "max_output_tokens": -1}), "max_output_tokens"),
        (json!({"input": [{"type": "computer_call"}]}), "input[0].type"),
    ] {
        refused("/v1/responses", &body, param);
    }
    refused("/detokenize", &json!({"tokens": [99_999_999]}), "tokens[0]");
    refused("/tokenize", &json!({"content": 5}), "content");
}

#[test]
fn anthropic_errors_have_anthropics_shape() {
    for (body, word) in [
        (json!({"messages": [{"role": "user", "content": "x"}]}), "max_tokens"),
        (json!({"messages": [], "max_tokens": 5}), "messages"),
        (json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "container": "c"}), "container"),
        (json!({"messages": [{"role": "assistant", "content": "Well,"}], "max_tokens": 5}), "last message"),
    ] {
        let response = post(server::shared(), "/v1/messages", &body);
        let value = response.json();
        assert_eq!(
            (response.status, &value["type"], &value["error"]["type"]),
            (400, &json!("error"), &json!("invalid_request_error"))
        );
        assert!(value["error"]["message"].as_str().unwrap().contains(word), "{value}");
    }
}

#[test]
fn what_is_no_json_is_refused_with_the_place() {
    let deep = format!("{{\"messages\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for (body, param) in [
        ("", Value::Null),
        ("{", Value::Null),
        ("[1, 2]", Value::Null),
        ("\"text\"", Value::Null),
        (r#"{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}"#, json!("temperature")),
        (r#"{"messages": [{"role": "user", "content": "x"}], "temperature": 1e400}"#, json!("temperature")),
        (r#"{"max_tokens": 12"#, json!("max_tokens")),
        (deep.as_str(), json!("messages")),
    ] {
        let response = send(server::shared(), &post_bytes("/v1/chat/completions", body));
        assert_eq!(response.status, 400, "{}", response.body);
        assert_eq!(response.json()["error"]["param"], param, "{}", response.body);
    }
    let mut bytes = post_bytes("/v1/chat/completions", "{\"messages\": \"__\"}");
    let at = bytes.len() - 4;
    bytes[at] = 0xff;
    assert_eq!(send(server::shared(), &bytes).status, 400);
}

#[test]
fn a_schema_that_cannot_be_met_is_refused() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "nonsense"}}, "required": ["a"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    refused("/v1/chat/completions", &chat(json!({"response_format": format})), "response_format.json_schema.schema");
}

#[test]
fn schemas_made_to_explode_end_in_time_and_hurt_nobody() {
    let wide: serde_json::Map<String, Value> = (0..30_000).map(|i| (format!("p{i}"), json!({}))).collect();
    let nested =
        (0..11).fold(json!({"type": "string"}), |inner, _| json!({"anyOf": [inner.clone(), {"items": inner}]}));
    let all_of: Vec<Value> = (2..14).map(|n| json!({"type": "string", "pattern": format!("^(.{{{n}}})*$")})).collect();
    let loops = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}});
    let schemas = [json!({"properties": wide}), nested, json!({"allOf": all_of}), loops];
    for (index, schema) in schemas.into_iter().enumerate() {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let start = std::time::Instant::now();
        let response = post(server::shared(), "/v1/chat/completions", &chat(json!({"response_format": format})));
        assert!(start.elapsed().as_secs() < 30, "schema {index}: {:?}", start.elapsed());
        let shown: String = response.body.chars().take(300).collect();
        assert!(matches!(response.status, 200 | 400), "schema {index}: {shown}");
        if response.status == 400 {
            assert!(shown.contains("response_format"), "schema {index}: {shown}");
        }
    }
    assert_eq!(post(server::shared(), "/v1/chat/completions", &chat(json!({}))).status, 200);
}

#[test]
fn a_prompt_over_the_limit_is_refused_with_both_numbers() {
    // By its tokens; and by its bytes, before it is tokenized.
    for repeats in [9_000, 150_000] {
        let body = chat(json!({"messages": [{"role": "user", "content": "the fox ".repeat(repeats)}]}));
        let response = post(server::shared(), "/v1/chat/completions", &body);
        let error = response.json()["error"].clone();
        assert_eq!((response.status, &error["code"]), (400, &json!("context_length_exceeded")));
        assert!(error["message"].as_str().unwrap().contains("16384"), "{error}");
    }
}

#[test]
fn text_that_no_context_holds_is_refused_before_it_is_tokenized() {
    let text = "a bé ".repeat(4 << 20);
    for (path, field, body) in [
        ("/tokenize", "content", json!({"content": text})),
        ("/v1/completions", "prompt[1]", json!({"prompt": ["a", text]})),
        ("/v1/responses", "input", json!({"input": text})),
    ] {
        let error = post(server::shared(), path, &body).json()["error"].clone();
        assert_eq!((&error["param"], &error["code"]), (&json!(field), &json!("context_length_exceeded")), "{path}");
        // Once tokenized, it would be counted in tokens.
        assert!(error["message"].as_str().unwrap().contains("bytes of text"), "{path}: {error}");
    }
}

#[test]
fn a_grammar_without_an_end_is_the_requests_fault() {
    let body = chat(json!({"max_tokens": 2, "enable_thinking": false, "grammar": "start: \"a\" start\n"}));
    let response = post(server::shared(), "/v1/chat/completions", &body);
    assert_eq!(response.status, 400, "{}", response.body);
    assert_eq!(response.json()["error"]["param"], json!("grammar"));
}

#[test]
fn a_regex_too_long_to_compile_quickly_is_refused() {
    let response = post(server::shared(), "/v1/chat/completions", &chat(json!({"regex": "ab".repeat(20_000)})));
    assert_eq!(
        (response.status, response.json()["error"]["param"].clone()),
        (400, json!("regex")),
        "{}",
        response.body
    );
}

#[test]
fn a_body_of_too_many_values_is_refused_before_it_is_parsed() {
    let body = format!("{{\"zz\":[{}1]}}", "1,".repeat(1 << 20));
    let response = send(server::shared(), &post_bytes("/v1/completions", &body));
    assert_eq!(response.status, 400);
    assert!(response.body.contains("values (accepted: at most"), "{}", response.body);
}

#[test]
fn more_prompts_than_may_ever_run_and_wait_are_refused_as_such() {
    let sharing = lily::model::Sharing { max_waiting: 1, ..server::sharing(1) };
    let server = server::with(ApiSettings::default(), &sharing);
    let response = post(server.address, "/v1/completions", &json!({"prompt": ["a", "b", "c"], "max_tokens": 1}));
    assert_eq!((response.status, &response.json()["error"]["param"]), (400, &json!("prompt")), "{}", response.body);
}

#[test]
fn a_declared_length_that_nobody_would_read_is_refused_at_once() {
    let head = "POST /tokenize HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 99999999999\r\n\r\n";
    // 408 would mean that it was waited for.
    assert_eq!(send(server::shared(), head.as_bytes()).status, 413);
}

#[test]
fn a_body_of_100_mb_is_refused_with_413() {
    let body = " ".repeat(100 << 20);
    let response = send(server::shared(), &post_bytes("/v1/chat/completions", &body));
    assert_eq!((response.status, &response.json()["error"]["code"]), (413, &json!("request_too_large")));
}

#[test]
fn unknown_paths_and_methods_have_errors_of_the_same_shape() {
    let response = get(server::shared(), "/v1/nothing");
    assert_eq!((response.status, &response.json()["error"]["code"]), (404, &json!("not_found")));
    let response = get(server::shared(), "/v1/chat/completions");
    assert_eq!((response.status, &response.json()["error"]["code"]), (405, &json!("method_not_allowed")));
    assert!(response.headers.contains("allow: post"), "{}", response.headers);
}

#[test]
fn compressed_bodies_are_refused_by_their_encoding() {
    let head = head("/tokenize", 2, "content-encoding: gzip\r\n");
    let response = send(server::shared(), format!("{head}{{}}").as_bytes());
    assert_eq!((response.status, &response.json()["error"]["code"]), (415, &json!("unsupported_encoding")));
}

#[test]
fn until_the_model_is_loaded_everything_says_so() {
    let server = server::start(&App::new(ApiSettings::default()));
    let response = get(server.address, "/health");
    assert_eq!((response.status, response.json()), (503, json!({"status": "loading"})));
    let response = post(server.address, "/v1/chat/completions", &chat(json!({})));
    assert_eq!((response.status, &response.json()["error"]["code"]), (503, &json!("model_loading")));
    assert!(response.headers.contains("retry-after"));
    assert_eq!(get(server::shared(), "/health").status, 200);
}
