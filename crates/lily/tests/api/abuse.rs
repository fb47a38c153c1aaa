//! Clients that stall, hang up, or half-close. The server must stay healthy, and what it answers must stay right.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use lily::api::{ApiSettings, ReceiveTimeouts};
use serde_json::{Value, json};

use crate::client::{connect, get, head, metric, post, post_bytes, read, send, wait_for_metric};
use crate::server;

fn body(max_tokens: usize, stream: bool) -> String {
    let messages = json!([{"role": "user", "content": "Tell me a story about a fox."}]);
    json!({"messages": messages, "temperature": 0, "max_tokens": max_tokens, "stream": stream,
           "chat_template_kwargs": {"enable_thinking": false}})
    .to_string()
}

fn answer(address: SocketAddr) -> Value {
    let body = serde_json::from_str(&body(24, false)).unwrap();
    post(address, "/v1/chat/completions", &body).json()["choices"][0]["message"]["content"].clone()
}

/// A server of its own, since these tests look at how many requests run.
fn own() -> server::TestServer {
    server::with_settings(ApiSettings::default())
}

#[test]
fn half_requests_that_stall_do_not_hurt_others() {
    let server = own();
    let expected = answer(server.address);
    let text = body(24, false);
    let stalled: Vec<_> = (0..64)
        .map(|index| {
            let mut stream = connect(server.address);
            let part = match index % 3 {
                0 => b"POST /v1/chat/comp".to_vec(),
                1 => head("/v1/chat/completions", text.len(), "").into_bytes(),
                _ => post_bytes("/v1/chat/completions", &text)[..200].to_vec(),
            };
            stream.write_all(&part).unwrap();
            stream
        })
        .collect();
    let start = Instant::now();
    assert_eq!(answer(server.address), expected);
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(get(server.address, "/health").status, 200);
    drop(stalled);
}

#[test]
fn clients_that_take_too_long_to_send_are_told_so_or_closed() {
    let (short, long) = (Duration::from_millis(300), Duration::from_secs(1));
    let timeouts = ReceiveTimeouts { head: short, pause: short, body: long };
    let server = server::with_settings(ApiSettings { timeouts, ..ApiSettings::default() });
    let start = Instant::now();
    let mut half_a_head = connect(server.address);
    half_a_head.write_all(b"POST /v1/comp").unwrap();
    let mut end = Vec::new();
    half_a_head.read_to_end(&mut end).unwrap();
    assert!(end.is_empty() || end.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&end));
    let mut half_a_body = connect(server.address);
    half_a_body.write_all(head("/v1/completions", 100, "").as_bytes()).unwrap();
    assert_eq!(read(half_a_body).status, 408);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    // One that never pauses for long, but never ends.
    let mut dripping = connect(server.address);
    dripping.write_all(head("/v1/completions", 1000, "").as_bytes()).unwrap();
    let mut writing = dripping.try_clone().unwrap();
    let drip = std::thread::spawn(move || {
        // Ends with the connection, at the latest.
        while writing.write_all(b" ").is_ok() && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let mut status = [0; 12];
    dripping.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 408");
    drop(dripping);
    drip.join().unwrap();
}

#[test]
fn a_server_that_ends_does_not_wait_for_bodies() {
    let server = own();
    let mut half = connect(server.address);
    half.write_all(head("/v1/completions", 100, "").as_bytes()).unwrap();
    server.app.end();
    // 408 would mean that its time had passed.
    assert_eq!(read(half).status, 503);
}

#[test]
fn a_client_that_closes_frees_its_slot_streaming_or_not() {
    let server = own();
    for stream in [true, false] {
        let mut connection = connect(server.address);
        connection.write_all(&post_bytes("/v1/chat/completions", &body(10_000, stream))).unwrap();
        wait_for_metric(server.address, "requests_running", 1.0, Duration::from_secs(20));
        drop(connection);
        wait_for_metric(server.address, "requests_running", 0.0, Duration::from_secs(5));
    }
    assert_eq!(metric(server.address, "requests_finished_total{reason=\"cancelled\"}"), 2.0);
}

#[test]
fn a_client_that_hangs_up_while_its_prompt_is_read_frees_its_slot() {
    let server = own();
    // Odd ids, so that nothing of it is in the cache.
    let ids: Vec<u32> = (0..15_000u32).map(|i| 300 + i.wrapping_mul(2_654_435_761) % 5000).collect();
    let body = json!({"prompt": ids, "max_tokens": 1}).to_string();
    let mut connection = connect(server.address);
    connection.write_all(&post_bytes("/v1/completions", &body)).unwrap();
    wait_for_metric(server.address, "requests_running", 1.0, Duration::from_secs(20));
    drop(connection);
    wait_for_metric(server.address, "requests_running", 0.0, Duration::from_secs(10));
    assert_eq!(metric(server.address, "requests_finished_total{reason=\"cancelled\"}"), 1.0);
    assert_eq!(metric(server.address, "generated_tokens_total"), 0.0);
}

#[test]
fn a_client_that_hangs_up_while_it_waits_leaves_the_queue() {
    let server = own();
    let mut running = connect(server.address);
    running.write_all(&post_bytes("/v1/chat/completions", &body(10_000, true))).unwrap();
    wait_for_metric(server.address, "requests_running", 1.0, Duration::from_secs(20));
    let mut waiting = connect(server.address);
    waiting.write_all(&post_bytes("/v1/chat/completions", &body(10_000, false))).unwrap();
    wait_for_metric(server.address, "requests_waiting", 1.0, Duration::from_secs(20));
    drop(waiting);
    wait_for_metric(server.address, "requests_waiting", 0.0, Duration::from_secs(5));
    drop(running);
    wait_for_metric(server.address, "requests_running", 0.0, Duration::from_secs(5));
}

#[test]
fn a_half_closed_client_still_gets_its_whole_answer() {
    let address = server::shared();
    let expected = answer(address);
    for stream in [false, true] {
        let mut connection = connect(address);
        connection.write_all(&post_bytes("/v1/chat/completions", &body(24, stream))).unwrap();
        connection.shutdown(Shutdown::Write).unwrap();
        let response = read(connection);
        assert_eq!(response.status, 200, "{}", response.body);
        if stream {
            let events = response.events();
            assert_eq!(events.last().unwrap(), "[DONE]");
            let text: String =
                events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
            assert_eq!(json!(text), expected);
        } else {
            assert_eq!(response.json()["choices"][0]["message"]["content"], expected);
        }
    }
}

/// What one of the clients below does.
fn visit(address: SocketAddr, number: u64, expected: &Value) {
    // A small generator is enough to spread the points.
    let point = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let (hangs_up, point) = (point.is_multiple_of(2), point / 2);
    let prompt = json!({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 4, "stream": point % 3 == 0});
    let bytes = post_bytes("/v1/completions", &prompt.to_string());
    let mut connection = connect(address);
    if !hangs_up {
        connection.write_all(&bytes).unwrap();
        let response = read(connection);
        assert_eq!(response.status, 200, "{}", response.body);
        let values = if prompt["stream"] == true { response.events() } else { vec![response.json()] };
        let text: String = values.iter().filter_map(|value| value["choices"][0]["text"].as_str()).collect();
        assert_eq!(json!(text), *expected);
        return;
    }
    match point % 4 {
        0 => drop(connection.write_all(&bytes[..bytes.len() * (point as usize % 97) / 97])),
        1 => drop(connection.write_all(&bytes)),
        2 => {
            let _ = connection.write_all(&bytes);
            std::thread::sleep(Duration::from_millis(point % 30));
        }
        _ => {
            let _ = connection.write_all(&bytes);
            let _ = connection.set_read_timeout(Some(Duration::from_millis(50)));
            let _ = connection.read(&mut vec![0; point as usize % 300]);
        }
    }
}

#[test]
fn a_thousand_requests_of_which_half_hang_up_leave_a_healthy_and_correct_server() {
    let server = server::with(lily::api::ApiSettings::default(), &server::sharing(8));
    let address = server.address;
    let prompt = json!({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 4});
    let expected = post(address, "/v1/completions", &prompt).json()["choices"][0]["text"].clone();
    std::thread::scope(|scope| {
        for thread in 0..20 {
            let expected = &expected;
            scope.spawn(move || (0..50).for_each(|round| visit(address, thread * 50 + round, expected)));
        }
    });
    wait_for_metric(address, "requests_running", 0.0, Duration::from_secs(20));
    wait_for_metric(address, "requests_waiting", 0.0, Duration::from_secs(20));
    assert_eq!(post(address, "/v1/completions", &prompt).json()["choices"][0]["text"], expected);
    assert_eq!(metric(address, "device_errors_total"), 0.0);
    assert_eq!(metric(address, "requests_finished_total{reason=\"error\"}"), 0.0);
    assert!(metric(address, "requests_finished_total{reason=\"cancelled\"}") > 20.0);
    assert_eq!(get(address, "/health").status, 200);
}

#[test]
fn heads_that_are_too_large_are_refused() {
    let address = server::shared();
    let long = format!("GET /health HTTP/1.1\r\nhost: test\r\nx-long: {}\r\n\r\n", "y".repeat(100 << 10));
    assert_eq!(send(address, long.as_bytes()).status, 431);
    let many: String = (0..200).map(|i| format!("x-{i}: y\r\n")).collect();
    assert_eq!(send(address, format!("GET /health HTTP/1.1\r\nhost: test\r\n{many}\r\n").as_bytes()).status, 431);
    assert_eq!(get(address, "/health").status, 200);
}
