//! Clients that leave, several at once, long prompts, stopping, lost engines.

use super::*;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::sync::atomic::Ordering;

/// An answer of `n` tokens that takes a while.
fn long(n: usize) -> Script {
    let script = Script { step_time: Duration::from_millis(3), ..Script::default() };
    script.say("main", &vec![b"word " as &[u8]; n]).say("short", &[b"ok"])
}

fn short() -> Value {
    json!({"messages": [{"role": "user", "content": "short"}]})
}

/// Reads until a chunk with text.
fn read_some(stream: &TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    for _ in 0..50 {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.contains("word") {
            return;
        }
    }
    panic!("no text");
}

/// D01: the client leaves in mid-stream and in a plain request: cancelled within a token, the session free.
#[test]
fn a_client_that_leaves_frees_its_session() {
    for stream in [true, false] {
        let script = long(5000);
        let seen = script.seen.clone();
        let server = Fixture::start(script, &[6000]);
        let connection =
            server.open("POST", "/v1/chat/completions", "", &chat_body(&json!({"stream": stream})).to_string());
        if stream {
            read_some(&connection);
        } else {
            server.await_state(1, "generating");
        }
        let start = Instant::now();
        drop(connection);
        let record = server.await_state(1, "cancelled");
        assert_eq!(record["finish"], "client gone");
        let got = server.post("/v1/chat/completions", &short());
        assert_eq!(got.json()["choices"][0]["message"]["content"], "ok");
        assert!(start.elapsed() < Duration::from_secs(1));
        let steps = seen.steps.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(seen.steps.load(Ordering::SeqCst), steps, "still decoding");
        assert!(steps < 1000);
    }
}

/// A client that leaves while its request waits is taken out of the queue; one that leaves in the prompt, too.
#[test]
fn leaving_while_waiting_or_reading() {
    let script = Script { chunk_time: Duration::from_millis(5), ..long(400) };
    let seen = script.seen.clone();
    let server = Fixture::start(script, &[9000]);
    let body = chat_body(&json!({"messages": [{"content": "y".repeat(8000)}]})).to_string();
    let reading = server.open("POST", "/v1/chat/completions", "", &body);
    server.await_state(1, "reading");
    let waiting = server.open("POST", "/v1/chat/completions", "", &chat_body(&json!({"stream": true})).to_string());
    server.await_state(2, "waiting");
    drop(waiting);
    server.await_state(2, "cancelled");
    drop(reading);
    server.await_state(1, "cancelled");
    assert_eq!(server.post("/v1/chat/completions", &short()).status, 200);
    assert!(seen.fed.load(Ordering::SeqCst) < 4000, "the prompt was read to its end");
}

#[test]
fn several_decode_together_with_the_text_of_each() {
    let script = long(60);
    let seen = script.seen.clone();
    let server = Fixture::start(script, &[100, 100, 100]);
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..5).map(|_| s.spawn(|| server.chat(&json!({})).json())).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap()["choices"][0]["message"]["content"], "word ".repeat(60));
        }
    });
    assert_eq!(seen.widest.load(Ordering::SeqCst), 3);
    let status = server.control(ns_http::Method::GET, "/server/status").1;
    assert_eq!((status["served"].as_u64(), status["waiting"].as_u64()), (Some(5), Some(0)));
}

/// A long prompt is read between the steps of an answer, and a short request passes it.
#[test]
fn a_long_prompt_does_not_hold_others() {
    let script = Script { chunk_time: Duration::from_millis(4), ..long(200) };
    let seen = script.seen.clone();
    let server = Fixture::start(script, &[9000, 1000]);
    let body = chat_body(&json!({"messages": [{"content": "y".repeat(4000)}]})).to_string();
    let big = server.open("POST", "/v1/chat/completions", "", &body);
    server.await_state(1, "reading");
    let start = Instant::now();
    assert_eq!(server.post("/v1/chat/completions", &short()).json()["choices"][0]["message"]["content"], "ok");
    assert!(start.elapsed() < Duration::from_millis(500), "waited for the long prompt: {:?}", start.elapsed());
    server.chat(&json!({"max_tokens": 40}));
    let order = seen.order.lock().unwrap().clone();
    assert!(order.contains("sf") && order.matches("fs").count() > 3, "not interleaved: {order}");
    drop(big);
}

/// A conversation goes on where it was; a changed one is cut where it changed.
#[test]
fn a_session_is_reused() {
    for not_truncatable in [false, true] {
        let script = Script { not_truncatable, ..long(5) };
        let server = Fixture::start(script, &[500, 500]);
        let first = server.chat(&json!({})).json();
        let answer = first["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        let usage = |messages: Value| {
            server.chat(&json!({"messages": messages})).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
                .as_u64()
        };
        // The scripted template writes the answer as bytes, so only the first turn is shared.
        let next = json!([{"content": "main"}, {"role": "assistant", "content": answer}, {"content": "short"}]);
        assert_eq!(usage(next.clone()), Some(if not_truncatable { 0 } else { 5 }));
        assert_eq!(usage(next), Some(if not_truncatable { 0 } else { 36 }));
    }
}

#[test]
fn it_listens_at_once_and_says_that_it_loads() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let server = Fixture::load(&[100], move |opening| {
        opening.progress(5, 10);
        // an error means that the test has failed already: go on, so that the server can end
        let _ = wait.recv();
        Ok(Loaded {
            engine: Box::new(ScriptedEngine::new(long(1))),
            text: Arc::new(ScriptedText(long(1))),
            identity: [1; 32],
        })
    });
    let got = server.get("/health");
    let error = json!({"message": "Loading model", "type": "unavailable_error", "param": null, "code": 503});
    assert_eq!((got.status, got.json()), (503, json!({"error": error})));
    assert!(got.head.contains("retry-after: "));
    assert_eq!(server.chat(&json!({})).status, 503);
    assert_eq!(server.get("/v1/models").json()["data"][0]["status"]["value"], "loading");
    let start = Instant::now();
    while server.control(ns_http::Method::GET, "/server/status").1["loading"] != json!({"done": 5, "total": 10}) {
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    go.send(()).unwrap();
    while server.get("/health").status != 200 {
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_server() {
    let server = Fixture::load(&[100], |_| Err(Failure::error("not a GGUF file")));
    let failure = server.end().unwrap_err();
    assert_eq!(failure.message(), "not a GGUF file");
}

/// A stop finishes what runs, refuses what comes, and a second stop cancels.
#[test]
fn stopping_in_good_order() {
    let server = Fixture::start(long(150), &[1000]);
    let mut running = server.open("POST", "/v1/chat/completions", "", &chat_body(&json!({"stream": true})).to_string());
    server.await_state(1, "generating");
    let (status, value) = server.control(ns_http::Method::POST, "/server/shutdown");
    assert_eq!((status, value), (200, json!({"stopping": true, "running": 1})));
    let got = server.chat(&json!({}));
    assert_eq!(got.status, 503);
    assert!(got.head.contains("retry-after: 10"));
    let mut bytes = Vec::new();
    running.read_to_end(&mut bytes).unwrap();
    assert_eq!(parse(&bytes).streamed(), "word ".repeat(150));
    server.end().unwrap();

    let server = Fixture::start(long(100_000), &[200_000]);
    let _running = server.open("POST", "/v1/chat/completions", "", &chat_body(&json!({"stream": true})).to_string());
    server.await_state(1, "generating");
    server.stop.blocking_send(()).unwrap();
    let start = Instant::now();
    server.end().unwrap();
    assert!(start.elapsed() < Duration::from_secs(3));
}

/// A device failure is told to all that wait and ends the server with an error.
#[test]
fn a_lost_engine_ends_all_requests_with_an_error() {
    let server = Fixture::start(Script { fails_after: Some(5), ..long(50) }, &[1000]);
    let got = server.chat(&json!({"stream": true}));
    assert_eq!(got.status, 200);
    let last = got.events().pop().unwrap();
    assert_eq!(last["error"]["type"], "server_error", "{}", got.body);
    assert!(!got.body.contains("[DONE]"));
    let failure = server.end().unwrap_err();
    assert_eq!(failure.message(), "the engine is lost: the card fell off the bus");
}

#[test]
fn records_tell_what_happened() {
    let server = Fixture::start(long(5), &[100]);
    server.chat(&json!({"seed": 7}));
    let record = server.record(1);
    for (field, value) in [
        ("state", json!("done")),
        ("via", json!("tcp")),
        ("api", json!("chat")),
        ("last_user", json!("main")),
        ("prompt_tokens", json!(5)),
        ("generated", json!(5)),
        ("finish", json!("stop")),
        ("answer", json!({"chars": 25, "preview": "word word word word word "})),
    ] {
        assert_eq!(record[field], value, "{field} of {record}");
    }
    assert_eq!(record["settings"]["seed"], 7);
    let (status, value) = server.control(ns_http::Method::GET, "/server/requests/77");
    assert_eq!(status, 404);
    assert!(value["error"]["message"].as_str().unwrap().contains("the last 100 that ended are kept"));
    let list = server.control(ns_http::Method::GET, "/server/requests").1;
    assert_eq!((list["done"][0]["id"].as_u64(), list["active"].clone()), (Some(1), json!([])));
}

#[test]
fn a_second_server_is_refused_by_socket_and_by_port() {
    let server = Fixture::start(long(1), &[100]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut same_socket = config(dir.path(), &[100]);
    same_socket.socket = server.socket.clone();
    let message = runtime.block_on(bind(same_socket)).map(|_| ()).unwrap_err();
    assert_eq!(message.message(), format!("a server is running already on {}", server.socket.display()));
    let mut same_port = config(dir.path(), &[100]);
    same_port.listen.1 = server.address.port();
    let message = runtime.block_on(bind(same_port)).map(|_| ()).unwrap_err();
    assert!(message.message().contains("is in use by another program"), "{}", message.message());
}

/// Quiet ends the server, an open answer is no quiet however long it takes.
#[test]
fn an_open_answer_is_not_idle() {
    let script = Script { step_time: Duration::from_millis(10), ..long(60) };
    let idle = |config: &mut Config| config.idle_exit = Some(Duration::from_millis(300));
    let mut server = Fixture::load_with(&[1000], idle, move |_| {
        let text = Arc::new(ScriptedText(script.clone()));
        Ok(Loaded { engine: Box::new(ScriptedEngine::new(script)), text, identity: [1; 32] })
    });
    let begun = Instant::now();
    while server.get("/health").status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(5), "not ready");
    }
    let asked = Instant::now();
    for stream in [true, false] {
        let got = server.chat(&json!({"stream": stream}));
        let text = if stream { got.streamed() } else { got.json()["choices"][0]["message"]["content"].to_string() };
        assert!(text.contains(&"word ".repeat(60)), "{text}");
    }
    assert!(asked.elapsed() > Duration::from_millis(1200), "the answers were no longer than the quiet");
    server.thread.take().unwrap().join().unwrap().unwrap();
    assert!(!server.socket.exists());
}

/// A request that waited for the model in vain is told so, without what only the log may tell.
#[test]
fn a_request_that_waited_for_a_model_in_vain_is_answered() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let given = listener.try_clone().unwrap();
    let mut server = Fixture::load_with(
        &[100],
        move |config| config.passed.tcp.push(given),
        move |_| {
            // an error means that the test has failed already: go on, so that the server can end
            let _ = wait.recv();
            Err(Failure::error("/secret/model.gguf is cut"))
        },
    );
    let mut waiting = server.open("POST", "/v1/chat/completions", "", &chat_body(&json!({})).to_string());
    let status = server.control(ns_http::Method::GET, "/server/status").1;
    assert_eq!((&status["activated"], &status["loading"]), (&json!(true), &json!({"done": 0, "total": 0})));
    waiting.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(waiting.read(&mut [0; 1]).is_err(), "answered before the model was there");
    go.send(()).unwrap();
    waiting.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut bytes = Vec::new();
    waiting.read_to_end(&mut bytes).unwrap();
    let got = parse(&bytes);
    assert_eq!(got.status, 503);
    let message = got.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "the model cannot be loaded: see the server's log");
    let failure = server.thread.take().unwrap().join().unwrap().unwrap_err();
    assert_eq!(failure.message(), "/secret/model.gguf is cut");
}
