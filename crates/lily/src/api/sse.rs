//! Server-sent events: a task writes them, the response body carries them. When the client goes, writing fails and the
//! task ends, and with it the generation that it holds.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::connection::Peer;
use super::error::ApiError;
use super::log::Summary;

/// The client no longer listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

/// Writes events to one client.
#[derive(Debug)]
pub struct EventWriter {
    sender: mpsc::Sender<Bytes>,
    peer: Peer,
}

/// Events a slow client may lag behind before its task waits.
const BACKLOG: usize = 64;

/// Silence after which a comment keeps the connection alive.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How often it is looked whether the client closed its sending half.
const LOOK: Duration = Duration::from_millis(100);

/// A response whose events `write` produces.
pub fn respond<F, T>(peer: Peer, write: F) -> Response
where
    F: FnOnce(EventWriter) -> T,
    T: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel::<Bytes>(BACKLOG);
    let id = peer.id().to_owned();
    let writing = write(EventWriter { sender, peer });
    tokio::spawn(async move {
        if writing.await == Err(Gone) {
            tracing::info!(id, "client gone in mid-stream");
        }
    });
    let body = Body::from_stream(ReceiverStream::new(receiver).map(Ok::<_, Infallible>));
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Tells buffering proxies to pass events on as they come.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl EventWriter {
    /// Writes `data: VALUE`.
    pub async fn data(&self, value: &Value) -> Result<(), Gone> {
        self.write(format!("data: {value}\n\n")).await
    }

    /// Writes `event: NAME` and `data: VALUE`.
    pub async fn event(&self, name: &str, value: &Value) -> Result<(), Gone> {
        self.write(format!("event: {name}\ndata: {value}\n\n")).await
    }

    /// Writes a comment, which clients skip.
    pub async fn comment(&self, text: &str) -> Result<(), Gone> {
        self.write(format!(": {text}\n\n")).await
    }

    /// Logs the end of the stream.
    pub fn ended(&self, summary: Summary) {
        summary.log(self.peer.id());
    }

    /// Logs that the stream ends with an error, which the caller writes in its dialect's shape.
    pub fn failed(&self, error: &ApiError) {
        tracing::warn!(id = self.peer.id(), "stream failed: {}", error.message);
    }

    /// Writes OpenAI's end mark.
    pub async fn done(&self) -> Result<(), Gone> {
        self.write("data: [DONE]\n\n".into()).await
    }

    /// Returns when it is time to write something although there is nothing new: after a few seconds of silence, or soon
    /// after the client closed its sending half, since only writing tells whether it is still there.
    pub async fn silence(&self) {
        let start = tokio::time::Instant::now();
        while start.elapsed() < KEEP_ALIVE {
            tokio::time::sleep(LOOK).await;
            if self.peer.has_finished() {
                return;
            }
        }
    }

    /// Returns when the client no longer listens.
    pub async fn closed(&self) {
        tokio::select! {
            () = self.sender.closed() => {}
            () = self.peer.gone() => {}
        }
    }

    async fn write(&self, text: String) -> Result<(), Gone> {
        tokio::select! {
            biased;
            sent = self.sender.send(Bytes::from(text)) => sent.map_err(|_| Gone),
            () = self.peer.gone() => Err(Gone),
        }
    }
}
