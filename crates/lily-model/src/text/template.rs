//! The checkpoint's own chat template: from a conversation to the text of a prompt.
//!
//! The template decides everything about the format; this file feeds it messages whose text is marked as data
//! (`marks.rs`) and explains its refusals. It does not know the words of any particular template, and it does not
//! tokenize: [`Prompt`] carries what the tokenizer needs.

use std::error::Error as _;
use std::path::{Path, PathBuf};

use minijinja::{Environment, Value};
use serde_json::{Map, Value as Json};

use super::jinja::{Raised, environment};
use super::marks::{ControlLeads, Unmarked, mark};
use super::message::{Content, ContentPart, Message};

/// Deepest nesting of JSON that a template gets to see: as deep as serde_json reads.
const MAX_DEPTH: usize = 128;
const NAME: &str = "chat_template.jinja";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    leads: ControlLeads,
}

/// What a template renders.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    /// The messages in order.
    pub messages: &'a [Message],
    /// OpenAI's tool definitions, each printed by the template as it is; empty for none.
    pub tools: &'a [Json],
    /// Further template variables: `enable_thinking`, `preserve_thinking`, …
    pub kwargs: &'a Map<String, Json>,
    /// Whether the prompt ends with the opening of the assistant's answer.
    pub add_generation_prompt: bool,
}

/// A rendered prompt: text, and where data in it must not be read as control tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    text: String,
    /// Byte offsets of data characters that could start a control string, ascending.
    data: Vec<usize>,
}

impl Prompt {
    /// The text exactly as the template prints it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the character at byte `at` came from the conversation and could start a control string.
    pub(crate) fn is_data(&self, at: usize) -> bool {
        self.data.binary_search(&at).is_ok()
    }
}

/// Why a conversation could not be rendered, or a template not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The conversation has no messages.
    #[error("the conversation has no messages")]
    NoMessages,
    /// No message asks anything.
    #[error("the conversation needs a message of role \"user\" (one that only wraps a <tool_response> does not count)")]
    NoUserMessage,
    /// A system message is not the first.
    #[error(
        "messages[{index}] has role \"system\", which this model's chat template accepts only as the first message"
    )]
    LateSystemMessage {
        /// Which message.
        index: usize,
    },
    /// A role that the template does not know.
    #[error("messages[{index}].role is {role:?}; this model's chat template accepts system, user, assistant and tool")]
    UnknownRole {
        /// Which message.
        index: usize,
        /// Its role.
        role: String,
    },
    /// A content part that is not text.
    #[error("messages[{index}].content has a part that is not text, which this model's chat template refuses")]
    NotText {
        /// Which message.
        index: usize,
    },
    /// The arguments of a tool call in the history are not a JSON object.
    #[error("messages[{message}].tool_calls[{call}].function.arguments must be the JSON text of an object: {problem}")]
    Arguments {
        /// Which message.
        message: usize,
        /// Which of its calls.
        call: usize,
        /// What is wrong.
        problem: String,
    },
    /// JSON nested deeper than any template is given.
    #[error("{field} is nested deeper than {MAX_DEPTH} levels")]
    TooDeep {
        /// Where the JSON is.
        field: String,
    },
    /// The template raised for another reason.
    #[error("the chat template refuses this conversation: {message}")]
    Refused {
        /// The template's words.
        message: String,
    },
    /// The template failed: a method it uses is unknown, a variable has the wrong type.
    #[error("the chat template failed: {0}")]
    Failed(String),
    /// The template's source does not compile.
    #[error("the chat template does not compile: {0}")]
    Syntax(String),
    /// The folder has no chat template.
    #[error("{0} has neither chat_template.jinja nor a chat_template in tokenizer_config.json")]
    Missing(PathBuf),
    /// A file cannot be read.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// Bytes of a template's source; the published ones have 8,000.
const MAX_SOURCE: usize = 64 << 10;
/// Stack of the thread that compiles a template: operators in front of operators nest as deep as there are bytes.
const STACK: usize = 512 << 20;

impl ChatTemplate {
    /// Compiles `source`. `leads` are the tokenizer's ([`Tokenizer::control_leads`](super::Tokenizer::control_leads)).
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn new(source: impl Into<String>, leads: &ControlLeads) -> Result<Self, TemplateError> {
        let source = source.into();
        if source.len() > MAX_SOURCE {
            return Err(TemplateError::Syntax(format!("{} bytes (accepted: at most {MAX_SOURCE})", source.len())));
        }
        let compile = move || {
            let mut env = environment();
            env.add_template_owned(NAME, source).map(|()| env).map_err(|e| TemplateError::Syntax(format!("{e:#}")))
        };
        let thread = std::thread::Builder::new().name("lily-template".into()).stack_size(STACK).spawn(compile);
        let thread = thread.map_err(|e| TemplateError::Syntax(format!("no thread for it: {e}")))?;
        let env = thread.join().map_err(|_| TemplateError::Syntax("the compiler panicked".into()))??;
        Ok(Self { env, leads: leads.clone() })
    }

    /// Reads `dir/chat_template.jinja`, or else `chat_template` of `dir/tokenizer_config.json` (a text, or a list of
    /// named texts of which `default` is taken).
    ///
    /// # Errors
    /// No template, an unreadable file, or a template that does not compile.
    pub fn load(dir: &Path, leads: &ControlLeads) -> Result<Self, TemplateError> {
        let path = dir.join(NAME);
        if path.exists() {
            return Self::new(read(&path)?, leads);
        }
        let path = dir.join("tokenizer_config.json");
        if !path.exists() {
            return Err(TemplateError::Missing(dir.to_owned()));
        }
        let config: Json = serde_json::from_str(&read(&path)?)
            .map_err(|e| TemplateError::File { path: path.clone(), problem: e.to_string() })?;
        let source = match &config["chat_template"] {
            Json::String(source) => Some(source.as_str()),
            Json::Array(named) => named.iter().find(|t| t["name"] == "default").and_then(|t| t["template"].as_str()),
            _ => None,
        };
        Self::new(source.ok_or_else(|| TemplateError::Missing(dir.to_owned()))?, leads)
    }

    /// Renders `conversation`. Time and memory are linear in its size.
    ///
    /// # Errors
    /// What the template refuses, as a variant that names the message; JSON that cannot be handed to it.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<Prompt, TemplateError> {
        let Unmarked { plain, tagged } = Unmarked::of(&self.render_marked(conversation)?);
        Ok(Prompt { text: plain, data: tagged })
    }

    fn render_marked(&self, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        let mut variables: Vec<(String, Value)> = Vec::with_capacity(conversation.kwargs.len() + 3);
        for (name, value) in conversation.kwargs {
            let value = self.json(value, 0).ok_or_else(|| too_deep(format!("chat_template_kwargs.{name}")))?;
            variables.push((name.clone(), value));
        }
        let messages = conversation.messages.iter().enumerate().map(|(i, m)| self.message(i, m));
        variables.push(("messages".into(), Value::from(messages.collect::<Result<Vec<_>, _>>()?)));
        let tools = conversation.tools.iter().enumerate();
        let tools = tools.map(|(i, t)| self.json(t, 0).ok_or_else(|| too_deep(format!("tools[{i}]"))));
        let tools = tools.collect::<Result<Vec<_>, _>>()?;
        variables.push(("tools".into(), if tools.is_empty() { Value::from(()) } else { Value::from(tools) }));
        variables.push(("add_generation_prompt".into(), Value::from(conversation.add_generation_prompt)));
        let template = self.env.get_template(NAME).map_err(|e| TemplateError::Failed(format!("{e:#}")))?;
        template.render(Value::from_iter(variables)).map_err(|e| explain(&e, conversation.messages))
    }

    fn text(&self, text: &str) -> Value {
        Value::from(&*mark(text, &self.leads))
    }

    /// `json` as a template value with its strings and keys marked; `None` if it is too deep.
    fn json(&self, json: &Json, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        Some(match json {
            Json::String(text) => self.text(text),
            Json::Array(items) => {
                Value::from(items.iter().map(|v| self.json(v, depth + 1)).collect::<Option<Vec<_>>>()?)
            }
            Json::Object(map) => {
                let pairs = map.iter().map(|(k, v)| Some((self.text(k), self.json(v, depth + 1)?)));
                Value::from_iter(pairs.collect::<Option<Vec<_>>>()?)
            }
            scalar => Value::from_serialize(scalar),
        })
    }

    fn message(&self, index: usize, message: &Message) -> Result<Value, TemplateError> {
        let content = match &message.content {
            None => Value::from(()),
            Some(Content::Text(text)) => self.text(text),
            Some(Content::Parts(parts)) => {
                let parts = parts.iter().map(|part| match part {
                    ContentPart::Text { text } => {
                        Ok(Value::from_iter([("type", Value::from("text")), ("text", self.text(text))]))
                    }
                    ContentPart::Other(json) => {
                        self.json(json, 0).ok_or_else(|| too_deep(format!("messages[{index}].content")))
                    }
                });
                Value::from(parts.collect::<Result<Vec<_>, _>>()?)
            }
        };
        let mut fields = vec![("role", self.text(&message.role)), ("content", content)];
        if let Some(reasoning) = &message.reasoning_content {
            fields.push(("reasoning_content", self.text(reasoning)));
        }
        if !message.tool_calls.is_empty() {
            let mut calls = Vec::with_capacity(message.tool_calls.len());
            for (call, tool_call) in message.tool_calls.iter().enumerate() {
                let arguments = self.arguments(&tool_call.function.arguments);
                let arguments =
                    arguments.map_err(|problem| TemplateError::Arguments { message: index, call, problem })?;
                let function = [("name", self.text(&tool_call.function.name)), ("arguments", arguments)];
                calls.push(Value::from_iter([
                    ("type", Value::from("function")),
                    ("function", Value::from_iter(function)),
                ]));
            }
            fields.push(("tool_calls", Value::from(calls)));
        }
        Ok(Value::from_iter(fields))
    }

    /// The arguments of a call in the history, as the mapping that templates iterate over.
    fn arguments(&self, arguments: &Json) -> Result<Value, String> {
        let parsed;
        let object = match arguments {
            Json::Null => return self.arguments(&Json::Object(Map::new())),
            Json::String(text) if text.trim().is_empty() => return self.arguments(&Json::Null),
            Json::String(text) => {
                parsed = serde_json::from_str(text).map_err(|e| e.to_string())?;
                &parsed
            }
            other => other,
        };
        if !object.is_object() {
            return Err(format!("it is {}", json_type(object)));
        }
        self.json(object, 0).ok_or_else(|| format!("it is nested deeper than {MAX_DEPTH} levels"))
    }
}

fn json_type(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
}

fn too_deep(field: String) -> TemplateError {
    TemplateError::TooDeep { field }
}

fn read(path: &Path) -> Result<String, TemplateError> {
    std::fs::read_to_string(path).map_err(|e| TemplateError::File { path: path.to_owned(), problem: e.to_string() })
}

/// Turns a render error into the variant that helps whoever sent the messages. A refusal is diagnosed from the
/// messages, not from the template's wording, in the order in which the Qwen template meets the problems.
fn explain(error: &minijinja::Error, messages: &[Message]) -> TemplateError {
    let mut source = error.source();
    let raised = loop {
        match source {
            None => return TemplateError::Failed(plain_error(error)),
            Some(inner) => match inner.downcast_ref::<Raised>() {
                Some(raised) => break raised,
                None => source = inner.source(),
            },
        }
    };
    if messages.is_empty() {
        return TemplateError::NoMessages;
    }
    let has_other = |m: &Message| match &m.content {
        Some(Content::Parts(parts)) => parts.iter().any(|p| matches!(p, ContentPart::Other(_))),
        _ => false,
    };
    if let Some(index) = messages.iter().position(has_other) {
        return TemplateError::NotText { index };
    }
    let known = |m: &Message| matches!(m.role.as_str(), "system" | "user" | "assistant" | "tool");
    if let Some(index) = messages.iter().position(|m| !known(m)) {
        return TemplateError::UnknownRole { index, role: messages[index].role.clone() };
    }
    if let Some(index) = messages.iter().skip(1).position(|m| m.role == "system") {
        return TemplateError::LateSystemMessage { index: index + 1 };
    }
    if !messages.iter().any(asks) {
        return TemplateError::NoUserMessage;
    }
    TemplateError::Refused { message: raised.0.clone() }
}

/// Whether a user asks something in `message`, rather than wrapping the result of a tool.
fn asks(message: &Message) -> bool {
    let text = match &message.content {
        Some(Content::Text(text)) => text.clone(),
        Some(Content::Parts(parts)) => {
            let texts = parts.iter().map(|p| if let ContentPart::Text { text } = p { text.as_str() } else { "" });
            texts.collect()
        }
        None => String::new(),
    };
    let text = text.trim();
    message.role == "user" && !(text.starts_with("<tool_response>") && text.ends_with("</tool_response>"))
}

fn plain_error(error: &minijinja::Error) -> String {
    super::marks::plain(&format!("{error:#}")).into_owned()
}
