//! The program with a model of several kinds of layers, drafts, and two devices: seeded checkpoints stand in for real ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Ran, World};
use ns_tiny::{Storage, Wanted};
use serde_json::{Value, json};

fn device() -> String {
    std::env::var("NS_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned())
}

/// A world with a seeded checkpoint `q.gguf`; its drafts hit where it is `fitted`.
fn world(fitted: bool) -> World {
    let world = World::new();
    let wanted = Wanted { architecture: "qwen35", shape: "tiny", seed: 3, vocabulary: None, fitted };
    let table = ns_tiny::checkpoint(wanted).unwrap();
    ns_tiny::write(&table, Storage::named("F32").unwrap(), world.path("q.gguf")).unwrap();
    world
}

fn run(world: &World, words: &[&str], devices: &str) -> Ran {
    world.run(&words.iter().copied().chain(["--device", devices]).collect::<Vec<_>>())
}

/// The device, twice.
fn twice() -> String {
    format!("{0},{0}", device())
}

/// Layers go where NS_SPLIT says, the parts' sizes add up to those of one device, and one memory serves both lines.
#[test]
fn the_plan_of_two_devices() {
    let world = world(false);
    let plan = |devices: &str, split: Option<&str>| {
        let mut command = world.command(&["plan", "./q.gguf", "--json", "--ctx", "256,512", "--device", devices]);
        split.map(|layer| command.env("NS_SPLIT", layer));
        common::ran(&command.output().unwrap())
    };
    let value = |ran: Ran| {
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        serde_json::from_str::<Value>(&ran.out).unwrap()["devices"].clone()
    };
    let one = value(plan(&device(), None));
    assert_eq!(one.as_array().unwrap().len(), 1);
    assert_eq!((&one[0]["layers"], &one[0]["parts"]), (&json!([0, 4]), &json!(["embedding", "head", "draft block"])));
    for split in 1..4 {
        let two = value(plan(&twice(), Some(&split.to_string())));
        assert_eq!((&two[0]["layers"], &two[0]["parts"]), (&json!([0, split]), &json!(["embedding"])));
        assert_eq!((&two[1]["layers"], &two[1]["parts"]), (&json!([split, 4]), &json!(["head", "draft block"])));
        let sum = |field: &str| two[0][field].as_u64().unwrap() + two[1][field].as_u64().unwrap();
        // the draft block reads the embedding too: 320 tokens of 256 floats
        assert_eq!(Some(sum("weights") - 320 * 256 * 4), one[0]["weights"].as_u64());
        for session in 0..2 {
            let of = |plan: &Value| plan["caches"][session].as_u64().unwrap();
            assert_eq!(of(&two[0]) + of(&two[1]), of(&one[0]));
        }
    }
    for (devices, split, what) in [(twice(), "4", "a split at layer 4"), (device(), "1", "needs several devices")] {
        let ran = plan(&devices, Some(split));
        assert!(ran.code == 2 && ran.err.contains(what), "{}", ran.err);
    }
    // what is told at a load is the plan
    let ran = run(&world, &["generate", "./q.gguf", "--opt-split", "2", "--ids", "5,6", "--max", "2"], &twice());
    assert_eq!(ran.code, 0, "{}", ran.err);
    let lines: Vec<&str> = ran.err.lines().collect();
    assert!(lines[0].contains("): layers 0-1, embedding; weights "), "{}", ran.err);
    assert!(lines[1].contains("): layers 2-3, head, draft block; weights "), "{}", ran.err);
}

/// The same tokens on one device and on two, and passes of several rows without any difference on both.
#[test]
fn one_device_and_two_agree() {
    let world = world(true);
    let generate = |more: &[&str], devices: &str| {
        let words = ["generate", "./q.gguf", "--ids", "70,71,72,73", "--max", "20", "--temp", "0.7", "--seed", "5"];
        let words: Vec<&str> = words.iter().chain(&["--print-ids", "--ignore-eos"]).chain(more).copied().collect();
        let ran = run(&world, &words, devices);
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.out
    };
    let alone = generate(&[], &device());
    assert_eq!(alone.split(',').count(), 20, "{alone}");
    assert_eq!(generate(&["--opt-split", "2"], &twice()), alone);
    assert_eq!(generate(&["--no-mtp"], &device()), alone);
    for (devices, split) in [(device(), &[][..]), (twice(), &["--opt-split=3"][..])] {
        let words = ["spec-check", "./q.gguf", "--rows", "2..5", "--n", "2", "--layers", "--at", "40"];
        let ran = run(&world, &[&words[..], split].concat(), &devices);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        for rows in 2..=5 {
            let last = format!("top-1 differs in 0 of {} rows ({rows}-row passes)", 2 * rows);
            assert!(ran.out.contains(&last), "{}", ran.out);
        }
        assert_eq!(ran.out.matches("no tensor differs").count(), 4, "{}", ran.out);
        let words = ["batch-check", "./q.gguf", "--n", "3", "--prompts", "a|b|c|d|e|f|g|h"];
        let ran = run(&world, &[&words[..], split].concat(), &devices);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        assert!(ran.out.contains("differs in 0 of 32 rows (8 conversations together)"), "{}", ran.out);
    }
}

/// The table of speeds tells how many drafts hit; without the draft block there are none.
#[test]
fn bench_tells_accepted_drafts() {
    let world = world(true);
    let drafts = |more: &[&str]| {
        let words = ["bench", "--offline", "./q.gguf", "--sizes", "30", "--new", "40", "--parallel", "1"];
        let ran = run(&world, &[&words[..], more].concat(), &device());
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.out.lines().nth(1).unwrap().split_whitespace().nth(4).unwrap().to_owned()
    };
    let accepted: f64 = drafts(&[]).parse().unwrap();
    assert!((30.0..=100.0).contains(&accepted), "{accepted}");
    assert_eq!(drafts(&["--no-mtp"]), "-");
    assert_eq!(drafts(&["--opt-drafts", "0"]), "-");
}

/// Every section of a model with drafts is told, once for a device that is there twice, with bytes and operations.
#[test]
fn the_profile_of_several_kinds_of_layers() {
    let world = world(true);
    let ids: Vec<String> = (60..90).map(|id: u32| id.to_string()).collect();
    let ids = ids.join(",");
    let words =
        ["generate", "./q.gguf", "--ids", &ids, "--max", "12", "--temp", "0", "--ignore-eos", "--opt-split", "2"];
    let devices = twice();
    let words: Vec<&str> = words.iter().copied().chain(["--device", &devices]).collect();
    let ran = common::ran(&world.command(&words).env("NS_PROFILE", "gpu").output().unwrap());
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(ran.err.matches("profile of ").count(), 1, "{}", ran.err);
    let lines: Vec<&str> = ran.err.lines().skip_while(|l| !l.starts_with("SECTION ")).skip(1).collect();
    let names = [
        "prompt: DeltaNet",
        "prompt: attention",
        "decode: DeltaNet",
        "decode: attention",
        "decode: feed-forward",
        "draft",
        "head",
    ];
    for name in names {
        let of: Vec<&&str> = lines.iter().filter(|l| l.starts_with(&format!("{name:<22} "))).collect();
        assert!(!of.is_empty(), "{name}: {}", ran.err);
        // every kernel of the passes tells what it costs
        for line in of {
            assert!(!line.ends_with(" -"), "{line}");
        }
    }
    assert!(lines.iter().any(|l| l.contains(" recur_rows ")) && lines.iter().any(|l| l.contains(" recur_chunk ")));
}
