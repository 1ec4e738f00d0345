//! The program `nextsycl-tiny`.

#![allow(clippy::unwrap_used)]

use ns_tiny::fixtures;
use ns_weights::ModelFile;
use std::path::Path;
use std::process::Command;

fn run(arguments: &[&str], folder: &Path) -> (i32, String, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_nextsycl-tiny")).args(arguments).current_dir(folder).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_shape_is_written_in_the_type_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["llama", "--shape", "tiny", "--type", "q4_1", "--seed", "9", "--out", "m.gguf"];
    let (code, out, err) = run(&arguments, folder.path());
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", "m.gguf: 21 tensors, 1148160 values\n"));
    let file = ModelFile::open(folder.path().join("m.gguf")).unwrap();
    assert_eq!(file.tensor("output.weight").unwrap().ty.name(), "Q4_1");
    assert_eq!(file.get_u64("general.file_type"), Some(3));
    let first = std::fs::read(folder.path().join("m.gguf")).unwrap();
    run(&arguments, folder.path());
    assert!(first == std::fs::read(folder.path().join("m.gguf")).unwrap(), "the same seed gave another file");
    run(&["llama", "--type", "q4_1", "--seed", "10", "--out", "m.gguf"], folder.path());
    assert!(first != std::fs::read(folder.path().join("m.gguf")).unwrap(), "another seed gave the same file");
}

#[test]
fn a_table_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let table = fixtures().join("llama-tied.json").canonicalize().unwrap();
    let (code, _, err) = run(&["--table", table.to_str().unwrap(), "--out", "m.gguf"], folder.path());
    assert_eq!((code, err.as_str()), (0, "m.gguf: 29 tensors, 1021248 values\n"));
    assert_eq!(crc32fast::hash(&std::fs::read(folder.path().join("m.gguf")).unwrap()), 0x5855_ee97);
}

#[test]
fn wrong_names_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, message) in [
        (&["qwen35", "--out", "m"][..], "error: unknown architecture `qwen35`; known: llama\n"),
        (
            &["llama", "--type", "q9", "--out", "m"][..],
            "error: unknown type `q9`; known: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q6_K\n",
        ),
        (&["llama", "--out", "no/m"][..], "error: no/m: No such file or directory (os error 2)\n"),
    ] {
        let (code, out, err) = run(arguments, folder.path());
        assert_eq!((code, out.as_str(), err.as_str()), (1, "", message));
    }
    assert_eq!(run(&["--out", "m"], folder.path()).0, 2);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
