//! Who a server without a key answers when only this machine reaches it. A web page can make a browser call loopback: by a name
//! of its own that leads there (DNS rebinding), or by a form, which asks nobody. So requests that name a foreign host, or
//! come from a foreign page, are refused.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;

use super::error::ApiError;
use super::state::App;

/// Whose requests are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Callers {
    /// Everybody's.
    #[default]
    Any,
    /// Those that name this machine, and come from no page of another.
    Local,
}

/// Refuses foreign requests, if so set.
pub async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, ApiError> {
    if app.settings.callers == Callers::Local {
        // All lines of a header, as far as they are text: what is not, is no name of this machine.
        let texts = |name| -> Vec<String> {
            let values = request.headers().get_all(name).iter();
            values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
        };
        let target = request.uri().authority().map(|authority| authority.as_str().to_owned());
        let hosts: Vec<String> = texts(header::HOST).into_iter().chain(target).collect();
        if let Some(host) = hosts.iter().find(|host| !is_own_host(host)) {
            return Err(ApiError::foreign_host(host));
        }
        let allowed = |origin: &str| app.settings.cors_origins.iter().any(|known| known == "*" || known == origin);
        for origin in texts(header::ORIGIN) {
            if is_foreign_page(&origin, hosts.first().map(String::as_str)) && !allowed(&origin) {
                return Err(ApiError::foreign_page(&origin));
            }
        }
    }
    Ok(next.run(request).await)
}

/// The name in `name[:port]`, in lower case; empty where that is not the form.
fn host_name(authority: &str) -> String {
    let parts = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']'),
        None => Some(authority.split_at(authority.find(':').unwrap_or(authority.len()))),
    };
    let is_port = |text: &str| {
        text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
    };
    match parts {
        Some((name, port)) if is_port(port) => name.trim_end_matches('.').to_ascii_lowercase(),
        _ => String::new(),
    }
}

fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

/// Whether a request for this host can only be meant for a machine of one's own: its name is an address, which nobody can
/// bend, or one that public DNS does not give out.
fn is_own_host(host: &str) -> bool {
    let name = host_name(host);
    is_localhost(&name) || name.parse::<IpAddr>().is_ok() || name.ends_with(".local") || name.ends_with(".internal")
}

/// Whether an origin is a web page of another machine, or hides what it is, as a frame of any page can. Pages of the host that
/// is asked are its own; programs that show pages of their own have origins of other kinds.
fn is_foreign_page(origin: &str, host: Option<&str>) -> bool {
    let origin = origin.to_ascii_lowercase();
    let page = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let Some(page) = page else { return origin == "null" };
    let name = host_name(page);
    let loopback = name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    !(is_localhost(&name) || loopback || host.is_some_and(|host| host.eq_ignore_ascii_case(page)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_of_this_machine_are_its_own_and_public_names_are_not() {
        for host in
            ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "a.localhost", "host.docker.internal:1"]
        {
            assert!(is_own_host(host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:8000",
            "127.0.0.1.evil.example",
            "",
            "x",
            "[::1]evil.example",
            "[::1",
            "localhost:80@evil.example",
            "evil.example\u{fffd}",
        ] {
            assert!(!is_own_host(host), "{host}");
        }
    }

    #[test]
    fn a_page_of_another_machine_is_foreign_and_an_extension_or_the_own_page_is_not() {
        let host = Some("192.168.1.5:8000");
        for origin in [
            "http://evil.example",
            "HTTP://evil.example",
            "https://evil.example:8443",
            "http://203.0.113.5",
            "http://nas.local",
            "http://localhost@evil.example",
            "null",
        ] {
            assert!(is_foreign_page(origin, host) && is_foreign_page(origin, None), "{origin}");
        }
        for origin in ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:5173", "app://obsidian.md"] {
            assert!(!is_foreign_page(origin, None), "{origin}");
        }
        assert!(!is_foreign_page("http://192.168.1.5:8000", host));
    }
}
