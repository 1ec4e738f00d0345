//! Checkpoints whose drafts hit.
//!
//! The trunk continues a walk: token by token along a circle of 96 (line feed and the printable bytes, in an order of
//! the seed), and now and then elsewhere. Row u of the output is the embedding of u's predecessor, so the logit of the
//! right successor is the largest as long as the embedding is well seen in the last row. What the layers add to it is
//! noise that depends on the whole text before; the matrices that end them are scaled to make it as strong as is
//! needed to win now and then. All rows of the output that belong to no token of the circle are small: they never win.
//!
//! The draft block's projection hands on the embedding of the token it is given, and its layer adds far less than the
//! trunk's many do. So its draft is nearly always the successor, and is accepted as often as the trunk says the same.
//!
//! tests/reference.rs holds the rates: more than two of three drafts accepted a step, and not all.

use crate::error::{Error, Result};
use crate::fill::Stream;
use crate::table::{Source, Table, TensorRow};

/// Deviation of the logits that belong to no successor.
const LOGITS: f64 = 4.0;
/// Rows outside the circle against those of it.
const OUTSIDE: f64 = 0.1;
/// Noise of the draft block's projection against the embedding.
const PROJECTION: f64 = 0.5;
/// Noise of the layers: what one of two branches of each of L layers adds is scaled by this times sqrt(D / 2L).
const LAYERS: f64 = 0.44;

/// Tokens in the order of the walk.
pub(crate) fn circle(seed: u32) -> Vec<u32> {
    let stream = Stream::new("circle", seed, 0.0, 1.0);
    let mut tokens: Vec<u32> = std::iter::once(u32::from(b'\n')).chain(32..127).map(|byte| 3 + byte).collect();
    let words: Vec<u32> = (0..tokens.len() as u32).flat_map(|b| stream.words(b)).collect();
    for i in (1..tokens.len()).rev() {
        tokens.swap(i, words[i] as usize % (i + 1));
    }
    tokens
}

/// Values of a fitted tensor from number `at` on, which starts a group of four.
pub(crate) fn values(row: &TensorRow, seed: u32, at: usize, out: &mut [f32]) {
    let columns = row.columns();
    row.stream(seed).values((at / 4) as u32, out);
    match &row.source {
        Source::Stream | Source::Exact => {}
        Source::Diagonal => {
            for (i, value) in (at..).zip(out) {
                if i % columns == i / columns {
                    *value += 1.0;
                }
            }
        }
        Source::Successors { embedding, gain } => {
            let circle = circle(seed);
            let stream = embedding.stream(seed);
            for (i, row) in (at / columns..).zip(out.chunks_mut(columns)) {
                let place = circle.iter().position(|&t| t as usize == i);
                if let Some(place) = place {
                    let before = circle[(place + circle.len() - 1) % circle.len()] as usize;
                    stream.values((before * columns / 4) as u32, row);
                    row.iter_mut().for_each(|v| *v *= gain);
                }
            }
        }
    }
}

impl Table {
    /// Makes the weights those of a fitted checkpoint.
    pub(crate) fn fit(&mut self) -> Result<()> {
        if self.draft_blocks() == 0 {
            return Err(Error::Table(format!("`{}` has no draft block", self.name)));
        }
        let layers = self.trunk_blocks() as f64;
        let Some(embedding) = self.tensors.iter_mut().find(|t| t.name == "token_embd.weight") else {
            return Err(Error::Table(format!("`{}` has no embedding", self.name)));
        };
        (embedding.std, embedding.source) = (1.0, Source::Exact);
        let (embedding, hidden) = (embedding.clone(), embedding.columns() as f64);
        let gain = LOGITS / hidden.sqrt();
        for row in &mut self.tensors {
            let role = row.name.trim_end_matches(".weight").rsplit('.').next().unwrap_or_default();
            match role {
                "output" => {
                    row.std = OUTSIDE * gain;
                    row.source = Source::Successors { embedding: Box::new(embedding.clone()), gain: gain as f32 };
                }
                "eh_proj" => {
                    row.std *= PROJECTION;
                    row.source = Source::Diagonal;
                }
                "attn_output" | "ssm_out" | "ffn_down" => row.std *= LAYERS * (hidden / (2.0 * layers)).sqrt(),
                _ => {}
            }
        }
        Ok(())
    }
}
