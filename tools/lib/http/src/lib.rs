//! HTTP plumbing on hyper: listeners on TCP and on a Unix socket, limits, streamed answers, CORS, a socket client.

mod body;
pub mod client;
pub mod cors;
mod listen;
mod serve;

pub use body::{Body, BodyError, BodySender, collect, full, stream};
pub use hyper::body::{Bytes, Incoming};
pub use hyper::{Method, Request, Response, StatusCode, header};
pub use listen::{ListenError, UnixListening, given_tcp, listen_tcp, listen_unix};
pub use serve::{Limits, Server, Via};

/// The answer to a request.
pub type Answer = Response<Body>;

/// A JSON answer.
pub fn json(status: StatusCode, value: &serde_json::Value) -> Answer {
    let mut text = value.to_string();
    text.push('\n');
    with_type(status, "application/json", full(text))
}

/// An answer with a body of the given media type.
pub fn with_type(status: StatusCode, media_type: &'static str, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(media_type));
    answer
}
