//! Reading a request's body: bounded in size and time, all bodies together bounded in size, then JSON.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::header;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_stream::StreamExt;

use super::error::ApiError;
use super::fields;
use super::state::App;

/// So many times the limit is read and dropped, so that the client gets to read the refusal instead of a reset.
const DRAIN: usize = 16;

/// So many bodies of the largest size may be in memory at once.
const LARGEST_AT_ONCE: usize = 8;
/// Bodies above this size are parsed off the async threads.
const LONG: usize = 256 << 10;
/// Values that a body may have: more than twice the ids of the longest context.
const MOST_VALUES: usize = 600_000;
/// Values of all bodies that are parsed at once: each takes some two hundred bytes.
const VALUES_AT_ONCE: usize = 2 * MOST_VALUES;

/// Memory for bodies that are being read and parsed.
#[derive(Debug)]
pub struct BodyMemory {
    kib: Arc<Semaphore>,
    values: Arc<Semaphore>,
}

impl BodyMemory {
    /// Memory for bodies of at most `limit` bytes each.
    pub fn new(limit: usize) -> Self {
        let kib = (limit >> 10).max(1).saturating_mul(LARGEST_AT_ONCE).min(Semaphore::MAX_PERMITS);
        BodyMemory { kib: Arc::new(Semaphore::new(kib)), values: Arc::new(Semaphore::new(VALUES_AT_ONCE)) }
    }

    /// Takes what is missing in `held` for `length` bytes.
    fn cover(&self, held: &mut Option<OwnedSemaphorePermit>, length: usize) -> Result<(), ApiError> {
        let missing = length.div_ceil(1 << 10) - held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let Ok(missing @ 1..) = u32::try_from(missing) else { return Ok(()) };
        let more = Arc::clone(&self.kib).try_acquire_many_owned(missing).map_err(|_| ApiError::bodies_full())?;
        match held {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
    }
}

/// What a large body takes of the memory for parsed ones; kept until the request is submitted.
pub type Turn = Option<OwnedSemaphorePermit>;

/// Reads the body as JSON.
pub async fn json(request: Request, app: &App) -> Result<(Value, Turn), ApiError> {
    let limit = app.settings.max_body;
    if declares_too_much(&request, limit) {
        return Err(ApiError::too_large(limit));
    }
    refuse_encoded(&request)?;
    let timeouts = app.settings.timeouts;
    let reading = timeout(timeouts.body, read(request, limit, timeouts.pause, &app.bodies));
    let (bytes, held) = tokio::select! {
        biased;
        read = reading => read.map_err(|_| ApiError::body_timeout())??,
        () = app.ended() => return Err(ApiError::unavailable("the server is shutting down")),
    };
    let values = values(&bytes);
    if values > MOST_VALUES {
        return Err(ApiError::not_json(format!("the body has {values} values (accepted: at most {MOST_VALUES})")));
    }
    if bytes.len() <= LONG {
        return Ok((fields::parse(&bytes)?, None));
    }
    let turn = Arc::clone(&app.bodies.values).acquire_many_owned(values as u32).await;
    let turn = turn.map_err(|error| ApiError::internal(error.to_string()))?;
    let parse = move || {
        let parsed = fields::parse(&bytes);
        drop((bytes, held));
        parsed
    };
    let parsed = tokio::task::spawn_blocking(parse).await.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok((parsed?, Some(turn)))
}

/// How many values a JSON text has at most, without parsing it: one behind each comma and opening bracket outside of texts.
fn values(bytes: &[u8]) -> usize {
    let (mut count, mut quoted, mut escaped) = (1, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b',' | b'[' | b'{' if !quoted => count += 1,
            _ => {}
        }
    }
    count
}

/// Whether a body that is too large can be refused before it is read: the client asks first (`Expect`), or declares more than
/// would be read and dropped.
fn declares_too_much(request: &Request, limit: usize) -> bool {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let length = header(header::CONTENT_LENGTH).and_then(|value| value.parse::<u64>().ok());
    let most = if header(header::EXPECT).is_some() { limit } else { limit.saturating_mul(DRAIN) };
    length.is_some_and(|length| length > most as u64)
}

/// Refuses a body in a form that is not read: compressed ones.
fn refuse_encoded(request: &Request) -> Result<(), ApiError> {
    for (name, read) in [(header::CONTENT_ENCODING, "identity"), (header::TRANSFER_ENCODING, "chunked")] {
        for encoding in request.headers().get_all(&name) {
            if !encoding.as_bytes().eq_ignore_ascii_case(read.as_bytes()) {
                let encoding = String::from_utf8_lossy(encoding.as_bytes());
                return Err(ApiError::unsupported_encoding(name.as_str(), &encoding, read));
            }
        }
    }
    Ok(())
}

type Held = Option<OwnedSemaphorePermit>;

async fn read(
    request: Request,
    limit: usize,
    pause: Duration,
    memory: &BodyMemory,
) -> Result<(Vec<u8>, Held), ApiError> {
    let mut held = None;
    let mut stream = request.into_body().into_data_stream();
    let mut bytes = Vec::new();
    let mut length = 0usize;
    loop {
        let chunk = timeout(pause, stream.next()).await.map_err(|_| ApiError::body_timeout())?;
        let Some(chunk) = chunk else { break };
        let chunk = chunk.map_err(|error| ApiError::not_json(format!("the body ended early: {error}")))?;
        length = length.saturating_add(chunk.len());
        if length <= limit {
            memory.cover(&mut held, length)?;
            bytes.extend_from_slice(&chunk);
        } else {
            (bytes, held) = (Vec::new(), None);
            if length > limit.saturating_mul(DRAIN) {
                break;
            }
        }
    }
    if length > limit { Err(ApiError::too_large(limit)) } else { Ok((bytes, held)) }
}

#[cfg(test)]
mod tests {
    use super::values;

    #[test]
    fn values_are_counted_outside_of_texts_alone() {
        assert_eq!(values(b"1"), 1);
        assert_eq!(values(br#"{"a": [1, 2, {"b,:[": "\",[[["}]}"#), 6);
    }
}
