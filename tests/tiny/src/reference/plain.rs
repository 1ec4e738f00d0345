//! Files of llama.cpp's own generator in the form of real ones.

use super::Model;
use crate::error::{Error, Result};
use crate::gguf::{ALIGNMENT, Entries, start, tensor_info};
use crate::storage::Storage;
use crate::vocabulary::byte_alphabet;
use std::path::Path;

const NUMBERS: [&str; 16] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "ssm.conv_kernel",
    "ssm.state_size",
    "ssm.group_count",
    "ssm.time_step_rank",
    "ssm.inner_size",
    "full_attention_interval",
    "vocab_size",
];

/// Writes a file of llama.cpp's random test models as one like real ones: factors go into their matrices, biases of
/// queries, keys and values and all tensors that have no part in a text are left out, and the tokens become printable
/// bytes from id 3 on. Factors and biases can be kept.
pub fn write_plain(from: &Path, to: &Path, keep_factors: bool) -> Result<()> {
    let model = Model::open(from, None)?;
    let file = model.files.first().ok_or_else(|| Error::Table("no file".into()))?;
    let mut entries = Entries::default();
    entries.text("general.architecture", file.architecture());
    entries.text("general.type", "model");
    entries.text("general.name", "plain");
    entries.number("general.file_type", 0);
    entries.number("general.quantization_version", 2);
    for key in NUMBERS {
        if let Some(n) = file.get_u64(&format!("qwen35.{key}")) {
            entries.number(&format!("qwen35.{key}"), n as u32);
        }
    }
    for key in ["attention.layer_norm_rms_epsilon", "rope.freq_base"] {
        if let Some(n) = file.get_f32(&format!("qwen35.{key}")) {
            entries.entry(&format!("qwen35.{key}"), 6, &n.to_le_bytes());
        }
    }
    let sections = file.get_array_i64("qwen35.rope.dimension_sections").unwrap_or_default();
    let sections = sections.iter().map(|&n| (n as i32).to_le_bytes().to_vec()).collect::<Vec<_>>();
    entries.array("qwen35.rope.dimension_sections", 5, sections.into_iter());
    let recurrent = model.params.recurrent.iter().map(|&r| vec![u8::from(r)]).collect::<Vec<_>>();
    entries.array("qwen35.attention.recurrent_layers", 7, recurrent.into_iter());
    describe_tokens(&mut entries, model.vector("token_embd.weight")?.len() / model.columns("token_embd.weight")?);

    let keeps = |name: &str| {
        let unused = name.ends_with(".input_scale") || name.starts_with("cls.");
        let factor = name.ends_with(".scale") || name.ends_with(".bias") && !name.ends_with(".ssm_dt.bias");
        !unused && (keep_factors || !factor)
    };
    let tensors: Vec<_> = file.tensors().filter(|t| keeps(t.name)).collect();
    let mut out = start(tensors.len(), &entries);
    let mut offset = 0;
    for tensor in &tensors {
        let shape: Vec<u64> = tensor.shape.iter().rev().copied().collect();
        out.extend(tensor_info(tensor.name, &shape, Storage::F32, offset));
        offset += (shape.iter().product::<u64>() as usize * 4).next_multiple_of(ALIGNMENT);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    for tensor in &tensors {
        let factor =
            tensor.name.strip_suffix(".weight").map(|n| format!("{n}.scale")).filter(|n| model.has(n) && !keep_factors);
        let factor = factor.map(|n| model.vector(&n)).transpose()?.and_then(|v| v.first().copied()).unwrap_or(1.0);
        for value in tensor.to_f32() {
            out.extend(((f64::from(value) * factor) as f32).to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    }
    std::fs::write(to, out).map_err(|e| Error::io(to, e))
}

fn describe_tokens(entries: &mut Entries, count: usize) {
    let alphabet = byte_alphabet();
    let token = |i: usize| match i {
        0 => ("<unk>".to_owned(), 3),
        1 => ("<s>".to_owned(), 3),
        2 => ("</s>".to_owned(), 3),
        3..98 => (alphabet[i - 3 + 32].to_string(), 1),
        _ => (format!("[PAD{i}]"), 5_i32),
    };
    let tokens: Vec<_> = (0..count).map(token).collect();
    entries.text("tokenizer.ggml.model", "gpt2");
    entries.text("tokenizer.ggml.pre", "qwen35");
    entries.array("tokenizer.ggml.tokens", 8, tokens.iter().map(|(t, _)| crate::gguf::string(t)));
    entries.array("tokenizer.ggml.token_type", 5, tokens.iter().map(|(_, t)| t.to_le_bytes().to_vec()));
    entries.array("tokenizer.ggml.merges", 8, [crate::gguf::string("a b")].into_iter());
    entries.number("tokenizer.ggml.eos_token_id", 2);
    entries.entry("tokenizer.ggml.add_bos_token", 7, &[0]);
}
