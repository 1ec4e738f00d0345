//! One file's header, metadata and tensor infos, checked.

use super::cursor::Cursor;
use super::value::{self, Value};
use crate::error::Fault;
use crate::types::TensorType;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

const MAGIC: &[u8] = b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
/// Length, one character, type and one byte of value.
const SMALLEST_ENTRY: u64 = 8 + 1 + 4 + 1;
/// Length, one character, one dimension, type and offset.
const SMALLEST_INFO: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// Longest name of a key or tensor that is repeated in a message.
const LONGEST_NAME: usize = 200;

/// What a file holds.
#[derive(Debug)]
pub(super) struct Header {
    pub version: u32,
    /// In file order.
    pub metadata: Vec<(String, Value)>,
    pub keys: HashMap<String, usize>,
    /// In file order.
    pub tensors: Vec<Info>,
    /// Bytes from the file's beginning to the last tensor info.
    pub len: usize,
}

/// A tensor's facts and its place in the file.
#[derive(Debug)]
pub(super) struct Info {
    pub name: String,
    pub ty: TensorType,
    pub shape: Vec<u64>,
    pub range: Range<usize>,
}

/// An info before the data section's start is known.
struct RawInfo {
    name: String,
    ty: TensorType,
    shape: Vec<u64>,
    bytes: u64,
    offset: u64,
}

fn shown(name: &str) -> String {
    match name.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => format!("{}...", name[..end].escape_debug()),
        None => name.escape_debug().to_string(),
    }
}

fn name(cursor: &mut Cursor<'_>, what: &str) -> Result<String, Fault> {
    let range = cursor.string(what)?;
    match value::text(cursor.file(), &range) {
        Some("") => Err(Fault::invalid(format!("{what} has an empty name"))),
        Some(text) => Ok(text.to_owned()),
        None => Err(Fault::invalid(format!("{what} has a name that is not UTF-8"))),
    }
}

impl Header {
    pub fn parse(file: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor::new(file, 0);
        if !file.starts_with(MAGIC) {
            let found = file.get(..file.len().min(4)).unwrap_or_default().escape_ascii();
            return Err(Fault::invalid(format!("not a GGUF file: it starts with `{found}`, not `GGUF`")));
        }
        cursor.take(MAGIC.len(), "header")?;
        let version = cursor.u32("header")?;
        if !(2..=3).contains(&version) {
            let hint = if version.swap_bytes() <= 3 { " (a big-endian file)" } else { "" };
            return Err(Fault::unsupported(format!("GGUF version {version}{hint}: only 2 and 3 can be read")));
        }
        let tensor_count = cursor.u64("header")?;
        let metadata_count = cursor.u64("header")?;
        cursor.expect(metadata_count.saturating_mul(SMALLEST_ENTRY), &format!("{metadata_count} metadata keys"))?;
        let (metadata, keys) = entries(&mut cursor, metadata_count)?;
        let alignment = alignment(&metadata, &keys)?;
        cursor.expect(tensor_count.saturating_mul(SMALLEST_INFO), &format!("{tensor_count} tensors"))?;
        let infos = infos(&mut cursor, tensor_count)?;
        let len = cursor.at();
        let tensors = place(infos, len as u64, alignment, file.len() as u64)?;
        Ok(Self { version, metadata, keys, tensors, len })
    }
}

type Entries = (Vec<(String, Value)>, HashMap<String, usize>);

fn entries(cursor: &mut Cursor<'_>, count: u64) -> Result<Entries, Fault> {
    let (mut metadata, mut keys) = (Vec::new(), HashMap::new());
    for index in 0..count {
        let key = name(cursor, &format!("metadata key {index}"))?;
        let value = value::read(cursor, &format!("metadata key `{}`", shown(&key)))?;
        if keys.insert(key.clone(), metadata.len()).is_some() {
            return Err(Fault::invalid(format!("metadata key `{}` appears twice", shown(&key))));
        }
        metadata.push((key, value));
    }
    Ok((metadata, keys))
}

fn alignment(metadata: &[(String, Value)], keys: &HashMap<String, usize>) -> Result<u64, Fault> {
    match keys.get("general.alignment").and_then(|&i| metadata.get(i)) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some((_, Value::Unsigned(n))) if n.is_power_of_two() && *n <= 1 << 30 => Ok(*n),
        Some((key, value)) => Err(Fault::invalid(match value {
            Value::Unsigned(n) => format!("metadata key `{key}` is {n}, not a power of two"),
            other => format!("metadata key `{key}` is {}, not an unsigned integer", other.kind()),
        })),
    }
}

fn infos(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<RawInfo>, Fault> {
    let (mut infos, mut names) = (Vec::new(), HashSet::new());
    for index in 0..count {
        let name = name(cursor, &format!("tensor {index}"))?;
        let what = format!("tensor `{}`", shown(&name));
        let n_dims = cursor.u32(&what)?;
        if !(1..=4).contains(&n_dims) {
            return Err(Fault::invalid(format!("{what} has {n_dims} dimensions, not 1 to 4")));
        }
        let shape = (0..n_dims).map(|_| cursor.u64(&what)).collect::<Result<Vec<_>, _>>()?;
        let id = cursor.u32(&what)?;
        let ty =
            TensorType::from_id(id).ok_or_else(|| Fault::unsupported(format!("{what} has the unknown type {id}")))?;
        let offset = cursor.u64(&what)?;
        let bytes = size(ty, &shape, &what)?;
        if !names.insert(name.clone()) {
            return Err(Fault::invalid(format!("{what} appears twice")));
        }
        infos.push(RawInfo { name, ty, shape, bytes, offset });
    }
    Ok(infos)
}

/// Bytes of a tensor.
fn size(ty: TensorType, shape: &[u64], what: &str) -> Result<u64, Fault> {
    if let Some(zero) = shape.iter().position(|&n| n == 0) {
        return Err(Fault::invalid(format!("{what} has dimension {zero} of size 0")));
    }
    let block = ty.block_elements() as u64;
    let row = shape.first().copied().unwrap_or(1);
    if row % block != 0 {
        return Err(Fault::invalid(format!(
            "{what} is {ty} with rows of {row} values, which is no multiple of {block}"
        )));
    }
    let elements = shape.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
    elements
        .and_then(|n| (n / block).checked_mul(ty.block_bytes() as u64))
        .filter(|&bytes| i64::try_from(bytes).is_ok())
        .ok_or_else(|| Fault::invalid(format!("{what} has an impossible shape {shape:?}")))
}

/// Puts the tensors into the file, which must hold all of them side by side.
fn place(infos: Vec<RawInfo>, header_end: u64, alignment: u64, file_len: u64) -> Result<Vec<Info>, Fault> {
    let start = header_end.next_multiple_of(alignment);
    let mut spans = Vec::with_capacity(infos.len());
    for (i, info) in infos.iter().enumerate() {
        if info.offset % alignment != 0 {
            return Err(Fault::invalid(format!(
                "tensor `{}` lies at offset {}, which is no multiple of {alignment}",
                shown(&info.name),
                info.offset
            )));
        }
        let end = info.offset.checked_add(info.bytes).and_then(|end| end.checked_add(start));
        let end = end.ok_or_else(|| {
            Fault::invalid(format!("tensor `{}` has the impossible offset {}", shown(&info.name), info.offset))
        })?;
        spans.push((start + info.offset, end, i));
    }
    spans.sort_unstable();
    for pair in spans.windows(2) {
        if pair[1].0 < pair[0].1 {
            let (a, b) = (shown(&infos[pair[0].2].name), shown(&infos[pair[1].2].name));
            return Err(Fault::invalid(format!("tensors `{a}` and `{b}` overlap")));
        }
    }
    if let Some(last) = spans.last().filter(|s| s.1 > file_len) {
        let first = spans.iter().find(|s| s.1 > file_len).unwrap_or(last);
        return Err(Fault::truncated(&format!("tensor `{}`", shown(&infos[first.2].name)), last.1 - file_len));
    }
    spans.sort_unstable_by_key(|s| s.2);
    Ok(infos
        .into_iter()
        .zip(spans)
        .map(|(info, (start, end, _))| Info {
            name: info.name,
            ty: info.ty,
            shape: info.shape,
            range: start as usize..end as usize,
        })
        .collect())
}
