//! A world of its own for each test: settings, registry, sockets and state in a folder, and programs run in it.
#![allow(dead_code)]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

pub struct World {
    folder: tempfile::TempDir,
}

/// What a program left.
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl World {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["home", "run", "bundled"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    /// A world that other users may enter and write to.
    pub fn open() -> Self {
        let all = std::fs::Permissions::from_mode(0o777);
        // The folder of temporary files may itself be closed to others.
        let passable = |folder: &PathBuf| {
            folder.ancestors().all(|f| std::fs::metadata(f).is_ok_and(|m| m.permissions().mode() & 1 == 1))
        };
        let places = [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into()];
        let place = places.into_iter().find(passable).expect("a folder of temporary files that others may enter");
        let folder = tempfile::tempdir_in(place).unwrap();
        std::fs::set_permissions(folder.path(), all.clone()).unwrap();
        for name in ["home", "run", "bundled"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::set_permissions(folder.path().join(name), all.clone()).unwrap();
        }
        Self { folder }
    }

    /// Runs the program as a user who owns nothing here: as root by giving up root, else as oneself.
    pub fn run_as_somebody(&self, args: &[&str]) -> Ran {
        let mut command = self.command(args);
        if rustix::process::geteuid().is_root() {
            // The program's own folder may be closed to others.
            let copy = self.path("program");
            if !copy.exists() {
                // By another process: a program that this one has open for writing, or a test that starts meanwhile, cannot be run.
                assert!(Command::new("cp").arg(command.get_program()).arg(&copy).status().unwrap().success());
            }
            let mut other = Command::new(copy);
            other.args(args).current_dir("/").uid(65534).gid(65534);
            for (name, value) in command.get_envs() {
                match value {
                    Some(value) => other.env(name, value),
                    None => other.env_remove(name),
                };
            }
            command = other;
        }
        ran(&command.output().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// The program with nothing of the user's own; libraries and kernels are those of the machine.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nextsycl-llm"));
        for (name, _) in std::env::vars_os() {
            let name = name.into_string().unwrap();
            let kept = ["NS_ONEAPI", "NS_LIB", "NS_KERNELS"].contains(&name.as_str());
            if name.starts_with("NS_") && !kept {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .current_dir(self.folder.path())
            // Built kernels are shared by all tests: building them takes far longer than most of what is tested.
            .env("NS_MODULE_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/modules"))
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("NS_BUNDLED", self.path("bundled"))
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_STATE_HOME")
            .env_remove("XDG_CACHE_HOME")
            .env_remove("NOTIFY_SOCKET")
            .env_remove("LISTEN_PID")
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        ran(&self.command(args).output().unwrap())
    }

    /// Runs with a text on stdin.
    pub fn run_with(&self, args: &[&str], input: &str) -> Ran {
        let mut child =
            self.command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        ran(&child.wait_with_output().unwrap())
    }

    /// Brings the model that came with the build into this world's bundled folder.
    pub fn with_model(self) -> Self {
        let from = std::env::var_os("NS_BUNDLED").expect("NS_BUNDLED names the folder with the default model");
        let entry = std::fs::read_dir(&from)
            .unwrap()
            .map(|e| e.unwrap().path())
            .find(|p| p.extension().is_some_and(|e| e == "gguf"))
            .expect("the folder NS_BUNDLED has a .gguf file");
        std::os::unix::fs::symlink(&entry, self.path("bundled").join(entry.file_name().unwrap())).unwrap();
        self
    }

    /// The world's folder is shown as `DIR` in what programs print.
    pub fn masked(&self, text: &str) -> String {
        text.replace(&*self.folder.path().to_string_lossy(), "DIR")
    }
}

pub fn ran(output: &Output) -> Ran {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
}

/// Waits for something that must happen soon.
pub fn await_true(what: &str, mut check: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !check() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The device tests run on.
pub fn device() -> String {
    std::env::var("NS_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned())
}
