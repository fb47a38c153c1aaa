//! The API key, CORS, and the chat page.

use lily::api::{ApiSettings, Callers};
use serde_json::json;

use crate::client::{get, send};
use crate::server;

fn get_with(address: std::net::SocketAddr, path: &str, headers: &str) -> crate::client::Response {
    send(address, format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}\r\n").as_bytes())
}

#[test]
fn with_a_key_only_its_bearers_get_in_but_health_and_page_stay_open() {
    let settings = ApiSettings { api_key: Some("secret".into()), ..ApiSettings::default() };
    let server = server::with_settings(settings);
    let models = |headers| get_with(server.address, "/v1/models", headers).status;
    assert_eq!(models(""), 401);
    assert_eq!(models("authorization: Bearer wrong!\r\n"), 401);
    assert_eq!(models("authorization: Bearer secre\r\n"), 401);
    assert_eq!(models("authorization: Bearer secret\r\n"), 200);
    assert_eq!(models("x-api-key: secret\r\n"), 200);
    assert_eq!(get(server.address, "/health").status, 200);
    assert_eq!(get(server.address, "/").status, 200);
}

#[test]
fn other_origins_are_let_in_only_if_configured() {
    let origin = "origin: http://example.com\r\n";
    assert!(!get_with(server::shared(), "/v1/models", origin).headers.contains("access-control-allow-origin"));
    let settings = ApiSettings { cors_origins: vec!["http://example.com".into()], ..ApiSettings::default() };
    let server = server::with_settings(settings);
    let response = get_with(server.address, "/v1/models", origin);
    assert!(response.headers.contains("access-control-allow-origin: http://example.com"), "{}", response.headers);
    let response = get_with(server.address, "/v1/models", "origin: http://other.com\r\n");
    assert!(!response.headers.contains("access-control-allow-origin"), "{}", response.headers);
}

#[test]
fn a_server_for_this_machine_refuses_foreign_hosts_and_pages() {
    let settings = ApiSettings {
        callers: Callers::Local,
        cors_origins: vec!["https://friend.example".into()],
        ..ApiSettings::default()
    };
    let server = server::with_settings(settings);
    let status = |headers: &str| {
        let request = format!("GET /v1/models HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
        send(server.address, request.as_bytes()).status
    };
    assert_eq!(status("host: 127.0.0.1:8000\r\n"), 200);
    assert_eq!(status("host: localhost\r\norigin: http://localhost:3000\r\n"), 200);
    assert_eq!(status("host: localhost\r\norigin: https://friend.example\r\n"), 200);
    assert_eq!(status("host: evil.example\r\n"), 403);
    assert_eq!(status("host: localhost\r\norigin: http://evil.example\r\n"), 403);
    assert_eq!(status("host: localhost\r\norigin: null\r\n"), 403);
}

#[test]
fn errors_before_a_handler_have_anthropics_shape_on_its_paths() {
    let settings = ApiSettings { callers: Callers::Local, api_key: Some("key".into()), ..ApiSettings::default() };
    let server = server::with_settings(settings);
    let large = format!("x-filler: {}\r\n", "x".repeat(70 << 10));
    for (method, extra, status, kind) in [
        ("POST", "host: localhost\r\n", 401, "authentication_error"),
        ("POST", "host: evil.example\r\n", 403, "permission_error"),
        ("GET", "host: localhost\r\nx-api-key: key\r\n", 405, "invalid_request_error"),
        ("POST", &format!("host: localhost\r\n{large}"), 431, "invalid_request_error"),
        ("POST", "host: localhost\r\nx-api-key: key\r\ncontent-encoding: br\r\n", 415, "invalid_request_error"),
    ] {
        let head = format!("{method} /v1/messages HTTP/1.1\r\nconnection: close\r\ncontent-length: 0\r\n{extra}\r\n");
        let response = send(server.address, head.as_bytes());
        let body = response.json();
        assert_eq!((response.status, &body["type"], &body["error"]["type"]), (status, &json!("error"), &json!(kind)));
    }
}

#[test]
fn the_page_is_self_contained() {
    let response = get(server::shared(), "/");
    assert_eq!(response.status, 200);
    assert!(response.body.contains("/v1/chat/completions"));
    for outside in ["src=\"http", "href=\"http", "@import", "//cdn"] {
        assert!(!response.body.contains(outside), "{outside}");
    }
}
