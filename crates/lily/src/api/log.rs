//! The request log: one line a request, with its id, which the response carries as `x-request-id`.

use std::time::Instant;

use axum::extract::{Extension, Request};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use lily_engine::Usage;

use super::choices::{Finish, total_usage};
use super::connection::Peer;
use super::error::ApiError;
use super::identity;

/// Token counts of a response, for its line in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary(Usage);

impl Summary {
    /// Counts of several answers to one prompt.
    pub fn of<'a>(finishes: impl Iterator<Item = &'a Finish>) -> Self {
        Summary(total_usage(finishes))
    }

    /// Logs the end of the stream that answered request `id`.
    pub fn log(&self, id: &str) {
        let u = &self.0;
        tracing::info!(id, prompt = u.prompt, cached = u.cached, completion = u.completion, "stream done");
    }
}

/// Gives the request an id, ends it when its client goes, and logs it.
pub async fn request(Extension(peer): Extension<Peer>, mut request: Request, next: Next) -> Response {
    let id = identity::unique("req_");
    let peer = peer.of_request(&id, request.version());
    request.extensions_mut().insert(peer.clone());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let start = Instant::now();
    let response = tokio::select! {
        response = next.run(request) => Some(response),
        () = peer.gone() => None,
    };
    let ms = start.elapsed().as_millis() as u64;
    let Some(mut response) = response else {
        tracing::info!(id, %method, path, ms, "client gone");
        // Nobody reads this.
        return Response::default();
    };
    let status = response.status().as_u16();
    let error = response.extensions().get::<ApiError>().map(|error| error.message.as_str());
    match (response.extensions().get::<Summary>(), error) {
        (Some(Summary(u)), _) => {
            tracing::info!(id, %method, path, status, ms, prompt = u.prompt, cached = u.cached, completion = u.completion);
        }
        (None, Some(error)) => tracing::info!(id, %method, path, status, ms, error),
        (None, None) => tracing::info!(id, %method, path, status, ms),
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", value);
    }
    response
}
