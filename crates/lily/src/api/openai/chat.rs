//! A chat completion: the request read, and the response as one JSON object. The streamed response is in `stream.rs`.

use serde_json::{Map, Value, json};

use super::options::{self, StreamUsage};
use super::stream::Head;
use super::{logprobs, messages, tools};
use crate::api::ask::{Ask, Chat, Prompt};
use crate::api::choices::{Finish, Reason, Whole, total_usage};
use crate::api::error::ApiError;
use crate::api::fields::Fields;
use crate::api::identity;
use crate::api::state::Serving;
use lily_engine::{Request, Usage};

/// How the answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// `None`: as one JSON object.
    pub stream: Option<StreamUsage>,
}

/// Reads a request of POST /v1/chat/completions.
pub fn parse(value: Value, serving: &Serving) -> Result<(Ask, Output), ApiError> {
    let mut fields = Fields::top(value)?;
    let mut chat = Chat { messages: messages::messages(&mut fields)?, ..Chat::default() };
    tools::tools(&mut fields, &mut chat)?;
    let sampling = options::sampling(&mut fields, serving)?;
    let budget = thinking(&mut fields, &mut chat.kwargs)?;
    let mut ask = Ask::new(Prompt::Chat(chat), sampling);
    ask.thinking_budget = budget.or(serving.settings.thinking_budget);
    options::limits(&mut fields, &mut ask)?;
    ask.format = options::format(&mut fields)?;
    ask.logprobs = logprobs(&mut fields)?;
    let stream = options::streaming(&mut fields)?;
    if let Some(modalities) = fields.take("modalities")
        && modalities != json!(["text"])
    {
        return Err(ApiError::value("modalities", &modalities, "[\"text\"]"));
    }
    fields.ignore(&options::HARMLESS);
    fields.finish()?;
    Ok((ask, Output { stream }))
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.whole("top_logprobs", 0..=Request::MAX_TOP_LOGPROBS as u64)?;
    if top.is_some_and(|n| n > 0) && !wanted {
        return Err(ApiError::invalid("top_logprobs", "`top_logprobs` is accepted only with `logprobs`: true"));
    }
    Ok(wanted.then_some(top.unwrap_or(0) as usize))
}

/// Takes the fields about thinking: `enable_thinking` (at the top or in `chat_template_kwargs`), `preserve_thinking`,
/// `reasoning_effort`, `thinking_budget`.
fn thinking(fields: &mut Fields, kwargs: &mut Map<String, Value>) -> Result<Option<usize>, ApiError> {
    if let Some(effort) =
        fields.word("reasoning_effort", &["none", "minimal", "low", "medium", "high", "xhigh", "max"])?
    {
        kwargs.insert("enable_thinking".into(), (effort != "none").into());
    }
    for name in ["enable_thinking", "preserve_thinking"] {
        if let Some(flag) = fields.flag(name)? {
            kwargs.insert(name.into(), flag.into());
        }
    }
    if let Some(mut given) = fields.object("chat_template_kwargs")? {
        for name in ["enable_thinking", "preserve_thinking"] {
            if let Some(flag) = given.flag(name)? {
                kwargs.insert(name.into(), flag.into());
            }
        }
        for reserved in ["messages", "tools", "add_generation_prompt"] {
            if given.take(reserved).is_some() {
                return Err(ApiError::unknown(&given.path(reserved)));
            }
        }
        kwargs.extend(given.into_rest());
    }
    Ok(fields.whole("thinking_budget", 0..=1 << 31)?.map(|n| n as usize))
}

/// OpenAI's word for how an answer ended.
pub(super) fn finish_reason(reason: &Reason) -> &'static str {
    match reason {
        Reason::End | Reason::StopString(_) => "stop",
        Reason::Length => "length",
        Reason::ToolCalls => "tool_calls",
    }
}

/// OpenAI's usage object.
pub(super) fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    })
}

/// The response to a request that does not stream.
pub(super) fn response(head: &Head, wholes: &[(Whole, Finish)]) -> Value {
    let choices: Vec<Value> =
        wholes.iter().enumerate().map(|(index, (whole, finish))| choice(index, whole, finish)).collect();
    json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": choices,
        "usage": usage(&total_usage(wholes.iter().map(|(_, finish)| finish))),
    })
}

fn choice(index: usize, whole: &Whole, finish: &Finish) -> Value {
    let mut message = Map::new();
    message.insert("role".into(), "assistant".into());
    let content = (!whole.content.is_empty() || whole.calls.is_empty()).then(|| whole.content.clone());
    message.insert("content".into(), content.into());
    message.insert("refusal".into(), Value::Null);
    if !whole.reasoning.is_empty() {
        message.insert("reasoning_content".into(), whole.reasoning.clone().into());
        message.insert("reasoning".into(), whole.reasoning.clone().into());
    }
    if !whole.calls.is_empty() {
        let calls: Vec<Value> = whole
            .calls
            .iter()
            .map(|(name, arguments)| {
                json!({"id": identity::unique("call_"), "type": "function",
                       "function": {"name": name, "arguments": arguments}})
            })
            .collect();
        message.insert("tool_calls".into(), calls.into());
    }
    json!({
        "index": index,
        "message": message,
        "logprobs": logprobs::chat(&whole.tokens),
        "finish_reason": finish_reason(&finish.reason),
    })
}
