//! Bodies: answers that are whole or streamed, and requests read within limits.

use crate::Limits;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// The body of an answer.
#[derive(Debug)]
pub struct Body(Kind);

#[derive(Debug)]
enum Kind {
    Full(Option<Bytes>),
    Stream(mpsc::Receiver<Bytes>),
}

/// The writing end of a streamed body.
#[derive(Debug, Clone)]
pub struct BodySender(mpsc::Sender<Bytes>);

impl BodySender {
    /// Sends a piece, waiting while the client is slow. `false`: the client is gone.
    pub async fn send(&self, piece: impl Into<Bytes>) -> bool {
        self.0.send(piece.into()).await.is_ok()
    }

    /// Waits until the client is gone.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}

/// A whole body.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    let bytes = bytes.into();
    Body(Kind::Full((!bytes.is_empty()).then_some(bytes)))
}

/// A body sent piece by piece; it ends when the sender is dropped.
pub fn stream() -> (BodySender, Body) {
    let (sender, receiver) = mpsc::channel(16);
    (BodySender(sender), Body(Kind::Stream(receiver)))
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.0 {
            Kind::Full(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Kind::Stream(receiver) => receiver.poll_recv(cx).map(|piece| piece.map(|b| Ok(Frame::data(b)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Kind::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Kind::Stream(_) => SizeHint::default(),
        }
    }
}

/// Why a request's body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// Larger than allowed.
    #[error("the request body is larger than {0} bytes")]
    TooLarge(usize),
    /// It did not arrive in time.
    #[error("the request body did not arrive in time")]
    Slow,
    /// The connection broke.
    #[error("the request body could not be read: {0}")]
    Broken(String),
}

/// Reads a request's whole body within the limits.
pub async fn collect(body: Incoming, limits: &Limits) -> Result<Bytes, BodyError> {
    let declared = hyper::body::Body::size_hint(&body).lower();
    if declared > limits.body_bytes as u64 {
        return Err(BodyError::TooLarge(limits.body_bytes));
    }
    let read = Limited::new(body, limits.body_bytes).collect();
    match tokio::time::timeout(limits.body_time, read).await {
        Err(_) => Err(BodyError::Slow),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(e)) if e.is::<http_body_util::LengthLimitError>() => Err(BodyError::TooLarge(limits.body_bytes)),
        Ok(Err(e)) => Err(BodyError::Broken(e.to_string())),
    }
}
