//! Files of plain arrays: safetensors, and PyTorch's .pth.

mod pickle;
mod pth;
mod safetensors;
mod zip;

use crate::error::{Error, ErrorKind, Fault, Result};
use crate::map::Map;
use half::{bf16, f16};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Type of an array's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)]
pub enum DType {
    Bool,
    U8,
    I8,
    F8_E4M3,
    F8_E5M2,
    U16,
    I16,
    F16,
    BF16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
}

impl DType {
    /// Bytes of a value.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 | Self::F8_E4M3 | Self::F8_E5M2 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// An array's facts and its place in the file.
#[derive(Debug)]
struct Entry {
    name: String,
    dtype: DType,
    shape: Vec<u64>,
    range: Range<usize>,
}

/// What a file holds.
#[derive(Debug)]
struct Contents {
    entries: Vec<Entry>,
    metadata: Vec<(String, String)>,
}

/// A mapped and checked file of arrays.
#[derive(Debug)]
pub struct ArrayFile {
    path: PathBuf,
    map: Map,
    contents: Contents,
    by_name: HashMap<String, usize>,
}

/// An array's facts and its bytes in the map.
#[derive(Debug, Clone, Copy)]
pub struct ArrayView<'a> {
    /// Name in the file; of a nested dictionary the keys, joined by dots.
    pub name: &'a str,
    /// Type of the values.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub shape: &'a [u64],
    /// All values, row-major, little-endian; not aligned.
    pub data: &'a [u8],
}

impl ArrayView<'_> {
    /// Number of values.
    pub fn elements(&self) -> usize {
        self.data.len() / self.dtype.size()
    }

    /// All values, where they are real numbers of 16 bits or more.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        let data = self.data;
        Some(match self.dtype {
            DType::F32 => data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            DType::F16 => data.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
            DType::BF16 => data.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
            DType::F64 => data.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
            _ => return None,
        })
    }
}

impl ArrayFile {
    /// Opens a safetensors or .pth file; its content says which.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let map = Map::open(path)?;
        let contents = parse(map.bytes()).map_err(|fault| fault.of(path))?;
        let by_name = contents.entries.iter().enumerate().map(|(i, e)| (e.name.clone(), i)).collect();
        Ok(Self { path: path.to_owned(), map, contents, by_name })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.map.len()
    }

    /// An array by name.
    pub fn array(&self, name: &str) -> Option<ArrayView<'_>> {
        self.by_name.get(name).and_then(|&i| self.contents.entries.get(i)).map(|e| self.view(e))
    }

    /// Like `array`, with an error that names it.
    pub fn require(&self, name: &str) -> Result<ArrayView<'_>> {
        self.array(name)
            .ok_or_else(|| Error::new(ErrorKind::Missing, &self.path, format!("tensor `{name}` is missing")))
    }

    /// All arrays, in the order of their data or of the dictionary.
    pub fn arrays(&self) -> impl ExactSizeIterator<Item = ArrayView<'_>> {
        self.contents.entries.iter().map(|e| self.view(e))
    }

    fn view<'a>(&'a self, entry: &'a Entry) -> ArrayView<'a> {
        // Every range was checked when the file was opened.
        let data = self.map.bytes().get(entry.range.clone()).unwrap_or_default();
        ArrayView { name: &entry.name, dtype: entry.dtype, shape: &entry.shape, data }
    }

    /// The file's own notes (safetensors `__metadata__`).
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.contents.metadata.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Asks the kernel to read the file ahead.
    pub fn prefetch(&self) {
        self.map.prefetch(0, self.map.bytes().len());
    }
}

fn parse(file: &[u8]) -> std::result::Result<Contents, Fault> {
    match file {
        [b'P', b'K', 3, 4, ..] => pth::parse(file),
        [0x80, 2..=5, ..] => Err(Fault::unsupported(
            "a bare pickle, as old PyTorch wrote: save it again with PyTorch 1.6 or later, or convert it to safetensors",
        )),
        _ => safetensors::parse(file),
    }
}

/// Bytes of an array of so many values.
fn size(dtype: DType, shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(dtype.size() as u64, |n, &d| n.checked_mul(d)).filter(|&n| i64::try_from(n).is_ok())
}

/// A name fit for a message.
fn shown(name: &str) -> String {
    let text: String = name.chars().take(200).flat_map(char::escape_debug).collect();
    if name.chars().nth(200).is_some() { text + "..." } else { text }
}
