//! POST /tokenize and POST /detokenize.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Value, json};

use super::ask::{Chat, Prompt};
use super::body;
use super::error::ApiError;
use super::fields::Fields;
use super::openai::{messages, options, tools};
use super::state::{App, Work};

/// POST /tokenize: `{"content": TEXT}` or `{"prompt": TEXT}`, whose control strings become control tokens, or
/// `{"messages": […], "tools": […]}`, rendered as for a chat completion. Gives `tokens`, `count` and `max_model_len`.
pub async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let serving = Arc::clone(app.serving()?);
    let (value, _turn) = body::json(request, &app).await?;
    let mut fields = Fields::top(value)?;
    let (prompt, field) = match (fields.text("content")?, fields.text("prompt")?) {
        (Some(_), Some(_)) => return Err(ApiError::invalid("prompt", "`content` and `prompt` exclude each other")),
        (Some(text), None) => (Prompt::Text(text), "content"),
        (None, Some(text)) => (Prompt::Text(text), "prompt"),
        (None, None) if !fields.has("messages") => {
            return Err(ApiError::missing("content", "a text as `content` or `prompt`, or `messages`"));
        }
        (None, None) => {
            let mut chat = Chat { messages: messages::messages(&mut fields)?, ..Chat::default() };
            tools::tools(&mut fields, &mut chat)?;
            if let Some(kwargs) = fields.object("chat_template_kwargs")? {
                chat.kwargs = kwargs.into_rest();
            }
            (Prompt::Chat(chat), "messages")
        }
    };
    fields.ignore(&options::HARMLESS);
    fields.finish()?;
    let max = serving.engine.limits().max_seq;
    let inner = Arc::clone(&serving);
    let tokens =
        serving.blocking(Work::Prompt, serving.deadline(None), move || prompt.tokenize(field, &inner)).await??.tokens;
    Ok(Json(json!({"tokens": tokens, "count": tokens.len(), "max_model_len": max})))
}

/// POST /detokenize: `{"tokens": [ids]}`. Gives the text as `content` and as `prompt`, since clients look for either.
pub async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let serving = app.serving()?;
    let (value, _turn) = body::json(request, &app).await?;
    let mut fields = Fields::top(value)?;
    let list = fields.list("tokens")?.ok_or_else(|| ApiError::missing("tokens", "a list of token ids"))?;
    fields.ignore(&["model"]);
    fields.finish()?;
    let vocab = serving.engine.limits().vocab_size;
    let accepted = format!("a token id from 0 to {}", vocab - 1);
    let ids = list
        .iter()
        .enumerate()
        .map(|(index, id)| {
            let number = id.as_u64().and_then(|id| u32::try_from(id).ok());
            number
                .filter(|id| (*id as usize) < vocab)
                .ok_or_else(|| ApiError::value(&format!("tokens[{index}]"), id, &accepted))
        })
        .collect::<Result<Vec<u32>, _>>()?;
    let text = serving.tokenizer.decode(&ids);
    Ok(Json(json!({"content": text, "prompt": text})))
}
