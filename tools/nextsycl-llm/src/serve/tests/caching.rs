//! The prompt cache, and drafts while others come and go.

use super::*;
use serde_json::json;
use std::path::Path;
use std::sync::atomic::Ordering;

/// A cache of these sizes in a folder.
fn cache(memory: u64, folder: Option<&Path>, disk: u64) -> CacheConfig {
    let ttl = Duration::from_secs(3600);
    CacheConfig { memory, disk: folder.map(|path| DiskConfig { path: path.to_owned(), budget: disk, ttl }) }
}

fn script() -> Script {
    Script { not_truncatable: true, ..Script::default() }
        .say("main", &[b"one " as &[u8]; 4])
        .say("next", &[b"two " as &[u8]; 4])
}

fn start(script: Script, contexts: &[usize], cache: CacheConfig) -> Fixture {
    start_of([1; 32], script, contexts, cache)
}

fn start_of(identity: [u8; 32], script: Script, contexts: &[usize], cache: CacheConfig) -> Fixture {
    let change = |config: &mut Config| config.cache = Some(cache);
    let fixture = Fixture::load_with(contexts, change, move |_| {
        let text = Arc::new(ScriptedText(script.clone()));
        Ok(Loaded { engine: Box::new(ScriptedEngine::new(script)), text, identity })
    });
    let begun = Instant::now();
    while fixture.get("/health").status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(5), "not ready");
        std::thread::sleep(Duration::from_millis(2));
    }
    fixture
}

/// A conversation whose first turn is `n` long and begins with `name`.
fn conversation(name: char, n: usize, more: &[&str]) -> Value {
    let mut messages = vec![json!({"role": "user", "content": name.to_string().repeat(n)})];
    for text in more {
        messages.push(json!({"role": "assistant", "content": "a"}));
        messages.push(json!({"role": "user", "content": text}));
    }
    json!({"messages": messages})
}

impl Fixture {
    /// Asks, and tells what was reused from where.
    fn reuse(&self, body: &Value) -> (u64, String) {
        let got = self.chat(body);
        assert_eq!(got.status, 200, "{}", got.body);
        let record = self.control(ns_http::Method::GET, "/server/requests").1["done"][0].clone();
        let cached = got.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert_eq!(record["reused"].as_u64(), Some(cached));
        (cached, record["source"].as_str().unwrap().to_owned())
    }

    fn list(&self) -> Value {
        self.control(ns_http::Method::GET, "/server/cache").1
    }
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "state"));
    files.sort();
    files
}

/// One session, two conversations in turn: each comes back from memory, at the places that are worth it.
#[test]
fn conversations_come_back_from_memory() {
    let script = script();
    let seen = script.seen.clone();
    let server = start(script, &[1000], cache(1 << 20, None, 0));
    let (a, b) = (conversation('x', 100, &["main"]), conversation('y', 120, &["main"]));
    assert_eq!(server.reuse(&a), (0, "none".into()));
    // Turns of 101, 2 and 5 tokens: behind the first turn; the others end shortly after and are not worth it.
    let record = server.record(1);
    assert_eq!((record["checkpoints_saved"].as_u64(), record["prompt_tokens"].as_u64()), (Some(1), Some(108)));
    assert_eq!(server.reuse(&b), (0, "none".into()));
    assert_eq!(server.reuse(&a), (101, "cache".into()));
    assert_eq!(server.reuse(&b), (121, "cache".into()));
    // What the session holds is longer than the checkpoint.
    let mut longer = conversation('y', 120, &["main"]);
    longer["messages"].as_array_mut().unwrap().extend([json!({"role": "user", "content": "next"})]);
    let (reused, source) = server.reuse(&longer);
    assert_eq!((reused, source.as_str()), (121, "cache"), "the answer is no part of the next prompt here");
    let order = seen.order.lock().unwrap().clone();
    assert!(order.starts_with("fcf") && order.contains("rf"), "{order}");
    let list = server.list();
    let tokens: Vec<_> = list["entries"].as_array().unwrap().iter().map(|e| e["tokens"].as_u64().unwrap()).collect();
    assert_eq!(tokens, [121, 101], "most recently used first");
    assert_eq!(list["entries"][0]["disk"], false);
    let status = server.control(ns_http::Method::GET, "/server/status").1["prompt_cache"].clone();
    assert_eq!((status["entries"].as_u64(), status["budget"].as_u64()), (Some(2), Some(1 << 20)));
    assert!(status["bytes"].as_u64().unwrap() >= 222 * 8 && status["disk"].is_null());
    assert!(status["live_tokens"].as_u64().unwrap() > 121 && status["sessions"].as_array().unwrap().len() == 1);
    assert_eq!(server.get("/status").json()["prompt_cache"]["entries"], 2);
    // Cleared: nothing is left, also not in the session.
    assert_eq!(server.control(ns_http::Method::POST, "/server/cache/clear"), (200, json!({"dropped": 2})));
    assert_eq!(server.reuse(&longer), (0, "none".into()));
}

/// Nothing shorter than 64 tokens is kept; the last token of a prompt is always read.
#[test]
fn short_prompts_are_not_kept() {
    let server = start(script(), &[1000], cache(1 << 20, None, 0));
    server.reuse(&conversation('x', 40, &["main"]));
    assert_eq!(server.list()["entries"], json!([]));
    let ids: Vec<u32> = (0..80).chain([scripted::ASK]).collect();
    let ask = || server.post("/v1/completions", &json!({"prompt": ids, "max_tokens": 1})).json();
    assert_eq!(ask()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    server.reuse(&conversation('x', 40, &["main"]));
    let again = ask();
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 80);
    assert_eq!((again["timings"]["cache_n"].as_u64(), again["timings"]["prompt_n"].as_u64()), (Some(80), Some(1)));
}

/// What memory does not hold goes to files, the oldest first; a stop writes the rest; the next server has all of it.
#[test]
fn files_take_what_memory_does_not_hold_and_survive() {
    let folder = tempfile::tempdir().unwrap();
    let padded = || Script { padding: 100, ..script() };
    // A checkpoint of 101 tokens takes some 11 KB.
    let sizes = || cache(30_000, Some(folder.path()), 1 << 20);
    let server = start(padded(), &[1000], sizes());
    for name in 'a'..='e' {
        assert_eq!(server.reuse(&conversation(name, 100, &["main"])), (0, "none".into()));
        let list = server.list();
        assert!(list["bytes"].as_u64().unwrap() <= 30_000, "{list}");
    }
    let list = server.list();
    assert_eq!(list["entries"].as_array().unwrap().len(), 5, "{list}");
    assert!(list["evictions"].as_u64().unwrap() >= 3 && list["disk"]["entries"].as_u64().unwrap() >= 3, "{list}");
    assert_eq!(list["entries"][4]["disk"], true);
    assert_eq!(server.reuse(&conversation('a', 100, &["main"])), (101, "disk".into()));
    server.end().unwrap();
    assert_eq!(files(folder.path()).len(), 5);
    let server = start(padded(), &[500, 300], sizes());
    for name in 'a'..='e' {
        assert_eq!(server.reuse(&conversation(name, 100, &["main"])), (101, "disk".into()), "{name}");
    }
    let gone = server.control(ns_http::Method::POST, "/server/cache/clear");
    assert_eq!((gone, files(folder.path()).len()), ((200, json!({"dropped": 5})), 0));
}

/// A checkpoint larger than all of the memory budget goes to its file at once.
#[test]
fn larger_than_memory_is_written_straight_to_disk() {
    let folder = tempfile::tempdir().unwrap();
    let script = Script { padding: 1000, ..script() };
    let server = start(script, &[1000], cache(50_000, Some(folder.path()), 1 << 20));
    server.reuse(&conversation('x', 100, &["main"]));
    let list = server.list();
    assert_eq!((list["bytes"].as_u64(), list["disk"]["entries"].as_u64()), (Some(0), Some(1)), "{list}");
    server.reuse(&conversation('y', 100, &[]));
    assert_eq!(server.reuse(&conversation('x', 100, &["main"])), (101, "disk".into()));
}

/// The disk's budget holds: the least recently used file goes.
#[test]
fn the_disk_budget_holds() {
    let folder = tempfile::tempdir().unwrap();
    let padded = Script { padding: 100, ..script() };
    let server = start(padded, &[1000], cache(12_000, Some(folder.path()), 25_000));
    for name in 'a'..='f' {
        server.reuse(&conversation(name, 100, &["main"]));
        let total: u64 = files(folder.path()).iter().map(|f| std::fs::metadata(f).map_or(0, |m| m.len())).sum();
        assert!(total <= 25_000, "{total}");
    }
    server.end().unwrap();
    assert_eq!(files(folder.path()).len(), 2);
    let server = start(Script { padding: 100, ..script() }, &[1000], cache(12_000, Some(folder.path()), 25_000));
    assert_eq!(server.reuse(&conversation('f', 100, &["main"])).1, "disk");
    assert_eq!(server.reuse(&conversation('a', 100, &["main"])).1, "none");
}

/// Files that are damaged, of another model or form, or of no kind at all never hurt.
#[test]
fn unfit_files_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = || cache(1 << 20, Some(folder.path()), 1 << 20);
    let ask = conversation('x', 100, &["main"]);
    start(script(), &[1000], sizes()).reuse(&ask);
    let file = files(folder.path())[0].clone();
    let good = std::fs::read(&file).unwrap();
    std::fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    std::fs::write(folder.path().join("other.state"), "no checkpoint").unwrap();
    std::fs::write(folder.path().join(".nextsycl-state-left"), "half").unwrap();
    std::fs::write(folder.path().join(".nextsycl-notes"), "mine").unwrap();
    // one of a user's own that happens to be named like ours
    let namesake = "00000000000000aa-0000000000000000000000bb.state";
    std::fs::write(folder.path().join(namesake), "short").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "a state is for its owner's eyes");
    // Another model, and another cache form: not used, not removed.
    assert_eq!(start_of([2; 32], script(), &[1000], sizes()).reuse(&ask).1, "none");
    let other = Script { fingerprint: "other form", ..script() };
    assert_eq!(start(other, &[1000], sizes()).reuse(&ask).1, "none");
    assert!(!folder.path().join(".nextsycl-state-left").exists(), "what a killed process left is removed");
    assert_eq!(std::fs::read(&file).unwrap(), good);
    assert_eq!(start(script(), &[1000], sizes()).reuse(&ask), (101, "disk".into()));
    // Cut anywhere, or changed anywhere: read again, and a good file is written in its place.
    let mut harmed = Vec::new();
    for cut in [0, 7, 20, 60, 300, good.len() - 1] {
        harmed.push(good[..cut].to_vec());
    }
    for at in [9, 45, 100, 460, 500, good.len() - 20, good.len() - 1] {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        harmed.push(bytes);
    }
    for (i, bytes) in harmed.iter().enumerate() {
        std::fs::write(&file, bytes).unwrap();
        let server = start(script(), &[1000], sizes());
        assert_eq!(server.reuse(&ask), (0, "none".into()), "{i}");
        assert_eq!(server.chat(&ask).json()["choices"][0]["message"]["content"], "one one one one ");
        server.end().unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), good, "{i}");
    }
    // A context that is too small for it.
    assert_eq!(start(script(), &[90, 300], sizes()).reuse(&ask), (101, "disk".into()));
    let names: Vec<_> =
        ["notes.txt", "other.state", ".nextsycl-notes", namesake].map(|n| folder.path().join(n).exists()).into();
    assert_eq!(names, [true; 4]);
}

/// What nobody used for long goes.
#[test]
fn unused_files_expire() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = || cache(1 << 20, Some(folder.path()), 1 << 20);
    start(script(), &[1000], sizes()).reuse(&conversation('x', 100, &["main"]));
    let file = files(folder.path())[0].clone();
    let old = std::time::SystemTime::now() - Duration::from_secs(3700);
    std::fs::File::options().append(true).open(&file).unwrap().set_modified(old).unwrap();
    let server = start(script(), &[1000], sizes());
    assert!(!file.exists());
    assert_eq!(server.reuse(&conversation('x', 100, &["main"])), (0, "none".into()));
}

/// A folder that cannot be written: it goes on in memory.
#[test]
fn no_folder_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let blocked = folder.path().join("a file");
    std::fs::write(&blocked, "").unwrap();
    for place in [blocked.clone(), blocked.join("below")] {
        let server = start(script(), &[1000], cache(2000, Some(&place), 1 << 20));
        for name in ['x', 'y', 'x'] {
            server.reuse(&conversation(name, 100, &["main"]));
        }
        server.end().unwrap();
    }
}

/// The cache is not forgotten under a prompt that is being read.
#[test]
fn clearing_waits_for_reading() {
    let script = Script { chunk_time: Duration::from_millis(5), ..script() };
    let server = start(script, &[9000], cache(1 << 20, None, 0));
    let body = chat_body(&conversation('y', 4000, &[])).to_string();
    let reading = server.open("POST", "/v1/chat/completions", "", &body);
    server.await_state(1, "reading");
    let (code, error) = server.control(ns_http::Method::POST, "/server/cache/clear");
    assert_eq!((code, error["error"]["message"].as_str()), (409, Some("a prompt is being read: ask again")));
    drop(reading);
    server.await_state(1, "cancelled");
    assert_eq!(server.control(ns_http::Method::POST, "/server/cache/clear").0, 200);
    // Only on the control socket.
    assert_eq!(server.get("/server/cache").status, 404);
}

/// One request decodes with drafts; while another decodes too there are none; then they are back. The text is the same.
#[test]
fn drafts_go_while_others_decode_and_come_back() {
    let script = Script { drafts: 3, step_time: Duration::from_millis(2), ..Script::default() };
    let script = script.say("main", &[b"word " as &[u8]; 600]).say("next", &[b"ok " as &[u8]; 30]);
    let seen = script.seen.clone();
    let server = Fixture::start(script, &[2000, 2000]);
    let long = server.open("POST", "/v1/chat/completions", "", &chat_body(&json!({"max_tokens": 600})).to_string());
    while seen.steps.load(Ordering::SeqCst) < 5 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let alone = server.record(1)["drafts"].clone();
    let short = server.chat(&json!({"messages": [{"role": "user", "content": "next"}]})).json();
    assert_eq!(short["choices"][0]["message"]["content"], "ok ".repeat(30));
    let mut text = String::new();
    (&long).read_to_string(&mut text).unwrap();
    let got = parse(text.as_bytes()).json();
    assert_eq!(got["choices"][0]["message"]["content"], "word ".repeat(600));
    let order = seen.order.lock().unwrap().clone();
    let (first, last) = (order.find("sd").unwrap(), order.rfind("sd").unwrap());
    assert!(order[first..last].contains("sssss"), "they never decoded together: {order}");
    assert!(order[..first + 8].contains("sdsd") && order.ends_with("sd"), "{order}");
    let done = server.record(1)["drafts"].clone();
    assert!(alone[1].as_u64().unwrap() >= 3 && done[0].as_u64() > alone[0].as_u64(), "{alone} {done}");
    let timings = &got["timings"];
    assert_eq!((&timings["draft_n_accepted"], &timings["draft_n"]), (&done[0], &done[1]));
    assert_eq!(done[0].as_u64().unwrap() * 3, done[1].as_u64().unwrap() * 2, "2 of 3 are accepted here");
}
