//! The responses request, strictly read.

use lily_model::text::{Content, FunctionCall, Message, ToolCall};
use serde_json::{Map, Value, json};

use crate::api::ask::{Ask, Chat, ParallelCalls, Prompt};
use crate::api::error::ApiError;
use crate::api::fields::Fields;
use crate::api::openai::messages::{arguments, arrange};
use crate::api::openai::options::{self, json_schema};
use crate::api::openai::tools::{check, choice, function_fields};
use crate::api::state::Serving;
use lily_engine::constraint::ConstraintSpec;

/// A request, and what its response repeats.
pub(super) struct Parsed {
    pub(super) ask: Ask,
    pub(super) stream: bool,
    pub(super) echo: Value,
}

/// A number as it was written, without the digits that f32 adds in f64.
fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// Reads a request of POST /v1/responses.
pub(super) fn request(value: Value, serving: &Serving) -> Result<Parsed, ApiError> {
    let mut echo = Map::new();
    for (name, absent) in [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", true.into()),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("temperature", decimal(serving.engine.defaults().sampling.temperature)),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", "auto".into()),
        ("tools", json!([])),
        ("top_p", decimal(serving.engine.defaults().sampling.top_p)),
        ("truncation", "disabled".into()),
        ("user", Value::Null),
    ] {
        let given = value.get(name).filter(|v| !v.is_null()).cloned();
        echo.insert(name.into(), given.unwrap_or(absent));
    }
    let mut fields = Fields::top(value)?;
    let mut list = Vec::new();
    if let Some(text) = fields.text("instructions")? {
        list.push(Message::new("system", text));
    }
    input(&mut fields, &mut list)?;
    let mut chat = Chat { messages: arrange(list, "input")?, ..Chat::default() };
    tools(&mut fields, &mut chat)?;
    if let Some(mut reasoning) = fields.object("reasoning")? {
        let effort = reasoning.word("effort", &["none", "minimal", "low", "medium", "high", "xhigh", "max"])?;
        if let Some(effort) = effort {
            chat.kwargs.insert("enable_thinking".into(), (effort != "none").into());
        }
        reasoning.ignore(&["summary", "generate_summary"]);
        reasoning.finish()?;
    }
    let sampling = options::sampling(&mut fields, serving)?;
    let mut ask = Ask::new(Prompt::Chat(chat), sampling);
    ask.prompt_field = "input".into();
    ask.thinking_budget = serving.settings.thinking_budget;
    ask.max_tokens = fields.whole("max_output_tokens", 1..=1 << 31)?.map(|n| n as usize);
    ask.timeout = options::timeout(&mut fields)?;
    ask.format = format(&mut fields)?;
    let stream = fields.flag("stream")?.unwrap_or(false);
    if fields.flag("background")? == Some(true) {
        return Err(ApiError::unknown("background"));
    }
    fields.word("truncation", &["disabled"])?;
    fields.ignore(&options::HARMLESS);
    // Details of tools and of encrypted reasoning, neither of which there is here; log probabilities there would be.
    for (index, value) in fields.list("include")?.unwrap_or_default().iter().enumerate() {
        if value.as_str().is_none_or(|name| name.contains("logprobs")) {
            return Err(ApiError::value(&format!("include[{index}]"), value, "what belongs to tools or reasoning"));
        }
    }
    fields.ignore(&["stream_options"]);
    fields.finish()?;
    Ok(Parsed { ask, stream, echo: echo.into() })
}

fn format(fields: &mut Fields) -> Result<Option<(ConstraintSpec, String)>, ApiError> {
    let Some(mut text) = fields.object("text")? else { return Ok(None) };
    let mut found = None;
    if let Some(mut format) = text.object("format")? {
        match format.word("type", &["text", "json_object", "json_schema"])? {
            Some("text") => {}
            Some("json_object") => found = Some((ConstraintSpec::JsonObject, format.own_path().to_owned())),
            Some(_) => found = Some(json_schema(&mut format)?),
            None => return Err(ApiError::missing("text.format.type", "text, json_object, json_schema")),
        }
        format.finish()?;
    }
    text.ignore(&["verbosity"]);
    text.finish()?;
    Ok(found)
}

fn tools(fields: &mut Fields, chat: &mut Chat) -> Result<(), ApiError> {
    let list = fields.list("tools")?.unwrap_or_default();
    let read = list.into_iter().enumerate().map(|(index, value)| {
        let mut fields = Fields::of(format!("tools[{index}]"), value)?;
        fields.word("type", &["function"])?.ok_or_else(|| ApiError::missing(&fields.path("type"), "function"))?;
        let tool = function_fields(&mut fields, "parameters")?;
        fields.finish()?;
        Ok(tool)
    });
    chat.tools = read.collect::<Result<Vec<_>, ApiError>>()?;
    check(&chat.tools)?;
    if let Some(value) = fields.take("tool_choice") {
        chat.tool_choice = choice(value, &chat.tools, |fields| fields.required_text("name"))?;
    }
    if fields.flag("parallel_tool_calls")? == Some(false) {
        chat.parallel_calls = ParallelCalls::One;
    }
    Ok(())
}

/// Takes `input`: a text, or a list of items.
fn input(fields: &mut Fields, list: &mut Vec<Message>) -> Result<(), ApiError> {
    let accepted = "a text, or a list of at least one item";
    let items = match fields.take("input") {
        Some(Value::String(text)) => {
            list.push(Message::new("user", text));
            return Ok(());
        }
        Some(Value::Array(items)) if !items.is_empty() => items,
        Some(other) => return Err(ApiError::value("input", &other, accepted)),
        None => return Err(ApiError::missing("input", accepted)),
    };
    for (index, value) in items.into_iter().enumerate() {
        item(format!("input[{index}]"), value, list)?;
    }
    Ok(())
}

fn item(path: String, value: Value, list: &mut Vec<Message>) -> Result<(), ApiError> {
    let mut fields = Fields::of(path, value)?;
    let kinds = ["message", "function_call", "function_call_output", "reasoning"];
    let kind = fields.word("type", &kinds)?.unwrap_or("message");
    fields.ignore(&["id", "status", "phase"]);
    match kind {
        "function_call" => {
            fields.text("call_id")?;
            let name = fields.required_text("name")?;
            let path = fields.path("arguments");
            let arguments = arguments(&path, fields.take("arguments"))?;
            let call = ToolCall { function: FunctionCall { name, arguments } };
            assistant(list).tool_calls.push(call);
        }
        "function_call_output" => {
            fields.text("call_id")?;
            let path = fields.path("output");
            let output = fields.take("output").ok_or_else(|| ApiError::missing(&path, "a text"))?;
            list.push(Message::new("tool", texts(&path, output)?));
        }
        "reasoning" => {
            let path = fields.path("content");
            if let Some(content) = fields.take("content") {
                let thought = texts(&path, content)?;
                list.push(Message { role: "assistant".into(), reasoning_content: Some(thought), ..Message::default() });
            }
            fields.ignore(&["summary", "encrypted_content"]);
        }
        _ => {
            let roles = ["user", "assistant", "system", "developer"];
            let role = fields.word("role", &roles)?;
            let role = role.ok_or_else(|| ApiError::missing(&fields.path("role"), &roles.join(", ")))?;
            let path = fields.path("content");
            let content =
                fields.take("content").ok_or_else(|| ApiError::missing(&path, "a text, or a list of parts"))?;
            let text = texts(&path, content)?;
            match role {
                "assistant" => {
                    let message = assistant(list);
                    match &mut message.content {
                        Some(Content::Text(before)) => before.push_str(&text),
                        content => *content = Some(Content::Text(text)),
                    }
                }
                "developer" => list.push(Message::new("system", text)),
                other => list.push(Message::new(other, text)),
            }
        }
    }
    fields.finish()
}

/// The assistant's turn that goes on: thinking, text and calls are items of their own, but one message of the template.
fn assistant(list: &mut Vec<Message>) -> &mut Message {
    if list.last().is_none_or(|last| last.role != "assistant") {
        list.push(Message { role: "assistant".into(), ..Message::default() });
    }
    let last = list.len() - 1;
    &mut list[last]
}

/// A text, or the joined texts of a list of parts.
fn texts(path: &str, value: Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Array(parts) => {
            let read = parts.into_iter().enumerate().map(|(index, part)| {
                let mut fields = Fields::of(format!("{path}[{index}]"), part)?;
                let kinds = ["input_text", "output_text", "text", "reasoning_text", "refusal"];
                let kind = fields.word("type", &kinds)?;
                let text = fields.required_text(if kind == Some("refusal") { "refusal" } else { "text" })?;
                fields.ignore(&["annotations", "logprobs"]);
                fields.finish()?;
                Ok(text)
            });
            Ok(read.collect::<Result<Vec<String>, ApiError>>()?.concat())
        }
        other => Err(ApiError::value(path, &other, "a text, or a list of text parts")),
    }
}
