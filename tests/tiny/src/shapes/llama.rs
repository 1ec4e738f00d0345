//! Shapes of llama checkpoints.

use super::{Parts, matrix, norm, number, real};

pub(super) const SHAPES: &[&str] = &["tiny", "small", "smollm2-135m", "llama-3.2-1b", "llama-3.1-8b"];

pub(super) struct Llama {
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
    pub(super) fn of(shape: &str) -> Option<Self> {
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

    pub(super) fn parts(&self, vocabulary: Option<u64>) -> Parts {
        let vocabulary = vocabulary.unwrap_or(self.vocabulary);
        let metadata = vec![
            number("llama.block_count", self.layers),
            number("llama.context_length", self.context),
            number("llama.embedding_length", self.hidden),
            number("llama.feed_forward_length", self.feed_forward),
            number("llama.attention.head_count", self.heads),
            number("llama.attention.head_count_kv", self.kv_heads),
            number("llama.attention.key_length", self.head),
            number("llama.attention.value_length", self.head),
            real("llama.attention.layer_norm_rms_epsilon", 1e-5),
            real("llama.rope.freq_base", self.rope_base),
            number("llama.rope.dimension_count", self.head),
            number("llama.vocab_size", vocabulary),
        ];
        let mut tensors = vec![matrix("token_embd", vocabulary, self.hidden), norm("output_norm", self.hidden)];
        if !self.tied {
            tensors.push(matrix("output", vocabulary, self.hidden));
        }
        let (queries, keys) = (self.heads * self.head, self.kv_heads * self.head);
        for layer in 0..self.layers {
            let name = |role: &str| format!("blk.{layer}.{role}");
            tensors.extend([
                norm(&name("attn_norm"), self.hidden),
                matrix(&name("attn_q"), queries, self.hidden),
                matrix(&name("attn_k"), keys, self.hidden),
                matrix(&name("attn_v"), keys, self.hidden),
                matrix(&name("attn_output"), self.hidden, queries),
                norm(&name("ffn_norm"), self.hidden),
                matrix(&name("ffn_gate"), self.feed_forward, self.hidden),
                matrix(&name("ffn_up"), self.feed_forward, self.hidden),
                matrix(&name("ffn_down"), self.hidden, self.feed_forward),
            ]);
        }
        Parts { metadata, tensors, vocabulary, pre: "smollm" }
    }
}
