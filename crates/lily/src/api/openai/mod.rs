//! OpenAI's dialect: chat completions, completions, models.

pub mod chat;
mod completions;
mod logprobs;
pub mod messages;
mod models;
pub mod options;
mod stream;
pub mod tools;

pub use completions::completions;
pub use models::{model, models};
pub(super) use stream::next;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

use super::body;
use super::connection::Peer;
use super::error::ApiError;
use super::identity;
use super::log::Summary;
use super::sse;
use super::state::App;

/// POST /v1/chat/completions.
pub async fn chat_completions(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Response, ApiError> {
    let serving = Arc::clone(app.serving()?);
    let (value, turn) = body::json(request, &app).await?;
    let (ask, output) = chat::parse(value, &serving)?;
    let choices = ask.start(&serving).await?;
    drop(turn);
    let head =
        stream::Head { id: identity::unique("chatcmpl-"), created: identity::now(), model: serving.name.clone() };
    match output.stream {
        Some(usage) => Ok(sse::respond(peer, move |writer| stream::write(writer, head, choices, usage))),
        None => {
            let wholes = choices.collect().await?;
            let summary = Summary::of(wholes.iter().map(|(_, finish)| finish));
            Ok((Extension(summary), Json(chat::response(&head, &wholes))).into_response())
        }
    }
}
