//! Anthropic's messages request, strictly read.

use lily_engine::constraint::ConstraintSpec;
use lily_model::text::{Content, FunctionCall, Message, ToolCall};
use serde_json::{Value, json};

use crate::api::ask::{Ask, Chat, ParallelCalls, Prompt, Tool, ToolChoice};
use crate::api::error::ApiError;
use crate::api::fields::Fields;
use crate::api::openai::messages::arrange;
use crate::api::openai::options;
use crate::api::openai::tools::{check, function_fields};
use crate::api::state::Serving;

/// Fields without an effect on the answer.
const HARMLESS: [&str; 4] = ["model", "metadata", "service_tier", "context_management"];

/// Reads a request of POST /v1/messages; the second value says whether it streams.
pub(super) fn request(value: Value, serving: &Serving) -> Result<(Ask, bool), ApiError> {
    let mut fields = Fields::top(value)?;
    let (chat, budget) = chat(&mut fields)?;
    let mut sampling = serving.engine.defaults().sampling.clone();
    if let Some(t) = fields.number("temperature", 0.0..=2.0)? {
        sampling.temperature = t;
    }
    if let Some(p) = fields.number("top_p", 0.0..=1.0)? {
        sampling.top_p = p;
    }
    if let Some(k) = fields.whole("top_k", 0..=1_000_000)? {
        sampling.top_k = k as usize;
    }
    let mut ask = Ask::new(Prompt::Chat(chat), sampling);
    ask.thinking_budget = budget.or(serving.settings.thinking_budget);
    let limit = fields.whole("max_tokens", 1..=1 << 31)?;
    let limit = limit.ok_or_else(|| ApiError::missing("max_tokens", "a whole number above 0"))?;
    ask.max_tokens = Some(limit as usize);
    ask.stop = options::stop(&mut fields, "stop_sequences")?;
    ask.timeout = options::timeout(&mut fields)?;
    ask.format = output_format(&mut fields)?;
    let stream = fields.flag("stream")?.unwrap_or(false);
    fields.ignore(&HARMLESS);
    fields.finish()?;
    Ok((ask, stream))
}

/// Reads a request of POST /v1/messages/count_tokens.
pub(super) fn countable(value: Value) -> Result<Prompt, ApiError> {
    let mut fields = Fields::top(value)?;
    let (chat, _) = chat(&mut fields)?;
    output_format(&mut fields)?;
    fields.ignore(&HARMLESS);
    fields.finish()?;
    Ok(Prompt::Chat(chat))
}

/// Takes `output_config`: the schema of the answer, if it has one. How much effort the model makes is its own affair.
fn output_format(fields: &mut Fields) -> Result<Option<(ConstraintSpec, String)>, ApiError> {
    let Some(mut config) = fields.object("output_config")? else { return Ok(None) };
    let mut found = None;
    if let Some(mut format) = config.object("format")? {
        let kind = format.word("type", &["json_schema"])?;
        kind.ok_or_else(|| ApiError::missing("output_config.format.type", "json_schema"))?;
        found = Some(options::json_schema(&mut format)?);
        format.finish()?;
    }
    config.ignore(&["effort"]);
    config.finish()?;
    Ok(found)
}

/// Takes what the prompt is made of, and the thinking budget.
fn chat(fields: &mut Fields) -> Result<(Chat, Option<usize>), ApiError> {
    let mut list = Vec::new();
    if let Some(system) = fields.take("system") {
        list.push(Message::new("system", texts("system", system)?));
    }
    let accepted = "a list of at least one message";
    let given = fields.list("messages")?.ok_or_else(|| ApiError::missing("messages", accepted))?;
    if given.is_empty() {
        return Err(ApiError::invalid("messages", format!("`messages` is empty (accepted: {accepted})")));
    }
    let last = given.len() - 1;
    let continues = given[last]["role"] == "assistant";
    for (index, value) in given.into_iter().enumerate() {
        message(format!("messages[{index}]"), value, &mut list)?;
    }
    if continues {
        let message = "the last message is the assistant's: to continue a given beginning of an answer is not supported \
                       (accepted: a last message of role user)";
        return Err(ApiError::invalid(format!("messages[{last}].role"), message));
    }
    let mut chat = Chat { messages: arrange(list, "messages")?, ..Chat::default() };
    chat.tools = tools(fields)?;
    if let Some(choice) = fields.object("tool_choice")? {
        tool_choice(choice, &mut chat)?;
    }
    let mut budget = None;
    let mut enabled = false;
    if let Some(mut thinking) = fields.object("thinking")? {
        let kind = thinking.word("type", &["enabled", "adaptive", "disabled"])?;
        let kind = kind.ok_or_else(|| ApiError::missing("thinking.type", "enabled, adaptive, disabled"))?;
        enabled = kind != "disabled";
        budget = thinking.whole("budget_tokens", 1..=1 << 31)?.map(|n| n as usize);
        thinking.ignore(&["display"]);
        thinking.finish()?;
    }
    chat.kwargs.insert("enable_thinking".into(), enabled.into());
    Ok((chat, budget))
}

/// A text, or the joined texts of a list of text blocks.
fn texts(path: &str, value: Value) -> Result<String, ApiError> {
    let accepted = "a text, or a list of text blocks";
    match value {
        Value::String(text) => Ok(text),
        Value::Array(blocks) => {
            let read = blocks.into_iter().enumerate().map(|(index, block)| {
                let mut fields = Fields::of(format!("{path}[{index}]"), block)?;
                fields.word("type", &["text"])?;
                let text = fields.required_text("text")?;
                fields.ignore(&["cache_control", "citations"]);
                fields.finish()?;
                Ok(text)
            });
            Ok(read.collect::<Result<Vec<String>, ApiError>>()?.join("\n"))
        }
        other => Err(ApiError::value(path, &other, accepted)),
    }
}

/// Appends what a message comes to: tool results become messages of their own.
fn message(path: String, value: Value, list: &mut Vec<Message>) -> Result<(), ApiError> {
    let mut fields = Fields::of(&path, value)?;
    let roles = ["user", "assistant", "system"];
    let role = fields.word("role", &roles)?;
    let role = role.ok_or_else(|| ApiError::missing(&fields.path("role"), "user, assistant"))?;
    let content_path = fields.path("content");
    let content =
        fields.take("content").ok_or_else(|| ApiError::missing(&content_path, "a text, or a list of blocks"))?;
    fields.finish()?;
    let blocks = match content {
        Value::String(text) => {
            list.push(Message::new(role, text));
            return Ok(());
        }
        Value::Array(blocks) if role == "system" => {
            list.push(Message::new(role, texts(&content_path, Value::Array(blocks))?));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        other => return Err(ApiError::value(&content_path, &other, "a text, or a list of blocks")),
    };
    let mut message = Message { role: role.into(), ..Message::default() };
    let mut text: Vec<String> = Vec::new();
    for (index, block) in blocks.into_iter().enumerate() {
        let mut fields = Fields::of(format!("{content_path}[{index}]"), block)?;
        let kinds: &[&'static str] = match role {
            "user" => &["text", "tool_result"],
            _ => &["text", "tool_use", "thinking", "redacted_thinking"],
        };
        match fields.word("type", kinds)? {
            Some("text") => text.push(fields.required_text("text")?),
            Some("tool_result") => {
                fields.text("tool_use_id")?;
                let failed = fields.flag("is_error")?.unwrap_or(false);
                let path = fields.path("content");
                let result = fields.take("content").map_or(Ok(String::new()), |value| texts(&path, value))?;
                list.push(Message::new("tool", if failed { format!("Error: {result}") } else { result }));
            }
            Some("tool_use") => {
                fields.text("id")?;
                let name = fields.required_text("name")?;
                let arguments = fields.take("input").unwrap_or_else(|| json!({}));
                message.tool_calls.push(ToolCall { function: FunctionCall { name, arguments } });
            }
            Some("thinking") => {
                message.reasoning_content = Some(fields.required_text("thinking")?);
                fields.ignore(&["signature"]);
            }
            Some(_) => fields.ignore(&["data"]),
            None => return Err(ApiError::missing(&fields.path("type"), &kinds.join(", "))),
        }
        fields.ignore(&["cache_control", "citations"]);
        fields.finish()?;
    }
    if !text.is_empty() || role == "assistant" {
        message.content = Some(Content::Text(text.join("\n")));
        list.push(message);
    }
    Ok(())
}

fn tools(fields: &mut Fields) -> Result<Vec<Tool>, ApiError> {
    let list = fields.list("tools")?.unwrap_or_default();
    let read = list.into_iter().enumerate().map(|(index, value)| {
        let mut fields = Fields::of(format!("tools[{index}]"), value)?;
        fields.word("type", &["custom"])?;
        let tool = function_fields(&mut fields, "input_schema")?;
        fields.ignore(&["cache_control", "eager_input_streaming", "input_examples"]);
        fields.finish()?;
        Ok(tool)
    });
    let tools = read.collect::<Result<Vec<_>, ApiError>>()?;
    check(&tools)?;
    Ok(tools)
}

fn tool_choice(mut fields: Fields, chat: &mut Chat) -> Result<(), ApiError> {
    let kind = fields.word("type", &["auto", "any", "tool", "none"])?;
    chat.tool_choice = match kind {
        Some("auto") => ToolChoice::Auto,
        Some("none") => ToolChoice::None,
        Some("any") if chat.tools.is_empty() => {
            return Err(ApiError::invalid("tool_choice", "`tool_choice` is \"any\", but `tools` is empty"));
        }
        Some("any") => ToolChoice::Required,
        Some(_) => {
            let name = fields.required_text("name")?;
            if !chat.tools.iter().any(|tool| tool.name == name) {
                let message = format!("`tool_choice.name` is {name:?}, which is not in `tools`");
                return Err(ApiError::invalid("tool_choice.name", message));
            }
            ToolChoice::Named(name)
        }
        None => return Err(ApiError::missing("tool_choice.type", "auto, any, tool, none")),
    };
    if fields.flag("disable_parallel_tool_use")? == Some(true) {
        chat.parallel_calls = ParallelCalls::One;
    }
    fields.finish()
}
