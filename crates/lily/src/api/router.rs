//! Which path is answered by what.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::error::ApiError;
use super::server::HEAD_BYTES;
use super::state::App;
use super::{anthropic, auth, log, openai, ops, origin, responses, tokens};

/// The whole API over `app`.
pub fn router(app: &Arc<App>) -> Router {
    let routes = Router::new()
        .route("/", get(page))
        .route("/health", get(ops::health))
        .route("/metrics", get(ops::metrics))
        .route("/v1/models", get(openai::models))
        .route("/v1/models/{*name}", get(openai::model))
        .route("/v1/chat/completions", post(openai::chat_completions))
        .route("/v1/completions", post(openai::completions))
        .route("/v1/responses", post(responses::responses))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(app), auth::check))
        .layer(middleware::from_fn_with_state(Arc::clone(app), origin::check))
        .layer(middleware::from_fn(bounded_head))
        .layer(middleware::from_fn(anthropic::errors))
        .layer(middleware::from_fn(log::request));
    let routes = match cors(&app.settings.cors_origins) {
        Some(layer) => routes.layer(layer),
        None => routes,
    };
    routes.with_state(Arc::clone(app))
}

/// CORS for the configured origins; without any, browsers of other origins are not let in.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    // Browser clients send headers of their own, and ask for each; none of them means anything here.
    let headers = AllowHeaders::mirror_request();
    let layer =
        CorsLayer::new().allow_origin(allowed).allow_methods([Method::GET, Method::POST]).allow_headers(headers);
    Some(layer.expose_headers([HeaderName::from_static("x-request-id"), header::RETRY_AFTER]))
}

async fn page() -> Response {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                  img-src data:";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(include_str!("../web/chat.html"))).into_response()
}

/// Refuses heads that are too large.
async fn bounded_head(request: Request, next: Next) -> Result<Response, ApiError> {
    let headers: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if headers + target > HEAD_BYTES { Err(ApiError::head_too_large(HEAD_BYTES)) } else { Ok(next.run(request).await) }
}

async fn not_found(request: Request) -> ApiError {
    ApiError::not_found(request.uri().path())
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::wrong_method(request.method().as_str(), request.uri().path())
}
