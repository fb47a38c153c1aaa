//! A client that does only what it is told: bytes out, a parsed response back.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

impl Response {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The values of a stream's `data:` lines; `[DONE]` is a string.
    pub fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|text| serde_json::from_str(text).unwrap_or_else(|_| text.into())).collect()
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    stream
}

/// The head of a POST with a body of `length` bytes.
pub fn head(path: &str, length: usize, extra: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\nconnection: close\r\n{extra}content-length: {length}\r\n\r\n"
    )
}

/// A whole POST.
pub fn post_bytes(path: &str, body: &str) -> Vec<u8> {
    [head(path, body.len(), "").as_bytes(), body.as_bytes()].concat()
}

/// Reads a response to its end.
pub fn read(mut stream: TcpStream) -> Response {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Response {
    // Sent to a client that closed its sending half.
    let mut bytes = bytes;
    while let Some(rest) = bytes.strip_prefix(b"HTTP/1.1 100 Continue\r\n\r\n") {
        bytes = rest;
    }
    let at = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a response has a head");
    let headers = String::from_utf8_lossy(&bytes[..at]).to_lowercase();
    let status = headers.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    let mut rest = &bytes[at + 4..];
    let mut body = Vec::new();
    if headers.contains("transfer-encoding: chunked") {
        while let Some(line) = rest.windows(2).position(|w| w == b"\r\n") {
            let length = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
            body.extend_from_slice(&rest[line + 2..line + 2 + length]);
            rest = &rest[line + 2 + length + 2..];
        }
    } else {
        body.extend_from_slice(rest);
    }
    Response { status, headers, body: String::from_utf8(body).unwrap() }
}

/// Sends bytes and reads the response.
pub fn send(address: SocketAddr, bytes: &[u8]) -> Response {
    let mut stream = connect(address);
    stream.write_all(bytes).unwrap();
    read(stream)
}

pub fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    send(address, &post_bytes(path, &body.to_string()))
}

pub fn get(address: SocketAddr, path: &str) -> Response {
    send(address, format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").as_bytes())
}

/// A sample of `/metrics`.
pub fn metric(address: SocketAddr, name: &str) -> f64 {
    let body = get(address, "/metrics").body;
    let line = body.lines().find_map(|line| line.strip_prefix(&format!("lily_{name} "))).expect("a sample");
    line.parse().unwrap()
}

/// Waits until a sample of `/metrics` has a value.
pub fn wait_for_metric(address: SocketAddr, name: &str, value: f64, patience: Duration) {
    let start = std::time::Instant::now();
    while metric(address, name) != value {
        assert!(start.elapsed() < patience, "lily_{name} is {} after {patience:?}", metric(address, name));
        std::thread::sleep(Duration::from_millis(20));
    }
}
