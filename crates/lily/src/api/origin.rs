//! Who a server without a key answers when only this machine reaches it. A web page can make a browser call loopback: by a name
//! of its own that leads there (DNS rebinding), or by a form, which asks nobody. So requests that name a foreign host, or
//! come from a foreign page, are refused. A host that is an address cannot be a name that was bent.

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
        let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
        if let Some(host) = text(header::HOST)
            && !is_local(host)
        {
            return Err(ApiError::foreign("Host", host));
        }
        if let Some(origin) = text(header::ORIGIN)
            && is_foreign_page(origin)
            && !app.settings.cors_origins.iter().any(|allowed| allowed == "*" || allowed == origin)
        {
            return Err(ApiError::foreign("Origin", origin));
        }
    }
    Ok(next.run(request).await)
}

/// Whether `host[:port]` can only mean a machine of one's own: an address, or a name that public DNS does not give out.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let own = [".localhost", ".local", ".internal"];
    name.parse::<IpAddr>().is_ok() || name == "localhost" || own.iter().any(|ending| name.ends_with(ending))
}

/// Whether an origin is a web page of another machine, or hides what it is, as a frame of any page can. Programs that show
/// pages of their own have origins of other kinds.
fn is_foreign_page(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    origin == "null" || host.is_some_and(|host| !is_local(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_of_this_machine_are_local_and_public_names_are_not() {
        for host in
            ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "a.localhost", "host.docker.internal:1"]
        {
            assert!(is_local(host), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:8000", "127.0.0.1.evil.example", "", "x"] {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn a_page_of_another_machine_is_foreign_and_an_extension_is_not() {
        for origin in ["http://evil.example", "https://evil.example:8443", "null"] {
            assert!(is_foreign_page(origin), "{origin}");
        }
        for origin in ["http://localhost:3000", "http://127.0.0.1", "app://obsidian.md"] {
            assert!(!is_foreign_page(origin), "{origin}");
        }
    }
}
