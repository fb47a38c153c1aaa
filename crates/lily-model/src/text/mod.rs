//! Text: from a conversation to token ids, and from token ids back to what the client reads.
//!
//! On the way in, [`ChatTemplate`] renders the checkpoint's own template into a [`Prompt`], and [`Tokenizer`] encodes
//! it so that nothing a user typed becomes a control token. On the way out, [`Detokenizer`] turns ids into text,
//! [`StopMatcher`] ends it at stop strings, [`ReasoningSplitter`] separates what was thought from what is answered, and
//! [`ToolCallParser`] reads calls out of the answer. All of these stream, and their joined output does not depend on
//! how the text was cut.
//! Nothing here knows the model's mathematics, a device, or HTTP.

mod byte_tokens;
mod detokenizer;
mod jinja;
mod marks;
mod message;
mod python_json;
mod qwen36;
mod reasoning;
mod stop;
mod stretch_cache;
mod template;
#[cfg(test)]
mod tests;
mod tokenizer;
mod tokenizer_file;
mod tool_calls;
mod tool_schema;
mod tool_tags;
mod tool_value;

pub use detokenizer::{Detokenizer, SpecialTokens};
pub use marks::ControlLeads;
pub use message::{Content, ContentPart, FunctionCall, Message, ToolCall};
pub use qwen36::qwen36_tokenizer_json;
pub use reasoning::{ReasoningSplitter, ReasoningStart};
pub use stop::{MAX_STOPS, StopError, StopMatcher};
pub use template::{ChatTemplate, Conversation, Prompt, TemplateError};
pub use tokenizer::{Tokenizer, TokenizerError};
pub use tool_calls::{Ending, ToolCallParser, ToolEvent};
pub use tool_schema::ToolSchemas;
