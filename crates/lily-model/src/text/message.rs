//! The messages of a conversation, in the shape that OpenAI's chat API and chat templates share.
//!
//! These are what the template sees. Which roles, parts and sequences make sense is the template's decision, not this
//! file's.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value as Json;

/// One message.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`; the template raises for what it does not know.
    pub role: String,
    /// What was said; `None` for an assistant message that only calls tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// What an assistant thought before it answered, without `<think>` tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The tools an assistant called.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(Content::Text(text.into())), ..Self::default() }
    }
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Parts, which the template joins.
    Parts(Vec<ContentPart>),
}

/// One part of a message's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ContentPart {
    /// `{"type": "text", "text": …}`
    Text {
        /// The text.
        text: String,
    },
    /// Anything else (an image, say), handed to the template as it is.
    Other(Json),
}

/// A tool call of an assistant message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The function and its arguments.
    pub function: FunctionCall,
}

/// The function of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The function's name.
    pub name: String,
    /// The arguments: JSON text of an object as OpenAI sends it (an empty text is an empty object), or the object.
    #[serde(default)]
    pub arguments: Json,
}

fn null_is_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ToolCall>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
