//! The server as a service manager runs it: passed sockets, readiness, idle exit, a device that comes late, no room.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{World, await_true, device};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// One test at a time: sockets that are handed over are, for a moment, those of every program that is started.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Ends a server when the test ends in any way.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // One that ended already needs nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn signal(&self) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), rustix::process::Signal::TERM)
            .unwrap();
    }

    /// The exit code, which must come soon.
    fn code(&mut self) -> i32 {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The lines of stderr as they come.
    fn log(&mut self) -> Arc<Mutex<String>> {
        let text = Arc::new(Mutex::new(String::new()));
        let (lines, to) = (BufReader::new(self.0.stderr.take().unwrap()).lines(), text.clone());
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|l| *to.lock().unwrap() += &(l + "\n")));
        text
    }
}

/// What a socket unit does: the descriptors become 3, 4, ... of the program, whose id is in LISTEN_PID.
fn activate(program: &Command, sockets: &[&dyn AsFd]) -> Command {
    let descriptors: Vec<i32> = sockets.iter().map(|s| s.as_fd().as_raw_fd()).collect();
    for socket in sockets {
        rustix::io::fcntl_setfd(socket.as_fd(), rustix::io::FdFlags::empty()).unwrap();
    }
    // First out of the way, so that none is overwritten before it is moved.
    let away: String = descriptors.iter().enumerate().map(|(i, fd)| format!("exec {}>&{fd}; ", 100 + i)).collect();
    let moved: String = (0..descriptors.len()).map(|i| format!("exec {}>&{}; ", 3 + i, 100 + i)).collect();
    let closed: String = (0..descriptors.len()).map(|i| format!("exec {}>&-; ", 100 + i)).collect();
    let script = format!("{away}{moved}{closed}LISTEN_PID=$$ LISTEN_FDS={} exec \"$@\"", descriptors.len());
    let mut command = Command::new("bash");
    command.args(["-c", &script, "bash"]).arg(program.get_program()).args(program.get_args());
    command.current_dir(program.get_current_dir().unwrap()).stdin(Stdio::null()).stderr(Stdio::piped());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Starts it and takes the descriptors back.
fn start(mut command: Command, sockets: &[&dyn AsFd]) -> Running {
    let child = command.spawn().unwrap();
    for socket in sockets {
        rustix::io::fcntl_setfd(socket.as_fd(), rustix::io::FdFlags::CLOEXEC).unwrap();
    }
    Running(child)
}

/// Where a service is told to report to.
struct Manager {
    messages: Arc<Mutex<Vec<String>>>,
    path: std::path::PathBuf,
}

impl Manager {
    fn new(world: &World) -> Self {
        let path = world.path("notify.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        let messages = Arc::new(Mutex::new(Vec::new()));
        let to = messages.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 8192];
            while let Ok(n) = socket.recv(&mut bytes) {
                to.lock().unwrap().push(String::from_utf8_lossy(&bytes[..n]).into_owned());
            }
        });
        Self { messages, path }
    }

    fn lines(&self) -> Vec<String> {
        self.messages.lock().unwrap().iter().flat_map(|m| m.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
    }

    fn place(&self, line: &str) -> Option<usize> {
        self.lines().iter().position(|l| l.starts_with(line))
    }
}

const BODY: &str =
    r#"{"messages":[{"role":"user","content":"What is the capital of France?"}],"temperature":0,"max_tokens":12}"#;

/// Sends a request; the answer is read later.
fn ask(address: std::net::SocketAddr, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    stream
}

fn get(address: &str, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else { return String::new() };
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    text(stream)
}

fn text(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// A connection starts the service, its request is answered, quiet ends it, and the next connection starts it again; all of
/// it is told to the manager. The sockets stay the manager's.
#[test]
fn a_socket_starts_it_and_quiet_ends_it() {
    let (_alone, world, device) = (alone(), World::new().with_model(), device());
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    let path = world.path("control.sock");
    let unix = UnixListener::bind(&path).unwrap();
    let control = path.to_str().unwrap().to_owned();
    // A port that is taken and a socket that cannot be made: neither is to be opened when sockets are passed.
    let port = address.port().to_string();
    let args =
        ["serve", "--device", &device, "--ctx", "512", "--idle-exit", "1", "--port", &port, "--socket", "/none/x"];
    for round in 0..2 {
        let manager = Manager::new(&world);
        let asked = ask(address, BODY);
        let sockets: [&dyn AsFd; 2] = [&tcp, &unix];
        let mut command = activate(&world.command(&args), &sockets);
        command.env("NOTIFY_SOCKET", &manager.path);
        let begun = Instant::now();
        let mut server = start(command, &sockets);
        let log = server.log();
        let got = text(asked);
        assert!(got.starts_with("HTTP/1.1 200 ") && got.contains("Paris"), "{got}\n{}", log.lock().unwrap());
        if round == 0 {
            let status = world.run(&["status", "--no-stream", "--socket", &control]);
            assert!(status.code == 0 && status.out.contains("1 request(s) served"), "{}{}", status.out, status.err);
        }
        assert_eq!(server.code(), 0, "{}", log.lock().unwrap());
        assert!(begun.elapsed() > Duration::from_secs(1) && path.exists());
        let told = log.lock().unwrap().clone();
        assert!(told.contains(&format!("http://{address} and {control}")), "{told}");
        assert!(told.contains("stopping: nothing was asked for 1 s"), "{told}");
        let lines = manager.lines();
        let (ready, stopping) = (manager.place("READY=1"), manager.place("STOPPING=1"));
        assert!(ready.is_some() && ready < stopping, "{lines:?}");
        assert!(manager.place("STATUS=") < ready && manager.place("EXTEND_TIMEOUT_USEC=30000000") < ready, "{lines:?}");
        assert!(lines.contains(&format!("STATUS=serving {}", "smollm2-135m-instruct.q4_1")), "{lines:?}");
        std::fs::remove_file(&manager.path).unwrap();
    }
}

/// While it ends, nobody is turned away: who was accepted is answered, who comes later is left for the next start.
#[test]
fn a_request_during_the_stop_is_for_the_next_start() {
    let (_alone, world, device) = (alone(), World::new().with_model(), device());
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    let args = ["serve", "--device", &device, "--ctx", "512"];
    let sockets: [&dyn AsFd; 1] = [&tcp];
    let mut first = start(activate(&world.command(&args), &sockets), &sockets);
    let log = first.log();
    let long = BODY.replace("\"max_tokens\":12", "\"max_tokens\":150,\"ignore_eos\":true");
    let running = ask(address, &long);
    await_true("the answer's beginning", || world.run(&["ps"]).out.contains("generating"));
    // Over the control socket, as a user does it; the program waits for the process and asks nothing more.
    let stop = world.command(&["stop"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    await_true("the stop", || log.lock().unwrap().contains("asked over the socket to stop"));
    let late = ask(address, BODY);
    let got = text(running);
    assert!(got.starts_with("HTTP/1.1 200 ") && got.contains("\"completion_tokens\":150"), "{got}");
    assert_eq!(first.code(), 0, "{}", log.lock().unwrap());
    let stop = common::ran(&stop.wait_with_output().unwrap());
    assert_eq!((stop.code, stop.out.as_str()), (0, "server: stopped\n"), "{}", stop.err);
    let mut second = start(activate(&world.command(&args), &sockets), &sockets);
    let log = second.log();
    let got = text(late);
    assert!(got.starts_with("HTTP/1.1 200 ") && got.contains("Paris"), "{got}\n{}", log.lock().unwrap());
    second.signal();
    assert_eq!(second.code(), 0, "{}", log.lock().unwrap());
}

/// Without a handover to this very process it listens by itself; quiet ends it too, and its own socket file goes.
#[test]
fn sockets_for_another_process_are_not_taken() {
    let (_alone, world, device) = (alone(), World::new().with_model(), device());
    let mut command = world.command(&["serve", "--device", &device, "--ctx", "512", "--port", "0"]);
    command.env("LISTEN_PID", "1").env("LISTEN_FDS", "1").env("NS_IDLE_EXIT", "1").stderr(Stdio::piped());
    let mut server = Running(command.spawn().unwrap());
    let log = server.log();
    await_true("the address", || log.lock().unwrap().contains("http://"));
    let address = log.lock().unwrap().split("http://").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let got = text(ask(address.parse().unwrap(), BODY));
    // It may be loading still: without systemd that is said at once.
    assert!(got.starts_with("HTTP/1.1 200 ") || got.contains("Loading model"), "{got}");
    assert_eq!(server.code(), 0, "{}", log.lock().unwrap());
    assert!(!world.path("run/nextsycl/nextsycl.sock").exists());
}

/// What is no listener is named with what to change in the unit.
#[test]
fn an_unfit_socket_is_refused() {
    let (_alone, world, device) = (alone(), World::new().with_model(), device());
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let sockets: [&dyn AsFd; 1] = [&udp];
    let mut command = activate(&world.command(&["serve", "--device", &device]), &sockets);
    command.env("LISTEN_FDNAMES", "http");
    let mut server = start(command, &sockets);
    let log = server.log();
    assert_eq!(server.code(), 1);
    await_true("the message", || !log.lock().unwrap().is_empty());
    let told = log.lock().unwrap().clone();
    assert_eq!(
        told,
        "nextsycl-llm: the socket `http` passed by the service manager is no stream socket: use ListenStream=\n"
    );
}

/// What fails before anything is served leaves nobody at the socket: a connection there would start it again and again.
#[test]
fn a_start_that_fails_answers_who_waits() {
    let (_alone, world) = (alone(), World::new().with_model());
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap();
    let sockets: [&dyn AsFd; 1] = [&tcp];
    for (args, code) in [(&["serve", "nope"] as &[&str], 4), (&["serve", "--device", "gpu:77"], 1)] {
        let (asked, _silent) = (ask(address, BODY), TcpStream::connect(address).unwrap());
        let mut server = start(activate(&world.command(args), &sockets), &sockets);
        let got = text(asked);
        assert!(got.starts_with("HTTP/1.1 503 ") && got.contains("cannot start: see its log"), "{got}");
        assert_eq!(server.code(), code);
        tcp.set_nonblocking(true).unwrap();
        assert_eq!(tcp.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
}

/// A oneAPI folder whose CPU runtime is hidden at first: a real device that appears late.
fn late_runtime(world: &World) -> (std::path::PathBuf, std::path::PathBuf) {
    let from = std::env::var_os("NS_ONEAPI").expect("NS_ONEAPI names the SYCL runtime");
    let folder = world.path("late");
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(Path::new(&from).join("lib")).unwrap() {
        let entry = entry.unwrap();
        std::os::unix::fs::symlink(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let (file, hidden) = (folder.join("libintelocl.so"), folder.join("hidden"));
    std::fs::rename(&file, &hidden).unwrap();
    (file, hidden)
}

/// G01: the device comes after the server. It listens, says what it waits for, and then answers.
#[test]
fn a_late_device_is_waited_for() {
    let (_alone, world) = (alone(), World::new().with_model());
    let (file, hidden) = late_runtime(&world);
    let manager = Manager::new(&world);
    let mut command =
        world.command(&["serve", "--device", "cpu", "--ctx", "512", "--port", "0", "--wait-device", "120"]);
    command.env("OCL_ICD_FILENAMES", &file).env("NOTIFY_SOCKET", &manager.path).stderr(Stdio::piped());
    let mut server = Running(command.spawn().unwrap());
    let log = server.log();
    await_true("the address", || log.lock().unwrap().contains("http://"));
    let address = log.lock().unwrap().split("http://").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let why = "waiting for the device cpu, at most 120 s: the SYCL runtime does not list it";
    await_true("the reason", || get(&address, "/health").contains(why));
    let got = get(&address, "/health");
    assert!(got.starts_with("HTTP/1.1 503 ") && got.contains("retry-after: 5"), "{got}");
    let got = text(ask(address.parse().unwrap(), BODY));
    assert!(got.starts_with("HTTP/1.1 503 ") && got.contains(why), "{got}");
    assert!(world.run(&["status", "--no-stream"]).out.contains(why));
    await_true("the status", || manager.place(&format!("STATUS={why}")).is_some());
    assert!(manager.place("READY=1").is_none());
    std::fs::rename(&hidden, &file).unwrap();
    await_true("the model", || get(&address, "/health").starts_with("HTTP/1.1 200 "));
    let got = text(ask(address.parse().unwrap(), BODY));
    assert!(got.starts_with("HTTP/1.1 200 ") && got.contains("Paris"), "{got}");
    assert!(manager.place("READY=1").is_some(), "{:?}", manager.lines());
    server.signal();
    assert_eq!(server.code(), 0, "{}", log.lock().unwrap());
}

/// A device that does not come is an error that names it, and never another device; a stop ends the waiting at once.
#[test]
fn a_device_that_does_not_come_is_an_error() {
    let (_alone, world) = (alone(), World::new().with_model());
    let (file, _) = late_runtime(&world);
    let wait = |seconds: &str| {
        let mut command = world.command(&["serve", "--device", "cpu", "--port", "0", "--wait-device", seconds]);
        command.env("OCL_ICD_FILENAMES", &file).stderr(Stdio::piped());
        Running(command.spawn().unwrap())
    };
    let mut server = wait("2");
    let log = server.log();
    assert_eq!(server.code(), 1);
    await_true("the message", || log.lock().unwrap().contains("there is no device"));
    let told = log.lock().unwrap().lines().last().unwrap().to_owned();
    assert!(
        told.starts_with(
            "nextsycl-llm: there is no device cpu after 2 s (--wait-device): the SYCL runtime does not list it."
        ),
        "{told}"
    );
    let mut server = wait("600");
    let log = server.log();
    await_true("the waiting", || log.lock().unwrap().contains("waiting for the device cpu"));
    let begun = Instant::now();
    server.signal();
    assert_eq!(server.code(), 0, "{}", log.lock().unwrap());
    assert!(begun.elapsed() < Duration::from_secs(5));
}

/// A model that has no room on the device ends with a code of its own. Its file says that it was trained for 2^24 tokens, so
/// that contexts can be asked for that no machine holds (6 TB).
#[test]
fn no_room_has_its_own_exit_code() {
    let (_alone, world, device) = (alone(), World::new().with_model(), device());
    let model = world.path("bundled").join("smollm2-135m-instruct.q4_1.gguf");
    let model = std::fs::read_dir(model.parent().unwrap()).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(model).unwrap();
    let key = b"llama.context_length";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len();
    assert_eq!(bytes[at..at + 4], 4_u32.to_le_bytes(), "the value is no 32-bit number");
    bytes[at + 4..at + 8].copy_from_slice(&(1_u32 << 24).to_le_bytes());
    let file = world.write("large.gguf", bytes);
    let file = file.to_str().unwrap();
    let ran = world.run(&["serve", file, "--device", &device, "--port", "0", "--ctx", "16777216", "--parallel", "8"]);
    assert_eq!(ran.code, 75, "{}", ran.err);
    assert!(ran.err.lines().last().unwrap().starts_with("nextsycl-llm: the model does not fit on "), "{}", ran.err);
    let ran = world.run(&["generate", file, "--device", &device, "--ctx", "16777216", "--prompt", "x"]);
    assert_eq!(ran.code, 75, "{}", ran.err);
}

/// A state folder that is somebody else's is named.
#[test]
fn a_closed_state_folder_is_named() {
    let (_alone, world) = (alone(), World::open());
    let from = std::env::var_os("NS_BUNDLED").expect("NS_BUNDLED names the folder with the default model");
    let model = std::fs::read_dir(from).unwrap().map(|e| e.unwrap().path()).find(|p| p.is_file()).unwrap();
    let copy = world.path("bundled/m.gguf");
    std::fs::copy(model, copy).unwrap();
    world.write("home/.local/state/nextsycl/nextsycl.log", "old");
    for closed in ["home/.local/state/nextsycl", "home/.local/state"] {
        if !closed.ends_with("nextsycl") {
            std::fs::remove_dir_all(world.path("home/.local/state/nextsycl")).unwrap();
        }
        std::fs::set_permissions(world.path(closed), std::fs::Permissions::from_mode(0o555)).unwrap();
        let ran = world.run_as_somebody(&["start"]);
        assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{}", ran.err);
        assert!(world.masked(&ran.err).contains("DIR/home/.local/state/nextsycl"), "{}", ran.err);
        assert!(ran.err.contains("ermission denied"), "{}", ran.err);
        std::fs::set_permissions(world.path(closed), std::fs::Permissions::from_mode(0o777)).unwrap();
    }
}
