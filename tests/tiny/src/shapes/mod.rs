//! Checkpoints of named shapes.

mod llama;
mod qwen35;

use crate::error::{Error, Result};
use crate::fill::Stream;
use crate::table::{Metadata, Source, Table, TensorRow, Tokenizer};
use crate::vocabulary::SMALLEST;
use llama::Llama;
use qwen35::Qwen35;
use serde_json::json;

/// Names of the architectures, each with those of its shapes.
pub const SHAPES: [(&str, &[&str]); 2] = [("llama", llama::SHAPES), ("qwen35", qwen35::SHAPES)];

const SPECIALS: [&str; 11] = [
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<|endoftext|>",
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
];

const CHATML: &str = "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}\
    {%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

/// What is asked of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Architecture.
    pub architecture: &'a str,
    /// One of its shapes.
    pub shape: &'a str,
    /// Seed of the weights.
    pub seed: u32,
    /// Tokens, in place of the shape's.
    pub vocabulary: Option<u64>,
    /// Whether the weights are set so that drafts hit (module `fitted`).
    pub fitted: bool,
}

/// What a shape gives to a table.
struct Parts {
    metadata: Vec<Metadata>,
    tensors: Vec<TensorRow>,
    vocabulary: u64,
    pre: &'static str,
}

fn number(key: &str, n: u64) -> Metadata {
    (key.to_owned(), "u32".to_owned(), json!(n))
}

fn real(key: &str, n: f64) -> Metadata {
    (key.to_owned(), "f32".to_owned(), json!(n))
}

fn text(key: &str, value: &str) -> Metadata {
    (key.to_owned(), "str".to_owned(), json!(value))
}

fn tensor(name: &str, shape: &[u64], mean: f64, std: f64) -> TensorRow {
    TensorRow { name: name.to_owned(), shape: shape.to_vec(), mean, std, source: Source::Stream }
}

/// A product keeps its input's deviation.
fn matrix(name: &str, rows: u64, columns: u64) -> TensorRow {
    tensor(&format!("{name}.weight"), &[rows, columns], 0.0, 1.0 / (columns as f64).sqrt())
}

fn norm(name: &str, len: u64) -> TensorRow {
    tensor(&format!("{name}.weight"), &[len], 1.0, 0.2)
}

/// A prompt of printable bytes.
fn prompt(seed: u32, len: u32) -> Vec<u32> {
    let stream = Stream::new("prompt", seed, 0.0, 1.0);
    (0..len.div_ceil(4)).flat_map(|b| stream.words(b)).take(len as usize).map(|w| 3 + 32 + w % 95).collect()
}

/// The table of an architecture and a named shape.
pub fn shape(architecture: &str, shape: &str, seed: u32) -> Result<Table> {
    checkpoint(Wanted { architecture, shape, seed, vocabulary: None, fitted: false })
}

/// The table of what is asked.
pub fn checkpoint(wanted: Wanted<'_>) -> Result<Table> {
    let Wanted { architecture, shape, seed, vocabulary, fitted } = wanted;
    let unknown =
        |what, name: &str, known: &[&str]| Error::Unknown { what, name: name.into(), known: known.join(", ") };
    let Some((_, shapes)) = SHAPES.iter().find(|(a, _)| *a == architecture) else {
        return Err(unknown("architecture", architecture, &SHAPES.map(|(a, _)| a)));
    };
    if let Some(size) = vocabulary.filter(|size| !(SMALLEST..=1 << 20).contains(size)) {
        return Err(Error::Table(format!(
            "a vocabulary of {size} tokens: there are {SMALLEST} to {} of them",
            1 << 20
        )));
    }
    let parts = match architecture {
        "llama" => Llama::of(shape).map(|s| s.parts(vocabulary)),
        _ => Qwen35::of(shape).map(|s| s.parts(vocabulary, fitted)),
    };
    let Some(parts) = parts else { return Err(unknown("shape", shape, shapes)) };
    let name = format!("{architecture}-{shape}{}", if fitted { "-fitted" } else { "" });
    let mut metadata = vec![
        text("general.architecture", architecture),
        text("general.type", "model"),
        text("general.name", &name),
        number("general.file_type", 0),
        number("general.quantization_version", 2),
    ];
    metadata.extend(parts.metadata);
    let mut table = Table {
        name,
        architecture: architecture.to_owned(),
        seed,
        metadata,
        tokenizer: Tokenizer {
            model: "gpt2".into(),
            pre: parts.pre.into(),
            size: parts.vocabulary as usize,
            specials: SPECIALS.map(str::to_owned).to_vec(),
            eos: 2,
            eot: 260,
            add_bos: false,
            chat_template: CHATML.into(),
        },
        tensors: parts.tensors,
        tokens: prompt(seed, 64),
        fill_crc32: None,
        draft_tokens: std::collections::BTreeMap::new(),
        tap_rows: Vec::new(),
        outputs: Vec::new(),
    };
    if fitted {
        table.fit()?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expected::Expected;

    /// The fixtures `llama` and `qwen35` have the shapes `tiny`, so their tables must come out again.
    #[test]
    fn a_shape_makes_the_table_of_the_fixture() {
        for (name, seed) in [("llama", 102), ("qwen35", 201)] {
            let (made, read) = (shape(name, "tiny", seed).unwrap(), Expected::load(name).unwrap().table);
            assert_eq!(Some(format!("{:08x}", made.crc32())), read.fill_crc32, "{name}");
            assert_eq!(made.tokens, read.tokens);
            assert_eq!(made.tokenizer.chat_template, read.tokenizer.chat_template);
            assert_eq!(made.tokenizer.specials, read.tokenizer.specials);
            assert_eq!(made.tokenizer.pre, read.tokenizer.pre);
            let sorted = |t: &Table| {
                let mut entries = t.metadata.clone();
                entries.retain(|m| m.0 != "general.name");
                entries
            };
            assert_eq!(sorted(&made), sorted(&read));
            let names = |t: &Table| t.tensors.iter().map(|t| (t.name.clone(), t.shape.clone())).collect::<Vec<_>>();
            assert_eq!(names(&made), names(&read));
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = |a, s| shape(a, s, 1).unwrap_err().to_string();
        assert_eq!(error("qwen4exp", "tiny"), "unknown architecture `qwen4exp`; known: llama, qwen35");
        assert_eq!(
            error("llama", "huge"),
            "unknown shape `huge`; known: tiny, small, smollm2-135m, llama-3.2-1b, llama-3.1-8b"
        );
        assert_eq!(error("qwen35", "1b"), "unknown shape `1b`; known: tiny, small, 0.8b, 4b, 27b");
        let few = Wanted { architecture: "llama", shape: "tiny", seed: 1, vocabulary: Some(269), fitted: false };
        assert_eq!(
            checkpoint(few).unwrap_err().to_string(),
            "a vocabulary of 269 tokens: there are 270 to 1048576 of them"
        );
        let unfit = Wanted { vocabulary: None, fitted: true, ..few };
        assert_eq!(checkpoint(unfit).unwrap_err().to_string(), "`llama-tiny-fitted` has no draft block");
    }
}
