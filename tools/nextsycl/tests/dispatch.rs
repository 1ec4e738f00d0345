//! The dispatcher as a user sees it: which program runs, with what, and what comes back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};

/// One test at a time: a process being started by another test may hold a copy of a file that is still open for
/// writing here, and the kernel refuses to run such a file.
static ONE: Mutex<()> = Mutex::new(());

struct Folder(tempfile::TempDir, #[allow(dead_code)] MutexGuard<'static, ()>);

impl Folder {
    fn new() -> Self {
        let guard = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        fs::copy(env!("CARGO_BIN_EXE_nextsycl"), dir.path().join("nextsycl")).unwrap();
        Self(dir, guard)
    }

    fn tool(&self, dir: &str, name: &str, script: &str) {
        let dir = self.0.path().join(dir);
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let inherited = std::env::var("PATH").unwrap();
        let path = format!("{}:{inherited}", self.0.path().join("path").display());
        let mut command = Command::new(self.0.path().join("nextsycl"));
        command.args(args).env("PATH", path).env("TMPDIR", "/tmp");
        command
    }

    fn run(&self, args: &[&str]) -> (i32, String, String) {
        shown(&self.command(args).output().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

fn shown(output: &Output) -> (i32, String, String) {
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn arguments_exit_code_and_streams_pass_unchanged() {
    let folder = Folder::new();
    folder.tool(".", "nextsycl-llm", r#"printf '[%s]' "$@"; printf 'talk' >&2; cat; exit 37"#);
    let mut child = folder
        .command(&["llm", "a b", "", "--x=1", "*"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"input").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(shown(&output), (37, "[a b][][--x=1][*]input".into(), "talk".into()));
}

#[test]
fn a_tool_beside_wins_over_path_and_path_is_searched() {
    let folder = Folder::new();
    folder.tool("path", "nextsycl-llm", "echo from path");
    folder.tool("path", "nextsycl-serve", "echo serve from path");
    folder.tool(".", "nextsycl-llm", "echo beside");
    assert_eq!(folder.run(&["llm"]).1, "beside\n");
    assert_eq!(folder.run(&["serve"]).1, "serve from path\n");
}

#[test]
fn old_words_go_to_the_language_models() {
    let folder = Folder::new();
    folder.tool(".", "nextsycl-llm", r#"printf '[%s]' "$@""#);
    for word in ["start", "stop", "status", "ps", "inspect", "cache", "chat", "logs", "bench", "generate", "info"] {
        assert_eq!(folder.run(&[word, "x"]).1, format!("[{word}][x]"));
    }
    assert_eq!(folder.run(&["help", "start"]).1, "[start][--help]");
    assert_eq!(folder.run(&["help", "llm"]).1, "[--help]");
}

#[test]
fn an_unknown_tool_is_bad_usage_and_lists_the_tools() {
    let folder = Folder::new();
    folder.tool(".", "nextsycl-llm", "");
    folder.tool("path", "nextsycl-image", "");
    let (code, out, err) = folder.run(&["vidoe"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert_eq!(err, "nextsycl: there is no tool named vidoe\n\nTools found: image, llm\n");
    for name in ["../evil", "/bin/sh", "", "a/b"] {
        assert_eq!(folder.run(&[name]).0, 2, "{name}");
    }
    assert_eq!(folder.run(&["--frob"]).0, 2);
    assert_eq!(folder.run(&[]).0, 2);
}

/// The version is a file beside the program, found through a link too; without it (or with nonsense in it) it is `dev`.
#[test]
fn the_version_is_a_file_beside_the_program() {
    let folder = Folder::new();
    assert_eq!(folder.run(&["version"]), (0, "nextsycl dev\n".into(), String::new()));
    fs::create_dir_all(folder.path().join("prefix/bin")).unwrap();
    fs::create_dir_all(folder.path().join("prefix/share/nextsycl")).unwrap();
    fs::copy(folder.path().join("nextsycl"), folder.path().join("prefix/bin/nextsycl")).unwrap();
    fs::remove_file(folder.path().join("nextsycl")).unwrap();
    std::os::unix::fs::symlink("prefix/bin/nextsycl", folder.path().join("nextsycl")).unwrap();
    fs::write(folder.path().join("prefix/share/nextsycl/version"), "26.0817.003\n").unwrap();
    for word in ["version", "--version", "-V"] {
        assert_eq!(folder.run(&[word]), (0, "nextsycl 26.0817.003\n".into(), String::new()));
    }
    fs::write(folder.path().join("prefix/share/nextsycl/version"), "0.1.0\n").unwrap();
    assert_eq!(folder.run(&["version"]).1, "nextsycl dev\n");
}

#[test]
fn signals_reach_the_tool() {
    let folder = Folder::new();
    folder.tool(".", "nextsycl-llm", r#"trap 'exit 9' TERM; touch ready; for i in {1..200}; do sleep 0.05; done"#);
    let mut child = folder.command(&["llm"]).current_dir(folder.path()).spawn().unwrap();
    for _ in 0..200 {
        if folder.path().join("ready").exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

/// What systemd itself says of the units; `None` where it is not installed (tests/service/run.sh brings it along).
fn verify(files: &[std::path::PathBuf]) -> Option<String> {
    // It wants the folder of a user who is logged in.
    let runtime = tempfile::tempdir().unwrap();
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--user", "--man=no"]).args(files).env("XDG_RUNTIME_DIR", runtime.path());
    let output = command.output().ok()?;
    Some(String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout))
}

/// Units in a folder whose name needs every kind of quoting: systemd finds the program and has nothing to say.
#[test]
fn units_are_written_for_systemd() {
    let outer = Folder::new();
    let folder = outer.path().join("a b%c$d;é");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_nextsycl"), folder.join("nextsycl")).unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(folder.join("nextsycl"));
        command.arg("install-units").args(args).current_dir(outer.path()).env("PATH", "/bin:/usr/bin");
        shown(&command.env("HOME", outer.path()).env_remove("XDG_CONFIG_HOME").output().unwrap())
    };
    let (code, _, err) = run(&["--user"]);
    assert!(code == 1 && err.contains("nextsycl-llm was not found"), "{err}");
    fs::write(folder.join("nextsycl-llm"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(folder.join("nextsycl-llm"), fs::Permissions::from_mode(0o755)).unwrap();
    let (code, out, err) = run(&[]);
    assert!(code == 2 && out.is_empty() && err.contains("add --user") && err.contains("NixOS"), "{err}");
    let units = outer.path().join(".config/systemd/user");
    let (code, out, _) = run(&["--user", "--print"]);
    assert!(code == 0 && out.contains("ListenStream=127.0.0.1:8085") && !units.exists(), "{out}");

    let file = |name: &str| units.join(name);
    let (code, out, err) = run(&["--user", "--model", "models/m x.gguf", "--port", "9001"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("systemctl --user enable --now nextsycl-llm.socket"), "{out}");
    let service = fs::read_to_string(file("nextsycl-llm.service")).unwrap();
    let model = format!(" --model \"{}/models/m x.gguf\" ", outer.path().display());
    assert!(service.contains(&model) && service.contains(" --port 9001 --idle-exit 600\n"), "{service}");
    assert_eq!(run(&["--user", "--name", "cpu", "--device", "cpu", "--port", "9002", "--idle-exit", "0"]).0, 0);
    let all: Vec<_> =
        ["nextsycl-llm.socket", "nextsycl-llm.service", "nextsycl-llm-cpu.socket", "nextsycl-llm-cpu.service"]
            .map(file)
            .into();
    if let Some(said) = verify(&all) {
        assert_eq!(said, "");
        // and it would say it: the same unit with a program that does not exist
        let broken = outer.path().join("broken.service");
        fs::write(&broken, service.replace("nextsycl-llm\" serve", "nextsycl-none\" serve")).unwrap();
        assert!(verify(&[broken]).unwrap().contains("is not executable"));
    }

    // again: replaced; a unit of somebody else's: not
    assert_eq!(run(&["--user"]).0, 0);
    assert!(fs::read_to_string(file("nextsycl-llm.socket")).unwrap().contains(":8085\n"));
    fs::write(file("nextsycl-llm.service"), "[Service]\nExecStart=/bin/true\n").unwrap();
    for more in [&["--user"] as &[&str], &["--user", "--remove"]] {
        let (code, out, err) = run(more);
        assert!(
            code == 1 && out.is_empty() && err.contains("nextsycl-llm.service was not written by this command"),
            "{err}"
        );
        assert_eq!(fs::read(file("nextsycl-llm.service")).unwrap(), b"[Service]\nExecStart=/bin/true\n");
    }
    assert_eq!(run(&["--user", "--force"]).0, 0);
    let link = file("sockets.target.wants/nextsycl-llm.socket");
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(file("nextsycl-llm.socket"), &link).unwrap();
    let (code, out, _) = run(&["--user", "--remove"]);
    assert!(code == 0 && out.contains("systemctl --user daemon-reload"), "{out}");
    let mut left: Vec<_> =
        fs::read_dir(&units).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["nextsycl-llm-cpu.service", "nextsycl-llm-cpu.socket", "sockets.target.wants"]);
    assert!(link.symlink_metadata().is_err());
    assert!(run(&["--user", "--remove"]).1.starts_with("there are no units nextsycl-llm in "));

    // what systemd refuses is refused here
    let quote = outer.path().join("a'b");
    fs::rename(&folder, &quote).unwrap();
    let mut command = Command::new(quote.join("nextsycl"));
    let (code, _, err) = shown(&command.args(["install-units", "--user", "--print"]).output().unwrap());
    assert!(code == 1 && err.contains("systemd starts no program whose path has a quote"), "{err}");
    fs::rename(&quote, &folder).unwrap();
    let other = outer.path().join("other");
    assert_eq!(run(&["--user", "--dir", "other"]).0, 0);
    assert!(other.join("nextsycl-llm.socket").exists());
}
