//! What a checkpoint is made of.

use crate::error::{Error, Result};
use crate::fill::Stream;
use crate::fitted;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Key, type, value.
pub type Metadata = (String, String, serde_json::Value);

/// A checkpoint, apart from its weights' values.
#[derive(Debug, Clone, Deserialize)]
pub struct Table {
    /// Name of the configuration.
    pub name: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Seed of all tensors.
    pub seed: u32,
    /// Key, type, value; without the tokenizer's.
    pub metadata: Vec<Metadata>,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Tensors in file order.
    pub tensors: Vec<TensorRow>,
    /// A prompt.
    #[serde(default)]
    pub tokens: Vec<u32>,
    /// CRC-32 of all values as 32-bit floats, in order.
    #[serde(default)]
    pub fill_crc32: Option<String>,
    /// The trunk's greedy token after the prompt, then the drafts chained from it. Under `only`, where an architecture's
    /// draft block has one reading.
    #[serde(default)]
    pub draft_tokens: BTreeMap<String, Vec<u32>>,
    /// Rows of the prompt that the stored taps are of.
    #[serde(default)]
    pub tap_rows: Vec<usize>,
    /// Stored outputs: name, shape, first value.
    #[serde(default)]
    pub outputs: Vec<(String, Vec<usize>, usize)>,
}

/// One token a byte, some special tokens, and padding.
#[derive(Debug, Clone, Deserialize)]
pub struct Tokenizer {
    /// `tokenizer.ggml.model`.
    pub model: String,
    /// `tokenizer.ggml.pre`.
    pub pre: String,
    /// Number of tokens.
    pub size: usize,
    /// Special tokens, from 259 on.
    pub specials: Vec<String>,
    /// End of text.
    pub eos: u32,
    /// End of turn.
    pub eot: u32,
    /// Whether a beginning-of-text token goes first.
    pub add_bos: bool,
    /// The chat template.
    pub chat_template: String,
}

/// Name, shape (outermost first), mean, standard deviation.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "(String, Vec<u64>, f64, f64)")]
pub struct TensorRow {
    /// Name in the file.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<u64>,
    /// Mean of the values.
    pub mean: f64,
    /// Standard deviation of the values.
    pub std: f64,
    /// Where the values come from.
    pub source: Source,
}

/// Where a tensor's values come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// From its stream; random blocks do as well.
    Stream,
    /// From its stream exactly.
    Exact,
    /// From its stream, with 1 added where row and column have the same number.
    Diagonal,
    /// Rows of tokens on the circle of a fitted checkpoint: their predecessors' embeddings, times a gain. All others:
    /// from the stream.
    Successors {
        /// The embedding.
        embedding: Box<TensorRow>,
        /// The gain.
        gain: f32,
    },
}

impl From<(String, Vec<u64>, f64, f64)> for TensorRow {
    fn from((name, shape, mean, std): (String, Vec<u64>, f64, f64)) -> Self {
        Self { name, shape, mean, std, source: Source::Stream }
    }
}

impl TensorRow {
    /// Number of values.
    pub fn elements(&self) -> usize {
        self.shape.iter().product::<u64>() as usize
    }

    /// Length of a row.
    pub fn columns(&self) -> usize {
        self.shape.last().map_or(1, |&n| n as usize)
    }

    /// Whether the tensor is stored in the type asked for: two dimensions or more, the last two over 8. All others
    /// stay 32-bit floats.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() >= 2 && self.shape.iter().rev().take(2).all(|&n| n > 8)
    }

    /// The values' stream.
    pub fn stream(&self, seed: u32) -> Stream {
        Stream::new(&self.name, seed, self.mean, self.std)
    }

    /// The values from number `at` on, which is a multiple of four and for a fitted tensor starts a row.
    pub(crate) fn values(&self, seed: u32, at: usize, out: &mut [f32]) {
        fitted::values(self, seed, at, out);
    }

    /// Values to make at a time: whole blocks of every type and of the generator, and whole rows.
    pub(crate) fn piece(&self) -> usize {
        let most = 1 << 16;
        match self.source {
            Source::Successors { .. } => (most / self.columns()).max(1) * self.columns(),
            _ => most,
        }
    }
}

impl Table {
    /// Reads a table; it may have expected outputs in it.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).map_err(|e| Error::io(path, e))?;
        let table: Self =
            serde_json::from_slice(&text).map_err(|source| Error::Json { path: path.to_owned(), source })?;
        table.check()?;
        Ok(table)
    }

    fn check(&self) -> Result<()> {
        for row in &self.tensors {
            let elements = row.shape.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
            // A stream has 2^34 values.
            if row.shape.is_empty() || row.shape.len() > 4 || !elements.is_some_and(|n| (1..=1 << 34).contains(&n)) {
                return Err(Error::Table(format!("tensor `{}` has the impossible shape {:?}", row.name, row.shape)));
            }
        }
        Ok(())
    }

    /// All values of a tensor of the table.
    pub fn values(&self, tensor: &str) -> Option<Vec<f32>> {
        let row = self.tensors.iter().find(|r| r.name == tensor)?;
        let mut values = vec![0.0; row.elements()];
        row.values(self.seed, 0, &mut values);
        Some(values)
    }

    /// CRC-32 of all values as 32-bit floats, in file order; `fill_crc32` says what it must be.
    pub fn crc32(&self) -> u32 {
        let mut crc = crc32fast::Hasher::new();
        for row in &self.tensors {
            let mut values = vec![0.0; row.piece()];
            for at in (0..row.elements()).step_by(row.piece()) {
                let len = values.len().min(row.elements() - at);
                row.values(self.seed, at, &mut values[..len]);
                values[..len].iter().for_each(|v| crc.update(&v.to_le_bytes()));
            }
        }
        crc.finalize()
    }
}
