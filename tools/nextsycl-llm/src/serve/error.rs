//! Errors as the APIs tell them: the one place that maps them to HTTP.

use ns_http::{Answer, StatusCode, header, json};
use serde_json::{Value, json};

/// A request that gets no answer.
#[derive(Debug, Clone)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// OpenAI's `code`.
    pub code: Option<&'static str>,
    /// The field it is about.
    pub param: Option<String>,
    /// In words.
    pub message: String,
    /// Seconds after which to ask again.
    pub retry_after: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code: None, param: None, message: message.into(), retry_after: None }
    }

    /// 400: a field is wrong.
    pub fn invalid(message: impl Into<String>, param: Option<&str>) -> Self {
        Self { param: param.map(str::to_owned), ..Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message) }
    }

    /// 400: a field is not supported.
    pub fn unsupported(message: impl Into<String>, param: &str) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::invalid(message, Some(param)) }
    }

    /// 400: the prompt is too long.
    pub fn too_long(prompt: usize, context: usize) -> Self {
        let message = format!(
            "the prompt has {prompt} tokens, but the longest context is {context} tokens including the answer: \
             shorten the messages"
        );
        Self { code: Some("context_length_exceeded"), ..Self::invalid(message, Some("messages")) }
    }

    /// 404: another model.
    pub fn no_model(wanted: &str, served: &str) -> Self {
        let message = format!("there is no model `{wanted}` here: this server has `{served}`");
        Self {
            code: Some("model_not_found"),
            param: Some("model".to_owned()),
            ..Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
        }
    }

    /// 404: nothing is there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// 405: another method.
    pub fn method(method: &str, path: &str, allowed: &str) -> Self {
        let message = format!("{path} takes {allowed}, not {method}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// 409: not while something else goes on.
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "invalid_request_error", message)
    }

    /// 408 or 413: the body.
    pub fn body(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    /// 503: not now.
    pub fn unavailable(message: impl Into<String>, retry_after: u32) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
        }
    }

    /// 500: our fault.
    pub fn server(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// OpenAI's error object.
    pub fn object(&self) -> Value {
        // llama.cpp's clients look for the number 503 while a model loads.
        let code = match self.code {
            Some(code) => json!(code),
            None if self.status == StatusCode::SERVICE_UNAVAILABLE => json!(503),
            None => Value::Null,
        };
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": code}})
    }

    /// The answer of the OpenAI routes.
    pub fn answer(&self) -> Answer {
        self.with(&self.object())
    }

    /// The answer of the JSON-lines route.
    pub fn plain(&self) -> Answer {
        self.with(&json!({"error": self.message}))
    }

    fn with(&self, object: &Value) -> Answer {
        let mut answer = json(self.status, object);
        if let Some(seconds) = self.retry_after {
            answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        answer
    }
}
