//! A forward pass of qwen35 in 64-bit floats, token by token, from any GGUF file: slow, plain, and no part of an engine.
//!
//! It reads files with `ns-weights` and shares nothing else with what it is compared to. Besides the tensors of real files
//! it knows those of llama.cpp's random test files: `NAME.scale`, a factor of a product, and biases of queries, keys and
//! values.

mod draft;
mod math;
mod params;
mod plain;
mod trunk;

pub use draft::{Drafted, Speculation};
pub use params::Params;
pub use plain::write_plain;
pub use trunk::Sequence;

use crate::error::{Error, Result};
use ns_weights::{ModelFile, TensorType};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

/// What is called with each named row: llama.cpp's name, the layer, the values.
pub type Tap<'a> = &'a mut dyn FnMut(&str, Option<usize>, &[f64]);

/// Models with no more values than this (2 GB as decoded) are decoded once, others a row at a time whenever it is used.
const KEPT: usize = 1 << 29;

/// A tensor as its file stores it.
struct Stored {
    file: usize,
    name: String,
    columns: usize,
    ty: TensorType,
    /// Decoded values, from the first use on.
    values: OnceLock<Vec<f32>>,
}

/// A model to run.
pub struct Model {
    /// Its dimensions.
    pub params: Params,
    files: Vec<ModelFile>,
    tensors: BTreeMap<String, Stored>,
    keeps: bool,
}

impl Model {
    /// Opens a model, and a file with its draft block where that is beside it.
    pub fn open(path: &Path, draft: Option<&Path>) -> Result<Self> {
        let open = |path: &Path| ModelFile::open(path).map_err(|e| Error::Table(e.to_string()));
        let mut files = vec![open(path)?];
        if let Some(draft) = draft {
            files.push(open(draft)?);
        }
        let mut tensors = BTreeMap::new();
        for (file, model) in files.iter().enumerate() {
            for tensor in model.tensors() {
                let columns = tensor.shape.first().map_or(1, |&n| n as usize);
                let (name, ty) = (tensor.name.to_owned(), tensor.ty);
                let stored = Stored { file, name, columns, ty, values: OnceLock::new() };
                tensors.entry(tensor.name.to_owned()).or_insert(stored);
            }
        }
        // the file of a draft block has the number of blocks with it
        let params = files.last().map(Params::read).transpose()?;
        let params = params.ok_or_else(|| Error::Table("no file".into()))?;
        let values = |file: &ModelFile| file.tensors().map(|t| t.shape.iter().product::<u64>() as usize).sum::<usize>();
        let keeps = files.iter().map(values).sum::<usize>() <= KEPT;
        let model = Self { params, files, tensors, keeps };
        model.lookup("token_embd.weight")?;
        Ok(model)
    }

    fn lookup(&self, name: &str) -> Result<&Stored> {
        self.tensors.get(name).ok_or_else(|| Error::Table(format!("the file has no tensor `{name}`")))
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn data(&self, tensor: &Stored) -> Result<&[u8]> {
        self.files
            .get(tensor.file)
            .and_then(|f| f.tensor(&tensor.name))
            .map(|t| t.data)
            .ok_or_else(|| Error::Table(format!("the file has no tensor `{}`", tensor.name)))
    }

    /// All values, decoded once.
    fn kept<'a>(&'a self, tensor: &'a Stored) -> Result<&'a [f32]> {
        if tensor.values.get().is_none() {
            let data = self.data(tensor)?;
            let blocks = data.len() / tensor.ty.block_bytes();
            let mut values = vec![0.0; blocks * tensor.ty.block_elements()];
            decode(tensor, data, &mut values)?;
            // another thread's are the same
            drop(tensor.values.set(values));
        }
        Ok(tensor.values.get().map_or(&[], Vec::as_slice))
    }

    /// All values of a vector.
    fn vector(&self, name: &str) -> Result<Vec<f64>> {
        Ok(self.kept(self.lookup(name)?)?.iter().map(|&v| f64::from(v)).collect())
    }

    fn columns(&self, name: &str) -> Result<usize> {
        Ok(self.lookup(name)?.columns)
    }

    /// A row of a matrix.
    fn row(&self, name: &str, row: usize) -> Result<Vec<f64>> {
        let tensor = self.lookup(name)?;
        let bytes = tensor.ty.row_bytes(tensor.columns).unwrap_or(0);
        let data = self.data(tensor)?.chunks_exact(bytes.max(1)).nth(row);
        let data = data.ok_or_else(|| Error::Table(format!("tensor `{name}` has no row {row}")))?;
        let mut out = vec![0.0; tensor.columns];
        decode(tensor, data, &mut out)?;
        Ok(out.into_iter().map(f64::from).collect())
    }

    /// The product of the matrix NAME.weight with x, times NAME.scale, plus NAME.bias, where the file has them.
    fn linear(&self, name: &str, x: &[f64]) -> Result<Vec<f64>> {
        let tensor = self.lookup(&format!("{name}.weight"))?;
        if tensor.columns != x.len() {
            let (wanted, found) = (x.len(), tensor.columns);
            return Err(Error::Table(format!(
                "tensor `{name}.weight` has rows of {found} values, {wanted} are wanted"
            )));
        }
        let mut y = Vec::new();
        if self.keeps {
            y.extend(self.kept(tensor)?.chunks_exact(tensor.columns).map(|row| math::dot(row, x)));
        } else {
            let bytes = tensor.ty.row_bytes(tensor.columns).unwrap_or(0);
            let mut row = vec![0.0; tensor.columns];
            for data in self.data(tensor)?.chunks_exact(bytes.max(1)) {
                decode(tensor, data, &mut row)?;
                y.push(math::dot(&row, x));
            }
        }
        if self.has(&format!("{name}.scale")) {
            let scale = self.vector(&format!("{name}.scale"))?.first().copied().unwrap_or(1.0);
            y.iter_mut().for_each(|v| *v *= scale);
        }
        if self.has(&format!("{name}.bias")) {
            y.iter_mut().zip(self.vector(&format!("{name}.bias"))?).for_each(|(y, b)| *y += b);
        }
        Ok(y)
    }

    /// rms(x) times the vector NAME.weight.
    fn norm(&self, name: &str, x: &[f64]) -> Result<Vec<f64>> {
        Ok(math::rms(x, &self.vector(&format!("{name}.weight"))?, self.params.eps))
    }

    /// The logits of a row that the last norm has gone over.
    pub fn logits(&self, hidden: &[f64]) -> Result<Vec<f64>> {
        self.linear(if self.has("output.weight") { "output" } else { "token_embd" }, hidden)
    }

    /// A sequence of no tokens.
    pub fn sequence(&self) -> Sequence<'_> {
        Sequence::new(self)
    }
}

fn decode(tensor: &Stored, data: &[u8], out: &mut [f32]) -> Result<()> {
    ns_weights::decode_row(tensor.ty, data, out).map_err(|e| Error::Table(format!("`{}`: {e}", tensor.name)))
}

/// The place of the largest value, the first of equals.
pub fn best(logits: &[f64]) -> u32 {
    let mut best = 0;
    for (i, &v) in logits.iter().enumerate() {
        if v > logits[best] {
            best = i;
        }
    }
    best as u32
}
