//! GET /v1/models: the one model there is.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::api::error::ApiError;
use crate::api::state::{App, Serving};

fn entry(serving: &Serving) -> Value {
    json!({
        "id": serving.name,
        "object": "model",
        "created": serving.created,
        "owned_by": "lily",
        "max_model_len": serving.engine.limits().max_seq,
    })
}

/// GET /v1/models.
pub async fn models(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({"object": "list", "data": [entry(app.serving()?)]})))
}

/// GET /v1/models/NAME.
pub async fn model(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let serving = app.serving()?;
    let Path(name) =
        name.map_err(|rejection| ApiError::not_found(&format!("such model: {}", rejection.body_text())))?;
    if name == serving.name { Ok(Json(entry(serving))) } else { Err(ApiError::not_found(&format!("model {name:?}"))) }
}
