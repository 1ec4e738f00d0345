//! The accept loops and the connections.

use crate::{Answer, UnixListening};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, server::conn::http1};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// Time a connection without any request has for one when the server stops: it was accepted, so what is on its way counts.
const FIRST_REQUEST: Duration = Duration::from_secs(2);

/// Where a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// Over TCP, from this address.
    Tcp(SocketAddr),
    /// Over the Unix socket: from the server's own user.
    Socket,
}

/// What a client may use.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a request's head.
    pub header_bytes: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Time for a request's head, and for a kept connection to stay idle.
    pub idle_time: Duration,
    /// Time for a request's body.
    pub body_time: Duration,
    /// Connections at once; more wait in the system's queue.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_bytes: 16 << 10,
            body_bytes: 64 << 20,
            idle_time: Duration::from_secs(75),
            body_time: Duration::from_secs(120),
            connections: 1024,
        }
    }
}

/// Listeners with their limits.
#[derive(Debug)]
pub struct Server {
    /// TCP listeners.
    pub tcp: Vec<TcpListener>,
    /// The control socket.
    pub unix: Option<UnixListening>,
    /// What a client may use.
    pub limits: Limits,
}

impl Server {
    /// Answers requests until `stop` turns true; then no connection is accepted, idle ones are closed and those with a
    /// request are answered first. A connection that was accepted and has sent nothing yet may still do so for a moment.
    pub async fn run<H, F>(self, handler: H, mut stop: watch::Receiver<bool>)
    where
        H: Fn(Request<Incoming>, Via) -> F + Clone + Send + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let permits = Arc::new(Semaphore::new(self.limits.connections));
        let mut loops = JoinSet::new();
        let (limits, unix) = (self.limits, self.unix);
        for listener in self.tcp {
            let (handler, stop, permits, limits) = (handler.clone(), stop.clone(), permits.clone(), limits.clone());
            loops.spawn(async move {
                let accept = || async {
                    let (stream, peer) = listener.accept().await?;
                    // Tokens are small writes that must not wait for more.
                    stream.set_nodelay(true)?;
                    Ok((stream, Via::Tcp(peer)))
                };
                accept_loop(accept, handler, stop, permits, limits).await;
            });
        }
        if let Some(unix) = unix {
            let (handler, stop) = (handler.clone(), stop.clone());
            loops.spawn(async move {
                let accept = || async {
                    let (stream, _) = unix.listener.accept().await?;
                    Ok((stream, Via::Socket))
                };
                // The control socket has its own permits: busy TCP clients cannot lock its user out.
                let permits = Arc::new(Semaphore::new(64));
                accept_loop(accept, handler, stop, permits, limits).await;
            });
        }
        stopped(&mut stop).await;
        while loops.join_next().await.is_some() {}
    }
}

async fn accept_loop<S, A, AF, H, F>(
    accept: A,
    handler: H,
    mut stop: watch::Receiver<bool>,
    permits: Arc<Semaphore>,
    limits: Limits,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn() -> AF,
    AF: Future<Output = std::io::Result<(S, Via)>>,
    H: Fn(Request<Incoming>, Via) -> F + Clone + Send + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let permit = permits.clone().acquire_owned().await;
            (permit, accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = stopped(&mut stop) => break,
            next = next => next,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
        };
        match accepted {
            Ok((stream, via)) => {
                let (handler, stop, limits) = (handler.clone(), stop.clone(), limits.clone());
                connections.spawn(async move {
                    let _permit = permit;
                    connection(stream, via, handler, stop, limits).await;
                });
            }
            Err(error) => {
                // For example too many open files: the condition passes, a busy loop would not help it.
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    while connections.join_next().await.is_some() {}
}

async fn connection<S, H, F>(stream: S, via: Via, handler: H, mut stop: watch::Receiver<bool>, limits: Limits)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Fn(Request<Incoming>, Via) -> F + Clone + Send + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let (asked, mut first) = watch::channel(false);
    let service = service_fn(move |request| {
        asked.send_replace(true);
        let answer = handler(request, via);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle_time)
        .max_buf_size(limits.header_bytes)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stopped(&mut stop) => {
            tokio::select! {
                result = connection.as_mut() => result,
                () = asked_within(&mut first, FIRST_REQUEST) => {
                    // Ends an idle connection at once, any other after its answer.
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!("a connection ended: {error}");
    }
}

/// Waits for a connection's first request, but no longer than that.
async fn asked_within(first: &mut watch::Receiver<bool>, time: Duration) {
    let _ = tokio::time::timeout(time, first.wait_for(|asked| *asked)).await;
}

/// Waits until `stop` is true; a sender that is gone counts as that.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|s| *s).await;
}
