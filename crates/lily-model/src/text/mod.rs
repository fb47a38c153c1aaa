//! Text: from a conversation to token ids, and from token ids back to what the client reads.
//!
//! On the way in, [`ChatTemplate`] renders the checkpoint's own template into a [`Prompt`], and [`Tokenizer`] encodes
//! it so that nothing a user typed becomes a control token. On the way out, [`Detokenizer`] turns ids into text.
//! Nothing here knows the model's mathematics, a device, or HTTP.

mod byte_tokens;
mod detokenizer;
mod jinja;
mod marks;
mod message;
mod python_json;
mod qwen36;
mod template;
#[cfg(test)]
mod tests;
mod tokenizer;

pub use detokenizer::{Detokenizer, SpecialTokens};
pub use marks::ControlLeads;
pub use message::{Content, ContentPart, FunctionCall, Message, ToolCall};
pub use qwen36::qwen36_tokenizer_json;
pub use template::{ChatTemplate, Conversation, Prompt, TemplateError};
pub use tokenizer::{Tokenizer, TokenizerError};
