//! Checkpoints of named shapes.

use crate::error::{Error, Result};
use crate::fill::Stream;
use crate::table::{Table, TensorRow, Tokenizer};
use serde_json::{Value, json};

/// Names of the shapes.
pub const SHAPES: &[&str] = &["tiny", "small", "smollm2-135m", "llama-3.2-1b", "llama-3.1-8b"];

const ARCHITECTURES: &str = "llama";

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

struct Llama {
    hidden: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    head: u64,
    feed_forward: u64,
    vocabulary: u64,
    context: u64,
    rope_base: f64,
    tied: bool,
}

impl Llama {
    fn of(shape: &str) -> Option<Self> {
        let of =
            |[hidden, layers, heads, kv_heads, head, feed_forward]: [u64; 6], vocabulary, context, rope_base, tied| {
                Some(Self { hidden, layers, heads, kv_heads, head, feed_forward, vocabulary, context, rope_base, tied })
            };
        match shape {
            "tiny" => of([256, 2, 4, 2, 64, 384], 320, 512, 100_000.0, false),
            "small" => of([256, 6, 4, 2, 64, 768], 2048, 2048, 100_000.0, true),
            "smollm2-135m" => of([576, 30, 9, 3, 64, 1536], 49_152, 8192, 100_000.0, true),
            "llama-3.2-1b" => of([2048, 16, 32, 8, 64, 8192], 128_256, 8192, 500_000.0, true),
            "llama-3.1-8b" => of([4096, 32, 32, 8, 128, 14_336], 128_256, 8192, 500_000.0, false),
            _ => None,
        }
    }

    fn metadata(&self) -> Vec<(String, String, Value)> {
        let number = |key: &str, n: u64| (format!("llama.{key}"), "u32".to_owned(), json!(n));
        let real = |key: &str, n: f64| (format!("llama.{key}"), "f32".to_owned(), json!(n));
        vec![
            number("block_count", self.layers),
            number("context_length", self.context),
            number("embedding_length", self.hidden),
            number("feed_forward_length", self.feed_forward),
            number("attention.head_count", self.heads),
            number("attention.head_count_kv", self.kv_heads),
            number("attention.key_length", self.head),
            number("attention.value_length", self.head),
            real("attention.layer_norm_rms_epsilon", 1e-5),
            real("rope.freq_base", self.rope_base),
            number("rope.dimension_count", self.head),
            number("vocab_size", self.vocabulary),
        ]
    }

    fn tensors(&self) -> Vec<TensorRow> {
        let matrix = |name: &str, rows: u64, columns: u64| TensorRow {
            name: format!("{name}.weight"),
            shape: vec![rows, columns],
            mean: 0.0,
            std: 1.0 / (columns as f64).sqrt(),
        };
        let norm =
            |name: &str| TensorRow { name: format!("{name}.weight"), shape: vec![self.hidden], mean: 1.0, std: 0.2 };
        let mut rows = vec![matrix("token_embd", self.vocabulary, self.hidden), norm("output_norm")];
        if !self.tied {
            rows.push(matrix("output", self.vocabulary, self.hidden));
        }
        let (queries, keys) = (self.heads * self.head, self.kv_heads * self.head);
        for layer in 0..self.layers {
            let name = |role: &str| format!("blk.{layer}.{role}");
            rows.extend([
                norm(&name("attn_norm")),
                matrix(&name("attn_q"), queries, self.hidden),
                matrix(&name("attn_k"), keys, self.hidden),
                matrix(&name("attn_v"), keys, self.hidden),
                matrix(&name("attn_output"), self.hidden, queries),
                norm(&name("ffn_norm")),
                matrix(&name("ffn_gate"), self.feed_forward, self.hidden),
                matrix(&name("ffn_up"), self.feed_forward, self.hidden),
                matrix(&name("ffn_down"), self.hidden, self.feed_forward),
            ]);
        }
        rows
    }
}

/// A prompt of printable bytes.
fn prompt(seed: u32, len: u32) -> Vec<u32> {
    let stream = Stream::new("prompt", seed, 0.0, 1.0);
    (0..len.div_ceil(4)).flat_map(|b| stream.words(b)).take(len as usize).map(|w| 3 + 32 + w % 95).collect()
}

/// The table of an architecture and a named shape.
pub fn shape(architecture: &str, shape: &str, seed: u32) -> Result<Table> {
    if architecture != "llama" {
        let (what, name) = ("architecture", architecture.to_owned());
        return Err(Error::Unknown { what, name, known: ARCHITECTURES.into() });
    }
    let llama = Llama::of(shape).ok_or_else(|| Error::Unknown {
        what: "shape",
        name: shape.to_owned(),
        known: SHAPES.join(", "),
    })?;
    let general = |key: &str, kind: &str, value: Value| (format!("general.{key}"), kind.to_owned(), value);
    let name = format!("{architecture}-{shape}");
    let mut metadata = vec![
        general("architecture", "str", json!(architecture)),
        general("type", "str", json!("model")),
        general("name", "str", json!(name)),
        general("file_type", "u32", json!(0)),
        general("quantization_version", "u32", json!(2)),
    ];
    metadata.extend(llama.metadata());
    Ok(Table {
        name,
        architecture: architecture.to_owned(),
        seed,
        metadata,
        tokenizer: Tokenizer {
            model: "gpt2".into(),
            pre: "smollm".into(),
            size: llama.vocabulary as usize,
            specials: SPECIALS.map(str::to_owned).to_vec(),
            eos: 2,
            eot: 260,
            add_bos: false,
            chat_template: CHATML.into(),
        },
        tensors: llama.tensors(),
        tokens: prompt(seed, 64),
        fill_crc32: None,
        draft_tokens: std::collections::BTreeMap::new(),
        tap_rows: Vec::new(),
        outputs: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expected::Expected;

    /// The fixture `llama` has the shape `tiny`, so its table must come out again.
    #[test]
    fn a_shape_makes_the_table_of_the_fixture() {
        let (made, read) = (shape("llama", "tiny", 102).unwrap(), Expected::load("llama").unwrap().table);
        assert_eq!(made.crc32(), read.crc32());
        assert_eq!(made.tokens, read.tokens);
        assert_eq!(made.tokenizer.chat_template, read.tokenizer.chat_template);
        assert_eq!(made.tokenizer.specials, read.tokenizer.specials);
        for (made, read) in made.metadata.iter().zip(&read.metadata) {
            if made.0 != "general.name" {
                assert_eq!(made, read);
            }
        }
        assert_eq!(made.metadata.len(), read.metadata.len());
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = shape("qwen35", "tiny", 1).unwrap_err().to_string();
        assert_eq!(error, "unknown architecture `qwen35`; known: llama");
        let error = shape("llama", "huge", 1).unwrap_err().to_string();
        assert_eq!(error, "unknown shape `huge`; known: tiny, small, smollm2-135m, llama-3.2-1b, llama-3.1-8b");
    }
}
