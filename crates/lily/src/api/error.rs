//! What goes wrong with a request, as status and JSON. The shape is OpenAI's; the Anthropic dialect rewrites it from the
//! copy that every error response carries in its extensions.

use std::fmt::Display;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lily_engine::SubmitError;
use lily_engine::constraint::ConstraintError;
use lily_model::text::TemplateError;
use serde_json::{Value, json};

/// A refused or failed request.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// OpenAI's `error.type`.
    pub kind: &'static str,
    /// For people.
    pub message: String,
    /// The field at fault, as a path (`messages[2].content`).
    pub param: Option<String>,
    /// For programs.
    pub code: Option<&'static str>,
    /// Seconds after which to try again.
    pub retry_after: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, code: Option<&'static str>, message: impl Into<String>) -> Self {
        ApiError { status, kind, message: message.into(), param: None, code, retry_after: None }
    }

    /// 400 for one field.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", Some("invalid_value"), message);
        ApiError { param: Some(param.into()), ..error }
    }

    /// 400 for the value of a field, saying what would have been accepted. Long values are cut.
    pub fn value(param: &str, value: &Value, accepted: &str) -> Self {
        Self::invalid(param, format!("`{param}` is {} (accepted: {accepted})", shown(&value.to_string())))
    }

    /// 400 for a field that must be there.
    pub fn missing(param: &str, accepted: &str) -> Self {
        let message = format!("`{param}` is missing (accepted: {accepted})");
        ApiError { code: Some("missing_required_parameter"), ..Self::invalid(param, message) }
    }

    /// 400 for a field that is not known or not supported.
    pub fn unknown(param: &str) -> Self {
        let message = format!("`{param}` is not supported; it would change the result, so it is not ignored");
        ApiError { code: Some("unknown_parameter"), ..Self::invalid(param, message) }
    }

    /// 400 for a body that is not JSON.
    pub fn not_json(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", Some("invalid_json"), message)
    }

    /// 401.
    pub fn unauthorized() -> Self {
        let message = "a valid API key is required: Authorization: Bearer KEY, or x-api-key: KEY";
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", Some("invalid_api_key"), message)
    }

    /// 403: the request is for a host that is not this machine.
    pub fn foreign_host(host: &str) -> Self {
        let message = format!(
            "Host is {} (accepted: an address, localhost, or a name in .localhost, .local or .internal; any with --api-key)",
            shown(host)
        );
        Self::new(StatusCode::FORBIDDEN, "permission_error", Some("foreign_host"), message)
    }

    /// 403: the request comes from a web page of another machine.
    pub fn foreign_page(origin: &str) -> Self {
        let message = format!(
            "Origin is {} (accepted: pages of this machine, and those that --cors-origin names; any with --api-key)",
            shown(origin)
        );
        Self::new(StatusCode::FORBIDDEN, "permission_error", Some("foreign_page"), message)
    }

    /// 404.
    pub fn not_found(path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", Some("not_found"), format!("there is no {path}"))
    }

    /// 405.
    pub fn wrong_method(method: &str, path: &str) -> Self {
        let message = format!("{path} does not take {method}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", Some("method_not_allowed"), message)
    }

    /// 408: the body did not arrive.
    pub fn body_timeout() -> Self {
        let message = "the request body did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", Some("request_timeout"), message)
    }

    /// 413.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("the request body is too large (accepted: at most {limit} bytes)");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", Some("request_too_large"), message)
    }

    /// 415: a body that is compressed.
    pub fn unsupported_encoding(header: &str, encoding: &str, accepted: &str) -> Self {
        let message = format!("{header} is {} (accepted: none, or {accepted})", shown(encoding));
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", Some("unsupported_encoding"), message)
    }

    /// 431.
    pub fn head_too_large(limit: usize) -> Self {
        let message = format!("the request's head is too large (accepted: at most {limit} bytes)");
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        Self::new(status, "invalid_request_error", Some("head_too_large"), message)
    }

    /// 503: other bodies that are being read fill the memory for them.
    pub fn bodies_full() -> Self {
        let message = "other large requests are being received; try again";
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("bodies_full"), message);
        ApiError { retry_after: Some(1), ..error }
    }

    /// 503 while the model is being read.
    pub fn loading() -> Self {
        let error = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "server_error",
            Some("model_loading"),
            "the model is being loaded",
        );
        ApiError { retry_after: Some(1), ..error }
    }

    /// 503 when the engine can no longer serve.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("unavailable"), message)
    }

    /// 504: the deadline passed.
    pub fn deadline() -> Self {
        let message = "the request's deadline passed before it was done";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", Some("deadline_exceeded"), message)
    }

    /// 500 with the cause's own words.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", Some("internal_error"), message)
    }

    /// The `error` object.
    pub fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

impl ApiError {
    /// What the engine says of a request whose prompt came in the field `prompt`.
    pub fn submit(error: SubmitError, prompt: &str) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Prompt { .. } => Self::invalid(prompt, message),
            SubmitError::Invalid { field, .. } => Self::invalid(field, message),
            SubmitError::Sampling(inner) => Self::invalid(inner.field, message),
            SubmitError::PromptTooLong { .. } => {
                ApiError { code: Some("context_length_exceeded"), ..Self::invalid(prompt, message) }
            }
            SubmitError::TooLarge { .. } => {
                let message = format!("{message} (accepted: fewer tokens, or a server with more --kv-memory)");
                ApiError { code: Some("context_length_exceeded"), ..Self::invalid(prompt, message) }
            }
            SubmitError::QueueFull { retry_after, .. } => ApiError {
                retry_after: Some(retry_after.as_secs().max(1)),
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", Some("queue_full"), message)
            },
            SubmitError::Unhealthy(_) | SubmitError::ShuttingDown => Self::unavailable(message),
        }
    }
}

impl From<TemplateError> for ApiError {
    fn from(error: TemplateError) -> Self {
        let message = error.to_string();
        let param = match error {
            TemplateError::LateSystemMessage { index } | TemplateError::UnknownRole { index, .. } => {
                format!("messages[{index}].role")
            }
            TemplateError::NotText { index } => format!("messages[{index}].content"),
            TemplateError::Arguments { message, call, .. } => {
                format!("messages[{message}].tool_calls[{call}].function.arguments")
            }
            TemplateError::TooDeep { field } => field,
            _ => "messages".into(),
        };
        Self::invalid(param, message)
    }
}

impl ApiError {
    /// A constraint that did not compile.
    pub fn uncompiled(param: &str, error: &ConstraintError) -> Self {
        match error {
            ConstraintError::Busy { .. } => ApiError { retry_after: Some(5), ..Self::unavailable(error.to_string()) },
            _ => Self::constraint(param, error),
        }
    }

    /// A constraint that cannot be used or kept, blamed on the field it came from.
    pub fn constraint(param: &str, error: &dyn Display) -> Self {
        Self::invalid(param, format!("`{param}`: {error}"))
    }
}

/// A value for a message: a long one is cut.
fn shown(value: &str) -> String {
    const MOST: usize = 80;
    match value.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &value[..at]),
        None => value.to_owned(),
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}
