//! `--api-key`: requests must carry the key. Compared in constant time, so that its bytes cannot be guessed one by one.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use subtle::ConstantTimeEq;

use super::error::ApiError;
use super::state::App;

/// Paths that need no key: a load balancer and a browser have none when they ask for these.
const OPEN: [&str; 2] = ["/", "/health"];

/// Refuses requests without the key.
pub async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, ApiError> {
    let Some(key) = &app.settings.api_key else { return Ok(next.run(request).await) };
    if OPEN.contains(&request.uri().path()) {
        return Ok(next.run(request).await);
    }
    if carries(&request, key) { Ok(next.run(request).await) } else { Err(ApiError::unauthorized()) }
}

fn carries(request: &Request, key: &str) -> bool {
    let header = |name: &str| request.headers().get(name).map(|value| value.as_bytes());
    let bearer = header(header::AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix(b"Bearer "));
    bearer.or_else(|| header("x-api-key")).is_some_and(|given| bool::from(given.ct_eq(key.as_bytes())))
}
