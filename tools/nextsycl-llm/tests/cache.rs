//! The prompt cache and several conversations at once, with a seeded model on a device (`NS_TEST_DEVICE`, the CPU device unless
//! named).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{World, await_true, device};
use ns_http::Method;
use ns_http::client::Client;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Tokens of a conversation that takes a moment to read.
const LONG: u32 = 1500;

/// A world with a seeded model of 2048 tokens of vocabulary and context.
fn world() -> World {
    let world = World::new();
    let table = ns_tiny::shape("llama", "small", 1).unwrap();
    ns_tiny::write(&table, ns_tiny::Storage::named("Q8_0").unwrap(), world.path("small.gguf")).unwrap();
    world
}

/// A world with a small qwen35 model whose drafts hit.
fn world_with_drafts() -> World {
    let world = World::new();
    let wanted = ns_tiny::Wanted { architecture: "qwen35", shape: "tiny", seed: 3, vocabulary: None, fitted: true };
    let table = ns_tiny::checkpoint(wanted).unwrap();
    ns_tiny::write(&table, ns_tiny::Storage::named("F32").unwrap(), world.path("small.gguf")).unwrap();
    world
}

/// A server; it is killed when the test ends in any way.
struct Server {
    child: Child,
    client: Client,
    log: Arc<Mutex<String>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that ended already needs nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(world: &World, more: &[&str]) -> Self {
        Self::run(world, world.command(&Self::words(&device(), more)))
    }

    fn words<'a>(device: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let model = if more.iter().any(|w| w.ends_with(".gguf")) { None } else { Some("small.gguf") };
        let first = ["serve", "--port", "0", "--device", device];
        first.into_iter().chain(model).chain(more.iter().copied()).collect()
    }

    fn run(world: &World, mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (lines, to) = (BufReader::new(child.stderr.take().unwrap()).lines(), log.clone());
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|l| *to.lock().unwrap() += &(l + "\n")));
        let client = Client::new(&world.path("run/nextsycl/nextsycl.sock"));
        let server = Self { child, client, log };
        await_true("the model", || server.try_get("/health").is_some());
        server
    }

    fn try_get(&self, path: &str) -> Option<Value> {
        let (status, body) = self.client.request(Method::GET, path, None, Duration::from_secs(60)).ok()?;
        (status == 200).then(|| serde_json::from_slice(&body).unwrap())
    }

    fn get(&self, path: &str) -> Value {
        self.try_get(path).unwrap_or_else(|| panic!("{path} failed; log:\n{}", self.log()))
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, body) = self.client.request(Method::POST, path, Some(body), Duration::from_secs(120)).unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    /// Continues tokens greedily; the text and the record.
    fn ask(&self, ids: &[u32], new: usize) -> (String, Value) {
        let body = json!({"prompt": ids, "max_tokens": new, "temperature": 0, "ignore_eos": true});
        let (status, value) = self.post("/v1/completions", &body);
        assert_eq!(status, 200, "{value}\n{}", self.log());
        assert_eq!(value["usage"]["completion_tokens"].as_u64(), Some(new as u64));
        let done = self.get("/server/requests")["done"].as_array().unwrap().clone();
        let tokens = ids.len() as u64;
        let record = done.iter().find(|r| r["prompt_tokens"] == tokens).unwrap().clone();
        assert_eq!(value["usage"]["prompt_tokens_details"]["cached_tokens"], record["reused"]);
        (value["choices"][0]["text"].as_str().unwrap().to_owned(), record)
    }

    fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it as a service manager does.
    fn stop(mut self) -> String {
        self.signal(rustix::process::Signal::TERM);
        let begun = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the server does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{}", self.log());
        self.log()
    }
}

/// Tokens like no other `salt`'s.
fn ids(salt: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| 300 + (i * i * 7 + i * 31 + salt * 977) % 1500).collect()
}

fn source(record: &Value) -> (u64, &str) {
    (record["reused"].as_u64().unwrap(), record["source"].as_str().unwrap())
}

/// The files of a folder with a beginning or an ending.
fn files(folder: &Path, part: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let name = |p: &PathBuf| p.file_name().unwrap().to_string_lossy().into_owned();
    let mut files: Vec<_> = entries.flatten().map(|e| e.path()).collect();
    files.retain(|p| name(p).starts_with(part) || name(p).ends_with(part));
    files
}

/// A stop writes what was read, the next server goes on with it, in another context too: the same text, and it lists it.
#[test]
fn a_restart_goes_on_from_disk() {
    let world = world();
    let folder = world.path("home/.cache/nextsycl/prompts");
    let server = Server::start(&world, &["--ctx", "2048", "--parallel", "1"]);
    let prompt = ids(1, LONG);
    let (text, record) = server.ask(&prompt, 24);
    assert_eq!((source(&record), record["checkpoints_saved"].as_u64()), ((0, "none"), Some(1)));
    let list = world.run(&["cache"]);
    assert_eq!(list.code, 0, "{}", list.err);
    let lines: Vec<&str> = list.out.lines().collect();
    assert_eq!(lines[0], "#  TOKENS      SIZE  WHERE");
    assert!(lines[1].starts_with("1    1499  0.0") && lines[1].ends_with("GiB  memory"), "{}", list.out);
    assert!(
        lines[2].ends_with("GiB of 4.000GiB, 0 evicted") && lines[3] == "on disk 0.000GiB of 32.000GiB",
        "{}",
        list.out
    );
    let log = server.stop();
    assert!(log.contains("1 checkpoint(s) are written to disk"), "{log}");
    let left = files(&folder, ".state");
    assert_eq!((left.len(), files(&folder, ".nextsycl-state-").len()), (1, 0));
    let private = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&folder).unwrap().permissions());
    assert_eq!(private & 0o777, 0o700);

    let server = Server::start(&world, &["--ctx", "1600", "--parallel", "1"]);
    assert!(server.log().contains("1 checkpoint(s) in "), "{}", server.log());
    let (again, record) = server.ask(&prompt, 24);
    assert_eq!((source(&record), again), ((u64::from(LONG) - 1, "disk"), text.clone()));
    // One more turn of the conversation, behind another one that takes the session in between.
    server.ask(&ids(2, 200), 4);
    let longer: Vec<u32> = prompt.iter().copied().chain(ids(3, 40)).collect();
    assert_eq!(source(&server.ask(&longer, 4).1), (u64::from(LONG) - 1, "disk"));
    assert_eq!(source(&server.ask(&ids(2, 200), 4).1), (199, "cache"));
    let status = world.run(&["status", "--no-stream"]).out;
    assert!(status.contains("\nprompt cache: ") && status.contains("the live session holds 2"), "{status}");
    assert!(status.contains("\n  on disk: 1 checkpoint(s), 0.0GiB of 32.0GiB\n"), "{status}");
    assert!(world.run(&["ps"]).out.contains("1499 disk"));
    let cleared = world.run(&["cache", "clear"]);
    assert_eq!((cleared.code, cleared.out.as_str()), (0, "dropped 2 checkpoint(s)\n"), "{}", cleared.err);
    assert_eq!(files(&folder, ".state").len(), 0);
    assert_eq!(source(&server.ask(&prompt, 24).1), (0, "none"));
    server.stop();
    // Off: nothing is kept, nothing is written.
    let other = world.path("other");
    let folder = other.to_str().unwrap();
    let server = Server::start(&world, &["--ctx", "1600", "--prompt-cache-mib", "0", "--cache-dir", folder]);
    let (plain, record) = server.ask(&prompt, 24);
    assert_eq!((source(&record), plain), ((0, "none"), text));
    assert_eq!(world.run(&["cache", "ls"]).out, "the prompt cache is off\n");
    assert!(world.run(&["status", "--no-stream"]).out.ends_with("prompt cache: off\n"));
    server.stop();
    assert!(!other.exists());
    assert_eq!(world.run(&["cache"]).code, 3);
    assert_eq!(world.run(&["cache", "frob"]).code, 2);
    for (flag, value) in [("--cache-disk-gib", "-1"), ("--cache-ttl-hours", "x"), ("--prompt-cache-mib", "-5")] {
        assert_eq!(
            world.run(&["serve", "small.gguf", &format!("{flag}={value}"), "--device", "cpu"]).code,
            2,
            "{flag}"
        );
    }
}

/// A conversation: the turns of the template are found again by the next request, and by another one with the same
/// beginning.
#[test]
fn turns_of_a_conversation_are_kept() {
    let world = world();
    let server = Server::start(&world, &["--ctx", "2048", "--parallel", "1"]);
    let words = |n: usize| "word and another ".repeat(n);
    let system = json!({"role": "system", "content": words(20)});
    let first = json!({"role": "user", "content": words(18)});
    let ask = |messages: Value| {
        let (status, value) =
            server.post("/v1/chat/completions", &json!({"messages": messages, "temperature": 0, "max_tokens": 6}));
        assert_eq!(status, 200, "{value}");
        let cached = value["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (cached, value["usage"]["prompt_tokens"].as_u64().unwrap())
    };
    let other = || server.ask(&ids(9, 300), 2);
    let (_, all) = ask(json!([system, first]));
    let saved: Vec<u64> = server.get("/server/cache")["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["tokens"].as_u64().unwrap())
        .collect();
    // Behind the system message, and behind the user's: what opens the answer is read again.
    assert_eq!(saved.len(), 2, "{saved:?}");
    assert!(saved[0] > saved[1] && saved[0] < all && saved[1] >= 64, "{saved:?} of {all}");
    other();
    assert_eq!(ask(json!([system, first])), (saved[0], all), "the same again");
    other();
    let answer = json!({"role": "assistant", "content": "yes"});
    let second = json!({"role": "user", "content": words(16)});
    assert_eq!(ask(json!([system, first, answer, second])).0, saved[0], "one more turn");
    other();
    let (cached, _) = ask(json!([system, {"role": "user", "content": "Something else"}]));
    assert!(cached >= saved[1] && cached < saved[0], "the same system message: {cached} of {saved:?}");
}

/// Killed at any moment of a write: the next server removes what was left and has what was whole.
#[test]
fn killed_while_writing_loses_nothing_else() {
    let world = world();
    let folder = world.path("prompts");
    let flags = ["--ctx", "2048", "--parallel", "1", "--cache-dir", folder.to_str().unwrap()];
    let server = Server::start(&world, &flags);
    let safe = ids(1, LONG);
    let (text, _) = server.ask(&safe, 16);
    server.stop();
    let mut caught = 0;
    for round in 0..12 {
        let mut server = Server::start(&world, &flags);
        assert_eq!(files(&folder, ".nextsycl-state-").len(), 0, "round {round}: {}", server.log());
        let (again, record) = server.ask(&safe, 16);
        assert_eq!(
            (source(&record), &again),
            ((u64::from(LONG) - 1, "disk"), &text),
            "round {round}: {}",
            server.log()
        );
        server.ask(&ids(10 + round, LONG + 100 + round), 2);
        server.signal(rustix::process::Signal::TERM);
        let begun = Instant::now();
        while files(&folder, ".nextsycl-state-").is_empty() && server.child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(300) * round);
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        caught += usize::from(!files(&folder, ".nextsycl-state-").is_empty());
        if caught >= 3 {
            break;
        }
    }
    assert!(caught > 0, "no kill came in the middle of a write");
    let server = Server::start(&world, &flags);
    assert!(server.log().contains("was left by a killed process and is removed"), "{}", server.log());
    assert_eq!(files(&folder, ".nextsycl-state-").len(), 0);
    assert_eq!(server.ask(&safe, 16).0, text);
}

/// A small file system of its own, where this user may make one.
struct Mount(PathBuf);

impl Mount {
    fn new(path: PathBuf, size: &str) -> Option<Self> {
        std::fs::create_dir_all(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", size, "none"])
            .arg(&path)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success());
        mounted.then_some(Self(path))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A folder that stays mounted is in a temporary folder; nothing else can be done about it here.
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// A full disk is said once, and prompts are kept in memory still.
#[test]
fn a_full_disk_leaves_memory() {
    let world = world();
    let folder = world.path("disk");
    // Some 3 MB: of one prompt of this model there is no place for a second.
    let mount = Mount::new(folder.clone(), "size=3m");
    let device = device();
    let flags =
        ["--ctx", "2048", "--parallel", "1", "--prompt-cache-mib", "24", "--cache-dir", folder.to_str().unwrap()];
    let mut command = world.command(&Server::words(&device, &flags));
    if mount.is_none() {
        // Files of this process may not grow further: it is told so as it is told of a full disk.
        let mut limited = Command::new("bash");
        limited.args(["-c", "trap '' XFSZ; ulimit -f 3000; exec \"$@\"", "bash"]).arg(command.get_program());
        limited.args(command.get_args()).current_dir(world.path("."));
        command.get_envs().for_each(|(name, value)| match value {
            Some(value) => drop(limited.env(name, value)),
            None => drop(limited.env_remove(name)),
        });
        command = limited;
    }
    let server = Server::run(&world, command);
    for salt in 0..4 {
        server.ask(&ids(salt, 900), 2);
    }
    let log = server.log();
    let said = log.matches("nothing can be written to ").count();
    assert_eq!(said, 1, "{log}");
    assert!(log.contains("it goes on in memory, the disk is tried again in 60 s"), "{log}");
    assert_eq!(source(&server.ask(&ids(2, 900), 2).1), (899, "cache"));
    let list = server.get("/server/cache");
    assert!(list["bytes"].as_u64().unwrap() <= 24 << 20, "{list}");
    let log = server.stop();
    assert!(files(&folder, ".nextsycl-state-").is_empty() && files(&folder, ".state").is_empty(), "{log}");
}

/// The states of another cache form are not taken, and not lost.
#[test]
fn another_cache_form_is_left_alone() {
    let world = world();
    let prompt = ids(4, 300);
    let run = |form: &str| {
        let server = Server::start(&world, &["--ctx", "1024", &format!("--opt-kv={form}")]);
        let record = server.ask(&prompt, 4).1;
        let log = server.log();
        server.stop();
        (record["source"].as_str().unwrap().to_owned(), log)
    };
    assert_eq!(run("f32").0, "none");
    let (source, log) = run("f16");
    assert_eq!(source, "none");
    assert!(log.contains("1 of other models or cache forms are left alone"), "{log}");
    assert_eq!((run("f16").0, run("f32").0), ("disk".into(), "disk".into()));
    // Another model of the same shape and size.
    let table = ns_tiny::shape("llama", "small", 2).unwrap();
    ns_tiny::write(&table, ns_tiny::Storage::named("Q8_0").unwrap(), world.path("small.gguf")).unwrap();
    assert_eq!(run("f32").0, "none");
    // The same model in another place.
    let table = ns_tiny::shape("llama", "small", 1).unwrap();
    std::fs::create_dir(world.path("moved")).unwrap();
    ns_tiny::write(&table, ns_tiny::Storage::named("Q8_0").unwrap(), world.path("moved/other.gguf")).unwrap();
    let server = Server::start(&world, &["moved/other.gguf", "--ctx", "1024", "--opt-kv=f32"]);
    assert_eq!(server.ask(&prompt, 4).1["source"], "disk");
}

/// Conversations decoded together write what each writes alone.
#[test]
fn together_is_the_same_as_alone() {
    let world = world();
    let server = Server::start(&world, &["--ctx", "1024,512,1024", "--prompt-cache-mib", "0"]);
    let prompts: Vec<Vec<u32>> = (0..3).map(|salt| ids(20 + salt, 100 + 90 * salt)).collect();
    let alone: Vec<String> = prompts.iter().map(|p| server.ask(p, 120).0).collect();
    assert!(alone[0] != alone[1] && alone[1] != alone[2]);
    for _ in 0..2 {
        let together: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> = prompts.iter().map(|p| scope.spawn(|| server.ask(p, 120).0)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(together, alone);
    }
    let status = server.get("/server/status");
    assert_eq!((status["contexts"].clone(), status["parallel"].as_u64()), (json!([1024, 512, 1024]), Some(3)));
}

/// A model whose states cannot be cut, with drafts: back from disk, and beside others, it writes the same text; drafts are used
/// alone, and counted.
#[test]
fn drafts_and_states_that_cannot_be_cut() {
    let world = world_with_drafts();
    let flags = ["--ctx", "512", "--parallel", "2"];
    let server = Server::start(&world, &flags);
    let walk = |salt: u32, n: u32| -> Vec<u32> { (0..n).map(|i| 40 + (i * 7 + salt * 13) % 80).collect() };
    let prompts = [walk(0, 150), walk(1, 260)];
    let alone: Vec<(String, Value)> = prompts.iter().map(|p| server.ask(p, 100)).collect();
    for (_, record) in &alone {
        assert_eq!(source(record), (0, "none"));
        let (accepted, proposed) = (record["drafts"][0].as_u64().unwrap(), record["drafts"][1].as_u64().unwrap());
        assert!(accepted > 30 && accepted <= proposed, "{record}");
    }
    // The same again, and then both at once: from memory, at the end of the prompt.
    let again = |kinds: [&str; 2]| {
        let both: Vec<(String, Value)> = std::thread::scope(|scope| {
            let threads: Vec<_> = prompts.iter().map(|p| scope.spawn(|| server.ask(p, 100))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        for ((one, two), (prompt, kind)) in alone.iter().zip(&both).zip(prompts.iter().zip(kinds)) {
            assert_eq!(one.0, two.0);
            assert_eq!(source(&two.1), (prompt.len() as u64 - 1, kind));
        }
    };
    again(["cache", "cache"]);
    let status = server.get("/server/status");
    assert_eq!((status["mtp"].as_bool(), status["engine"].as_str()), (Some(true), Some("qwen35")));
    server.stop();
    let server = Server::start(&world, &flags);
    for ((text, before), prompt) in alone.iter().zip(&prompts) {
        let (again, record) = server.ask(prompt, 100);
        assert_eq!((&again, source(&record)), (text, (prompt.len() as u64 - 1, "disk")));
        assert_eq!(record["drafts"], before["drafts"]);
    }
    // A prompt that goes on differently from the middle of one is read anew: nothing is there to be cut.
    let other: Vec<u32> = prompts[1][..200].iter().copied().chain(walk(5, 20)).collect();
    assert_eq!(source(&server.ask(&other, 4).1), (0, "none"));
    // Without drafts: a state of its own, and the same text.
    server.stop();
    let server = Server::start(&world, &["--ctx", "512", "--no-mtp"]);
    let (text, record) = server.ask(&prompts[0], 100);
    assert_eq!((&text, source(&record)), (&alone[0].0, (0, "none")));
    assert_eq!(record["drafts"], json!([0, 0]));
}

/// A long prompt lets a short one pass; what no context holds is refused with both numbers.
#[test]
fn a_long_prompt_gives_way() {
    let world = World::new().with_model();
    let model = std::fs::read_dir(world.path("bundled")).unwrap().next().unwrap().unwrap().path();
    let server = Server::start(
        &world,
        &[model.to_str().unwrap(), "--ctx", "4096,1024", "--prompt-cache-mib", "0", "--opt-chunk=64"],
    );
    let body = json!({"prompt": ids(1, 3000), "max_tokens": 1, "temperature": 0}).to_string();
    let mut long = UnixStream::connect(world.path("run/nextsycl/nextsycl.sock")).unwrap();
    let length = body.len();
    write!(long, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let read = |record: Value| record["read_tokens"].as_u64().unwrap_or(0) > 64;
    await_true("the long read", || server.try_get("/server/requests/1").is_some_and(read));
    let body = json!({"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0,
        "max_tokens": 12});
    let (status, short) = server.post("/v1/chat/completions", &body);
    let record = server.get("/server/requests/1");
    assert_eq!(status, 200);
    assert!(short["choices"][0]["message"]["content"].as_str().unwrap().contains("Paris"), "{short}");
    assert!(record["state"] == "reading" && record["read_tokens"].as_u64().unwrap() < 2900, "{record}");
    // The cache cannot be cleared meanwhile.
    let cleared = world.run(&["cache", "clear"]);
    assert_eq!(cleared.code, 5, "{}{}", cleared.out, cleared.err);
    assert_eq!(cleared.err, "nextsycl-llm: a prompt is being read: ask again\n");
    drop(long);
    await_true("the end of the read", || server.get("/server/requests/1")["state"] == "cancelled");
    let (status, error) = server.post("/v1/completions", &json!({"prompt": ids(1, 4094), "max_tokens": 16}));
    assert_eq!((status, error["error"]["code"].as_str()), (400, Some("context_length_exceeded")), "{error}");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("4094 tokens") && message.contains("4096 tokens"), "{message}");
}
