//! `nextsycl install-units`: systemd user units for people without NixOS, from the description that the NixOS modules use.

use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// What the units say, shared with the NixOS modules.
const UNITS: &str = include_str!("../../../modules/units.json");

/// The first line of a unit of ours.
const MARKER: &str = "# Written by `nextsycl install-units`, which also replaces and removes it.";

pub const HELP: &str = "\
Writes systemd user units for the language-model server: a socket that starts it with the first
request, and the service.

Usage: nextsycl install-units --user [OPTIONS]

  --user               units of this user's own systemd (for the whole machine: the NixOS module)
  --model ID|PATH      model to serve (the server's own choice: NS_MODEL, else the bundled model)
  --port N             port of the loopback address (8085)
  --name NAME          units nextsycl-llm-NAME instead of nextsycl-llm, with a control socket of its own
  --device DEVICE      gpu, gpu:N or cpu (the server's own choice)
  --idle-exit SECONDS  ends the server after that long without a request; 0 never (600)
  --dir DIR            folder for the units ($XDG_CONFIG_HOME/systemd/user)
  --print              prints the units, writes nothing
  --remove             removes the units
  --force              also replaces or removes units that this command has not written
";

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    user: bool,
    model: Option<String>,
    port: Option<u16>,
    name: Option<String>,
    device: Option<String>,
    idle_exit: Option<u64>,
    dir: Option<PathBuf>,
    print: bool,
    remove: bool,
    force: bool,
}

/// Why it did not work.
#[derive(Debug, PartialEq, Eq)]
pub enum Problem {
    /// The command line is wrong.
    Usage(String),
    /// Something failed.
    Failed(String),
}

fn usage(text: impl Into<String>) -> Problem {
    Problem::Usage(text.into())
}

fn failed(text: impl std::fmt::Display) -> Problem {
    Problem::Failed(text.to_string())
}

type Outcome<T> = Result<T, Problem>;

/// Runs the command; `find` gives the path of a program. Returns what is printed.
pub fn run(words: &[String], find: &dyn Fn(&str) -> Option<PathBuf>) -> Outcome<String> {
    if words.iter().any(|w| w == "--help" || w == "-h") {
        return Ok(HELP.to_owned());
    }
    let wanted = parse(words)?;
    if !wanted.user {
        return Err(usage(
            "install-units writes units of one user: add --user. Units of the whole machine come from the NixOS module; on \
             another system, `nextsycl install-units --user` and `loginctl enable-linger` serve from boot too",
        ));
    }
    let unit = wanted.name.as_ref().map_or_else(|| "nextsycl-llm".to_owned(), |name| format!("nextsycl-llm-{name}"));
    let dir = match &wanted.dir {
        Some(dir) => std::path::absolute(dir).map_err(|e| failed(format!("--dir {}: {e}", dir.display())))?,
        None => config_folder()?.join("systemd/user"),
    };
    let files = [dir.join(format!("{unit}.socket")), dir.join(format!("{unit}.service"))];
    if wanted.remove {
        return remove(&files, &unit, &dir, wanted.force);
    }
    let units: Value = serde_json::from_str(UNITS).map_err(|e| failed(format!("modules/units.json: {e}")))?;
    let service = &units["services"]["llm"];
    let program = service["program"].as_str().unwrap_or_default();
    let program = find(program).ok_or_else(|| {
        failed(format!("{program} was not found beside nextsycl or on PATH: there is nothing the units could start"))
    })?;
    let (program, warning) = outside_store(program);
    let texts = [socket_unit(service, &wanted)?, service_unit(&units, service, &wanted, &program)?];
    if wanted.print {
        let parts: Vec<String> = files.iter().zip(&texts).map(|(f, t)| format!("# {}\n{t}", f.display())).collect();
        return Ok(parts.join("\n"));
    }
    for file in &files {
        check_ours(file, wanted.force, "replaced")?;
    }
    ns_files::create_dir(&dir, false).map_err(failed)?;
    for (file, text) in files.iter().zip(&texts) {
        ns_files::write(file, text.as_bytes()).map_err(failed)?;
    }
    let port = wanted.port.map_or_else(|| service["port"].to_string(), |p| p.to_string());
    let socket =
        wanted.name.as_ref().map_or_else(String::new, |n| format!(" --socket $XDG_RUNTIME_DIR/nextsycl/{n}.sock"));
    Ok(format!(
        "wrote {}\nwrote {}\n{warning}\nNow run:\n  systemctl --user daemon-reload\n  systemctl --user enable --now {unit}.socket\n\n\
         The first request to 127.0.0.1:{port} starts the server. Its log: journalctl --user -u {unit}\n\
         While it runs: nextsycl-llm status{socket}\n\
         To have it without being logged in: loginctl enable-linger\n",
        files[0].display(),
        files[1].display(),
    ))
}

/// A unit is no root for Nix's collector, and the store's path is that of one version: takes the same program through a
/// profile on `PATH`, and says what may happen where there is none.
fn outside_store(program: PathBuf) -> (PathBuf, &'static str) {
    const STORE: &str = "/nix/store";
    if !program.starts_with(STORE) {
        return (program, "");
    }
    let same = |candidate: &PathBuf| {
        !candidate.starts_with(STORE) && candidate.canonicalize().ok() == program.canonicalize().ok()
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let name = program.file_name().unwrap_or_default().to_owned();
    match std::env::split_paths(&path).filter(|d| d.is_absolute()).map(|d| d.join(&name)).find(same) {
        Some(stable) => (stable, ""),
        None => (
            program,
            "\nThe units name a path of the Nix store, which a garbage collection may remove: install nextsycl into a profile\n\
             (nix profile install) and write the units again.\n",
        ),
    }
}

fn config_folder() -> Outcome<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute("XDG_CONFIG_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".config")))
        .ok_or_else(|| failed("neither XDG_CONFIG_HOME nor HOME is set: name the folder with --dir"))
}

fn parse(words: &[String]) -> Outcome<Wanted> {
    let mut wanted = Wanted::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (flag, inline) = word.split_once('=').map_or((word.as_str(), None), |(f, v)| (f, Some(v.to_owned())));
        let switch = match flag {
            "--user" => Some(&mut wanted.user),
            "--print" => Some(&mut wanted.print),
            "--remove" => Some(&mut wanted.remove),
            "--force" => Some(&mut wanted.force),
            _ => None,
        };
        if let Some(switch) = switch {
            if inline.is_some() {
                return Err(usage(format!("install-units: {flag} takes no value")));
            }
            *switch = true;
            continue;
        }
        if !["--model", "--port", "--name", "--device", "--idle-exit", "--dir"].contains(&flag) {
            return Err(usage(format!("install-units: {word} is unknown: nextsycl install-units --help")));
        }
        let value = inline.or_else(|| words.next().cloned());
        let Some(value) = value.filter(|v| !v.is_empty()) else {
            return Err(usage(format!("install-units: {flag} needs a value")));
        };
        if value.chars().any(char::is_control) {
            return Err(usage(format!("install-units: the value of {flag} has a control character")));
        }
        let wrong = |expected: &str| usage(format!("install-units: {flag} {value}: it takes {expected}"));
        match flag {
            "--model" => wanted.model = Some(value),
            "--port" => match value.parse() {
                Ok(port) if port > 0 => wanted.port = Some(port),
                _ => return Err(wrong("a port number from 1 to 65535")),
            },
            "--name" => {
                if value.len() > 64 || !value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
                    return Err(wrong("letters, digits, - and _"));
                }
                wanted.name = Some(value);
            }
            "--device" => {
                let number =
                    value.strip_prefix("gpu:").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
                if !number && value != "gpu" && value != "cpu" {
                    return Err(wrong("gpu, gpu:N or cpu"));
                }
                wanted.device = Some(value);
            }
            "--idle-exit" => match value.parse() {
                Ok(seconds) if seconds <= 366 * 24 * 3600 => wanted.idle_exit = Some(seconds),
                _ => return Err(wrong("a number of seconds, 0 for never")),
            },
            _ => wanted.dir = Some(value.into()),
        }
    }
    Ok(wanted)
}

/// A unit is ours to change when its first line says so.
fn check_ours(file: &Path, force: bool, done: &str) -> Outcome<()> {
    let Some(old) = ns_files::read_optional(file).map_err(failed)? else { return Ok(()) };
    if force || old.starts_with(MARKER.as_bytes()) {
        return Ok(());
    }
    Err(failed(format!(
        "{} was not written by this command and is not {done}: use --force if it may be, or another --name",
        file.display()
    )))
}

fn remove(files: &[PathBuf], unit: &str, dir: &Path, force: bool) -> Outcome<String> {
    for file in files {
        check_ours(file, force, "removed")?;
    }
    let mut text = String::new();
    for file in files {
        if file.symlink_metadata().is_ok() {
            ns_files::remove(file).map_err(failed)?;
            let _ = writeln!(text, "removed {}", file.display());
        }
    }
    // What `systemctl enable` made.
    for (target, kind) in [("sockets.target.wants", "socket"), ("default.target.wants", "service")] {
        let link = dir.join(target).join(format!("{unit}.{kind}"));
        if link.symlink_metadata().is_ok_and(|m| m.is_symlink()) {
            ns_files::remove(&link).map_err(failed)?;
            let _ = writeln!(text, "removed {}", link.display());
        }
    }
    if text.is_empty() {
        return Ok(format!("there are no units {unit} in {}\n", dir.display()));
    }
    text.push_str(&format!(
        "\nNow run:\n  systemctl --user stop {unit}.socket {unit}.service\n  systemctl --user daemon-reload\n"
    ));
    Ok(text)
}

fn socket_unit(service: &Value, wanted: &Wanted) -> Outcome<String> {
    let description = service["description"].as_str().unwrap_or_default();
    let port = wanted.port.map_or_else(|| service["port"].to_string(), |p| p.to_string());
    let mut text =
        format!("{MARKER}\n[Unit]\nDescription={description}: socket\n\n[Socket]\nListenStream=127.0.0.1:{port}\n");
    lines(&mut text, &service["socket"], &[])?;
    text.push_str("\n[Install]\nWantedBy=sockets.target\n");
    Ok(text)
}

fn service_unit(units: &Value, service: &Value, wanted: &Wanted, program: &Path) -> Outcome<String> {
    let excluded: Vec<&str> =
        units["userExcludes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut text = format!("{MARKER}\n[Unit]\nDescription={}\n", service["description"].as_str().unwrap_or_default());
    lines(&mut text, &service["unit"], &excluded)?;
    text.push_str("\n[Service]\n");
    let _ = writeln!(text, "ExecStart={}", command(service, wanted, program)?);
    lines(&mut text, &service["service"], &excluded)?;
    for (name, value) in service["environment"].as_object().into_iter().flatten() {
        // The values have specifiers (%C), which stay as they are.
        let value =
            value.as_str().ok_or_else(|| failed(format!("modules/units.json: environment.{name} is no text")))?;
        let _ = writeln!(text, "Environment={}", quoted(&format!("{name}={value}"), false));
    }
    lines(&mut text, &units["hardening"], &excluded)?;
    lines(&mut text, &units[if service["gpu"] == true { "gpu" } else { "noGpu" }], &excluded)?;
    text.push_str("\n[Install]\nWantedBy=default.target\n");
    Ok(text)
}

/// The line that starts the server.
fn command(service: &Value, wanted: &Wanted, program: &Path) -> Outcome<String> {
    let program = std::path::absolute(program).map_err(|e| failed(format!("{}: {e}", program.display())))?;
    let program = program.to_str().ok_or_else(|| failed(format!("the path {} is not UTF-8", program.display())))?;
    if program.chars().any(|c| c.is_control() || "\"'\\".contains(c)) {
        return Err(failed(format!(
            "systemd starts no program whose path has a quote, a backslash or a control character: {program:?}"
        )));
    }
    // Of the first word systemd replaces no variables.
    let mut line = quoted(&program.replace('%', "%%"), false);
    let mut word = |text: &str| {
        line.push(' ');
        line.push_str(&quoted(&text.replace('%', "%%"), true));
    };
    for argument in service["args"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        word(argument);
    }
    if let Some(model) = &wanted.model {
        word("--model");
        // A path is one from here, not from where the service runs.
        let path = Path::new(model);
        if path.is_file() || model.contains('/') {
            let whole = std::path::absolute(path).map_err(|e| failed(format!("--model {model}: {e}")))?;
            word(whole.to_str().ok_or_else(|| failed(format!("the path {} is not UTF-8", whole.display())))?);
        } else {
            word(model);
        }
    }
    if let Some(device) = &wanted.device {
        word("--device");
        word(device);
    }
    let port = wanted.port.map_or_else(|| service["port"].to_string(), |p| p.to_string());
    for text in ["--port", &port, "--idle-exit", &wanted.idle_exit.unwrap_or(600).to_string()] {
        word(text);
    }
    if let Some(name) = &wanted.name {
        // %t is the user's runtime folder.
        let _ = write!(line, " --socket %t/nextsycl/{name}.sock");
    }
    Ok(line)
}

/// `KEY=value` lines of a table; a list gives a line for each of its values.
fn lines(text: &mut String, table: &Value, excluded: &[&str]) -> Outcome<()> {
    for (key, value) in table.as_object().into_iter().flatten().filter(|(key, _)| !excluded.contains(&key.as_str())) {
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for value in values {
            let value = match value {
                Value::String(s) if !s.contains('\n') => s.clone(),
                Value::Bool(_) | Value::Number(_) => value.to_string(),
                _ => return Err(failed(format!("modules/units.json: {key} has a value that no unit can have"))),
            };
            let _ = writeln!(text, "{key}={value}");
        }
    }
    Ok(())
}

/// One word of a unit's line: in double quotes where it needs them, with a dollar sign doubled where variables are replaced.
fn quoted(word: &str, variables: bool) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+%".contains(c);
    let mut out: String = word
        .chars()
        .map(|c| match c {
            '\\' => "\\\\".to_owned(),
            '"' => "\\\"".to_owned(),
            '$' if variables => "$$".to_owned(),
            c => c.to_string(),
        })
        .collect();
    // An @, + or - in front of a program would be an instruction of its own; a path never begins so.
    if word.is_empty() || !word.chars().all(plain) {
        out = format!("\"{out}\"");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn words_are_quoted_for_systemd() {
        for (word, expected) in [
            ("/usr/bin/x", "/usr/bin/x"),
            ("a b", "\"a b\""),
            ("", "\"\""),
            ("a\"b'c\\d", "\"a\\\"b'c\\\\d\""),
            ("$HOME", "\"$$HOME\""),
            (";", "\";\""),
            ("é", "\"é\""),
        ] {
            assert_eq!(quoted(word, true), expected);
        }
        assert_eq!(quoted("/a$b", false), "\"/a$b\"");
    }

    #[test]
    fn both_forms_of_flags_and_wrong_ones() {
        let both = [
            "--user --port 9 --name a-b --model x --device gpu:1 --idle-exit 0",
            "--user --port=9 --name=a-b --model=x --device=gpu:1 --idle-exit=0",
        ];
        assert_eq!(parse(&words(both[0])), parse(&words(both[1])));
        let wanted = parse(&words(both[0])).unwrap();
        assert_eq!((wanted.port, wanted.idle_exit, wanted.device.as_deref()), (Some(9), Some(0), Some("gpu:1")));
        for bad in [
            "--port 0",
            "--port 65536",
            "--port",
            "--name a/b",
            "--name a.service",
            "--device opencl:cpu",
            "--idle-exit -1",
            "--frob",
            "x",
            "--user=1",
            "--model=",
        ] {
            assert!(matches!(parse(&words(bad)), Err(Problem::Usage(_))), "{bad}");
        }
        assert!(parse(&["--model".to_owned(), "a\nExecStart=b".to_owned()]).is_err());
    }

    /// Everything of the shared description is in the units, but what a user's systemd cannot apply.
    #[test]
    fn the_units_hold_the_shared_description() {
        let units: Value = serde_json::from_str(UNITS).unwrap();
        let service = &units["services"]["llm"];
        let wanted = Wanted {
            model: Some("a 100% $model".into()),
            device: Some("cpu".into()),
            name: Some("x".into()),
            ..Wanted::default()
        };
        let text = service_unit(&units, service, &wanted, Path::new("/opt/next sycl/bin/nextsycl-llm")).unwrap();
        assert!(text.starts_with(MARKER));
        let exec = "ExecStart=\"/opt/next sycl/bin/nextsycl-llm\" serve --model \"a 100%% $$model\" --device cpu --port 8085 --idle-exit 600 --socket %t/nextsycl/x.sock\n";
        assert!(text.contains(exec), "{text}");
        let excluded: Vec<&str> = units["userExcludes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let mut seen = 0;
        for table in [&units["hardening"], &units["gpu"], &service["service"], &service["unit"]] {
            for key in table.as_object().unwrap().keys() {
                assert_eq!(text.contains(&format!("\n{key}=")), !excluded.contains(&key.as_str()), "{key}");
                seen += 1;
            }
        }
        assert!(seen > 20);
        assert!(
            text.contains("\nRestartPreventExitStatus=2\nRestartPreventExitStatus=4\nRestartPreventExitStatus=75\n")
        );
        assert!(text.contains("\nEnvironment=NS_MODULE_CACHE=%C/nextsycl/modules\n"), "{text}");
        assert!(text.contains("\nMemoryDenyWriteExecute=false\n"), "the CPU device needs it");
        let socket = socket_unit(service, &Wanted { port: Some(9000), ..Wanted::default() }).unwrap();
        assert!(socket.contains("\nListenStream=127.0.0.1:9000\nFileDescriptorName=http\n"), "{socket}");
    }
}
