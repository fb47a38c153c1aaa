//! OpenAI's responses dialect, without state: what came before is in `input`, and nothing is stored.

mod parse;
mod stream;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::body;
use super::choices::{Finish, Reason, Whole};
use super::connection::Peer;
use super::error::ApiError;
use super::identity;
use super::log::Summary;
use super::sse;
use super::state::App;

/// POST /v1/responses.
pub async fn responses(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Response, ApiError> {
    let serving = Arc::clone(app.serving()?);
    let (value, turn) = body::json(request, &app).await?;
    let parse::Parsed { ask, stream, echo } = parse::request(value, &serving)?;
    let choices = ask.start(&serving).await?;
    drop(turn);
    let head = Head { id: identity::unique("resp_"), created: identity::now(), model: serving.name.clone(), echo };
    if stream {
        return Ok(sse::respond(peer, move |writer| stream::write(writer, head, choices)));
    }
    let mut wholes = choices.collect().await?;
    let (whole, finish) = wholes.pop().ok_or_else(|| ApiError::internal("no answer"))?;
    let summary = Summary::of(std::iter::once(&finish));
    let response = head.finished(items(&whole, status(&finish.reason)), &finish);
    Ok((Extension(summary), Json(response)).into_response())
}

/// What the response object repeats of the request.
struct Head {
    id: String,
    created: u64,
    model: String,
    echo: Value,
}

impl Head {
    /// The response object in some state.
    fn response(&self, status: &str, output: Value) -> Value {
        let mut value = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "model": self.model,
            "output": output,
            "previous_response_id": null,
            "store": false,
            "usage": null,
        });
        if let (Some(map), Value::Object(echo)) = (value.as_object_mut(), &self.echo) {
            map.extend(echo.clone());
        }
        value
    }

    /// The response object at its end.
    fn finished(&self, output: Vec<Value>, finish: &Finish) -> Value {
        let mut value = self.response(status(&finish.reason), output.into());
        if finish.reason == Reason::Length {
            value["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        let u = &finish.usage;
        value["usage"] = json!({
            "input_tokens": u.prompt,
            "input_tokens_details": {"cached_tokens": u.cached},
            "output_tokens": u.completion,
            "output_tokens_details": {"reasoning_tokens": u.reasoning},
            "total_tokens": u.prompt + u.completion,
        });
        value
    }
}

fn status(reason: &Reason) -> &'static str {
    if *reason == Reason::Length { "incomplete" } else { "completed" }
}

/// Kinds of output items.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    Reasoning(String),
    Message(String),
    Call { call_id: String, name: String, arguments: String },
}

impl Item {
    fn id(&self) -> String {
        identity::unique(match self {
            Item::Reasoning(_) => "rs_",
            Item::Message(_) => "msg_",
            Item::Call { .. } => "fc_",
        })
    }

    /// The item as JSON; without text it has no content part yet.
    fn value(&self, id: &str, status: &str) -> Value {
        match self {
            Item::Reasoning(text) => json!({
                "id": id, "type": "reasoning", "status": status, "summary": [],
                "content": if text.is_empty() { json!([]) } else { json!([{"type": "reasoning_text", "text": text}]) },
            }),
            Item::Message(text) => json!({
                "id": id, "type": "message", "status": status, "role": "assistant",
                "content": if text.is_empty() { json!([]) } else { json!([text_part(text)]) },
            }),
            Item::Call { call_id, name, arguments } => json!({
                "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
                "arguments": arguments,
            }),
        }
    }
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn items(whole: &Whole, status: &str) -> Vec<Value> {
    let mut items = Vec::new();
    if !whole.reasoning.is_empty() {
        items.push(Item::Reasoning(whole.reasoning.clone()));
    }
    if !whole.content.is_empty() || (whole.calls.is_empty() && whole.reasoning.is_empty()) {
        items.push(Item::Message(whole.content.clone()));
    }
    items.extend(whole.calls.iter().map(|(name, arguments)| Item::Call {
        call_id: identity::unique("call_"),
        name: name.clone(),
        arguments: arguments.clone(),
    }));
    items.iter().map(|item| item.value(&item.id(), status)).collect()
}
