//! The server plumbing over real sockets: limits, clients that leave, stopping, sockets of other servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use ns_http::client::{Client, ClientError};
use ns_http::{
    Answer, BodyError, Limits, Method, Server, StatusCode, UnixListening, collect, full, json, listen_tcp, listen_unix,
    stream,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

struct Running {
    address: SocketAddr,
    socket: PathBuf,
    gone: Arc<AtomicUsize>,
    stop: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

struct OnDrop(Arc<AtomicUsize>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn start(limits: Limits) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("run/x.sock");
    let gone = Arc::new(AtomicUsize::new(0));
    let (stop, stopped) = watch::channel(false);
    let (tx, rx) = std::sync::mpsc::channel();
    let (path, counter) = (socket.clone(), gone.clone());
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = listen_tcp("127.0.0.1", 0).await.unwrap();
            let unix = Some(listen_unix(&path).unwrap());
            tx.send(listener.local_addr().unwrap()).unwrap();
            let server = Server { tcp: vec![listener], unix, limits: limits.clone() };
            let handler = move |request: ns_http::Request<ns_http::Incoming>, _| {
                let (counter, limits) = (counter.clone(), limits.clone());
                async move { answer(request, counter, limits).await }
            };
            server.run(handler, stopped).await;
        });
    });
    Running { address: rx.recv().unwrap(), socket, gone, stop, thread: Some(thread), _dir: dir }
}

async fn answer(request: ns_http::Request<ns_http::Incoming>, gone: Arc<AtomicUsize>, limits: Limits) -> Answer {
    match request.uri().path() {
        "/wait" => {
            let _guard = OnDrop(gone);
            tokio::time::sleep(Duration::from_secs(60)).await;
            json(StatusCode::OK, &serde_json::json!({}))
        }
        "/slow" => {
            tokio::time::sleep(Duration::from_millis(300)).await;
            json(StatusCode::OK, &serde_json::json!({"slow": true}))
        }
        "/stream" => {
            let (sender, body) = stream();
            tokio::spawn(async move {
                let _guard = OnDrop(gone);
                sender.send("one\n").await;
                tokio::select! {
                    () = sender.closed() => {}
                    () = tokio::time::sleep(Duration::from_secs(60)) => {}
                }
            });
            Answer::new(body)
        }
        _ => match collect(request.into_body(), &limits).await {
            Ok(bytes) => Answer::new(full(bytes)),
            Err(e) => {
                let status = match e {
                    BodyError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
                    BodyError::Slow => StatusCode::REQUEST_TIMEOUT,
                    BodyError::Broken(_) => StatusCode::BAD_REQUEST,
                };
                json(status, &serde_json::json!({"error": e.to_string()}))
            }
        },
    }
}

impl Running {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    fn head(&self, raw: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(raw).unwrap();
        let mut bytes = [0; 4096];
        let n = stream.read(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    }

    fn await_gone(&self, n: usize) {
        let start = Instant::now();
        while self.gone.load(Ordering::SeqCst) < n {
            assert!(start.elapsed() < Duration::from_secs(2), "the handler was not dropped");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        assert!(!self.socket.exists(), "the socket file stays behind");
    }
}

#[test]
fn heads_and_bodies_have_limits() {
    let server = start(Limits { body_bytes: 1000, body_time: Duration::from_millis(300), ..Limits::default() });
    let long = format!("GET / HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n", "a".repeat(17 << 10));
    assert!(server.head(long.as_bytes()).starts_with("HTTP/1.1 431 "));
    assert!(server.head(b"nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    let declared = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n";
    assert!(server.head(declared).starts_with("HTTP/1.1 413 "));
    let mut chunked = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4e2\r\n".to_vec();
    chunked.extend(vec![b'a'; 0x4e2]);
    chunked.extend(b"\r\n0\r\n\r\n");
    assert!(server.head(&chunked).starts_with("HTTP/1.1 413 "));
    assert!(server.head(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab").starts_with("HTTP/1.1 408 "));
    let good = server.head(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab");
    assert!(good.starts_with("HTTP/1.1 200 ") && good.ends_with("ab"), "{good}");
}

#[test]
fn an_idle_connection_is_closed_and_a_kept_one_serves_again() {
    let server = start(Limits { idle_time: Duration::from_millis(400), ..Limits::default() });
    let mut stream = server.connect();
    for _ in 0..2 {
        stream.write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab").unwrap();
        let mut bytes = [0; 1024];
        let n = stream.read(&mut bytes).unwrap();
        assert!(bytes[..n].starts_with(b"HTTP/1.1 200 "));
    }
    let start = Instant::now();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(start.elapsed() > Duration::from_millis(200), "closed at once");
    let mut slow = server.connect();
    slow.write_all(b"GET / HTTP/1.1\r\nHo").unwrap();
    rest.clear();
    slow.read_to_end(&mut rest).unwrap();
    assert!(!rest.starts_with(b"HTTP/1.1 200"));
}

/// D01: a client that leaves is noticed both before and during the answer.
#[test]
fn a_client_that_leaves_drops_the_work() {
    let server = start(Limits::default());
    let mut stream = server.connect();
    stream.write_all(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.gone.load(Ordering::SeqCst), 0);
    drop(stream);
    server.await_gone(1);
    let mut stream = server.connect();
    stream.write_all(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut bytes = [0; 1024];
    assert!(stream.read(&mut bytes).unwrap() > 0);
    assert_eq!(server.gone.load(Ordering::SeqCst), 1);
    drop(stream);
    server.await_gone(2);
}

#[test]
fn idle_connections_do_not_block_others() {
    let server = start(Limits::default());
    let idle: Vec<_> = (0..64).map(|_| server.connect()).collect();
    assert!(server.head(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 200 "));
    drop(idle);
}

#[test]
fn stopping_answers_running_requests_first() {
    let server = start(Limits::default());
    let mut stream = server.connect();
    stream.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    server.stop.send(true).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("{\"slow\":true}"), "{text}");
}

/// What was accepted is answered, also when its request comes only after the stop; a connection that stays silent does not
/// hold the server.
#[test]
fn stopping_waits_a_moment_for_a_first_request() {
    let server = start(Limits::default());
    let (mut late, silent) = (server.connect(), server.connect());
    // Both were accepted before this one.
    assert!(server.head(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 200 "));
    let begun = Instant::now();
    server.stop.send(true).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    late.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    late.read_to_string(&mut text).unwrap();
    assert!(text.contains("{\"slow\":true}"), "{text}");
    drop(server);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(silent);
}

/// A socket that was given: served, and its file left where it is for the next server.
#[test]
fn a_given_socket_stays_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("given.sock");
    let theirs = std::os::unix::net::UnixListener::bind(&path).unwrap();
    for _ in 0..2 {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let _guard = runtime.enter();
        let unix = UnixListening::given(theirs.try_clone().unwrap()).unwrap();
        assert_eq!(unix.path().as_deref(), Some(path.as_path()));
        let server = Server { tcp: Vec::new(), unix: Some(unix), limits: Limits::default() };
        let (stop, stopped) = watch::channel(false);
        let serving = runtime.spawn(server.run(|_, _| async { json(StatusCode::OK, &serde_json::json!({})) }, stopped));
        let (status, _) = Client::new(&path).request(Method::GET, "/", None, Duration::from_secs(5)).unwrap();
        assert_eq!(status, 200);
        stop.send(true).unwrap();
        runtime.block_on(serving).unwrap();
        assert!(path.exists());
    }
}

#[test]
fn a_second_server_is_refused_and_a_stale_socket_replaced() {
    let server = start(Limits::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    assert_eq!(std::fs::metadata(&server.socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(server.socket.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    let message = listen_unix(&server.socket).unwrap_err().to_string();
    assert_eq!(message, format!("a server is running already on {}", server.socket.display()));
    let message = runtime.block_on(listen_tcp("127.0.0.1", server.address.port())).unwrap_err().to_string();
    let port = server.address.port();
    assert_eq!(
        message,
        format!("port {port} on 127.0.0.1 is in use by another program: choose another port with --port")
    );
    let dir = tempfile::tempdir().unwrap();
    let stale = dir.path().join("s.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    assert!(stale.exists());
    drop(listen_unix(&stale).unwrap());
    assert!(!stale.exists());
    std::fs::write(&stale, "data").unwrap();
    assert!(listen_unix(&stale).unwrap_err().to_string().contains("is no socket"));
    assert_eq!(std::fs::read(&stale).unwrap(), b"data");
}

#[test]
fn the_client_speaks_over_the_socket() {
    let server = start(Limits::default());
    let client = Client::new(&server.socket);
    let (status, body) =
        client.request(Method::POST, "/", Some(&serde_json::json!({"a": "é"})), Duration::from_secs(5)).unwrap();
    assert_eq!((status, body.as_slice()), (200, "{\"a\":\"é\"}".as_bytes()));
    let late = client.request(Method::GET, "/wait", None, Duration::from_millis(100)).unwrap_err();
    assert!(matches!(late, ClientError::Slow { .. }));
    let mut lines = Vec::new();
    client
        .lines("/stream", &serde_json::json!({}), &mut |status, line| {
            lines.extend(line.map(|l| (status, l.to_owned())));
            line.is_some() || status == 0
        })
        .unwrap();
    assert_eq!(lines, [(200, "one".to_owned())]);
    server.await_gone(2);
    let none = Client::new(Path::new("/nonexistent/x.sock"));
    let error = none.request(Method::GET, "/", None, Duration::from_secs(1)).unwrap_err();
    assert!(matches!(error, ClientError::NotRunning(_)));
}
