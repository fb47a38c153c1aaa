//! Log probabilities in OpenAI's two shapes.

use lily_engine::{TokenEvent, TokenLogprob};
use serde_json::{Map, Value, json};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The `logprobs` object of a chat choice; null without any.
pub(super) fn chat(tokens: &[TokenEvent]) -> Value {
    if tokens.is_empty() {
        return Value::Null;
    }
    let entry = |bytes: &[u8], logprob: f32| json!({"token": text(bytes), "logprob": logprob, "bytes": bytes});
    let content: Vec<Value> = tokens
        .iter()
        .map(|token| {
            let mut value = entry(&token.bytes, token.logprob.unwrap_or_default());
            let top: Vec<Value> = token.top_logprobs.iter().map(|top| entry(&top.bytes, top.logprob)).collect();
            value["top_logprobs"] = top.into();
            value
        })
        .collect();
    json!({"content": content, "refusal": null})
}

/// The `logprobs` object of a completion; `offset` is where the first token's text begins. Null without any.
pub(super) fn completion(tokens: &[TokenEvent], offset: &mut usize) -> Value {
    if tokens.is_empty() {
        return Value::Null;
    }
    let offsets: Vec<usize> = tokens
        .iter()
        .map(|token| {
            let at = *offset;
            *offset += text(&token.bytes).chars().count();
            at
        })
        .collect();
    let top = |list: &[TokenLogprob]| {
        list.iter().map(|top| (text(&top.bytes), Value::from(top.logprob))).collect::<Map<String, Value>>()
    };
    json!({
        "tokens": tokens.iter().map(|token| text(&token.bytes)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(|token| top(&token.top_logprobs)).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}
