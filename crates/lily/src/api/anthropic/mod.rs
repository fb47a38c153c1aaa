//! Anthropic's dialect: messages and their token count. Errors have Anthropic's shape.

mod parse;
mod stream;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::body;
use super::choices::{Finish, Reason, Whole};
use super::connection::Peer;
use super::error::ApiError;
use super::identity;
use super::log::Summary;
use super::sse;
use super::state::{App, Work};

/// POST /v1/messages.
pub async fn messages(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Response, ApiError> {
    let serving = Arc::clone(app.serving()?);
    let (value, turn) = body::json(request, &app).await?;
    let (ask, stream) = parse::request(value, &serving)?;
    let choices = ask.start(&serving).await?;
    drop(turn);
    let head = Head { id: identity::unique("msg_"), model: serving.name.clone() };
    if stream {
        return Ok(sse::respond(peer, move |writer| stream::write(writer, head, choices)));
    }
    let mut wholes = choices.collect().await?;
    let (whole, finish) = wholes.pop().ok_or_else(|| ApiError::internal("no answer"))?;
    let summary = Summary::of(std::iter::once(&finish));
    Ok((Extension(summary), Json(response(&head, &whole, &finish))).into_response())
}

/// POST /v1/messages/count_tokens.
pub async fn count_tokens(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let serving = Arc::clone(app.serving()?);
    let (value, _turn) = body::json(request, &app).await?;
    let prompt = parse::countable(value)?;
    let inner = Arc::clone(&serving);
    let tokens = serving
        .blocking(Work::Prompt, serving.deadline(None), move || prompt.tokenize("messages", &inner))
        .await??
        .tokens
        .len();
    Ok(Json(json!({"input_tokens": tokens})))
}

/// What the response and the events of a stream repeat.
struct Head {
    id: String,
    model: String,
}

/// Rewrites error responses of this dialect's paths into its shape, whichever layer they come from.
pub async fn errors(request: Request, next: Next) -> Response {
    let own = request.uri().path().starts_with("/v1/messages");
    let response = next.run(request).await;
    let Some(error) = response.extensions().get::<ApiError>().filter(|_| own).cloned() else { return response };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    let body = error_value(&error).to_string();
    Response::from_parts(parts, body.into())
}

fn error_value(error: &ApiError) -> Value {
    let kind = match error.status.as_u16() {
        400 | 405 | 408 | 415 | 431 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        _ => "api_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": error.message}})
}

fn stop_reason(reason: &Reason) -> (&'static str, Value) {
    match reason {
        Reason::End => ("end_turn", Value::Null),
        Reason::StopString(text) => ("stop_sequence", text.clone().into()),
        Reason::Length => ("max_tokens", Value::Null),
        Reason::ToolCalls => ("tool_use", Value::Null),
    }
}

/// Cached tokens are counted apart from the others, as Anthropic does.
fn usage(finish: &Finish) -> Value {
    let u = &finish.usage;
    json!({
        "input_tokens": u.prompt.saturating_sub(u.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": u.cached,
        "output_tokens": u.completion,
    })
}

fn response(head: &Head, whole: &Whole, finish: &Finish) -> Value {
    let mut content = Vec::new();
    if !whole.reasoning.is_empty() {
        content.push(json!({"type": "thinking", "thinking": whole.reasoning, "signature": ""}));
    }
    if !whole.content.is_empty() {
        content.push(json!({"type": "text", "text": whole.content}));
    }
    for (name, arguments) in &whole.calls {
        let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
        content.push(json!({"type": "tool_use", "id": identity::unique("toolu_"), "name": name, "input": input}));
    }
    let (reason, sequence) = stop_reason(&finish.reason);
    json!({
        "id": head.id,
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": usage(finish),
    })
}
