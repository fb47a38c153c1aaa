//! The prefix cache as a client sees it: how much of a prompt was not computed again, and that it makes no difference to the
//! answer, to the last bit of its log probabilities.

use std::net::SocketAddr;

use lily::api::ApiSettings;
use lily::model::Sharing;
use serde_json::{Value, json};

use crate::client::post;
use crate::server::{self, TestServer};

fn with_cache(bytes: u64) -> TestServer {
    server::with(ApiSettings::default(), &Sharing { cache_bytes: bytes, ..server::sharing(2) })
}

/// About `words` tokens that differ by `seed`.
fn text(seed: u64, words: u64) -> String {
    const WORDS: [&str; 12] = ["the", "fox", "ran", "over", "a", "hill", "and", "saw", "old", "stones", "by", "water"];
    let word = |i: u64| WORDS[(((i + 1) * (seed + 7)).wrapping_mul(0x9e37_79b9) >> 7) as usize % 12];
    (0..words).map(word).collect::<Vec<_>>().join(" ")
}

/// Answer with log probabilities, cached tokens, prompt tokens.
fn ask(address: SocketAddr, messages: &[Value], thinking: bool) -> (Value, u64, u64) {
    let body = json!({"messages": messages, "temperature": 0, "max_tokens": 12, "logprobs": true, "top_logprobs": 4,
        "chat_template_kwargs": {"enable_thinking": thinking}});
    let value = post(address, "/v1/chat/completions", &body).json();
    let usage = &value["usage"];
    let count = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no count in {usage}"));
    let cached = count(&usage["prompt_tokens_details"]["cached_tokens"]);
    (value["choices"].clone(), cached, count(&usage["prompt_tokens"]))
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[test]
fn prompts_that_part_in_the_middle_get_the_answers_of_a_cold_run() {
    let shared = text(1, 300);
    let prompt = |own: u64| [user(&format!("{shared} {}", text(own, 60)))];
    let cold: Vec<Value> = [2, 3].map(|own| ask(with_cache(0).address, &prompt(own), false).0).into();
    assert_ne!(cold[0], cold[1], "the prompts matter");
    let server = with_cache(64 << 20);
    let (x, cached, _) = ask(server.address, &prompt(2), false);
    assert_eq!((&x, cached), (&cold[0], 0));
    let (y, _, _) = ask(server.address, &prompt(3), false);
    assert_eq!(y, cold[1]);
    let (x, cached, total) = ask(server.address, &prompt(2), false);
    assert_eq!(x, cold[0]);
    assert!(cached + 32 >= total, "{cached} of {total}");
    // Two prompts have parted at the end of the shared text by now, so a third resumes there.
    let (_, cached, _) = ask(server.address, &prompt(4), false);
    assert!(cached >= 290, "{cached}");
}

#[test]
fn two_users_share_a_system_prompt_of_2000_tokens() {
    let server = with_cache(64 << 20);
    let system = json!({"role": "system", "content": text(5, 2000)});
    let (_, cached, total) = ask(server.address, &[system.clone(), user("Hello, I am Anna.")], false);
    assert!(cached == 0 && total > 1900, "{cached} of {total}");
    let (answer, cached, total) = ask(server.address, &[system.clone(), user("What is the capital of Norway?")], false);
    assert!(cached >= 1900, "{cached} of {total}");
    let cold = ask(with_cache(0).address, &[system, user("What is the capital of Norway?")], false);
    assert_eq!(answer, cold.0);
}

#[test]
fn thinking_that_alternates_by_turn_still_resumes_at_the_end_of_the_turn_before() {
    let server = with_cache(64 << 20);
    let cold = with_cache(0);
    let mut messages = vec![json!({"role": "system", "content": text(6, 200)})];
    let mut before = 0;
    for turn in 0..4 {
        messages.push(user(&text(10 + turn, 80)));
        let thinking = turn % 2 == 0;
        let (answer, cached, total) = ask(server.address, &messages, thinking);
        assert_eq!(answer, ask(cold.address, &messages, thinking).0, "turn {turn}");
        assert!(cached + 40 >= before, "turn {turn}: {cached} cached, {before} tokens were read the turn before");
        before = total;
        messages.push(json!({"role": "assistant", "content": "So it was."}));
    }
}

#[test]
fn a_small_budget_evicts_and_answers_stay_right() {
    let server = with_cache(6 << 20);
    let cold = with_cache(0);
    for round in 0..2 {
        for own in 20..26 {
            let messages = [user(&text(own, 400))];
            assert_eq!(ask(server.address, &messages, false).0, ask(cold.address, &messages, false).0, "round {round}");
        }
    }
    let metric = |name| crate::client::metric(server.address, name);
    assert!(metric("cache_evictions_total") > 0.0);
    assert!(metric("cache_bytes") <= f64::from(6 << 20));
}
