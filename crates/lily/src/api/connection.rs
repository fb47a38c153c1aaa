//! One client's connection: notices that the client has gone while its request is still computed.
//!
//! A client that closes its socket and one that only closes its sending half look the same: both send FIN. The second
//! still waits for its answer. They differ once something is sent to them: a closed socket answers with RST. So after FIN
//! something is sent now and then that a client who reads on skips, until the answer begins; then its own bytes tell: the
//! interim response `100 Continue`, which every HTTP/1.1 client must skip.

use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::http::Version;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// How often a connection is looked at while its request is computed.
const LOOK: Duration = Duration::from_millis(25);
/// Looks between two interim responses to a client that has sent FIN.
const LOOKS_BETWEEN_INTERIM: u32 = 20;
/// How long a client may read nothing while there is something for it.
const WRITE_PATIENCE: Duration = Duration::from_secs(120);
/// Skipped by a client that waits for its answer.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A request as its connection sees it: who waits for it.
#[derive(Debug, Clone)]
pub struct Peer {
    socket: Arc<TcpStream>,
    probe: Probe,
    id: Arc<str>,
    requests: Weak<()>,
    /// Counts the request among those under way, as long as anyone works on it.
    _counted: Option<Arc<()>>,
    /// Whether anything was sent since the request began. Held locked while anything is sent, so that a probe never lands
    /// inside an answer.
    answered: Arc<Mutex<bool>>,
}

/// How it is found out whether a client that sent FIN still reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probe {
    InterimResponse,
    /// Not at all: HTTP/1.0 has no interim responses, so FIN means gone.
    Never,
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
    /// The peer of the request that begins now.
    pub fn of_request(&self, id: &str, version: Version) -> Self {
        *lock(&self.answered) = false;
        let probe = match self.probe {
            Probe::InterimResponse if version < Version::HTTP_11 => Probe::Never,
            other => other,
        };
        Peer { id: id.into(), probe, _counted: self.requests.upgrade(), ..self.clone() }
    }

    /// Id of the request.
    pub fn id(&self) -> &str {
        &self.id
    }

    fn incoming(&self) -> Incoming {
        match SockRef::from(&*self.socket).peek(&mut [MaybeUninit::uninit()]) {
            Ok(0) => Incoming::Finished,
            Ok(_) if self.is_read_closed() => Incoming::Finished,
            Ok(_) => Incoming::Open,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Incoming::Open
            }
            Err(_) => Incoming::Lost,
        }
    }

    /// Whether the system has seen FIN behind bytes that nobody has read.
    fn is_read_closed(&self) -> bool {
        let ready = pin!(self.socket.ready(Interest::READABLE));
        let polled = ready.poll(&mut Context::from_waker(Waker::noop()));
        matches!(polled, Poll::Ready(Ok(state)) if state.is_read_closed())
    }

    /// Whether the client has closed at least its sending half.
    pub fn has_finished(&self) -> bool {
        self.incoming() != Incoming::Open
    }

    /// Returns when the client is known to have gone; never, as long as it is there.
    pub async fn gone(&self) {
        let mut looks = 0u32;
        loop {
            match self.incoming() {
                Incoming::Lost => return,
                Incoming::Finished => {
                    if !self.still_reads(looks) {
                        return;
                    }
                    looks += 1;
                }
                Incoming::Open => {}
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Sends something to a client that has sent FIN, if it is time for it; false if the client is gone.
    fn still_reads(&self, looks: u32) -> bool {
        let answered = lock(&self.answered);
        let socket = SockRef::from(&*self.socket);
        if !matches!(socket.take_error(), Ok(None)) {
            return false;
        }
        match self.probe {
            Probe::Never => false,
            _ if *answered => true,
            Probe::InterimResponse if looks.is_multiple_of(LOOKS_BETWEEN_INTERIM) => match socket.send(INTERIM) {
                Ok(sent) => sent == INTERIM.len(),
                // It does not read, but it may yet.
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            },
            Probe::InterimResponse => true,
        }
    }
}

fn lock(answered: &Mutex<bool>) -> MutexGuard<'_, bool> {
    answered.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection as the HTTP library reads and writes it.
#[derive(Debug)]
pub struct PeerStream {
    socket: Arc<TcpStream>,
    answered: Arc<Mutex<bool>>,
    patience: Duration,
    /// Runs while a write waits for the client to read.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl PeerStream {
    /// Wraps an accepted connection. While one of its requests is worked on, it holds a reference to `requests`.
    pub fn new(socket: TcpStream, requests: &Arc<()>) -> (Self, Peer) {
        let socket = Arc::new(socket);
        let answered = Arc::new(Mutex::new(false));
        let peer = Peer {
            socket: Arc::clone(&socket),
            probe: Probe::InterimResponse,
            id: "".into(),
            requests: Arc::downgrade(requests),
            _counted: None,
            answered: Arc::clone(&answered),
        };
        (PeerStream { socket, answered, patience: WRITE_PATIENCE, stuck: None }, peer)
    }

    fn write(
        &mut self,
        cx: &mut Context<'_>,
        attempt: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            if self.socket.poll_write_ready(cx)?.is_pending() {
                let patience = self.patience;
                let stuck = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
                ready!(stuck.as_mut().poll(cx));
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")));
            }
            let mut answered = lock(&self.answered);
            *answered = true;
            match attempt(&self.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => {
                    self.stuck = None;
                    return Poll::Ready(done);
                }
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
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, |socket| socket.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |socket| socket.try_write_vectored(parts))
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream as Client};

    use tokio::net::TcpListener;

    use super::*;

    /// A connection and its client.
    async fn connected(version: Version) -> (Peer, PeerStream, Client) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let client = Client::connect(listener.local_addr().expect("an address")).expect("connects");
        let (socket, _) = listener.accept().await.expect("accepts");
        let (stream, peer) = PeerStream::new(socket, &Arc::new(()));
        (peer.of_request("req_1", version), stream, client)
    }

    const PATIENCE: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn a_client_that_half_closes_gets_interim_responses_and_stays() {
        let (peer, mut stream, mut client) = connected(Version::HTTP_11).await;
        client.shutdown(Shutdown::Write).expect("half closed");
        assert!(tokio::time::timeout(Duration::from_millis(700), peer.gone()).await.is_err(), "taken for gone");
        let head = b"HTTP/1.1 200 OK\r\n\r\n";
        let written = std::future::poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, head)).await.expect("written");
        assert_eq!(written, head.len());
        // Once the answer has begun nothing may come between its bytes.
        assert!(tokio::time::timeout(Duration::from_millis(700), peer.gone()).await.is_err(), "taken for gone");
        drop((peer, stream));
        let mut text = String::new();
        client.read_to_string(&mut text).expect("text");
        let interim = text.matches("HTTP/1.1 100 Continue\r\n\r\n").count();
        assert_eq!(text.replace("HTTP/1.1 100 Continue\r\n\r\n", ""), "HTTP/1.1 200 OK\r\n\r\n");
        assert!((1..=3).contains(&interim), "{text:?}");
        assert!(text.ends_with("200 OK\r\n\r\n"), "{text:?}");
    }

    #[tokio::test]
    async fn a_client_that_closes_is_gone() {
        let (peer, _stream, client) = connected(Version::HTTP_11).await;
        drop(client);
        tokio::time::timeout(PATIENCE, peer.gone()).await.expect("noticed");
    }

    #[tokio::test]
    async fn bytes_that_nobody_reads_do_not_hide_that_a_client_is_gone() {
        let (peer, _stream, mut client) = connected(Version::HTTP_11).await;
        client.write_all(b"\r\n").expect("sent");
        assert!(tokio::time::timeout(Duration::from_millis(200), peer.gone()).await.is_err(), "it has not closed");
        drop(client);
        tokio::time::timeout(PATIENCE, peer.gone()).await.expect("noticed");
    }

    #[tokio::test]
    async fn a_client_that_never_reads_is_given_up() {
        let (_peer, mut stream, client) = connected(Version::HTTP_11).await;
        stream.patience = Duration::from_millis(200);
        let bytes = vec![0; 1 << 20];
        let fill = async {
            loop {
                let written = std::future::poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, &bytes)).await;
                if let Err(error) = written {
                    return error.kind();
                }
            }
        };
        assert_eq!(tokio::time::timeout(PATIENCE, fill).await.expect("given up"), io::ErrorKind::TimedOut);
        drop(client);
    }

    #[tokio::test]
    async fn an_old_client_that_half_closes_counts_as_gone() {
        let (peer, _stream, mut client) = connected(Version::HTTP_10).await;
        client.write_all(b"x").expect("sent");
        assert!(tokio::time::timeout(Duration::from_millis(100), peer.gone()).await.is_err(), "it has not closed");
        let mut byte = [0];
        peer.socket.readable().await.expect("readable");
        assert_eq!(peer.socket.try_read(&mut byte).expect("a byte"), 1);
        client.shutdown(Shutdown::Write).expect("half closed");
        tokio::time::timeout(PATIENCE, peer.gone()).await.expect("noticed");
    }
}
