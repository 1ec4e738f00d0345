//! The program as a user sees it, where no model has to be opened: exit codes and what is said.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::World;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

const COMMANDS: &[&str] = &[
    "run",
    "serve",
    "start",
    "stop",
    "status",
    "ps",
    "inspect",
    "logs",
    "chat",
    "generate",
    "info",
    "plan",
    "tokenize",
    "engines",
    "devices",
    "selftest",
    "check",
    "bench",
    "logits",
    "kernels",
    "spec-check",
    "batch-check",
];

#[test]
fn every_command_has_help_and_refuses_unknown_flags() {
    let world = World::new();
    for command in COMMANDS {
        let ran = world.run(&[command, "--help"]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{command}");
        assert!(ran.out.contains(&format!("Usage: nextsycl-llm {command}")), "{}", ran.out);
        let ran = world.run(&[command, "--frob"]);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{command}");
        assert!(ran.err.contains("--frob"), "{}", ran.err);
    }
    assert_eq!(world.run(&["frob"]).code, 2);
    assert_eq!(world.run(&[]).code, 2);
}

/// Every flag of the command line, in both forms, gets past the parser: the model that does not exist is the error.
#[test]
fn documented_flags_parse_in_both_forms() {
    let world = World::new();
    let device: &[&str] = &[
        "--device cpu",
        "--device gpu:0,cpu",
        "--gpu 0",
        "--gpu 0,1",
        "--gpu all",
        "--no-mtp",
        "--expert-gib 1.5",
        "--mirror-gib 2",
    ];
    let sample: &[&str] =
        &["--temp 0.5", "--top-p 0.9", "--top-k 40", "--min-p 0.05", "--repeat-penalty 1.1", "--seed 7", "--max 5"];
    let serve: &[&str] = &[
        "--host 127.0.0.1",
        "--port 8085",
        "--ctx 512",
        "--ctx 512,1024",
        "--parallel 4",
        "--name x",
        "--cors *",
        "--max-tokens 9",
        "--keep-requests 5",
        "--socket s.sock",
        "--idle-exit 600",
        "--wait-device 60",
    ];
    let cases: &[(&[&str], &[&[&str]])] = &[
        (&["run", "--model", "nope", "hi"], &[device, sample, &["--system x", "--ctx 512", "--max-tokens 5"]]),
        (&["serve", "nope"], &[device, serve]),
        (&["start", "nope"], &[device, serve]),
        (&["generate", "nope"], &[&["--prompt x", "--ids 1,2"]]),
        (
            &["generate", "nope", "--prompt", "x"],
            &[device, sample, &["--chat", "--ignore-eos", "--print-ids", "--ctx 9"]],
        ),
        (&["generate", "nope", "--prompt", "x", "--chat"], &[&["--effort low"]]),
        (&["plan", "nope"], &[device, &["--ctx 512", "--ctx 512,1024", "--parallel 4", "--json"]]),
        (&["bench", "--offline", "nope"], &[device, &["--prompt 512", "--new 128", "--json", "--reps 2"]]),
        (&["bench", "--offline", "nope"], &[&["--sizes 20,50", "--parallel 1,2", "--out dir", "--needle"]]),
        (&["bench", "--offline", "nope", "--needle"], &[&["--sizes 20,50", "--depths 10,100", "--out dir"]]),
        (&["logits", "nope", "--ids", "1,2", "--out", "f"], &[device, &["--all"]]),
        (&["kernels", "nope"], &[device]),
        (
            &["spec-check", "nope"],
            &[device, &["--prompt x", "--n 3", "--rows 2", "--rows 2..5", "--layers", "--at 9", "--row 1"]],
        ),
        (&["batch-check", "nope"], &[device, &["--prompts a|b", "--n 3"]]),
    ];
    for (base, groups) in cases {
        for flag in groups.iter().copied().flatten() {
            let (name, value) = flag.split_once(' ').map_or((*flag, None), |(n, v)| (n, Some(v)));
            let joined = value.map_or(name.to_owned(), |v| format!("{name}={v}"));
            let forms: [Vec<&str>; 2] = [flag.split(' ').collect(), vec![joined.as_str()]];
            for form in forms {
                let args: Vec<&str> = base.iter().copied().chain(form).collect();
                let ran = world.run(&args);
                assert_eq!(ran.code, 4, "{args:?}: {}", ran.err);
                assert!(ran.err.starts_with("nextsycl-llm: there is no model `nope`: "), "{}", ran.err);
            }
        }
    }
}

#[test]
fn nothing_runs_nothing_is_found() {
    let world = World::new();
    for args in
        [&["status", "--no-stream"] as &[&str], &["ps"], &["ps", "-a"], &["inspect", "#1"], &["chat", "hi"], &["bench"]]
    {
        let ran = world.run(args);
        assert_eq!((ran.code, ran.out.as_str()), (3, ""), "{args:?}");
        assert_eq!(ran.err, "nextsycl-llm: the server is not running: nextsycl-llm start\n");
    }
    let ran = world.run(&["stop"]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, "server: not running\n", ""));
    let ran = world.run(&["logs", "--no-follow"]);
    assert_eq!(ran.code, 4);
    assert_eq!(
        world.masked(&ran.err),
        "nextsycl-llm: there is no log DIR/home/.local/state/nextsycl/nextsycl.log: the server was not started with start\n"
    );
    let ran = world.run(&["inspect", "seven"]);
    assert_eq!((ran.code, ran.err.as_str()), (2, "nextsycl-llm: `seven` is no request number: ps lists them\n"));
}

#[test]
fn models_that_cannot_be_used() {
    let world = World::new();
    let text = world.write("text.gguf", "this is not a model file, only a text");
    let cut = world.write("cut.gguf", b"GGUF\x03\x00\x00\x00");
    let registry = format!(
        r#"{{"models": [{{"id": "off", "file": {text:?}, "enabled": false}}, {{"id": "gone", "file": "/none"}}]}}"#
    );
    world.write("home/.config/nextsycl/models.json", registry);
    for (args, code, message) in [
        (&["run", "hi"] as &[&str], 4, "there is no model `(the bundled one)`: no .gguf file is in DIR/bundled"),
        (&["info", "nope"], 4, "there is no model `nope`: there are off, gone"),
        (&["serve", "nope"], 4, "there is no model `nope`: there are off, gone"),
        (&["start", "nope"], 4, "there is no model `nope`: there are off, gone"),
        (&["info", "./nope.gguf"], 4, "there is no model `./nope.gguf`: the file does not exist"),
        (&["info", "off"], 1, "the model `off` is disabled: nextsycl models enable off"),
        (&["start", "gone"], 4, "the file of the model `gone` is missing: /none"),
    ] {
        let ran = world.run(args);
        assert_eq!((ran.code, world.masked(&ran.err)), (code, format!("nextsycl-llm: {message}\n")), "{args:?}");
    }
    for file in [&text, &cut] {
        for command in ["info", "kernels"] {
            let ran = world.run(&[command, file.to_str().unwrap()]);
            assert_eq!((ran.code, ran.out.as_str()), (1, ""));
            let told = world.masked(&ran.err);
            let name = file.file_name().unwrap().to_str().unwrap();
            assert!(
                told.starts_with("nextsycl-llm: DIR/") && told.contains(name) && told.lines().count() == 1,
                "{told}"
            );
        }
    }
    world.write("home/.config/nextsycl/models.json", "{\"models\": [");
    let ran = world.run(&["info", "x"]);
    assert_eq!(ran.code, 1);
    assert!(
        world.masked(&ran.err).contains("the registry DIR/home/.config/nextsycl/models.json cannot be used"),
        "{}",
        ran.err
    );
}

#[test]
fn settings_are_checked_and_their_order_kept() {
    let world = World::new();
    world.write("home/.config/nextsycl.conf", "# mine\nNS_MODEL=from-file\n");
    let told = |command: &mut std::process::Command| common::ran(&command.output().unwrap()).err;
    assert!(told(&mut world.command(&["run", "hi"])).contains("no model `from-file`"));
    assert!(told(world.command(&["run", "hi"]).env("NS_MODEL", "from-env")).contains("no model `from-env`"));
    let other = world.write("other.conf", "NS_MODEL=from-named\n");
    assert!(told(world.command(&["run", "hi"]).env("NS_CONFIG", &other)).contains("no model `from-named`"));
    let text = told(world.command(&["run", "hi"]).env("NS_CONFIG", "/none.conf"));
    assert_eq!(text, "nextsycl-llm: the settings file /none.conf (NS_CONFIG) does not exist\n");
    world.write("home/.config/nextsycl.conf", "NS_MODEL=x\nnonsense\n");
    let text = world.masked(&told(&mut world.command(&["engines"])));
    assert_eq!(
        text,
        "nextsycl-llm: DIR/home/.config/nextsycl.conf, line 2: expected NAME=value, a comment or an empty line\n"
    );
}

#[test]
fn engines_and_version() {
    let world = World::new();
    let ran = world.run(&["engines"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines[0], "ARCHITECTURE            ENGINE");
    assert_eq!(lines[1], "llama                   llama");
    assert!(
        lines.iter().any(|l| l.starts_with("  --opt-kv f16|f32                ") && l.ends_with("[load, NS_KV]")),
        "{}",
        ran.out
    );
    let version = world.run(&["--version"]);
    assert!(version.code == 0 && version.out.starts_with("nextsycl-llm "), "{}", version.out);
    let ran = world.run(&["engines", "--opt-kv", "f16"]);
    assert_eq!((ran.code, ran.err.as_str()), (2, "nextsycl-llm: --opt-kv: this command opens no engine\n"));
}

/// `engines | head` ends quietly.
#[test]
fn a_reader_that_closes_is_no_error() {
    let world = World::new();
    let mut child = world.command(&["--help"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!((child.wait().unwrap().code(), err.as_str()), (Some(0), ""));
}

#[test]
fn bad_values_are_usage_errors() {
    let world = World::new();
    for args in [
        &["serve", "--parallel", "9"] as &[&str],
        &["serve", "--port", "99999"],
        &["serve", "a", "--model", "b"],
        &["spec-check", "x", "--rows", "1"],
        &["spec-check", "x", "--rows", "5..2"],
        &["spec-check", "x", "--rows", "2..9"],
        &["spec-check", "x", "--rows", "2..3", "--row", "2"],
        &["spec-check", "x", "--n", "0"],
        &["plan", "x", "--parallel", "9"],
        &["selftest", "--gpu", "0,x"],
        &["selftest", "--gpu", "0", "--gpu", "0"],
        &["bench", "--depths", "50"],
        &["bench", "--needle", "--depths", "101"],
        &["bench", "--needle", "--parallel", "2"],
        &["bench", "--json"],
        &["bench", "--sizes", "0"],
        &["bench", "--offline", "x", "--out", "d", "--reps", "2"],
        &["generate", "x"],
        &["generate", "x", "--prompt", "a", "--ids", "1"],
        &["logits", "x", "--ids", "1,a", "--out", "f"],
        &["logits", "x", "--ids", "1"],
        &["run", "--temp", "hot", "hi"],
        &["run", "--temp", "-1", "hi"],
        &["run", "--top-p=2", "hi"],
        &["run", "--device", "cpu", "--gpu", "0", "hi"],
        &["bench", "--prompt", "5"],
        &["bench", "--offline", "x", "--sizes", "5", "--prompt", "5"],
        &["run", "  "],
        &["serve", "--idle-exit", "soon"],
        &["serve", "--wait-device", "-1"],
        &["devices", "--device", "toaster"],
    ] {
        let ran = world.run(args);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{args:?}: {}", ran.err);
        assert!(!ran.err.is_empty());
    }
    assert_eq!(world.run_with(&["run"], "\n").code, 2);
}

/// G05: the folder that blocks is named, though it is far above the model, with what to do.
#[test]
fn a_folder_that_blocks_is_named() {
    let world = World::open();
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let file = world.write("data/closed/models/m.gguf", "x");
    let link = world.path("link.gguf");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    world.write("home/.config/nextsycl/models.json", format!(r#"{{"models": [{{"id": "m", "file": {file:?}}}]}}"#));
    let user = world.run_as_somebody(&["info", "/"]).err;
    assert!(user.contains("a folder"), "{user}");
    let told = |args: &[&str]| {
        let ran = world.run_as_somebody(args);
        assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{}", ran.err);
        world.masked(&ran.err)
    };
    let closed = world.path("data/closed");
    mode(&closed, 0o600);
    for (args, name) in [
        (["info", file.to_str().unwrap()], "DIR/data/closed/models/m.gguf"),
        (["serve", "m"], "DIR/data/closed/models/m.gguf"),
        (["info", link.to_str().unwrap()], "DIR/link.gguf"),
    ] {
        let text = told(&args);
        let (start, rest) = text.split_once(" by the user ").unwrap();
        assert_eq!(
            start,
            format!("nextsycl-llm: the model {name} cannot be opened: DIR/data/closed may not be entered")
        );
        assert!(
            rest.ends_with(
                ". Give it the right to pass (chmod o+x DIR/data/closed), or keep the models in another folder\n"
            ),
            "{rest}"
        );
    }
    mode(&closed, 0o755);
    mode(&file, 0o000);
    let text = told(&["info", file.to_str().unwrap()]);
    assert!(text.contains(": DIR/data/closed/models/m.gguf may not be read by the user "), "{text}");
    mode(&file, 0o644);
    let text = told(&["info", file.to_str().unwrap()]);
    assert!(!text.contains("may not"), "{text}");
    mode(&world.path("bundled"), 0o000);
    let text = told(&["serve"]);
    assert!(text.contains("DIR/bundled may not be listed by the user "), "{text}");
}
