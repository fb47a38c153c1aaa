//! Reading a request's body: bounded in size and time, then JSON.

use std::time::Duration;

use axum::extract::Request;
use axum::http::header;
use serde_json::Value;
use tokio::time::timeout;
use tokio_stream::StreamExt;

use super::error::ApiError;
use super::fields;

/// Longest silence within a body.
const SILENCE: Duration = Duration::from_secs(15);
/// Longest time a whole body may take.
const WHOLE: Duration = Duration::from_secs(120);
/// So many times the limit is read and dropped, so that the client gets to read the refusal instead of a reset.
const DRAIN: usize = 16;

/// Reads the body as JSON, at most `limit` bytes.
pub async fn json(request: Request, limit: usize) -> Result<Value, ApiError> {
    if declares_too_much(&request, limit) {
        return Err(ApiError::too_large(limit));
    }
    let bytes = timeout(WHOLE, read(request, limit)).await.map_err(|_| ApiError::body_timeout())??;
    fields::parse(&bytes)
}

/// Whether the client asks first (`Expect`) and would send too much: then it can be refused before it sends anything.
fn declares_too_much(request: &Request, limit: usize) -> bool {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let length = header(header::CONTENT_LENGTH).and_then(|value| value.parse::<u64>().ok());
    header(header::EXPECT).is_some() && length.is_some_and(|length| length > limit as u64)
}

async fn read(request: Request, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut stream = request.into_body().into_data_stream();
    let mut bytes = Vec::new();
    let mut length = 0usize;
    loop {
        let chunk = timeout(SILENCE, stream.next()).await.map_err(|_| ApiError::body_timeout())?;
        let Some(chunk) = chunk else { break };
        let chunk = chunk.map_err(|error| ApiError::not_json(format!("the body ended early: {error}")))?;
        length = length.saturating_add(chunk.len());
        if length <= limit {
            bytes.extend_from_slice(&chunk);
        } else {
            bytes = Vec::new();
            if length > limit.saturating_mul(DRAIN) {
                break;
            }
        }
    }
    if length > limit { Err(ApiError::too_large(limit)) } else { Ok(bytes) }
}
