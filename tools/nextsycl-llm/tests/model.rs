//! The program with the bundled model on a device (`NS_TEST_DEVICE`, the CPU device unless named).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{World, await_true, device};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const MODEL: &str = "smollm2-135m-instruct.q4_1";

fn world() -> World {
    World::new().with_model()
}

fn args<'a>(first: &[&'a str], device: &'a str) -> Vec<&'a str> {
    first.iter().copied().chain(["--device", device]).collect()
}

fn is_speed_line(line: &str) -> bool {
    let rest = line.strip_prefix("prompt: ").unwrap_or_default();
    rest.contains(" tok/s; answer: ") && rest.ends_with(" tok/s")
}

/// The known greedy text, on stdout alone; the last line of stderr tells the speeds.
#[test]
fn run_answers_and_tells_its_speed() {
    let (world, device) = (world(), device());
    let ran = world.run(&args(&["run", "--temp", "0", "--max", "24", "What is the capital of France?"], &device));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("Paris") && ran.out.ends_with('\n'), "{}", ran.out);
    assert!(is_speed_line(ran.err.lines().last().unwrap()), "{}", ran.err);
    // words are joined, a prompt from a pipe is the same, and --name=value too
    let words =
        world.run(&args(&["run", "--temp=0", "--max=24", "What", "is", "the", "capital", "of", "France?"], &device));
    let piped =
        world.run_with(&args(&["run", "--temp", "0", "--max", "24"], &device), "What is the capital of France?\n");
    assert_eq!((words.out.as_str(), piped.out.as_str()), (ran.out.as_str(), ran.out.as_str()));
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let (world, device) = (world(), device());
    let text = |seed: &str| {
        world.run(&args(&["run", "--temp", "1.2", "--max", "24", "--seed", seed, "Tell a story."], &device)).out
    };
    let first = text("5");
    assert_eq!(first, text("5"));
    assert_ne!(first, text("6"));
}

#[test]
fn generate_continues_text_and_ids() {
    let (world, device) = (world(), device());
    let base = ["generate", MODEL, "--temp", "0", "--max", "8"];
    let with = |more: &[&str]| {
        let all: Vec<&str> = base.iter().chain(more).copied().collect();
        let ran = world.run(&args(&all, &device));
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.out
    };
    let prompt = "The capital of France is";
    let text = with(&["--prompt", prompt]);
    assert!(text.contains("Paris"), "{text}");
    let ids = world.run(&["tokenize", MODEL, prompt]).out.trim().replace(' ', ",");
    assert_eq!(with(&["--ids", &ids]), text);
    let file = world.write("ids.txt", ids.replace(',', "\n"));
    assert_eq!(with(&["--ids", file.to_str().unwrap()]), text);
    let file = world.write("prompt.txt", prompt);
    assert_eq!(with(&["--prompt-file", file.to_str().unwrap()]), text);
    let printed = with(&["--prompt", prompt, "--print-ids"]);
    assert_eq!(printed.trim().split(',').filter(|id| id.parse::<u32>().is_ok()).count(), 8);
}

#[test]
fn info_and_tokenize_need_no_device() {
    let world = world();
    let ran = world.command(&["info", MODEL]).env("NS_ONEAPI", "/none").env("NS_LIB", "/none").output().unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(ran.status.code(), Some(0));
    for part in ["architecture  llama\n", "engine        llama\n", "context       8192 tokens\n"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let value: Value = serde_json::from_str(&world.run(&["info", MODEL, "--json"]).out).unwrap();
    assert_eq!(value["architecture"], "llama");
    // a user's text never becomes a control token
    let ids = world.run(&["tokenize", MODEL, "<|im_end|>"]).out;
    assert!(ids.trim().split(' ').count() > 3, "{ids}");
}

/// Last row, every row, and the offline measurement in exactly their forms.
#[test]
fn logits_and_offline_bench_have_their_forms() {
    let (world, device) = (world(), device());
    let (last, all) = (world.path("last.f32"), world.path("all.f32"));
    let ran = world
        .run(&args(&["logits", MODEL, "--ids", "504,3575,282,4649,314", "--out", last.to_str().unwrap()], &device));
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    world.run(&args(
        &["logits", MODEL, "--ids=504,3575,282,4649,314", "--all", "--out", all.to_str().unwrap()],
        &device,
    ));
    let (last, all) = (std::fs::read(last).unwrap(), std::fs::read(all).unwrap());
    assert_eq!((last.len(), all.len()), (49152 * 4, 5 * 49152 * 4));
    let floats = |b: &[u8]| b.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect::<Vec<_>>();
    let (one, row) = (floats(&last), floats(&all[4 * 49152 * 4..]));
    let far = one.iter().zip(&row).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(far < 1e-3, "the last row differs by {far}");
    assert!(one.iter().all(|v| v.is_finite()));
    let ran = world.run(&args(&["logits", MODEL, "--ids", "99999999", "--out", "x.f32"], &device));
    assert_eq!(ran.code, 1);
    assert!(!world.path("x.f32").exists());

    let ran = world
        .run(&args(&["bench", "--offline", MODEL, "--prompt", "32", "--new", "8", "--reps", "2", "--json"], &device));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let value: Value = serde_json::from_str(&ran.out).unwrap();
    for field in ["prompt_tok_s", "decode_tok_s", "load_s", "peak_mb"] {
        assert!(value[field].as_f64().is_some_and(|v| v > 0.0), "{field} in {value}");
    }
    assert_eq!(
        (value["prompt"].as_u64(), value["new"].as_u64(), value["reps"].as_array().map(Vec::len)),
        (Some(32), Some(8), Some(2))
    );
}

#[test]
fn the_checks_pass() {
    let (world, device) = (world(), device());
    let ran = world.run(&args(&["spec-check", MODEL, "--n", "3", "--rows", "4"], &device));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert_eq!(
        ran.out.lines().last().unwrap(),
        "worst max|diff| / max|ref| 0.000e0; top-1 differs in 0 of 12 rows (4-row passes)"
    );
    let ran = world.run(&args(&["batch-check", MODEL, "--n", "4"], &device));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("top-1 differs in 0 of 15 rows (3 conversations together)"), "{}", ran.out);
    let ran = world.run(&args(&["kernels", MODEL], &device));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.lines().count() > 2 && !ran.out.contains("WRONG"));
    let ran = world.run(&args(&["selftest"], &device));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.ends_with("[1.0, 2.0, 3.0, 4.0] x 2 = [2.0, 4.0, 6.0, 8.0] - ok\n"), "{}", ran.out);
    // a dump made by us is equal to us, one with a changed number is not
    let dump = world.path("dump");
    std::fs::create_dir(&dump).unwrap();
    std::fs::write(dump.join("ids.txt"), "504 3575 282 4649 314").unwrap();
    let file = dump.join("logits.f32");
    world.run(&args(
        &["logits", MODEL, "--ids", "504,3575,282,4649,314", "--all", "--out", file.to_str().unwrap()],
        &device,
    ));
    let ran = world.run(&args(&["check", MODEL, "dump"], &device));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[..4].copy_from_slice(&1e6_f32.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    assert_eq!(world.run(&args(&["check", MODEL, "dump"], &device)).code, 1);
}

/// The tensors of each layer are compared, in rows of several counts, behind a context of many tokens.
#[test]
fn spec_check_by_layers_rows_and_context() {
    let (world, device) = (world(), device());
    let ran = world.run(&args(&["spec-check", MODEL, "--n", "2", "--rows", "2..3", "--layers", "--at", "70"], &device));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(lines[0].starts_with("TENSOR"), "{}", ran.out);
    let verdicts: Vec<&&str> =
        lines.iter().filter(|l| l.contains("no tensor differs") || l.starts_with("worst")).collect();
    // SmolLM2: 8 tensors in each of 30 layers, the last norm, the logits
    assert_eq!(
        verdicts,
        [
            &"no tensor differs (242 tensors, 2-row passes)",
            &"worst max|diff| / max|ref| 0.000e0; top-1 differs in 0 of 4 rows (2-row passes)",
            &"no tensor differs (242 tensors, 3-row passes)",
            &"worst max|diff| / max|ref| 0.000e0; top-1 differs in 0 of 6 rows (3-row passes)",
        ]
    );
    assert!(lines.iter().any(|l| l.starts_with("l_out of layer 29 ") && l.ends_with(" 0")), "{}", ran.out);
    // the passes begin behind the context
    let step = |line: &str| line.split_whitespace().next().and_then(|w| w.parse::<usize>().ok());
    let steps: Vec<usize> = lines.iter().filter_map(|l| step(l)).collect();
    assert_eq!(steps, [70, 70, 72, 72, 70, 70, 70, 73, 73, 73]);
    let ran = world.run(&args(&["spec-check", MODEL, "--n", "2", "--rows", "4", "--row", "3"], &device));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("differs in 0 of 2 rows (4-row passes)") && ran.out.lines().count() == 4, "{}", ran.out);
}

#[test]
fn conversations_together_from_two_to_eight() {
    let (world, device) = (world(), device());
    let eight = "a|one|two three|four|Once upon|5|six|seven";
    for (prompts, n) in [("Hello|Once upon a time", 2), (eight, 8)] {
        let ran = world.run(&args(&["batch-check", MODEL, "--n", "3", "--prompts", prompts], &device));
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        let rows = format!("top-1 differs in 0 of {} rows ({n} conversations together)", 4 * n);
        assert!(ran.out.contains(&rows), "{}", ran.out);
        let last = ran.out.lines().last().unwrap();
        assert!(last.starts_with("together ") && last.contains(" tok/s in all, alone "), "{last}");
    }
    for prompts in ["one", "a|b|c|d|e|f|g|h|i"] {
        assert_eq!(world.run(&args(&["batch-check", MODEL, "--prompts", prompts], &device)).code, 2);
    }
}

/// The plan's numbers add up, and follow from the contexts.
#[test]
fn the_memory_plan() {
    let (world, device) = (world(), device());
    let plan = |more: &[&str]| {
        let all: Vec<&str> = ["plan", MODEL, "--json"].iter().chain(more).copied().collect();
        let ran = world.run(&args(&all, &device));
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        serde_json::from_str::<Value>(&ran.out).unwrap()
    };
    let value = plan(&["--ctx", "1024,4096"]);
    assert_eq!((&value["contexts"], &value["fits"]), (&serde_json::json!([1024, 4096]), &true.into()));
    let card = &value["devices"][0];
    assert_eq!((&card["selector"], &card["layers"]), (&device.as_str().into(), &serde_json::json!([0, 30])));
    // 30 layers of 3 key heads of 64 values, keys and values
    let value_bytes = if device == "cpu" { 4 } else { 2 };
    let cell = 30 * 2 * 3 * 64 * value_bytes;
    assert_eq!(card["caches"], serde_json::json!([1024 * cell, 4096 * cell]));
    assert!(card["free"].as_u64() > Some(0) && card["total"].as_u64() >= card["free"].as_u64());
    let three = plan(&["--ctx", "512", "--parallel", "3"]);
    assert_eq!(three["devices"][0]["caches"].as_array().unwrap().len(), 3);
    let half = plan(&["--ctx", "512", "--parallel", "3", "--opt-kv", "f16"]);
    assert_eq!(half["devices"][0]["caches"][0], 512 * 30 * 2 * 3 * 64 * 2);
    let ran = world.run(&args(&["plan", MODEL, "--ctx", "1024"], &device));
    assert!(ran.out.starts_with("DEVICE  CARD") && ran.out.contains("embedding, head"), "{}", ran.out);
    assert!(ran.out.ends_with("2 session(s) of 1024, 1024 tokens\n"), "{}", ran.out);
    // the same numbers are told when the model is opened
    let ran = world.run(&args(&["generate", MODEL, "--ctx", "512", "--max", "1", "--prompt", "hi"], &device));
    let line = ran.err.lines().next().unwrap();
    assert!(line.contains(&format!("({device}): layers 0-29, embedding, head; weights ")), "{line}");
    assert!(line.contains(" free, ") && line.ends_with(" stay free"), "{line}");
    // one engine, one device
    let list = format!("{device},{device}");
    let ran = world.run(&["plan", MODEL, "--device", &list]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("runs on at most 1 device(s)"), "{}", ran.err);
}

/// Tables of speeds and passphrases of a model in this process, and their reports.
#[test]
fn bench_in_one_process() {
    let (world, device) = (world(), device());
    let bench = |more: &[&str]| {
        let all: Vec<&str> = ["bench", "--offline", MODEL].iter().chain(more).copied().collect();
        let ran = world.run(&args(&all, &device));
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran
    };
    let ran = bench(&["--sizes", "20,150,100000", "--new", "8", "--parallel", "1,2,9", "--out", "report"]);
    let rows: Vec<Vec<&str>> = ran.out.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows.iter().map(Vec::len).collect::<Vec<_>>(), [16, 7, 7, 0, 14, 4, 4], "{}", ran.out);
    assert_eq!((rows[1][0], rows[2][0], rows[5][0], rows[6][0]), ("20", "150", "1", "2"));
    let speeds = [&rows[1][1..4], &rows[2][1..4], &rows[6][1..4]].concat();
    assert!(speeds.iter().all(|v| v.parse::<f64>().unwrap() > 0.0), "{}", ran.out);
    // no drafts in this model
    assert_eq!(rows[1][4], "-");
    assert!(
        ran.err.contains("100000 input tokens and 8 new ones do not fit the context of 166: left out"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("9 answers at once are not possible here"), "{}", ran.err);
    let report = std::fs::read_to_string(world.path("report/bench.md")).unwrap();
    assert!(report.starts_with(&format!("# {MODEL}\n\n- in one process on ")), "{report}");
    assert!(report.contains("- `nextsycl-llm bench --offline ") && report.contains("| ---: | ---: |"), "{report}");
    let ran = bench(&["--needle", "--sizes", "200", "--depths", "10,90", "--out", "report"]);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 4, "{}", ran.out);
    for (line, depth) in lines[1..3].iter().zip(["10", "90"]) {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let tokens: usize = cells[0].parse().unwrap();
        assert!((160..=208).contains(&tokens) && cells[1] == depth && ["yes", "NO"].contains(&cells[2]), "{line}");
    }
    assert!(lines[3].ends_with(" of 2 found"), "{}", ran.out);
    assert!(std::fs::read_to_string(world.path("report/needle.md")).unwrap().contains(lines[3]));
}

/// NS_PROFILE tells sections or kernels with bytes and operations, against ceilings; without it nothing is told.
#[test]
fn profiles() {
    let (world, device) = (world(), device());
    let told = |profile: &str, more: &[&str]| {
        let all: Vec<&str> = more.iter().chain(&["--max", "4", "--temp", "0"]).copied().collect();
        let ran = common::ran(&world.command(&args(&all, &device)).env("NS_PROFILE", profile).output().unwrap());
        (ran.code, ran.out, ran.err)
    };
    let prompt = "one two three four five six seven eight nine ten";
    let (code, plain, err) = told("0", &["generate", MODEL, "--prompt", prompt]);
    assert!(code == 0 && !err.contains("ceilings"), "{err}");
    let (code, out, err) = told("1", &["generate", MODEL, "--prompt", prompt]);
    assert_eq!((code, &out), (0, &plain), "{err}");
    let at = err.lines().position(|l| l.starts_with("profile of ")).unwrap();
    let lines: Vec<&str> = err.lines().skip(at).collect();
    assert!(lines[1].starts_with("ceilings, measured before: reading ") && lines[1].contains(" TFLOP/s"), "{err}");
    assert!(lines[2].starts_with("SECTION ") && !lines[2].contains("KERNEL"), "{err}");
    for section in
        ["load", "prompt: attention", "prompt: feed-forward", "decode: attention", "decode: feed-forward", "head"]
    {
        let line = lines
            .iter()
            .find(|l| l.starts_with(&format!("{section:<22} ")))
            .unwrap_or_else(|| panic!("{section}: {err}"));
        let cells: Vec<&str> = line[22..].split_whitespace().collect();
        let number = |i: usize| cells[i].trim_end_matches('%').parse::<f64>().unwrap();
        assert!(number(0) > 0.0 && number(2) >= 1.0 && (section == "load" || number(4) > 0.0), "{line}");
        assert!(line.ends_with("% memory") || line.ends_with("% arithmetic"), "{line}");
    }
    let (code, out, err) = told("gpu", &["run", prompt]);
    assert!(code == 0 && !out.is_empty(), "{err}");
    assert!(err.contains("SECTION                KERNEL "), "{err}");
    // the head's matrix is read once for the prompt and once for each further token
    let head = err.lines().find(|l| l.starts_with("head ") && l.contains(" matvec_q8_0_r1 ")).unwrap();
    assert!(head.split_whitespace().nth(4).is_some_and(|calls| calls == "4"), "{head}");
    let (code, _, err) = told("yes", &["run", prompt]);
    assert!(code == 1 && err.contains("NS_PROFILE=yes is not 0, 1 or gpu"), "{err}");
}

#[test]
fn a_device_tells_its_ceilings() {
    let (world, device) = (world(), device());
    let ran = world.run(&args(&["selftest", "--ceilings"], &device));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let last = ran.out.lines().last().unwrap();
    assert!(last.contains(": reading ") && last.contains(" GB/s, copying ") && last.contains(" TFLOP/s"), "{last}");
}

#[test]
fn engine_options_are_checked() {
    let (world, device) = (world(), device());
    let text = |more: &[&str]| {
        let all: Vec<&str> = ["run", "--temp", "0", "--max", "4"].iter().chain(more).copied().chain(["hi"]).collect();
        world.run(&args(&all, &device))
    };
    let ran = text(&["--opt-frob", "1"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.starts_with("nextsycl-llm: the engine has no option `frob`: it takes "), "{}", ran.err);
    assert_eq!(text(&["--opt-kv", "q9"]).code, 2);
    assert_eq!(text(&["--opt-kv=f32"]).code, 0);
    assert_eq!(text(&["--opt-NS_KV", "f32"]).code, 0);
    let ran =
        common::ran(&world.command(&args(&["run", "--max", "4", "hi"], &device)).env("NS_KV", "q9").output().unwrap());
    assert_eq!(ran.code, 2, "{}", ran.err);
}

/// Without a card: `run` and the measuring commands use the CPU device and say so; other commands say what to do.
#[test]
fn no_card_is_said() {
    let world = world();
    if world.run(&["devices", "--json"]).out.contains("\"class\":\"gpu\"") {
        let ran = world.run(&["run", "--max", "4", "hi"]);
        assert!(ran.code == 0 && !ran.err.contains("CPU device"), "{}", ran.err);
        return;
    }
    let ran = world.run(&["run", "--temp", "0", "--max", "4", "hi"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.starts_with("No Intel Arc GPU was found: running on the CPU device ("), "{}", ran.err);
    let ran = world.run(&["logits", MODEL, "--ids", "1", "--out", "f"]);
    assert!(ran.code == 0 && ran.err.starts_with("No Intel Arc GPU was found: running on the CPU"), "{}", ran.err);
    let ran = world.run(&["kernels", MODEL]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("no Intel Arc GPU was found") && ran.err.contains("--device cpu"), "{}", ran.err);
    let ran = world.run(&["run", "--device", "gpu:0", "hi"]);
    assert!(ran.code == 1 && ran.err.contains("there is no device gpu:0"), "{}", ran.err);
    let ran = world.run(&["run", "--device", "toaster", "hi"]);
    assert_eq!((ran.code, ran.err.as_str()), (2, "nextsycl-llm: --device toaster: it takes gpu, gpu:N or cpu\n"));
}

/// A terminal's chat: history, commands, Ctrl-C that stops the answer and not the program.
#[test]
fn a_conversation_on_a_terminal() {
    let (world, device) = (world(), device());
    let program = env!("CARGO_BIN_EXE_nextsycl-llm");
    // script(1) is part of every Debian; it gives the program a terminal. `exec`: a shell that stays in between gets the Ctrl-C
    // too, and dash then ends with 130 whatever the program returns.
    let line = format!("exec {program} run --temp 0 --max 2000 --device {device}");
    let base = world.command(&[]);
    let mut command = std::process::Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).current_dir(world.path("home"));
    for (name, value) in base.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let reader = {
        let seen = seen.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n) = std::io::Read::read(&mut output, &mut bytes) {
                if n == 0 {
                    return;
                }
                seen.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        })
    };
    let has = |what: &str| seen.lock().unwrap().contains(what);
    let count = |what: &str| seen.lock().unwrap().matches(what).count();
    await_true("the prompt", || has("> "));
    input.write_all(b"/help\n").unwrap();
    await_true("the help", || has("begins a new conversation"));
    input.write_all(b"/frob\n").unwrap();
    await_true("the refusal", || has("There is no /frob"));
    input.write_all(b"What is the capital of France?\n").unwrap();
    await_true("the answer", || has("Paris") && count("tok/s; answer") == 1);
    input.write_all(b"And of Italy?\n").unwrap();
    await_true("the second answer", || count("tok/s; answer") == 2);
    assert!(has("more were there)"), "the conversation was read again: {}", seen.lock().unwrap());
    input.write_all(b"Write a long story about the sea, with many chapters.\n").unwrap();
    let before = seen.lock().unwrap().len();
    await_true("the story", || seen.lock().unwrap().len() > before + 120);
    input.write_all(b"\x03").unwrap();
    await_true("the stop", || has("(stopped) prompt: "));
    input.write_all(b"/clear\n").unwrap();
    await_true("the new conversation", || has("(a new conversation)"));
    input.write_all(b"/quit\n").unwrap();
    let status = child.wait().unwrap();
    reader.join().unwrap();
    assert_eq!(status.code(), Some(0));
}

/// Ctrl-C in a one-shot answer: the text so far, the speeds, and the exit code of an interrupt.
#[test]
fn an_interrupt_stops_one_answer() {
    let (world, device) = (world(), device());
    let mut child = world
        .command(&args(&["run", "--temp", "0", "--max", "4000", "Write a very long story about the sea."], &device))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 1];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    let ran = common::ran(&child.wait_with_output().unwrap());
    assert_eq!(ran.code, 130);
    assert!(is_speed_line(ran.err.lines().last().unwrap()), "{}", ran.err);
}

/// A background server that is stopped when the test ends in any way.
struct Service(World);

impl Drop for Service {
    fn drop(&mut self) {
        self.0.run(&["stop"]);
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn the_background_server_from_start_to_stop() {
    let (service, device) = (Service(world()), device());
    let world = &service.0;
    let port = free_port().to_string();
    let ran = world.run(&args(&["start", "--port", &port, "--ctx", "1024", "--parallel", "2"], &device));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.out.starts_with(&format!("{MODEL} - up "))
            && ran.out.contains(
                "\nidle\nprompt cache: 0 checkpoint(s), 0.0GiB of 4.0GiB, 0 evicted; the live sessions hold 0 tokens\n"
            ),
        "{}",
        ran.out
    );
    assert!(ran.out.contains(", context 1024, MTP off, 0 request(s) served\n"), "{}", ran.out);
    let again = world.run(&args(&["start", "--port", &port], &device));
    assert_eq!(again.code, 0);
    assert!(again.err.starts_with("the server is running already:"), "{}", again.err);
    // another server: neither on the same socket nor on the same port
    let ran = world.run(&args(&["serve", "--port", "0"], &device));
    assert_eq!(ran.code, 1);
    assert_eq!(world.masked(&ran.err), "nextsycl-llm: a server is running already on DIR/run/nextsycl/nextsycl.sock\n");
    let ran = world.run(&args(&["serve", "--port", &port, "--socket", "other.sock"], &device));
    assert!(ran.code == 1 && ran.err.contains(&format!("port {port} on 127.0.0.1 is in use")), "{}", ran.err);
    let ran = world.run(&args(&["start", "--port", &port, "--socket", "other.sock"], &device));
    assert!(
        ran.code == 1 && ran.err.contains("the server ended while loading") && ran.err.contains("is in use"),
        "{}",
        ran.err
    );

    let ran = world.run(&["chat", "--temp", "0", "--max", "16", "What is the capital of France?"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("Paris"), "{}", ran.out);
    assert!(
        ran.err.starts_with('[') && ran.err.ends_with(" prompt tokens, 16 generated]\n")
            || ran.err.contains("generated]"),
        "{}",
        ran.err
    );
    let ps = world.run(&["ps"]).out;
    assert!(ps.lines().nth(1).unwrap().starts_with("#1  socket  done "), "{ps}");
    let record: Value = serde_json::from_str(&world.run(&["inspect", "#1"]).out).unwrap();
    assert_eq!((record["api"].as_str(), record["state"].as_str()), (Some("api-chat"), Some("done")));
    let ran = world.run(&["inspect", "99"]);
    assert_eq!(
        (ran.code, ran.err.as_str()),
        (4, "nextsycl-llm: there is no request #99: the last 100 that ended are kept\n")
    );
    assert!(world.run(&["status", "--no-stream"]).out.contains("1 request(s) served"));
    assert!(world.run(&["logs", "--no-follow"]).out.contains("request #1 done"));
    let ran = world.run(&["bench", "--needle", "--sizes", "300,5000", "--depths", "50", "--out", "report"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.ends_with(" of 1 found\n") && ran.err.contains("5000 input tokens and 32 new ones"), "{}", ran.out);
    assert!(std::fs::read_to_string(world.path("report/needle.md")).unwrap().contains("- served on "));
    let ran = world.run(&["bench", "--sizes", "20,300,100000", "--new", "8", "--parallel", "2", "--out", "report"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let sizes: Vec<usize> =
        ran.out.lines().skip(1).take(2).map(|l| l.split_whitespace().next().unwrap().parse().unwrap()).collect();
    assert!((8..=24).contains(&sizes[0]) && (260..=300).contains(&sizes[1]), "{}", ran.out);
    assert!(ran.out.starts_with("Input tokens  PP (tok/s)") && ran.out.contains("Clients at once"), "{}", ran.out);
    assert!(ran.err.contains("100000 input tokens and 8 new ones do not fit the context of 1024"), "{}", ran.err);
    assert!(std::fs::read_to_string(world.path("report/bench.md")).unwrap().contains("| Input tokens |"));

    let ran = world.run(&["stop"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "server: stopped\n"), "{}", ran.err);
    assert!(!world.path("run/nextsycl/nextsycl.sock").exists() && !world.path("run/nextsycl/nextsycl.pid").exists());
    assert_eq!(world.run(&["status", "--no-stream"]).code, 3);
    assert!(TcpStream::connect(format!("127.0.0.1:{port}")).is_err());
}

fn foreground(world: &World, more: &[&str], device: &str) -> (Child, String) {
    let all: Vec<&str> = ["serve", "--port", "0"].iter().chain(more).copied().collect();
    let mut child = world.command(&args(&all, device)).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let address = first.split("http://").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    // The rest is read so that the program never waits for us.
    std::thread::spawn(move || lines.for_each(drop));
    (child, address)
}

/// SIGTERM finishes the running answer, then the program ends with 0.
#[test]
fn a_signal_stops_the_server_in_good_order() {
    let (world, device) = (world(), device());
    let (mut child, address) = foreground(&world, &["--ctx", "512"], &device);
    await_true("the model", || world.run(&["status", "--no-stream"]).out.contains("\nidle\n"));
    let mut stream = TcpStream::connect(&address).unwrap();
    let body = r#"{"messages":[{"role":"user","content":"Count to ten."}],"temperature":0,"max_tokens":60,"stream":true,"ignore_eos":true}"#;
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    await_true("the answer's beginning", || world.run(&["ps"]).out.contains("generating"));
    let begun = Instant::now();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
    assert!(text.contains("\"finish_reason\":\"length\"") && text.contains("data: [DONE]"), "{text}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert!(!world.path("run/nextsycl/nextsycl.sock").exists());
}

/// A process that is killed leaves a socket file; the next server takes its place.
#[test]
fn a_killed_server_does_not_block_the_next() {
    let (world, device) = (world(), device());
    let (mut child, _) = foreground(&world, &["--ctx", "512"], &device);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(world.path("run/nextsycl/nextsycl.sock").exists());
    assert_eq!(world.run(&["status", "--no-stream"]).code, 3);
    let (child, address) = foreground(&world, &["--ctx", "512"], &device);
    assert!(TcpStream::connect(&address).is_ok());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    let mut child = child;
    assert!(child.wait().is_ok());
}
