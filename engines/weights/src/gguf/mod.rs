//! GGUF files, versions 2 and 3, in one file or split over several.

mod cursor;
mod header;
pub(crate) mod split;
mod value;

use crate::decode::decode_row;
use crate::error::{Error, ErrorKind, Result};
use crate::map::Map;
use crate::types::TensorType;
use header::{Header, Info};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

pub use value::{Array, Value};

/// A model file, or all files of a split one, mapped and checked.
#[derive(Debug)]
pub struct ModelFile {
    maps: Vec<Map>,
    paths: Vec<PathBuf>,
    /// Bytes of each file's header.
    header_lens: Vec<usize>,
    first: Header,
    /// In file order: file and tensor.
    tensors: Vec<(usize, Info)>,
    by_name: HashMap<String, usize>,
}

/// A tensor's facts and its bytes in the map.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// Name in the file.
    pub name: &'a str,
    /// How its values are stored.
    pub ty: TensorType,
    /// Sizes, innermost first: `shape[0]` is the length of a row.
    pub shape: &'a [u64],
    /// All rows.
    pub data: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// Length of a row.
    pub fn columns(&self) -> usize {
        self.shape.first().map_or(1, |&n| n as usize)
    }

    /// Number of rows: all dimensions but the innermost.
    pub fn rows(&self) -> usize {
        self.shape.iter().skip(1).product::<u64>() as usize
    }

    /// Number of values.
    pub fn elements(&self) -> usize {
        self.columns() * self.rows()
    }

    /// Bytes of one row.
    pub fn row(&self, index: usize) -> Option<&'a [u8]> {
        let bytes = self.ty.row_bytes(self.columns())?;
        let start = index.checked_mul(bytes)?;
        self.data.get(start..start.checked_add(bytes)?)
    }

    /// All values, decoded.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.elements()];
        // The sizes were checked when the file was opened.
        let decoded = decode_row(self.ty, self.data, &mut values);
        debug_assert!(decoded.is_ok());
        values
    }
}

impl ModelFile {
    /// Opens a file; of a split model any part may be named, or the folder that holds only this model.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let paths = split::shard_paths(path)?;
        let mut maps = Vec::with_capacity(paths.len());
        let mut headers = Vec::with_capacity(paths.len());
        for shard in &paths {
            let map = Map::open(shard)?;
            headers.push(Header::parse(map.bytes()).map_err(|fault| fault.of(shard))?);
            maps.push(map);
        }
        split::check(&paths, &headers)?;
        let header_lens = headers.iter().map(|h| h.len).collect();
        let mut headers = headers.into_iter();
        let Some(mut first) = headers.next() else {
            return Err(Error::new(ErrorKind::Io, path, "no model file here"));
        };
        let mut tensors: Vec<(usize, Info)> = std::mem::take(&mut first.tensors).into_iter().map(|t| (0, t)).collect();
        for (i, header) in headers.enumerate() {
            tensors.extend(header.tensors.into_iter().map(|t| (i + 1, t)));
        }
        let mut by_name = HashMap::with_capacity(tensors.len());
        for (i, (shard, info)) in tensors.iter().enumerate() {
            if by_name.insert(info.name.clone(), i).is_some() {
                let shard = paths.get(*shard).map_or(path, PathBuf::as_path);
                let message = format!("tensor `{}` is already in another part", info.name.escape_debug());
                return Err(Error::new(ErrorKind::Invalid, shard, message));
            }
        }
        Ok(Self { maps, paths, header_lens, first, tensors, by_name })
    }

    /// The files, in order.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.maps.iter().map(Map::len).sum()
    }

    /// Each file's header as it is stored: metadata and tensor infos.
    pub fn headers(&self) -> impl Iterator<Item = &[u8]> {
        self.maps.iter().zip(&self.header_lens).map(|(map, &len)| map.bytes().get(..len).unwrap_or_default())
    }

    /// The (first) file's name without its ending and part number.
    pub fn stem(&self) -> String {
        let name = self.paths.first().and_then(|p| p.file_stem()).unwrap_or_default().to_string_lossy();
        split::unnumbered(&name).to_owned()
    }

    /// The format's version.
    pub fn version(&self) -> u32 {
        self.first.version
    }

    /// `general.architecture`, or nothing where the file does not say.
    pub fn architecture(&self) -> &str {
        self.get_str("general.architecture").unwrap_or_default()
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.by_name.get(name).and_then(|&i| self.tensors.get(i)).map(|t| self.view(t))
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.tensors.iter().map(|t| self.view(t))
    }

    fn view<'a>(&'a self, (shard, info): &'a (usize, Info)) -> Tensor<'a> {
        // Every range was checked against its file when it was opened.
        let data = self.maps.get(*shard).and_then(|m| m.bytes().get(info.range.clone())).unwrap_or_default();
        Tensor { name: &info.name, ty: info.ty, shape: &info.shape, data }
    }

    /// Asks the kernel to read all files ahead, for a load that will touch every tensor.
    pub fn prefetch(&self) {
        for map in &self.maps {
            map.sequential();
            map.prefetch(0, map.bytes().len());
        }
    }

    /// Asks the kernel to read one tensor ahead.
    pub fn prefetch_tensor(&self, name: &str) {
        if let Some((shard, info)) = self.by_name.get(name).and_then(|&i| self.tensors.get(i))
            && let Some(map) = self.maps.get(*shard)
        {
            map.prefetch(info.range.start, info.range.len());
        }
    }

    fn bytes(&self) -> &[u8] {
        self.maps.first().map(Map::bytes).unwrap_or_default()
    }

    /// All metadata keys, in file order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.first.metadata.iter().map(|(k, _)| k.as_str())
    }

    /// Whether a metadata key is there.
    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// A metadata value.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.first.keys.get(key).and_then(|&i| self.first.metadata.get(i)).map(|(_, v)| v)
    }

    fn array(&self, key: &str) -> Option<&Array> {
        match self.value(key)? {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    /// A whole number that is not negative, stored in any width.
    pub fn get_u64(&self, key: &str) -> Option<u64> {
        match self.value(key)? {
            Value::Unsigned(n) => Some(*n),
            Value::Signed(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    /// A whole number, stored in any width.
    pub fn get_i64(&self, key: &str) -> Option<i64> {
        match self.value(key)? {
            Value::Unsigned(n) => i64::try_from(*n).ok(),
            Value::Signed(n) => Some(*n),
            _ => None,
        }
    }

    /// A real number.
    pub fn get_f32(&self, key: &str) -> Option<f32> {
        match self.value(key)? {
            Value::Float(n) => Some(*n as f32),
            _ => None,
        }
    }

    /// A truth value.
    pub fn get_bool(&self, key: &str) -> Option<bool> {
        match self.value(key)? {
            Value::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// A string.
    pub fn get_str(&self, key: &str) -> Option<&str> {
        match self.value(key)? {
            Value::Str(range) => value::text(self.bytes(), range),
            _ => None,
        }
    }

    /// An array of whole numbers of any width, none of them negative.
    pub fn get_array_u64(&self, key: &str) -> Option<Vec<u64>> {
        self.array(key)?.signed(self.bytes())?.into_iter().map(|n| u64::try_from(n).ok()).collect()
    }

    /// An array of whole numbers of any width.
    pub fn get_array_i64(&self, key: &str) -> Option<Vec<i64>> {
        self.array(key)?.signed(self.bytes())?.into_iter().map(|n| i64::try_from(n).ok()).collect()
    }

    /// An array of real numbers.
    pub fn get_array_f32(&self, key: &str) -> Option<Vec<f32>> {
        Some(self.array(key)?.floats(self.bytes())?.into_iter().map(|n| n as f32).collect())
    }

    /// An array of truth values.
    pub fn get_array_bool(&self, key: &str) -> Option<Vec<bool>> {
        self.array(key)?.bools(self.bytes())
    }

    /// An array of strings.
    pub fn get_array_str(&self, key: &str) -> Option<Vec<&str>> {
        self.array(key)?.strings(self.bytes())
    }

    /// Whole numbers, one a layer: an array of that length, or one number that holds for all.
    pub fn get_u64_per_layer(&self, key: &str, layers: usize) -> Option<Vec<u64>> {
        match self.get_u64(key) {
            Some(n) => Some(vec![n; layers]),
            None => self.get_array_u64(key).filter(|a| a.len() == layers),
        }
    }

    /// Real numbers, one a layer: an array of that length, or one number that holds for all.
    pub fn get_f32_per_layer(&self, key: &str, layers: usize) -> Option<Vec<f32>> {
        match self.get_f32(key) {
            Some(n) => Some(vec![n; layers]),
            None => self.get_array_f32(key).filter(|a| a.len() == layers),
        }
    }

    /// Like `get_u64`, with an error that names the key and what it holds instead.
    pub fn require_u64(&self, key: &str) -> Result<u64> {
        self.get_u64(key).ok_or_else(|| self.wrong(key, "a whole number that is not negative"))
    }

    /// Like `get_f32`, with an error that names the key and what it holds instead.
    pub fn require_f32(&self, key: &str) -> Result<f32> {
        self.get_f32(key).ok_or_else(|| self.wrong(key, "a real number"))
    }

    /// Like `get_str`, with an error that names the key and what it holds instead.
    pub fn require_str(&self, key: &str) -> Result<&str> {
        self.get_str(key).ok_or_else(|| self.wrong(key, "a string"))
    }

    /// Like `tensor`, with an error that names it.
    pub fn require_tensor(&self, name: &str) -> Result<Tensor<'_>> {
        self.tensor(name).ok_or_else(|| self.fault(format!("tensor `{name}` is missing")))
    }

    fn wrong(&self, key: &str, wanted: &str) -> Error {
        self.fault(match self.value(key) {
            None => format!("metadata key `{key}` is missing"),
            Some(value) => format!("metadata key `{key}` is {}, not {wanted}", value.kind()),
        })
    }

    fn fault(&self, message: String) -> Error {
        Error::new(ErrorKind::Missing, self.paths.first().map_or(Path::new(""), PathBuf::as_path), message)
    }
}
