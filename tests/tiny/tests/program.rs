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
fn a_draft_block_goes_where_it_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let base = ["--arch", "qwen35", "--type", "Q4_K_M", "--vocab", "300"];
    let ask = |more: &[&str]| run(&[&base[..], more].concat(), folder.path());
    assert_eq!(
        ask(&["--draft", "beside", "--split", "2", "--out", "m.gguf"]),
        (
            0,
            String::new(),
            "m-00001-of-00002.gguf and 1 more: 56 tensors, 4572324 values\nm-mtp.gguf: 18 tensors, 1630208 values\n"
                .into()
        )
    );
    let (trunk, draft) =
        (ModelFile::open(path("m-00001-of-00002.gguf")).unwrap(), ModelFile::open(path("m-mtp.gguf")).unwrap());
    assert_eq!(trunk.tensor("token_embd.weight").unwrap().shape, [256, 300]);
    assert!(trunk.tensor("blk.4.attn_q.weight").is_none() && draft.tensor("blk.4.attn_q.weight").is_some());
    assert!(draft.tensor("blk.0.attn_norm.weight").is_none());
    assert_eq!(ask(&["--draft", "none", "--out", "n.gguf"]).0, 0);
    assert_eq!(ModelFile::open(path("n.gguf")).unwrap().get_u64("qwen35.nextn_predict_layers"), None);
    assert_eq!(ask(&["--out", "i.gguf"]).0, 0);
    assert!(ModelFile::open(path("i.gguf")).unwrap().tensor("blk.4.nextn.eh_proj.weight").is_some());
    let (code, _, err) = run(&["llama", "--draft", "inside", "--out", "l.gguf"], folder.path());
    assert_eq!((code, err.as_str()), (1, "error: `llama-tiny` has no draft block\n"));
    let (code, _, err) = ask(&["--draft", "there", "--out", "l.gguf"]);
    assert_eq!(
        (code, err.as_str()),
        (1, "error: unknown place of the draft block `there`; known: inside, beside, none\n")
    );
}

#[test]
fn wrong_names_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, message) in [
        (&["qwen4exp", "--out", "m"][..], "error: unknown architecture `qwen4exp`; known: llama, qwen35\n"),
        (
            &["llama", "--type", "q9", "--out", "m"][..],
            "error: unknown type `q9`; known: Q4_K_M, Q3_K_M, F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, \
             Q3_K, Q4_K, Q5_K, Q6_K, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS\n",
        ),
        (&["llama", "--fill", "x", "--out", "m"][..], "error: unknown fill `x`; known: values, blocks\n"),
        (
            &["llama", "--vocab", "9", "--out", "m"][..],
            "error: a vocabulary of 9 tokens: there are 270 to 1048576 of them\n",
        ),
        (&["llama", "--split", "0", "--out", "m"][..], "error: 0 parts of 21 tensors\n"),
        (&["llama", "--out", "no/m"][..], "error: no/m: No such file or directory (os error 2)\n"),
    ] {
        let (code, out, err) = run(arguments, folder.path());
        assert_eq!((code, out.as_str(), err.as_str()), (1, "", message));
    }
    assert_eq!(run(&["--out", "m"], folder.path()).0, 2);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
