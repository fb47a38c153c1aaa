//! One client's connection: notices that the client has gone while its request is still computed.
//!
//! A client that closes its socket and one that only closes its sending half look the same: both send FIN. The second
//! still waits for its answer. They differ once something is sent to them, so after FIN a byte of urgent data is sent now
//! and then: a socket that was closed answers with RST, one that reads on skips the byte, since urgent data is not part of
//! the stream. That is done for loopback peers only, where nothing rewrites packets, and only before the answer begins;
//! then its own bytes tell. For other peers FIN means gone.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// How often a connection is looked at while its request is computed.
const LOOK: Duration = Duration::from_millis(25);

/// What requests of a connection know about its client.
#[derive(Debug, Clone)]
pub struct Peer {
    socket: Arc<TcpStream>,
    loopback: bool,
    /// Whether anything was sent since the request began.
    answered: Arc<AtomicBool>,
}

/// What the receiving side of a connection says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Incoming {
    Open,
    /// FIN: nothing more will come.
    Finished,
    /// RST, or another failure.
    Lost,
}

impl Peer {
    /// A request begins.
    pub fn begin(&self) {
        self.answered.store(false, Ordering::Relaxed);
    }

    fn incoming(&self) -> Incoming {
        match SockRef::from(&*self.socket).peek(&mut [MaybeUninit::uninit()]) {
            Ok(0) => Incoming::Finished,
            Ok(_) => Incoming::Open,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Incoming::Open
            }
            Err(_) => Incoming::Lost,
        }
    }

    /// Whether the client has closed at least its sending half.
    pub fn has_finished(&self) -> bool {
        self.incoming() != Incoming::Open
    }

    /// Returns when the client is known to have gone; never, as long as it is there.
    pub async fn gone(&self) {
        loop {
            match self.incoming() {
                Incoming::Lost => return,
                Incoming::Finished if !self.loopback => return,
                Incoming::Finished if !self.answered.load(Ordering::Relaxed) => {
                    let socket = SockRef::from(&*self.socket);
                    if socket.send_out_of_band(b"\n").is_err() || !matches!(socket.take_error(), Ok(None)) {
                        return;
                    }
                }
                Incoming::Finished | Incoming::Open => {}
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// The connection as the HTTP library reads and writes it.
#[derive(Debug)]
pub struct PeerStream {
    socket: Arc<TcpStream>,
    answered: Arc<AtomicBool>,
}

impl PeerStream {
    /// Wraps an accepted connection.
    pub fn new(socket: TcpStream, address: SocketAddr) -> (Self, Peer) {
        let socket = Arc::new(socket);
        let answered = Arc::new(AtomicBool::new(false));
        let peer =
            Peer { socket: Arc::clone(&socket), loopback: address.ip().is_loopback(), answered: Arc::clone(&answered) };
        (PeerStream { socket, answered }, peer)
    }

    fn write(&self, cx: &mut Context<'_>, attempt: impl Fn() -> io::Result<usize>) -> Poll<io::Result<usize>> {
        self.answered.store(true, Ordering::Relaxed);
        loop {
            ready!(self.socket.poll_write_ready(cx))?;
            match attempt() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_read_ready(cx))?;
            match self.socket.try_read(buf.initialize_unfilled()) {
                Ok(count) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, || self.socket.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, || self.socket.try_write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match SockRef::from(&*self.socket).shutdown(std::net::Shutdown::Write) {
            Err(error) if error.kind() != io::ErrorKind::NotConnected => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        }
    }
}
