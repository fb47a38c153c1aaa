//! Connections: accepting, time limits, and the orderly end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Extension;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};

use super::connection::PeerStream;
use super::router::router;
use super::state::App;

/// Most bytes of a request's head. The HTTP library reads up to twice as many before it counts; `router.rs` is exact.
pub(super) const HEAD_BYTES: usize = 64 << 10;
/// Most header lines.
const HEAD_LINES: usize = 100;

/// How long what was written may take to arrive when the server ends.
const FAREWELL: Duration = Duration::from_secs(3);

/// A listening socket.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    router: Router,
    /// Longest time for the head of a request.
    head_timeout: Duration,
    /// Referred to by each request that is worked on.
    requests: Arc<()>,
}

impl Server {
    /// Answers what comes to `listener` with `app`.
    pub fn new(listener: TcpListener, app: &Arc<App>) -> Self {
        let head_timeout = app.settings.timeouts.head;
        Server { listener, router: router(app), head_timeout, requests: Arc::new(()) }
    }

    /// Serves until `stop` returns, then lets requests finish for at most `patience`, and after that what was written to
    /// them arrive. A connection that has not got as far as a request does not hold up the end.
    pub async fn run(self, stop: impl Future<Output = ()>, patience: Duration) {
        let graceful = GracefulShutdown::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = &mut stop => break,
            };
            match accepted {
                Ok((stream, address)) => self.connection(stream, address, &graceful),
                Err(error) => {
                    // Out of file descriptors, most likely: others must end before it helps to try again.
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(self.listener);
        let requests = self.requests;
        let finished = async {
            while Arc::strong_count(&requests) > 1 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let connections = graceful.shutdown();
        let mut connections = std::pin::pin!(connections);
        let finished = tokio::select! {
            () = &mut connections => return,
            finished = tokio::time::timeout(patience, finished) => finished,
        };
        if finished.is_err() {
            tracing::warn!("requests are still under way after {patience:?}");
        }
        let _ = tokio::time::timeout(FAREWELL, connections).await;
    }

    fn connection(&self, stream: TcpStream, address: SocketAddr, graceful: &GracefulShutdown) {
        // Tokens are small and must not wait for one another.
        let _ = stream.set_nodelay(true);
        let (stream, peer) = PeerStream::new(stream, &self.requests);
        let service = TowerToHyperService::new(self.router.clone().layer(Extension(peer)));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.head_timeout)
            .half_close(true)
            .max_buf_size(HEAD_BYTES)
            .max_headers(HEAD_LINES)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%address, "connection ended: {error}");
            }
        });
    }
}
