//! Written files: equal to those of a foreign writer, and readable.

#![allow(clippy::unwrap_used)]

use ns_tiny::{Expected, Storage, Table, fixtures, shape, write, write_table};
use ns_weights::{ModelFile, TensorType};
use std::path::Path;

fn written(table: &Table, storage: Storage) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write(table, storage, &path).unwrap();
    std::fs::read(path).unwrap()
}

fn table(name: &str) -> Table {
    Table::load(&fixtures().join(format!("{name}.json"))).unwrap()
}

/// The files tests/reference/seeded.py writes with the Python gguf package 0.19.0 (`seeded.py gguf NAME OUT TYPE`), by
/// length and CRC-32. It leaves `general.file_type` at 0 for all types.
#[test]
fn files_equal_those_of_a_foreign_writer() {
    for (name, storage, len, crc) in [
        ("llama", Storage::F32, 4_599_936, 0xc184_754b_u32),
        ("llama", Storage::F16, 2_306_176, 0xb282_b88a),
        ("llama", Storage::BF16, 2_306_176, 0xdf42_c4df),
        ("llama-tied", Storage::F32, 4_092_768, 0x5855_ee97),
        ("llama-tied", Storage::F16, 2_052_960, 0x638b_a873),
        ("llama-tied", Storage::BF16, 2_052_960, 0x8209_3de1),
        ("qwen35", Storage::F32, 24_246_304, 0xd4a3_d17e),
        ("qwen35", Storage::F16, 12_187_680, 0x5967_ad5d),
        ("qwen35-tied", Storage::F32, 7_569_088, 0xd73c_8e5d),
        ("qwen35-tied", Storage::F16, 3_817_152, 0xa4c0_0acb),
    ] {
        let mut bytes = written(&table(name), storage);
        let key = b"general.file_type";
        let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
        bytes[at] = 0;
        assert_eq!((bytes.len(), crc32fast::hash(&bytes)), (len, crc), "{name} {storage:?}");
    }
}

#[test]
fn the_fill_has_the_stored_checksum() {
    for name in ["llama", "llama-tied", "qwen35", "qwen35-tied"] {
        let table = table(name);
        assert_eq!(Some(format!("{:08x}", table.crc32())), table.fill_crc32, "{name}");
    }
}

/// CRC-32 of `blk.0.ffn_down.weight` of the table `llama`, quantised by gguf/quants.py 0.19.0.
#[test]
fn blocks_of_32_follow_the_reference_rule() {
    let folder = tempfile::tempdir().unwrap();
    for (storage, crc) in [
        (Storage::Q8_0, 0x3bc9_63d2_u32),
        (Storage::Q4_0, 0x2743_2aa9),
        (Storage::Q4_1, 0x25c5_cc93),
        (Storage::Q5_0, 0xbc64_6947),
        (Storage::Q5_1, 0x3f1a_3667),
    ] {
        let path = folder.path().join("model.gguf");
        write(&table("llama"), storage, &path).unwrap();
        let file = ModelFile::open(&path).unwrap();
        assert_eq!(crc32fast::hash(file.tensor("blk.0.ffn_down.weight").unwrap().data), crc, "{storage:?}");
    }
}

/// Relative error (root mean square) of a tensor's stored values.
fn error_of(file: &ModelFile, table: &Table, name: &str) -> f64 {
    let (stored, exact) = (file.tensor(name).unwrap().to_f32(), table.values(name).unwrap());
    assert_eq!(stored.len(), exact.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = stored.iter().zip(&exact).map(|(a, b)| square(a - b)).sum();
    (difference / exact.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}

#[test]
fn stored_values_are_near_the_exact_ones() {
    let folder = tempfile::tempdir().unwrap();
    let table = shape("llama", "small", 3).unwrap();
    for storage in Storage::ALL.into_iter().filter(|s| s.takes_values()) {
        let name = storage.name();
        let path = folder.path().join(name);
        write(&table, storage, &path).unwrap();
        let file = ModelFile::open(&path).unwrap();
        // What rounding to that many steps of such values costs, with a little room; and not less than a third of it,
        // which would say that the file is not of that type.
        let most = match storage {
            Storage::F32 => 0.0,
            Storage::F16 => 3e-4,
            Storage::BF16 => 2.5e-3,
            Storage::Q8_0 => 7e-3,
            Storage::Q6_K => 0.025,
            Storage::Q5_0 | Storage::Q5_1 | Storage::Q5_K => 0.05,
            _ => 0.10, // four bits
        };
        for tensor in ["blk.5.ffn_gate.weight", "blk.0.attn_q.weight", "token_embd.weight"] {
            let found = file.tensor(tensor).unwrap().ty;
            assert_eq!(found.name(), name);
            let error = error_of(&file, &table, tensor);
            assert!(error <= most && error >= most / 3.0, "{name} {tensor}: {error}");
        }
        assert_eq!(file.tensor("blk.0.attn_norm.weight").unwrap().ty, TensorType::F32);
        assert_eq!(error_of(&file, &table, "blk.0.attn_norm.weight"), 0.0);
    }
}

/// Rows of 384 are no whole number of blocks of 256.
#[test]
fn rows_that_do_not_fit_take_the_nearest_type() {
    let folder = tempfile::tempdir().unwrap();
    for (storage, fits, other) in
        [(Storage::Q4_K, TensorType::Q4_K, TensorType::Q5_0), (Storage::Q6_K, TensorType::Q6_K, TensorType::Q8_0)]
    {
        let path = folder.path().join("model.gguf");
        write(&table("llama"), storage, &path).unwrap();
        let file = ModelFile::open(&path).unwrap();
        assert_eq!(file.tensor("blk.0.attn_q.weight").unwrap().ty, fits);
        assert_eq!(file.tensor("blk.0.ffn_down.weight").unwrap().ty, other);
    }
}

#[test]
fn the_reader_finds_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write_table(fixtures().join("llama.json"), &path).unwrap();
    let (file, table) = (ModelFile::open(&path).unwrap(), table("llama"));
    assert_eq!(file.architecture(), "llama");
    assert_eq!(file.get_u64("llama.attention.head_count_kv"), Some(2));
    assert_eq!(file.get_f32("llama.attention.layer_norm_rms_epsilon"), Some(1e-5));
    let tokens = file.get_array_str("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.len(), 320);
    assert_eq!((tokens[3], tokens[3 + 32], tokens[3 + 65], tokens[260]), ("Ā", "Ġ", "A", "<|im_end|>"));
    let types = file.get_array_i64("tokenizer.ggml.token_type").unwrap();
    assert_eq!((types[0], types[3], types[260], types[319]), (3, 1, 3, 5));
    assert_eq!(file.get_str("tokenizer.ggml.pre"), Some("smollm"));
    assert_eq!(file.get_bool("tokenizer.ggml.add_bos_token"), Some(false));
    assert_eq!(file.get_u64("tokenizer.ggml.eot_token_id"), Some(260));
    assert_eq!(file.get_str("tokenizer.chat_template"), Some(table.tokenizer.chat_template.as_str()));
    for (tensor, row) in file.tensors().zip(&table.tensors) {
        assert_eq!(tensor.name, row.name);
        assert_eq!(tensor.shape.iter().rev().copied().collect::<Vec<_>>(), row.shape);
        assert_eq!(tensor.to_f32(), table.values(tensor.name).unwrap());
    }
    assert_eq!(file.tensors().len(), table.tensors.len());
}

#[test]
fn expected_outputs_are_found_by_name() {
    let expected = Expected::load("llama").unwrap();
    assert_eq!(expected.tokens().len(), 64);
    let logits = expected.output("logits").unwrap();
    assert_eq!(logits.shape, [64, 320]);
    assert_eq!(logits.row(63).unwrap().len(), 320);
    assert!(logits.row(64).is_none());
    let last = expected.output("tap.result_norm").unwrap();
    assert_eq!((last.shape, last.values.len()), (&[6, 256][..], 6 * 256));
    assert_eq!(expected.table.tap_rows, [0, 1, 4, 20, 41, 63]);
    assert!(expected.output("tap.absent").is_none());
    // The taps are of the same run: the head's product with the last norm gives the logits.
    let (head, table) = (expected.table.values("output.weight").unwrap(), &expected.table);
    for (tap, &row) in table.tap_rows.iter().enumerate() {
        let x = last.row(tap).unwrap();
        for (weights, &logit) in head.chunks_exact(256).zip(logits.row(row).unwrap()) {
            let product: f64 = weights.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            assert!((product - f64::from(logit)).abs() < 1e-5, "{product} {logit}");
        }
    }
}

fn bad(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (json, out) = (folder.path().join("bad.json"), folder.path().join("out.gguf"));
    std::fs::write(&json, text).unwrap();
    let message = write_table(&json, &out).unwrap_err().to_string();
    assert!(!out.exists());
    message.replace(&folder.path().display().to_string(), "DIR")
}

#[test]
fn a_wrong_table_is_refused_by_name() {
    let text = std::fs::read_to_string(fixtures().join("llama.json")).unwrap();
    let with = |from: &str, to: &str| {
        assert!(text.contains(from));
        bad(&text.replacen(from, to, 1))
    };
    assert_eq!(
        with(r#""llama.block_count", "u32", 2"#, r#""llama.block_count", "u32", -2"#),
        "metadata key `llama.block_count`: -2 is not of the type `u32`"
    );
    assert_eq!(with("[256], 1.0", "[0], 1.0"), "tensor `output_norm.weight` has the impossible shape [0]");
    assert!(with(r#""seed": 102"#, r#""seed": "x""#).starts_with("DIR/bad.json: invalid type: string \"x\""));
    assert!(
        write_table(Path::new("/absent.json"), "/absent.gguf").unwrap_err().to_string().starts_with("/absent.json: ")
    );
}

#[test]
fn draft_outputs_are_found_by_name() {
    for (name, tokens, taps) in [("qwen35", [55, 87, 299, 262], 21), ("qwen35-tied", [92, 205, 125, 141], 0)] {
        let expected = Expected::load(name).unwrap();
        assert_eq!(expected.draft_tokens(), tokens);
        assert_eq!(expected.outputs().filter(|o| o.starts_with("tap.")).count(), taps);
        let greedy = |row: &[f32]| (0..).zip(row).max_by(|a, b| a.1.total_cmp(b.1)).map(|(i, _): (u32, _)| i).unwrap();
        let (logits, rows) = (expected.output("logits").unwrap(), expected.output("draft.rows").unwrap());
        let chain = expected.output("draft.chain").unwrap();
        assert_eq!((logits.shape, rows.shape, chain.shape), (&[64, 320][..], &[8, 320][..], &[3, 320][..]));
        // the chain starts with the last prompt row's draft
        assert_eq!(rows.row(7), chain.row(0));
        assert_eq!(greedy(logits.row(63).unwrap()), tokens[0]);
        for (row, &token) in tokens[1..].iter().enumerate() {
            assert_eq!(greedy(chain.row(row).unwrap()), token, "{name} draft {row}");
        }
    }
    assert!(Expected::load("llama").unwrap().draft_tokens().is_empty());
}

/// Inside, beside and without: together the same tensors, and metadata that says what a file holds.
#[test]
fn a_draft_block_can_be_in_a_file_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let whole = table("qwen35");
    let open = |table: &Table, name: &str| {
        let path = folder.path().join(name);
        write(table, Storage::F32, &path).unwrap();
        ModelFile::open(&path).unwrap()
    };
    let names = |file: &ModelFile| file.tensors().map(|t| t.name.to_owned()).collect::<Vec<_>>();
    let (inside, trunk) = (open(&whole, "inside.gguf"), open(&whole.without_draft(), "trunk.gguf"));
    let beside = open(&whole.only_draft().unwrap(), "draft.gguf");
    assert_eq!(
        (inside.get_u64("qwen35.block_count"), inside.get_u64("qwen35.nextn_predict_layers")),
        (Some(5), Some(1))
    );
    assert_eq!(
        (beside.get_u64("qwen35.block_count"), beside.get_u64("qwen35.nextn_predict_layers")),
        (Some(5), Some(1))
    );
    assert_eq!((trunk.get_u64("qwen35.block_count"), trunk.get_u64("qwen35.nextn_predict_layers")), (Some(4), None));
    let pattern = |file: &ModelFile| file.get_array_bool("qwen35.attention.recurrent_layers").unwrap();
    assert_eq!(pattern(&inside), [true, true, true, false, false]);
    assert_eq!((pattern(&beside), pattern(&trunk)), (pattern(&inside), vec![true, true, true, false]));
    let shared = ["token_embd.weight", "output_norm.weight", "output.weight"];
    assert_eq!(names(&beside)[..3], shared);
    assert!(names(&beside)[3..].iter().all(|n| n.starts_with("blk.4.")) && names(&beside).len() == 3 + 15);
    assert!(names(&trunk).iter().all(|n| !n.starts_with("blk.4.")));
    assert_eq!([names(&trunk), names(&beside)[3..].to_vec()].concat(), names(&inside));
    for file in [&trunk, &beside] {
        for tensor in file.tensors() {
            assert!(tensor.to_f32() == whole.values(tensor.name).unwrap(), "{}", tensor.name);
        }
    }
    assert_eq!(table("llama").only_draft().unwrap_err().to_string(), "`llama` has no draft block");
}
