//! Shapes of qwen35 checkpoints.

use super::{Parts, matrix, norm, number, real, tensor};
use serde_json::json;

pub(super) const SHAPES: &[&str] = &["tiny", "small", "0.8b", "4b", "27b"];

/// Features of an attention head; how many of them are rotated.
const HEAD: u64 = 256;
const ROTARY: u64 = 64;
/// Features of a DeltaNet head, and taps of its convolution.
const STATE: u64 = 128;
const TAPS: u64 = 4;
/// Every so many layers one has full attention.
const INTERVAL: u64 = 4;

pub(super) struct Qwen35 {
    hidden: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    /// Key and value heads of a DeltaNet layer.
    key_heads: u64,
    value_heads: u64,
    feed_forward: u64,
    vocabulary: u64,
    context: u64,
    tied: bool,
    /// Whether the pattern of layers is a list, else an interval.
    list: bool,
}

impl Qwen35 {
    /// Of the real models, layers, hidden width, vocabulary, context and the sizes within a head are published for all
    /// three, and everything for 27B. Assumed for 0.8B and 4B, and not read from a file of theirs: the head counts, the
    /// feed-forward widths and the tied output. With these the values add up to what the names say: 752 million with the
    /// embedding in 0.8B, 4.2 thousand million in 4B, and 26.9 in 27B, the draft block apart.
    pub(super) fn of(shape: &str) -> Option<Self> {
        let of = |[hidden, layers, heads, kv_heads, key_heads, value_heads, feed_forward]: [u64; 7],
                  [vocabulary, context]: [u64; 2],
                  tied,
                  list| {
            Some(Self {
                hidden,
                layers,
                heads,
                kv_heads,
                key_heads,
                value_heads,
                feed_forward,
                vocabulary,
                context,
                tied,
                list,
            })
        };
        let real = [248_320, 262_144];
        match shape {
            "tiny" => of([256, 4, 4, 2, 2, 6, 384], [320, 512], false, true),
            // every row is a whole number of blocks of 256, so that every type can be tried without others in between
            "small" => of([512, 8, 4, 1, 2, 4, 1024], [2048, 8192], false, false),
            "0.8b" => of([1024, 24, 8, 2, 16, 16, 3584], real, true, false),
            "4b" => of([2560, 32, 16, 4, 16, 32, 9216], real, true, false),
            "27b" => of([5120, 64, 24, 4, 16, 48, 17_408], real, false, false),
            _ => None,
        }
    }

    fn is_delta_net(&self, layer: u64) -> bool {
        layer < self.layers && !(layer + 1).is_multiple_of(INTERVAL)
    }

    /// The draft block is in it, the last one. A fitted checkpoint has an output of its own.
    pub(super) fn parts(&self, vocabulary: Option<u64>, fitted: bool) -> Parts {
        let (vocabulary, hidden) = (vocabulary.unwrap_or(self.vocabulary), self.hidden);
        let key = |key: &str| format!("qwen35.{key}");
        let mut metadata = vec![
            number(&key("block_count"), self.layers + 1),
            number(&key("context_length"), self.context),
            number(&key("embedding_length"), hidden),
            number(&key("feed_forward_length"), self.feed_forward),
            number(&key("attention.head_count"), self.heads),
            number(&key("attention.head_count_kv"), self.kv_heads),
            number(&key("attention.key_length"), HEAD),
            number(&key("attention.value_length"), HEAD),
            real(&key("attention.layer_norm_rms_epsilon"), 1e-6),
            real(&key("rope.freq_base"), 1e7),
            number(&key("rope.dimension_count"), ROTARY),
            (key("rope.dimension_sections"), "i32[]".into(), json!([11, 11, 10, 0])),
            number(&key("ssm.conv_kernel"), TAPS),
            number(&key("ssm.state_size"), STATE),
            number(&key("ssm.group_count"), self.key_heads),
            number(&key("ssm.time_step_rank"), self.value_heads),
            number(&key("ssm.inner_size"), self.value_heads * STATE),
        ];
        metadata.push(if self.list {
            let layers: Vec<bool> = (0..=self.layers).map(|layer| self.is_delta_net(layer)).collect();
            (key("attention.recurrent_layers"), "bool[]".into(), json!(layers))
        } else {
            number(&key("full_attention_interval"), INTERVAL)
        });
        metadata.push(number(&key("nextn_predict_layers"), 1));

        let mut tensors = vec![matrix("token_embd", vocabulary, hidden), norm("output_norm", hidden)];
        if !self.tied || fitted {
            tensors.push(matrix("output", vocabulary, hidden));
        }
        for layer in 0..=self.layers {
            let name = |role: &str| format!("blk.{layer}.{role}");
            tensors.push(norm(&name("attn_norm"), hidden));
            if self.is_delta_net(layer) {
                let (channels, values) = ((2 * self.key_heads + self.value_heads) * STATE, self.value_heads * STATE);
                tensors.extend([
                    matrix(&name("attn_qkv"), channels, hidden),
                    matrix(&name("attn_gate"), values, hidden),
                    matrix(&name("ssm_alpha"), self.value_heads, hidden),
                    matrix(&name("ssm_beta"), self.value_heads, hidden),
                    matrix(&name("ssm_conv1d"), channels, TAPS),
                    tensor(&name("ssm_a"), &[self.value_heads], -0.5, 0.12),
                    tensor(&name("ssm_dt.bias"), &[self.value_heads], 0.0, 0.5),
                    norm(&name("ssm_norm"), STATE),
                    matrix(&name("ssm_out"), hidden, values),
                ]);
            } else {
                tensors.extend([
                    matrix(&name("attn_q"), 2 * self.heads * HEAD, hidden),
                    matrix(&name("attn_k"), self.kv_heads * HEAD, hidden),
                    matrix(&name("attn_v"), self.kv_heads * HEAD, hidden),
                    matrix(&name("attn_output"), hidden, self.heads * HEAD),
                    norm(&name("attn_q_norm"), HEAD),
                    norm(&name("attn_k_norm"), HEAD),
                ]);
            }
            tensors.extend([
                norm(&name("post_attention_norm"), hidden),
                matrix(&name("ffn_gate"), self.feed_forward, hidden),
                matrix(&name("ffn_up"), self.feed_forward, hidden),
                matrix(&name("ffn_down"), hidden, self.feed_forward),
            ]);
        }
        let name = |role: &str| format!("blk.{}.nextn.{role}", self.layers);
        tensors.extend([
            matrix(&name("eh_proj"), hidden, 2 * hidden),
            norm(&name("enorm"), hidden),
            norm(&name("hnorm"), hidden),
            norm(&name("shared_head_norm"), hidden),
        ]);
        Parts { metadata, tensors, vocabulary, pre: "qwen35" }
    }
}
