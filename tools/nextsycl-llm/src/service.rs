//! The server in the background: starting it, stopping it, looking at it.

use crate::cli::{Cache, CacheAction, Chat, Control, Inspect, Logs, Ps, Serve, Status};
use crate::failure::{Failure, Outcome};
use crate::local::World;
use crate::server::{socket, wanted};
use crate::{out, status};
use ns_http::Method;
use ns_http::client::{Client, ClientError};
use serde_json::{Value, json};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time a model may take to load.
const START_TIME: Duration = Duration::from_secs(600);
/// Time for running requests to finish, and again after a signal.
const STOP_TIME: Duration = Duration::from_secs(300);
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// A GET over the socket.
fn get(client: &Client, target: &str) -> Outcome<Value> {
    ask(client, Method::GET, target)
}

fn ask(client: &Client, method: Method, target: &str) -> Outcome<Value> {
    let (status, body) = client.request(method, target, None, ANSWER_TIME)?;
    let value: Value = serde_json::from_slice(&body)
        .map_err(|e| Failure::error(format!("the server's answer cannot be read: {e}")))?;
    match status {
        200 => Ok(value),
        404 => Err(Failure::not_found(error_text(&value))),
        409 => Err(Failure::busy(error_text(&value))),
        _ => Err(Failure::error(error_text(&value))),
    }
}

fn error_text(value: &Value) -> String {
    let error = &value["error"];
    error["message"].as_str().or(error.as_str()).unwrap_or("the server refused without a reason").to_owned()
}

/// Where a background server writes, by its socket's name.
struct Files {
    log: PathBuf,
    pid: PathBuf,
}

impl Files {
    fn of(world: &World, socket: &Path) -> Self {
        let stem = socket.file_stem().map_or_else(|| "nextsycl".into(), |s| s.to_string_lossy().into_owned());
        Self { log: world.layout.state.join(format!("{stem}.log")), pid: socket.with_extension("pid") }
    }
}

/// `start`.
pub fn start(world: &World, args: &Serve) -> Outcome {
    let socket = socket(world, &args.control);
    let client = Client::new(&socket);
    match client.request(Method::GET, "/server/status", None, ANSWER_TIME) {
        Ok(_) => {
            out::talk("the server is running already:");
            return print_status(&client);
        }
        Err(ClientError::NotRunning(_)) => {}
        Err(e) => return Err(e.into()),
    }
    // What can be wrong is told here rather than in a log.
    let found = world.find(wanted(args))?;
    (found.registration.info)(&found.model.file)?;
    let files = Files::of(world, &socket);
    for path in [&files.log, &files.pid] {
        if let Some(folder) = path.parent() {
            ns_files::create_dir(folder, true)?;
        }
    }
    let mut child = spawn(&files.log)?;
    ns_files::write(&files.pid, format!("{}\n", child.id()).as_bytes())?;
    wait_until_ready(&client, &mut child, &files.log)?;
    print_status(&client)
}

/// Starts this program again as `serve` with the same arguments.
fn spawn(log: &Path) -> Outcome<Child> {
    let fail = |e: std::io::Error| Failure::error(format!("cannot start the server: {e}"));
    // The folder of the log is the user's own state; it may have come from somebody else.
    let no_log = |e: std::io::Error| {
        let advice = if e.kind() == std::io::ErrorKind::PermissionDenied { ": its folder must be yours" } else { "" };
        Failure::error(format!("cannot write the server's log {}: {e}{advice}", log.display()))
    };
    if log.exists() {
        // The last log is kept beside the new one.
        std::fs::rename(log, log.with_extension("log.1")).map_err(no_log)?;
    }
    let out = std::fs::File::options().create(true).append(true).open(log).map_err(no_log)?;
    let program = std::env::current_exe().map_err(fail)?;
    let mut words: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(command) = words.iter_mut().find(|w| *w == "start") {
        *command = "serve".into();
    }
    Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(out.try_clone().map_err(fail)?)
        .stderr(out)
        // Ctrl-C on this terminal and its end are not for the server.
        .process_group(0)
        .spawn()
        .map_err(fail)
}

fn wait_until_ready(client: &Client, child: &mut Child, log: &Path) -> Outcome {
    let begun = Instant::now();
    let mut bar = crate::local::loading_bar();
    loop {
        if let Some(status) = child.try_wait().map_err(|e| Failure::error(format!("cannot watch the server: {e}")))? {
            let tail = tail(log, 10);
            return Err(Failure::error(format!(
                "the server ended while loading ({status}); its log {}:\n{tail}",
                log.display()
            )));
        }
        match client.request(Method::GET, "/server/status", None, ANSWER_TIME) {
            Ok((200, body)) => {
                let value: Value = serde_json::from_slice(&body).unwrap_or_default();
                if value["loading"].is_null() && value["pid"] == child.id() {
                    return Ok(());
                }
                let number = |field: &str| value["loading"][field].as_u64().unwrap_or(0);
                bar(number("done"), number("total"));
            }
            Ok(_) | Err(ClientError::NotRunning(_) | ClientError::Broken { .. }) => {}
            Err(e) => return Err(e.into()),
        }
        if begun.elapsed() > START_TIME {
            terminate(child.id());
            return Err(Failure::error(format!(
                "the server was not ready after {} s and is stopped; its log is {}",
                START_TIME.as_secs(),
                log.display()
            )));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn tail(log: &Path, lines: usize) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()).into_owned();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].iter().map(|l| format!("  {l}")).collect::<Vec<_>>().join("\n")
}

fn terminate(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        // A process that ended meanwhile needs no signal.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// `stop`.
pub fn stop(world: &World, args: &Control) -> Outcome {
    let socket = socket(world, args);
    let client = Client::new(&socket);
    let files = Files::of(world, &socket);
    let status = match client.request(Method::GET, "/server/status", None, ANSWER_TIME) {
        Err(ClientError::NotRunning(_)) => return out::data("server: not running\n"),
        Ok((_, body)) => serde_json::from_slice::<Value>(&body).unwrap_or_default(),
        Err(_) => Value::Null,
    };
    let pid = status["pid"].as_u64();
    // The socket of a service that systemd starts on demand always answers: a question would start it again.
    let asks = pid.is_none() || status["activated"] != true;
    let asked = client.request(Method::POST, "/server/shutdown", None, ANSWER_TIME);
    if let Ok((200, body)) = &asked {
        let running = serde_json::from_slice::<Value>(body).ok().and_then(|v| v["running"].as_u64()).unwrap_or(0);
        if running > 0 {
            out::talk(&format!("waiting for {running} request(s) to finish"));
        }
    }
    let stopped = asked.is_ok() && await_end(asks.then_some(&client), pid, STOP_TIME);
    if !stopped {
        let Some(pid) = pid.and_then(|p| u32::try_from(p).ok()) else {
            return Err(Failure::error("the server does not answer and its process is not known"));
        };
        terminate(pid);
        if !await_end(asks.then_some(&client), Some(pid.into()), STOP_TIME) {
            return Err(Failure::error(format!(
                "the server (process {pid}) did not end within {} s",
                2 * STOP_TIME.as_secs()
            )));
        }
    }
    ns_files::remove(&files.pid)?;
    out::data("server: stopped\n")
}

/// Waits until nobody answers (where there is somebody to ask) and the process is gone.
fn await_end(client: Option<&Client>, pid: Option<u64>, time: Duration) -> bool {
    let begun = Instant::now();
    loop {
        let answers = client.is_some_and(|client| {
            let health = client.request(Method::GET, "/health", None, Duration::from_secs(5));
            !matches!(health, Err(ClientError::NotRunning(_)))
        });
        let lives = pid.is_some_and(is_alive);
        if !answers && !lives {
            return true;
        }
        if begun.elapsed() > time {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether a process runs; one that ended and is not waited for does not.
fn is_alive(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // "PID (NAME) STATE ...", and a name may hold anything
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z') && !rest.starts_with('X'))
}

fn print_status(client: &Client) -> Outcome {
    out::data(&status::status(&get(client, "/server/status")?))
}

/// `status`.
pub fn show(world: &World, args: &Status) -> Outcome {
    let client = Client::new(&socket(world, &args.control));
    // what is piped is wanted once
    if args.no_stream || !out::is_terminal() {
        return print_status(&client);
    }
    out::data("\x1b[2J")?;
    loop {
        let text = status::status(&get(&client, "/server/status")?);
        // Home, then each line clears what was behind it, then everything below.
        let lines: String = text.lines().map(|l| format!("{l}\x1b[K\n")).collect();
        out::data(&format!("\x1b[H{lines}\x1b[J"))?;
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// `ps`.
pub fn list(world: &World, args: &Ps) -> Outcome {
    let client = Client::new(&socket(world, &args.control));
    let value = get(&client, "/server/requests")?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
    out::data(&status::requests(&value, now, if args.all { usize::MAX } else { 10 }))
}

/// `cache`.
pub fn cache(world: &World, args: &Cache) -> Outcome {
    let client = Client::new(&socket(world, &args.control));
    match args.action {
        CacheAction::Ls => out::data(&status::cache(&get(&client, "/server/cache")?)),
        CacheAction::Clear => {
            let value = ask(&client, Method::POST, "/server/cache/clear")?;
            out::data(&format!("dropped {} checkpoint(s)\n", value["dropped"]))
        }
    }
}

/// `inspect`.
pub fn inspect(world: &World, args: &Inspect) -> Outcome {
    let number = args.id.strip_prefix('#').unwrap_or(&args.id);
    let Ok(number) = number.parse::<u64>() else {
        return Err(Failure::usage(format!("`{}` is no request number: ps lists them", args.id)));
    };
    let client = Client::new(&socket(world, &args.control));
    let value = get(&client, &format!("/server/requests/{number}"))?;
    out::data(&format!("{value:#}\n"))
}

/// `logs`.
pub fn logs(world: &World, args: &Logs) -> Outcome {
    let path = Files::of(world, &socket(world, &args.control)).log;
    let fail = |e: std::io::Error| Failure::error(format!("cannot read {}: {e}", path.display()));
    let mut file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Failure::not_found(format!(
                "there is no log {}: the server was not started with start",
                path.display()
            )));
        }
        Err(e) => return Err(fail(e)),
    };
    loop {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(fail)?;
        out::data(&String::from_utf8_lossy(&bytes))?;
        if args.no_follow {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(200));
        // A new start has a new file under the name.
        if let Ok(new) = std::fs::File::open(&path) {
            use std::os::unix::fs::MetadataExt;
            let same = match (new.metadata(), file.metadata()) {
                (Ok(a), Ok(b)) => a.ino() == b.ino() && a.len() >= file.stream_position().unwrap_or(0),
                _ => true,
            };
            if !same {
                file = new;
                file.seek(SeekFrom::Start(0)).map_err(fail)?;
            }
        }
    }
}

/// `chat`.
pub fn chat(world: &World, args: &Chat) -> Outcome {
    let client = Client::new(&socket(world, &args.control));
    let mut body = json!({"messages": [{"role": "user", "content": args.text.join(" ")}], "stream": true});
    for (field, value) in
        [("effort", json!(args.effort)), ("max_tokens", json!(args.max)), ("temperature", json!(args.temp))]
    {
        body[field] = value;
    }
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, stop.clone())
        .map_err(|e| Failure::error(format!("cannot catch Ctrl-C: {e}")))?;
    let mut result = Ok(());
    let mut ended = false;
    let mut thinking = false;
    let mut failed: Option<Value> = None;
    let dim = out::is_terminal();
    client.lines("/api/chat", &body, &mut |status, line| {
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return false;
        }
        let Some(line) = line else { return true };
        let value: Value = serde_json::from_str(line).unwrap_or_default();
        if status != 200 || value.get("error").is_some() {
            failed = Some(json!({"error": value["error"], "status": status}));
            return false;
        }
        let mut text = String::new();
        if let Some(thought) = value["thinking"].as_str() {
            thinking = true;
            text = if dim { format!("\x1b[2m{thought}\x1b[0m") } else { thought.to_owned() };
        } else if let Some(content) = value["content"].as_str() {
            if std::mem::take(&mut thinking) {
                text.push_str("\n\n");
            }
            text.push_str(content);
        }
        result = out::data(&text);
        if value["done"] == true {
            ended = true;
            result = out::data("\n");
            out::talk(&format!("[{} prompt tokens, {} generated]", value["prompt_tokens"], value["generated"]));
        }
        result.is_ok()
    })?;
    result?;
    match failed {
        Some(value) if value["status"] == 404 => Err(Failure::not_found(error_text(&value))),
        Some(value) if value["status"] == 409 => Err(Failure::busy(error_text(&value))),
        Some(value) => Err(Failure::error(error_text(&value))),
        None if ended => Ok(()),
        None if stop.load(std::sync::atomic::Ordering::Relaxed) => {
            let _ = std::io::stdout().write_all(b"\n");
            Err(Failure::interrupted())
        }
        None => Err(Failure::error("the answer ended too early")),
    }
}
