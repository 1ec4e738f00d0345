//! Runs the nextsycl-* tool named on its command line: `nextsycl llm run ...` is `nextsycl-llm run ...`.
//!
//! It knows no tool by itself: it replaces its process by the program found beside it, or on `PATH`.

mod units;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: u8 = 2;

/// Words that older versions took without a kind; they belong to the language models.
const LLM_WORDS: &[&str] = &[
    "start",
    "stop",
    "status",
    "ps",
    "inspect",
    "cache",
    "chat",
    "logs",
    "bench",
    "generate",
    "info",
    "tokenize",
    "check",
    "spec-check",
    "batch-check",
    "kernels",
    "run",
];

/// `nextsycl NAME ...` for tools of another name.
const OTHER_NAMES: &[(&str, &str)] = &[("gpus", "gpustat")];

const HELP: &str = "\
Runs the nextsycl-* tools.

Usage: nextsycl TOOL [ARGUMENTS]     the same as nextsycl-TOOL [ARGUMENTS]
       nextsycl help [TOOL]          what a tool does
       nextsycl install-units        systemd units for the server (--help tells more)
       nextsycl version

Without a tool's name, these are commands of nextsycl-llm:
  run, chat, generate, start, stop, status, ps, inspect, logs, cache, bench,
  info, tokenize, check, spec-check, batch-check, kernels
";

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(first) = words.next() else {
        eprint_tools(HELP);
        return ExitCode::from(USAGE);
    };
    let rest: Vec<OsString> = words.collect();
    match first.to_str() {
        Some("version" | "--version" | "-V") => print(&format!("nextsycl {}\n", ns_registry::layout::version())),
        Some("help" | "--help" | "-h") => match rest.first() {
            None => print(&format!("{HELP}{}", tool_list())),
            Some(tool) if tool == "install-units" => print(units::HELP),
            Some(tool) if LLM_WORDS.iter().any(|w| tool == w) => {
                run(OsStr::new("llm"), &[tool.clone(), "--help".into()])
            }
            Some(tool) => run(tool, &["--help".into()]),
        },
        Some("install-units") => install_units(&rest),
        Some(flag) if flag.starts_with('-') => {
            eprint_tools(&format!("nextsycl: there is no flag {flag}\n"));
            ExitCode::from(USAGE)
        }
        Some(word) if LLM_WORDS.contains(&word) => {
            let mut all = vec![first.clone()];
            all.extend(rest);
            run(OsStr::new("llm"), &all)
        }
        Some(word) => {
            let name = OTHER_NAMES.iter().find(|(from, _)| *from == word).map_or(word, |(_, to)| to);
            run(OsStr::new(name), &rest)
        }
        None => run(&first, &rest),
    }
}

/// Writes systemd units.
fn install_units(words: &[OsString]) -> ExitCode {
    let Some(words) = words.iter().map(|w| w.to_str().map(str::to_owned)).collect::<Option<Vec<_>>>() else {
        eprint("nextsycl: an argument is not UTF-8\n");
        return ExitCode::from(USAGE);
    };
    match units::run(&words, &|name| find(OsStr::new(name))) {
        Ok(text) => print(&text),
        Err(units::Problem::Usage(text)) => {
            eprint(&format!("nextsycl: {text}\n"));
            ExitCode::from(USAGE)
        }
        Err(units::Problem::Failed(text)) => {
            eprint(&format!("nextsycl: {text}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Becomes `nextsycl-TOOL`; returns only when that failed.
fn run(tool: &OsStr, args: &[OsString]) -> ExitCode {
    let mut name = OsString::from("nextsycl-");
    name.push(tool);
    // A path in the place of a name would run any file called nextsycl-..., so only plain names are looked up.
    let plain = !tool.is_empty() && Path::new(&name).components().count() == 1 && !name.to_string_lossy().contains('/');
    let Some(program) = plain.then(|| find(&name)).flatten() else {
        eprint_tools(&format!("nextsycl: there is no tool named {}\n", tool.to_string_lossy()));
        return ExitCode::from(USAGE);
    };
    let error = Command::new(&program).arg0(&name).args(args).exec();
    eprint(&format!("nextsycl: cannot run {}: {error}\n", program.display()));
    ExitCode::FAILURE
}

/// Directories with tools: the program's own first, then `PATH`.
fn directories() -> Vec<PathBuf> {
    let own = std::env::current_exe().ok().and_then(|p| p.parent().map(Path::to_owned));
    let path = std::env::var_os("PATH").unwrap_or_default();
    own.into_iter().chain(std::env::split_paths(&path).filter(|p| p.is_absolute())).collect()
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

fn find(name: &OsStr) -> Option<PathBuf> {
    directories().into_iter().map(|d| d.join(name)).find(|p| is_program(p))
}

fn tool_list() -> String {
    let mut tools = BTreeSet::new();
    for dir in directories() {
        let Ok(entries) = std::fs::read_dir(dir) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if let Some(tool) = name.to_str().and_then(|n| n.strip_prefix("nextsycl-"))
                && !tool.contains('.')
                && is_program(&entry.path())
            {
                tools.insert(tool.to_owned());
            }
        }
    }
    if tools.is_empty() {
        return "\nNo tool was found beside this program or on PATH.\n".to_owned();
    }
    let tools: Vec<_> = tools.into_iter().collect();
    format!("\nTools found: {}\n", tools.join(", "))
}

fn eprint_tools(text: &str) {
    eprint(&format!("{text}{}", tool_list()));
}

fn eprint(text: &str) {
    // Nobody is left to tell when stderr is closed.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            eprint(&format!("nextsycl: cannot write to stdout: {e}\n"));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
