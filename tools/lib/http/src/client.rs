//! A client for a server's Unix socket, for programs that have nothing else to do meanwhile.

use crate::Method;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens on the socket.
    #[error("nobody answers on {}", .0.display())]
    NotRunning(PathBuf),
    /// The answer did not come in time.
    #[error("the server on {} did not answer within {} s", path.display(), time.as_secs())]
    Slow {
        /// The socket.
        path: PathBuf,
        /// How long it was waited for.
        time: Duration,
    },
    /// The connection broke.
    #[error("the connection to {} broke: {reason}", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
}

/// A server's socket.
#[derive(Debug, Clone)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// A client for the server on `path`.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Sends a request and returns status and body.
    pub fn request(
        &self,
        method: Method,
        target: &str,
        body: Option<&serde_json::Value>,
        time: Duration,
    ) -> Result<(u16, Vec<u8>), ClientError> {
        self.block(async {
            let whole = async {
                let answer = self.send(method, target, body).await?;
                let status = answer.status().as_u16();
                let bytes = answer.into_body().collect().await.map_err(|e| self.broken(&e))?.to_bytes();
                Ok((status, bytes.to_vec()))
            };
            match tokio::time::timeout(time, whole).await {
                Ok(result) => result,
                Err(_) => Err(ClientError::Slow { path: self.path.clone(), time }),
            }
        })
    }

    /// Posts a request and hands each line of the answer to `line` as it arrives, until that returns false (the
    /// connection is then closed). Asks `line` with `None` ten times a second while nothing arrives. Returns the status.
    pub fn lines(
        &self,
        target: &str,
        body: &serde_json::Value,
        line: &mut dyn FnMut(u16, Option<&str>) -> bool,
    ) -> Result<u16, ClientError> {
        self.block(async {
            let answer = self.send(Method::POST, target, Some(body));
            tokio::pin!(answer);
            let mut answer = loop {
                match tokio::time::timeout(Duration::from_millis(100), &mut answer).await {
                    Ok(answer) => break answer?,
                    Err(_) if !line(0, None) => return Ok(0),
                    Err(_) => {}
                }
            };
            let status = answer.status().as_u16();
            let mut held = Vec::new();
            loop {
                match tokio::time::timeout(Duration::from_millis(100), answer.frame()).await {
                    Err(_) => {
                        if !line(status, None) {
                            return Ok(status);
                        }
                    }
                    Ok(None) => break,
                    Ok(Some(Err(e))) => return Err(self.broken(&e)),
                    Ok(Some(Ok(frame))) => {
                        let Ok(data) = frame.into_data() else { continue };
                        held.extend_from_slice(&data);
                        while let Some(end) = held.iter().position(|&b| b == b'\n') {
                            let rest = held.split_off(end + 1);
                            held.truncate(end);
                            let go_on = line(status, Some(&String::from_utf8_lossy(&held)));
                            held = rest;
                            if !go_on {
                                return Ok(status);
                            }
                        }
                    }
                }
            }
            if !held.is_empty() {
                line(status, Some(&String::from_utf8_lossy(&held)));
            }
            Ok(status)
        })
    }

    fn block<T>(&self, work: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|e| self.broken(&e))?.block_on(work)
    }

    async fn send(
        &self,
        method: Method,
        target: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = UnixStream::connect(&self.path).await.map_err(|_| ClientError::NotRunning(self.path.clone()))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.broken(&e))?;
        tokio::spawn(async move {
            // A broken connection shows in the answer's body.
            let _ = connection.await;
        });
        let bytes = body.map(|b| Bytes::from(b.to_string())).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(target)
            .header("Host", "localhost")
            .header("Content-Type", "application/json")
            .body(Full::new(bytes))
            .map_err(|e| self.broken(&e))?;
        sender.send_request(request).await.map_err(|e| self.broken(&e))
    }

    fn broken(&self, reason: &dyn std::fmt::Display) -> ClientError {
        ClientError::Broken { path: self.path.clone(), reason: reason.to_string() }
    }
}
