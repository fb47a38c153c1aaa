//! What a well-behaved client gets.

use serde_json::{Value, json};

use crate::client::{Response, get, post};
use crate::server;

fn ask(extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0, "max_tokens": 200});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn chat(extra: Value) -> Response {
    let response = post(server::shared(), "/v1/chat/completions", &ask(extra));
    assert_eq!(response.status, 200, "{}", response.body);
    response
}

fn quiet() -> Value {
    json!({"chat_template_kwargs": {"enable_thinking": false}})
}

/// The joined deltas of a stream: content, thinking.
fn joined(events: &[Value]) -> (String, String) {
    let join = |name: &str| {
        let texts = events.iter().filter_map(|event| event["choices"][0]["delta"][name].as_str());
        texts.collect::<String>()
    };
    (join("content"), join("reasoning_content"))
}

#[test]
fn thinking_and_answer_come_apart() {
    let value = chat(json!({})).json();
    let message = &value["choices"][0]["message"];
    assert!(message["content"].as_str().unwrap().contains("Paris"), "{value}");
    assert!(message["reasoning_content"].as_str().unwrap().contains("capital of France"), "{value}");
    assert_eq!(message["reasoning"], message["reasoning_content"]);
    assert!(!message["content"].as_str().unwrap().contains("think>"));
    assert_eq!(value["choices"][0]["finish_reason"], "stop");
    let usage = &value["usage"];
    let count = |name: &str| usage[name].as_u64().unwrap();
    assert_eq!(count("total_tokens"), count("prompt_tokens") + count("completion_tokens"));
    assert!(usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 3);
}

#[test]
fn a_stream_has_the_role_first_and_joins_to_the_same_answer() {
    let whole = chat(json!({})).json();
    let events = chat(json!({"stream": true, "stream_options": {"include_usage": true}})).events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(events.last().unwrap(), "[DONE]");
    let usage = &events[events.len() - 2];
    assert_eq!(
        (&usage["choices"], &usage["usage"]["completion_tokens"]),
        (&json!([]), &whole["usage"]["completion_tokens"])
    );
    assert_eq!(events[events.len() - 3]["choices"][0]["finish_reason"], "stop");
    let (content, reasoning) = joined(&events);
    let message = &whole["choices"][0]["message"];
    assert_eq!((json!(content), json!(reasoning)), (message["content"].clone(), message["reasoning_content"].clone()));
}

#[test]
fn without_thinking_there_is_none() {
    let message = chat(quiet()).json()["choices"][0]["message"].clone();
    assert!(message["content"].as_str().unwrap().contains("Paris"), "{message}");
    assert_eq!(message.get("reasoning_content"), None);
}

#[test]
fn a_limit_spent_while_thinking_gives_what_was_thought() {
    let value = chat(json!({"max_tokens": 5})).json();
    let choice = &value["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("length"), &json!("")));
    assert!(!choice["message"]["reasoning_content"].as_str().unwrap().is_empty());
    assert_eq!(value["usage"]["completion_tokens"], 5);
}

#[test]
fn a_thinking_budget_closes_the_block_and_the_answer_follows() {
    let value = chat(json!({"thinking_budget": 4})).json();
    let choice = &value["choices"][0];
    assert!(!choice["message"]["content"].as_str().unwrap().is_empty(), "{value}");
    assert!(value["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() <= 10, "{value}");
}

#[test]
fn a_stop_string_ends_the_answer_and_is_not_part_of_it() {
    let mut body = quiet();
    body["stop"] = json!(["never", "of France"]);
    let choice = chat(body).json()["choices"][0].clone();
    let content = choice["message"]["content"].as_str().unwrap();
    assert_eq!(content, "The capital ", "{choice}");
    assert_eq!(choice["finish_reason"], "stop");
}

#[test]
fn log_probabilities_are_those_of_the_tokens_of_the_answer() {
    let mut body = quiet();
    body["logprobs"] = true.into();
    body["top_logprobs"] = 3.into();
    let choice = chat(body).json()["choices"][0].clone();
    let entries = choice["logprobs"]["content"].as_array().unwrap();
    let text: String = entries.iter().map(|entry| entry["token"].as_str().unwrap()).collect();
    assert_eq!(text, choice["message"]["content"].as_str().unwrap());
    for entry in entries {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Greedy: the chosen token is the most likely one.
        assert_eq!(top[0]["token"], entry["token"]);
        assert!(entry["logprob"].as_f64().unwrap() <= 0.0);
    }
}

#[test]
fn a_seed_gives_the_same_answers_and_n_gives_several() {
    let mut body = quiet();
    for (name, value) in [("seed", json!(7)), ("temperature", json!(1.0)), ("n", json!(3)), ("max_tokens", json!(20))] {
        body[name] = value;
    }
    let texts = || {
        let value = chat(body.clone()).json();
        let choices = value["choices"].as_array().unwrap().clone();
        assert_eq!(choices.len(), 3);
        choices.iter().map(|choice| choice["message"]["content"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(texts(), texts());
}

#[test]
fn a_seed_gives_the_same_answer_alone_and_among_others() {
    let sampled = |seed: u64| {
        let body = json!({"prompt": "Once upon a time", "seed": seed, "temperature": 1.0, "max_tokens": 20});
        post(server::shared(), "/v1/completions", &body).json()["choices"][0]["text"].clone()
    };
    let alone: Vec<Value> = (1..5).map(sampled).collect();
    let together: Vec<Value> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..5).map(|seed| scope.spawn(move || sampled(seed))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
    assert!(alone.iter().any(|text| *text != alone[0]), "seeds differ: {alone:?}");
}

#[test]
fn completions_continue_text_and_several_prompts_at_once() {
    let body =
        json!({"prompt": ["Once upon a time", "Once upon a time"], "temperature": 0, "max_tokens": 8, "echo": true});
    let value = post(server::shared(), "/v1/completions", &body).json();
    let choices = value["choices"].as_array().unwrap();
    assert_eq!((choices.len(), &choices[0]["text"]), (2, &choices[1]["text"]));
    assert!(choices[0]["text"].as_str().unwrap().starts_with("Once upon a time,"), "{value}");
    assert_eq!(choices[0]["finish_reason"], "length");
}

#[test]
fn text_of_a_user_never_becomes_control_tokens() {
    let count = |text: &str| {
        let body = json!({"messages": [{"role": "user", "content": text}]});
        let ids = post(server::shared(), "/tokenize", &body).json()["tokens"].clone();
        ids.as_array().unwrap().clone()
    };
    let end = post(server::shared(), "/tokenize", &json!({"content": "<|im_end|>"})).json()["tokens"][0].clone();
    let of = |ids: &[Value]| ids.iter().filter(|id| **id == end).count();
    assert_eq!(of(&count("x")), of(&count("x <|im_end|> y <|im_end|>")));
}

#[test]
fn tokens_turn_back_into_their_text() {
    let tokens = post(server::shared(), "/tokenize", &json!({"content": "Der Fuchs, 🦊!"})).json()["tokens"].clone();
    let text = post(server::shared(), "/detokenize", &json!({"tokens": tokens})).json()["content"].clone();
    assert_eq!(text, "Der Fuchs, 🦊!");
}

#[test]
fn a_developer_is_a_system_and_later_system_messages_stay_in_place() {
    for messages in [
        json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]),
        json!([{"role": "system", "content": "A"}, {"role": "system", "content": "B"}, {"role": "user", "content": "Hi"}]),
        json!([{"role": "user", "content": "Hi"}, {"role": "system", "content": "B"}, {"role": "user", "content": "Yo"}]),
    ] {
        let body = json!({"messages": messages, "max_tokens": 3});
        let response = post(server::shared(), "/v1/chat/completions", &body);
        assert_eq!(response.status, 200, "{}", response.body);
    }
}

#[test]
fn the_next_turn_computes_only_what_is_new() {
    let mut messages = vec![
        json!({"role": "system", "content": "You are a patient teacher. ".repeat(60)}),
        json!({"role": "user", "content": "What is the capital of Norway?"}),
    ];
    let turn = |messages: &[Value]| {
        let body = json!({"messages": messages, "temperature": 0, "max_tokens": 60,
            "chat_template_kwargs": {"enable_thinking": false}});
        post(server::shared(), "/v1/chat/completions", &body).json()
    };
    let first = turn(&messages);
    messages.push(json!({"role": "assistant", "content": first["choices"][0]["message"]["content"]}));
    messages.push(json!({"role": "user", "content": "And of Italy?"}));
    let second = turn(&messages)["usage"].clone();
    let cached = second["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let before = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(cached + 32 >= before, "{cached} of {before} tokens were reused: {second}");
}

#[test]
fn models_and_metrics_tell_what_there_is() {
    let models = get(server::shared(), "/v1/models").json();
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!("lily-mini"), &json!(16_384)));
    chat(json!({"max_tokens": 2}));
    let metrics = get(server::shared(), "/metrics").body;
    for name in ["requests_total", "time_to_first_token_seconds_bucket", "inter_token_seconds_sum", "cache_hits_total"]
    {
        assert!(metrics.contains(&format!("lily_{name}")), "{name}");
    }
}
