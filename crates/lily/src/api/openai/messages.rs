//! Messages of the chat API, strictly read, into what the template takes.
//!
//! System messages: `developer` is `system`. Those at the start are joined into one. A later one stays where it is, since
//! moving it would change the whole prompt: it becomes a user message wrapped in `<system>` tags.

use lily_model::text::{Content, FunctionCall, Message, ToolCall};
use serde_json::Value;

use crate::api::error::ApiError;
use crate::api::fields::Fields;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Reads `messages`.
pub fn messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    let accepted = "a list of at least one message";
    let list = fields.list("messages")?.ok_or_else(|| ApiError::missing("messages", accepted))?;
    if list.is_empty() {
        return Err(ApiError::invalid("messages", format!("`messages` is empty (accepted: {accepted})")));
    }
    let read = list.into_iter().enumerate().map(|(index, value)| message(format!("messages[{index}]"), value));
    arrange(read.collect::<Result<Vec<_>, _>>()?, "messages")
}

/// Puts system messages where the template takes them, and makes sure that somebody asks something.
pub fn arrange(list: Vec<Message>, path: &str) -> Result<Vec<Message>, ApiError> {
    if !list.iter().any(|message| message.role == "user") {
        let message = format!("`{path}` has no message of role \"user\" (accepted: at least one)");
        return Err(ApiError::invalid(path, message));
    }
    let mut arranged: Vec<Message> = Vec::with_capacity(list.len());
    for message in list {
        if message.role != "system" {
            arranged.push(message);
            continue;
        }
        let text = plain(&message);
        match arranged.last_mut() {
            None => arranged.push(Message::new("system", text)),
            Some(first) if first.role == "system" => {
                let joined = format!("{}\n\n{text}", plain(first));
                *first = Message::new("system", joined);
            }
            Some(_) => arranged.push(Message::new("user", format!("<system>\n{text}\n</system>"))),
        }
    }
    Ok(arranged)
}

fn plain(message: &Message) -> String {
    match &message.content {
        Some(Content::Text(text)) => text.clone(),
        _ => String::new(),
    }
}

fn message(path: String, value: Value) -> Result<Message, ApiError> {
    let mut fields = Fields::of(&path, value)?;
    let role =
        fields.word("role", &ROLES)?.ok_or_else(|| ApiError::missing(&fields.path("role"), &ROLES.join(", ")))?;
    let content = content(&mut fields)?;
    // Names tell participants apart in OpenAI's format; this model's template has no place for them.
    fields.ignore(&["name"]);
    let mut message = Message { role: role.into(), content: content.map(Content::Text), ..Message::default() };
    match role {
        "developer" => message.role = "system".into(),
        "assistant" => {
            message.tool_calls = tool_calls(&mut fields)?;
            let other = fields.text("reasoning")?;
            message.reasoning_content = fields.text("reasoning_content")?.or(other);
            if let Some(refusal) = fields.text("refusal")? {
                message.content.get_or_insert(Content::Text(refusal));
            }
            fields.ignore(&["annotations", "id"]);
            if message.content.is_none() && message.tool_calls.is_empty() {
                let accepted = "a text, a list of text parts, or null beside tool_calls";
                return Err(ApiError::missing(&fields.path("content"), accepted));
            }
        }
        "tool" => {
            fields.text("tool_call_id")?;
        }
        _ => {}
    }
    if message.content.is_none() && role != "assistant" {
        return Err(ApiError::missing(&fields.path("content"), "a text, or a list of text parts"));
    }
    fields.finish()?;
    Ok(message)
}

/// The text of a message: the parts of a list are joined.
fn content(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let path = fields.path("content");
    match fields.take("content") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(parts)) => {
            let texts = parts.into_iter().enumerate().map(|(index, part)| text_part(format!("{path}[{index}]"), part));
            Ok(Some(texts.collect::<Result<Vec<_>, _>>()?.concat()))
        }
        Some(other) => Err(ApiError::value(&path, &other, "a text, or a list of text parts")),
    }
}

/// Text of a part of `type` text (or refusal); this model reads nothing else.
fn text_part(path: String, part: Value) -> Result<String, ApiError> {
    let mut fields = Fields::of(path, part)?;
    let kind = fields.word("type", &["text", "refusal"])?;
    let text = match kind {
        Some(name) => fields.required_text(name)?,
        None => return Err(ApiError::missing(&fields.path("type"), "text")),
    };
    fields.ignore(&["cache_control", "annotations"]);
    fields.finish()?;
    Ok(text)
}

fn tool_calls(fields: &mut Fields) -> Result<Vec<ToolCall>, ApiError> {
    let path = fields.path("tool_calls");
    let list = fields.list("tool_calls")?.unwrap_or_default();
    list.into_iter()
        .enumerate()
        .map(|(index, value)| {
            let mut fields = Fields::of(format!("{path}[{index}]"), value)?;
            fields.text("id")?;
            fields.word("type", &["function"])?;
            fields.ignore(&["index"]);
            let mut function = fields
                .object("function")?
                .ok_or_else(|| ApiError::missing(&fields.path("function"), "an object with name and arguments"))?;
            let name = function.required_text("name")?;
            let arguments_path = function.path("arguments");
            let arguments = arguments(&arguments_path, function.take("arguments"))?;
            function.finish()?;
            fields.finish()?;
            Ok(ToolCall { function: FunctionCall { name, arguments } })
        })
        .collect()
}

/// Arguments of a past call: the JSON text of an object, or the object.
pub fn arguments(path: &str, value: Option<Value>) -> Result<Value, ApiError> {
    let accepted = "the JSON text of an object";
    match value {
        None => Ok(Value::Object(serde_json::Map::new())),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(Value::Object(serde_json::Map::new())),
        Some(Value::String(text)) => match serde_json::from_str::<Value>(&text) {
            Ok(object @ Value::Object(_)) => Ok(object),
            Ok(other) => Err(ApiError::value(path, &other, accepted)),
            Err(_) => Err(ApiError::value(path, &Value::String(text), accepted)),
        },
        Some(object @ Value::Object(_)) => Ok(object),
        Some(other) => Err(ApiError::value(path, &other, accepted)),
    }
}
