//! Files of random blocks, of mixed types, and of several parts.

#![allow(clippy::unwrap_used)]

use ns_tiny::{Fill, Layout, Storage, Table, TensorRow, Types, shape, write};
use ns_weights::{ModelFile, TensorType};
use std::path::Path;

fn layout(types: Types) -> Layout {
    Layout { types, fill: Some(Fill::Blocks), parts: 1 }
}

fn open(table: &Table, layout: Layout, folder: &Path, name: &str) -> ModelFile {
    ModelFile::open(&write(table, layout, folder.join(name)).unwrap()[0]).unwrap()
}

/// Every type's blocks give what the table says: mean 0 and the deviation of a product that keeps its input's.
#[test]
fn random_blocks_have_the_deviation_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let table = shape("qwen35", "small", 7).unwrap();
    for storage in Storage::ALL {
        let file = open(&table, layout(storage.into()), folder.path(), storage.name());
        for tensor in
            ["blk.0.attn_qkv.weight", "blk.3.attn_output.weight", "blk.7.ffn_down.weight", "token_embd.weight"]
        {
            let found = file.tensor(tensor).unwrap();
            assert_eq!(found.ty.name(), storage.name());
            let row = table.tensors.iter().find(|t| t.name == tensor).unwrap();
            let values = found.to_f32();
            let n = values.len() as f64;
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
            let std = (values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n).sqrt();
            assert!((std / row.std - 1.0).abs() < 0.02, "{} {tensor}: {} of {}", storage.name(), std, row.std);
            assert!(mean.abs() < 0.02 * row.std, "{} {tensor}: mean {mean} of {}", storage.name(), row.std);
            // every row is its own
            let columns = row.columns();
            assert!(values[..columns] != values[columns..2 * columns], "{} {tensor}", storage.name());
        }
        // what is no matrix keeps its values
        for tensor in ["output_norm.weight", "blk.0.ssm_a", "blk.0.ssm_conv1d.weight"] {
            let found = file.tensor(tensor).unwrap();
            assert_eq!((found.ty, found.to_f32()), (TensorType::F32, table.values(tensor).unwrap()));
        }
    }
}

#[test]
fn blocks_follow_the_seed() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |seed, name: &str| {
        let table = shape("qwen35", "small", seed).unwrap();
        std::fs::read(&write(&table, layout(Types::Q3_K_M), folder.path().join(name)).unwrap()[0]).unwrap()
    };
    let first = bytes(7, "a");
    assert!(first == bytes(7, "b"), "the same seed gave another file");
    let other = bytes(8, "c");
    assert_eq!(first.len(), other.len());
    let equal = first.iter().zip(&other).filter(|(a, b)| a == b).count();
    assert!(equal < first.len() / 10, "{equal} of {} bytes are equal", first.len());
}

/// Layers whose tensor of a role has a type.
fn layers(file: &ModelFile, role: &str, ty: TensorType) -> Vec<usize> {
    let has = |l: &usize| file.tensor(&format!("blk.{l}.{role}.weight")).is_some_and(|t| t.ty == ty);
    (0..100).filter(has).collect()
}

/// A deep and narrow one: 64 layers and a draft block.
fn deep() -> Table {
    let mut table = shape("qwen35", "small", 1).unwrap();
    let blocks: Vec<TensorRow> = table.tensors.iter().filter(|t| t.name.starts_with("blk.")).cloned().collect();
    let in_block = |name: &str, n: usize| name.strip_prefix(&format!("blk.{n}.")).map(str::to_owned);
    let mut tensors: Vec<TensorRow> = table.tensors.iter().filter(|t| !t.name.starts_with("blk.")).cloned().collect();
    for layer in 0..65 {
        let like = if layer == 64 { 8 } else { layer % 4 };
        for row in &blocks {
            if let Some(rest) = in_block(&row.name, like) {
                let shape = row.shape.iter().map(|&n| n.min(256)).collect();
                tensors.push(TensorRow { name: format!("blk.{layer}.{rest}"), shape, ..row.clone() });
            }
        }
    }
    table.tensors = tensors;
    table
}

/// The choice of llama-quantize (llama.cpp 0.7.0, --dry-run) on a file of 16-bit floats with the same tensors.
#[test]
fn mixes_choose_by_role() {
    use TensorType::{Q3_K, Q4_K, Q5_K, Q6_K};
    let folder = tempfile::tempdir().unwrap();
    let file = open(&deep(), layout(Types::Q4_K_M), folder.path(), "four");
    assert_eq!(file.tensor("output.weight").unwrap().ty, Q6_K);
    assert_eq!(file.tensor("token_embd.weight").unwrap().ty, Q4_K);
    let important = [
        0, 1, 2, 3, 4, 5, 6, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 37, 40, 43, 46, 49, 52, 55, 56, 57, 58, 59, 60, 61,
        62, 63, 64,
    ];
    assert_eq!(layers(&file, "ffn_down", Q6_K), important);
    let full = |l: &usize| *l == 64 || l % 4 == 3;
    let (values, mixed): (Vec<usize>, Vec<usize>) = important.iter().partition(|l| full(l));
    assert_eq!(layers(&file, "attn_v", Q6_K), values);
    assert_eq!(layers(&file, "attn_qkv", Q6_K), mixed);
    for role in ["attn_q", "attn_k", "attn_output", "attn_gate", "ssm_out", "ffn_gate", "ffn_up", "nextn.eh_proj"] {
        assert_eq!(layers(&file, role, Q6_K).len() + layers(&file, role, Q5_K).len(), 0, "{role}");
        assert!(!layers(&file, role, Q4_K).is_empty(), "{role}");
    }
    assert_eq!(file.get_u64("general.file_type"), Some(15));

    let file = open(&deep(), layout(Types::Q3_K_M), folder.path(), "three");
    assert_eq!(file.tensor("output.weight").unwrap().ty, Q6_K);
    assert_eq!(file.tensor("token_embd.weight").unwrap().ty, Q3_K);
    assert_eq!(layers(&file, "ffn_down", Q5_K), [0, 1, 2, 3]);
    assert_eq!(layers(&file, "ffn_down", Q4_K), (4..65).collect::<Vec<_>>());
    assert_eq!(layers(&file, "attn_qkv", Q5_K), [0, 1]);
    assert_eq!(layers(&file, "attn_qkv", Q4_K).len() + 2, 48);
    assert_eq!((layers(&file, "attn_v", Q4_K).len(), layers(&file, "attn_output", Q4_K).len()), (17, 17));
    for role in ["attn_q", "attn_k", "attn_gate", "ssm_out", "ffn_gate", "ffn_up", "nextn.eh_proj"] {
        let other = [Q4_K, Q5_K, Q6_K].iter().map(|&t| layers(&file, role, t).len()).sum::<usize>();
        assert_eq!(other, 0, "{role}");
        assert!(!layers(&file, role, Q3_K).is_empty(), "{role}");
    }
    assert_eq!(file.get_u64("general.file_type"), Some(12));

    // a tied embedding is the output
    let mut tied = deep();
    tied.tensors.retain(|t| t.name != "output.weight");
    for types in [Types::Q4_K_M, Types::Q3_K_M] {
        let file = open(&tied, layout(types), folder.path(), if types == Types::Q4_K_M { "tied4" } else { "tied3" });
        assert_eq!(file.tensor("token_embd.weight").unwrap().ty, Q6_K);
    }
}

#[test]
fn parts_hold_all_tensors_and_read_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let table = shape("qwen35", "tiny", 3).unwrap();
    let whole = open(&table, Storage::Q8_0.into(), folder.path(), "whole.gguf");
    let split = Layout { parts: 3, ..Storage::Q8_0.into() };
    let files = write(&table, split, folder.path().join("m.gguf")).unwrap();
    let names: Vec<_> = files.iter().map(|f| f.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]);
    let sizes: Vec<_> = files.iter().map(|f| std::fs::metadata(f).unwrap().len()).collect();
    assert!(sizes.iter().max().unwrap() < &(2 * sizes.iter().min().unwrap()), "{sizes:?}");
    let file = ModelFile::open(&files[0]).unwrap();
    assert_eq!(file.tensors().len(), table.tensors.len());
    for tensor in whole.tensors() {
        assert!(file.tensor(tensor.name).unwrap().data == tensor.data, "{}", tensor.name);
    }
    assert_eq!(file.get_u64("qwen35.block_count"), Some(5));
    // as many parts as tensors, and no more
    let all = Layout { parts: table.tensors.len(), ..split };
    assert_eq!(write(&table, all, folder.path().join("n.gguf")).unwrap().len(), table.tensors.len());
    let more = Layout { parts: table.tensors.len() + 1, ..split };
    assert_eq!(write(&table, more, folder.path().join("o.gguf")).unwrap_err().to_string(), "72 parts of 71 tensors");
}

#[test]
fn types_without_a_quantiser_take_no_values() {
    let folder = tempfile::tempdir().unwrap();
    let table = shape("qwen35", "tiny", 3).unwrap();
    let values = Layout { fill: Some(Fill::Values), ..layout(Types::Q3_K_M) };
    let error = write(&table, values, folder.path().join("m.gguf")).unwrap_err().to_string();
    assert_eq!(error, "`token_embd.weight` would be Q3_K, which takes no values here, only random blocks");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
