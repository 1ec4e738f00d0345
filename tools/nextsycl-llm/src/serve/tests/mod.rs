//! The server over real sockets with an engine that says what the test wants.

mod caching;
mod conformance;
mod robustness;
mod scripted;

use super::*;
use scripted::{Script, ScriptedEngine, ScriptedText};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// A server in a thread of its own.
struct Fixture {
    address: SocketAddr,
    socket: PathBuf,
    stop: tokio::sync::mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<Outcome>>,
    _dir: tempfile::TempDir,
}

/// An answer.
struct Got {
    status: u16,
    head: String,
    body: String,
}

impl Got {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The JSON of each event or line.
    fn events(&self) -> Vec<Value> {
        self.body
            .lines()
            .filter(|l| !l.is_empty() && !l.starts_with(':'))
            .map(|l| l.strip_prefix("data: ").unwrap_or(l))
            .filter(|l| *l != "[DONE]")
            .map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}")))
            .collect()
    }

    /// The text of all chat chunks.
    fn streamed(&self) -> String {
        self.events().iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str().map(str::to_owned)).collect()
    }

    fn streamed_finish(&self) -> String {
        let events = self.events();
        let finish: Vec<_> = events.iter().filter_map(|e| e["choices"][0]["finish_reason"].as_str()).collect();
        assert_eq!(finish.len(), 1, "{}", self.body);
        finish[0].to_owned()
    }
}

fn config(dir: &std::path::Path, contexts: &[usize]) -> Config {
    Config {
        name: "scripted".into(),
        passed: Passed::default(),
        idle_exit: None,
        aliases: vec!["other-name".into()],
        listen: ("127.0.0.1".into(), 0),
        socket: dir.join("run/nextsycl.sock"),
        contexts: contexts.to_vec(),
        max_tokens: None,
        keep_requests: 100,
        keep_text: true,
        origins: Origins::new("https://chat.example"),
        limits: Limits::default(),
        cache: None,
    }
}

impl Fixture {
    fn start(script: Script, contexts: &[usize]) -> Self {
        let fixture = Self::load(contexts, move |_| {
            let text = Arc::new(ScriptedText(script.clone()));
            Ok(Loaded { engine: Box::new(ScriptedEngine::new(script)), text, identity: [1; 32] })
        });
        let start = Instant::now();
        while fixture.get("/health").status != 200 {
            assert!(start.elapsed() < Duration::from_secs(5), "not ready");
            std::thread::sleep(Duration::from_millis(2));
        }
        fixture
    }

    fn load(contexts: &[usize], loader: impl FnOnce(&Opening<'_>) -> Outcome<Loaded> + Send + 'static) -> Self {
        Self::load_with(contexts, |_| {}, loader)
    }

    fn load_with(
        contexts: &[usize],
        change: impl FnOnce(&mut Config),
        loader: impl FnOnce(&Opening<'_>) -> Outcome<Loaded> + Send + 'static,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path(), contexts);
        change(&mut config);
        let socket = config.socket.clone();
        let (stop, stops) = tokio::sync::mpsc::channel(4);
        let (tx, rx) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async move {
                let bound = bind(config).await?;
                tx.send(bound.address).unwrap();
                bound.run(Box::new(loader), stops).await
            })
        });
        Self { address: rx.recv().unwrap(), socket, stop, thread: Some(thread), _dir: dir }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends a request and leaves the connection open.
    fn open(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = self.connect();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        )
        .unwrap();
        stream
    }

    fn raw(&self, method: &str, path: &str, headers: &str, body: &str) -> Got {
        let mut bytes = Vec::new();
        self.open(method, path, headers, body).read_to_end(&mut bytes).unwrap();
        parse(&bytes)
    }

    fn get(&self, path: &str) -> Got {
        self.raw("GET", path, "", "")
    }

    fn post(&self, path: &str, body: &Value) -> Got {
        self.raw("POST", path, "", &body.to_string())
    }

    fn chat(&self, extra: &Value) -> Got {
        self.post("/v1/chat/completions", &chat_body(extra))
    }

    fn control(&self, method: ns_http::Method, path: &str) -> (u16, Value) {
        let client = ns_http::client::Client::new(&self.socket);
        let (status, body) = client.request(method, path, None, Duration::from_secs(10)).unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    fn record(&self, id: u64) -> Value {
        self.control(ns_http::Method::GET, &format!("/server/requests/{id}")).1
    }

    fn await_state(&self, id: u64, state: &str) -> Value {
        let start = Instant::now();
        loop {
            let record = self.record(id);
            if record["state"] == state {
                return record;
            }
            assert!(start.elapsed() < Duration::from_secs(5), "{record}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn end(mut self) -> Outcome {
        let _ = self.stop.blocking_send(());
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = self.stop.blocking_send(());
            let _ = thread.join();
        }
        assert!(!self.socket.exists() || std::thread::panicking(), "the socket stays behind");
    }
}

/// A greedy chat request to the script `main`, with more fields.
fn chat_body(extra: &Value) -> Value {
    let mut body = serde_json::json!({"messages": [{"role": "user", "content": "main"}], "temperature": 0});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn parse(bytes: &[u8]) -> Got {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        let mut rest = body;
        let mut out = String::new();
        while let Some((size, after)) = rest.split_once("\r\n") {
            let size = usize::from_str_radix(size, 16).unwrap();
            if size == 0 {
                break;
            }
            out.push_str(&after[..size]);
            rest = &after[size + 2..];
        }
        out
    } else {
        body.to_owned()
    };
    Got { status, head: head.to_owned(), body }
}
