//! What a checkpoint is made of.

use crate::error::{Error, Result};
use crate::fill::Stream;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

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
    pub metadata: Vec<(String, String, serde_json::Value)>,
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
}

impl From<(String, Vec<u64>, f64, f64)> for TensorRow {
    fn from((name, shape, mean, std): (String, Vec<u64>, f64, f64)) -> Self {
        Self { name, shape, mean, std }
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
        row.stream(self.seed).values(0, &mut values);
        Some(values)
    }

    /// CRC-32 of all values as 32-bit floats, in file order; `fill_crc32` says what it must be.
    pub fn crc32(&self) -> u32 {
        let mut crc = crc32fast::Hasher::new();
        let mut values = vec![0.0; 1 << 14];
        for row in &self.tensors {
            let stream = row.stream(self.seed);
            let mut at = 0;
            while at < row.elements() {
                let len = values.len().min(row.elements() - at);
                stream.values((at / 4) as u32, &mut values[..len]);
                values[..len].iter().for_each(|v| crc.update(&v.to_le_bytes()));
                at += len;
            }
        }
        crc.finalize()
    }
}
