//! What happens when there is too much to do: a full queue, deadlines, too little memory, the end of the server.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lily::api::ApiSettings;
use lily::model::Sharing;
use serde_json::{Value, json};

use crate::client::{connect, head, post, post_bytes, send, wait_for_metric};
use crate::server;

const SOON: Duration = Duration::from_secs(20);

/// A request that does not end by itself.
fn endless(extra: Value) -> Value {
    let mut body = json!({"prompt": "Once upon a time", "max_tokens": 12_000, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn begin(address: SocketAddr, metric: &str) -> std::net::TcpStream {
    let mut stream = connect(address);
    stream.write_all(&post_bytes("/v1/completions", &endless(json!({"stream": true})).to_string())).unwrap();
    wait_for_metric(address, metric, 1.0, SOON);
    stream
}

#[test]
fn a_full_queue_answers_429_and_says_when_to_come_back() {
    let sharing = Sharing { max_waiting: 1, ..server::sharing(1) };
    let address = &server::with(ApiSettings::default(), &sharing);
    let address = address.address;
    let running = begin(address, "requests_running");
    let waiting = begin(address, "requests_waiting");
    let response = post(address, "/v1/completions", &json!({"prompt": "x", "max_tokens": 1}));
    assert_eq!((response.status, &response.json()["error"]["code"]), (429, &json!("queue_full")));
    let seconds = response.headers.lines().find_map(|line| line.strip_prefix("retry-after: ")).expect("a header");
    assert!((1..=600).contains(&seconds.parse::<u64>().unwrap()), "{seconds}");
    let message = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
    let response = post(address, "/v1/messages", &message);
    assert_eq!((response.status, &response.json()["error"]["type"]), (429, &json!("rate_limit_error")));
    assert!(response.headers.contains("retry-after: "));
    // More answers than can ever run and wait are no matter of time.
    let response = post(address, "/v1/completions", &json!({"prompt": "x", "n": 3}));
    assert_eq!((response.status, &response.json()["error"]["param"]), (400, &json!("n")));
    drop((running, waiting));
    wait_for_metric(address, "requests_running", 0.0, SOON);
    assert_eq!(post(address, "/v1/completions", &json!({"prompt": "x", "max_tokens": 1})).status, 200);
}

#[test]
fn a_deadline_ends_a_request_that_runs_and_one_that_waits() {
    let server = server::with_settings(ApiSettings::default());
    let address = server.address;
    let start = Instant::now();
    let response = post(address, "/v1/completions", &endless(json!({"timeout": 0.3})));
    assert_eq!((response.status, &response.json()["error"]["code"]), (504, &json!("deadline_exceeded")));
    let events = post(address, "/v1/completions", &endless(json!({"timeout": 0.3, "stream": true}))).events();
    assert_eq!(events[events.len() - 2]["error"]["code"], "deadline_exceeded");
    assert!(events.len() > 3, "what came before the deadline is there: {events:?}");
    let running = begin(address, "requests_running");
    let response = post(address, "/v1/completions", &endless(json!({"timeout": 0.3})));
    assert_eq!(response.status, 504);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    drop(running);
}

#[test]
fn the_servers_own_limit_holds_for_requests_that_ask_for_more() {
    let settings = ApiSettings { request_timeout: Some(Duration::from_millis(300)), ..ApiSettings::default() };
    let server = server::with_settings(settings);
    for extra in [json!({}), json!({"timeout": 600})] {
        assert_eq!(post(server.address, "/v1/completions", &endless(extra)).status, 504);
    }
}

#[test]
fn bodies_that_are_being_received_are_bounded_together() {
    let settings = ApiSettings { max_body: 64 << 10, ..ApiSettings::default() };
    let server = server::with_settings(settings);
    let small = json!({"prompt": "x", "max_tokens": 1});
    let filler = " ".repeat(63 << 10);
    let large = format!("{}{small}", " ".repeat(60 << 10));
    let mut stalled = Vec::new();
    let refused = loop {
        let mut stream = connect(server.address);
        stream.write_all(head("/v1/completions", 64 << 10, "").as_bytes()).unwrap();
        stream.write_all(filler.as_bytes()).unwrap();
        stalled.push(stream);
        let response = send(server.address, &post_bytes("/v1/completions", &large));
        if response.status != 200 {
            break response;
        }
        assert!(stalled.len() < 100, "what stalled clients sent is not counted");
    };
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("bodies_full")));
    assert!(refused.headers.contains("retry-after: "));
    assert_eq!(post(server.address, "/v1/completions", &small).status, 200, "small ones go through");
    drop(stalled);
    let start = Instant::now();
    while send(server.address, &post_bytes("/v1/completions", &large)).status != 200 {
        assert!(start.elapsed() < SOON, "the memory was not given back");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_request_that_memory_cannot_hold_is_refused_with_the_numbers() {
    let sharing = Sharing { kv_bytes: Some(4 << 20), cache_bytes: 0, ..server::sharing(1) };
    let server = server::with(ApiSettings::default(), &sharing);
    let response = post(server.address, "/v1/completions", &endless(json!({})));
    let error = response.json()["error"].clone();
    assert_eq!((response.status, &error["param"]), (400, &json!("prompt")), "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("12000") && message.contains("pages"), "{message}");
    let body = json!({"prompt": "Once upon a time", "max_tokens": 4});
    assert_eq!(post(server.address, "/v1/completions", &body).status, 200);
}

#[test]
fn a_constraint_that_takes_long_to_compile_keeps_no_other_request_waiting() {
    let server = server::with_settings(ApiSettings::default());
    let address = server.address;
    // Takes seconds to compile.
    let slow = |divisor: u64| {
        let schema = json!({"allOf": [{"type": "integer", "multipleOf": 991}, {"multipleOf": divisor}]});
        json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1,
               "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
    };
    let compiling: Vec<_> = [997, 1009]
        .into_iter()
        .map(|divisor| {
            let body = slow(divisor);
            std::thread::spawn(move || post(address, "/v1/chat/completions", &body).status)
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(post(address, "/v1/completions", &json!({"prompt": "x", "max_tokens": 1})).status, 200);
    // One that waits for its turn to compile keeps its own time.
    let mut body = slow(983);
    body["timeout"] = json!(0.3);
    assert_eq!(post(address, "/v1/chat/completions", &body).status, 504);
    assert!(compiling.iter().all(|thread| !thread.is_finished()), "nothing took long");
    // On a slow machine the time for it is over before it is done.
    assert!(compiling.into_iter().all(|thread| matches!(thread.join().unwrap(), 200 | 400)));
    let unbounded = json!({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]});
    body["response_format"]["json_schema"]["schema"] = unbounded;
    let response = post(address, "/v1/chat/completions", &body);
    assert!(response.status == 400 && response.body.contains("multipleOf"), "{}", response.body);
}
