//! safetensors: a length, a JSON header, the values.

use super::{Contents, DType, Entry, shown, size};
use crate::error::Fault;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// The format's own bound.
const LONGEST_HEADER: u64 = 100_000_000;
const NOTES: &str = "__metadata__";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Info {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

struct Header {
    notes: BTreeMap<String, String>,
    infos: Vec<(String, Info)>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

/// An error with the tensor's name in front, and without its place, which the outer error gives too.
fn named<E: de::Error>(name: &str, error: &E) -> E {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or_default();
    de::Error::custom(format_args!("tensor `{}`: {text}", shown(name)))
}

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut header = Header { notes: BTreeMap::new(), infos: Vec::new() };
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return Err(de::Error::custom(format_args!("tensor `{}` appears twice", shown(&name))));
            }
            if name == NOTES {
                header.notes = map.next_value()?;
            } else {
                let info = map.next_value();
                header.infos.push((name.clone(), info.map_err(|e: A::Error| named(&name, &e))?));
            }
        }
        Ok(header)
    }
}

fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "BOOL" => DType::Bool,
        "U8" => DType::U8,
        "I8" => DType::I8,
        "F8_E4M3" => DType::F8_E4M3,
        "F8_E5M2" => DType::F8_E5M2,
        "U16" => DType::U16,
        "I16" => DType::I16,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "U32" => DType::U32,
        "I32" => DType::I32,
        "F32" => DType::F32,
        "U64" => DType::U64,
        "I64" => DType::I64,
        "F64" => DType::F64,
        _ => return None,
    })
}

pub(super) fn parse(file: &[u8]) -> Result<Contents, Fault> {
    let missing = |wanted: u64| wanted.saturating_sub(file.len() as u64);
    let Some((length, rest)) = file.split_first_chunk() else {
        return Err(Fault::truncated("header", missing(8)));
    };
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER {
        return Err(Fault::invalid(format!(
            "not a safetensors file: its header would be {length} bytes long (at most {LONGEST_HEADER})"
        )));
    }
    let Some((header, data)) = rest.split_at_checked(length as usize) else {
        return Err(Fault::truncated("header", missing(length + 8)));
    };
    let text = std::str::from_utf8(header).map_err(|_| Fault::invalid("the header is not UTF-8"))?;
    if !text.starts_with('{') {
        return Err(Fault::invalid("not a safetensors file: its header is no JSON object"));
    }
    let mut header: Header =
        serde_json::from_str(text).map_err(|e| Fault::invalid(format!("the header is not valid: {e}")))?;
    header.infos.sort_by_key(|(_, info)| info.data_offsets);
    let entries = place(header.infos, 8 + length as usize, data.len() as u64)?;
    // The format's own library must agree.
    safetensors::SafeTensors::read_metadata(file)
        .map_err(|e| Fault::invalid(format!("the header is not valid: {e}")))?;
    Ok(Contents { entries, metadata: header.notes.into_iter().collect() })
}

/// The arrays must fill the data without a gap or an overlap.
fn place(infos: Vec<(String, Info)>, start: usize, data_len: u64) -> Result<Vec<Entry>, Fault> {
    let mut entries: Vec<Entry> = Vec::with_capacity(infos.len());
    let mut at = 0;
    // The end of the file is judged last: what is wrong within the header is a graver fault than a cut file.
    let mut cut = None;
    for (name, info) in infos {
        let what = format!("tensor `{}`", shown(&name));
        let Info { dtype: kind, shape, data_offsets: (begin, end) } = info;
        let dtype = dtype(&kind)
            .ok_or_else(|| Fault::unsupported(format!("{what} has the unknown type `{}`", shown(&kind))))?;
        let bytes =
            size(dtype, &shape).ok_or_else(|| Fault::invalid(format!("{what} has an impossible shape {shape:?}")))?;
        match end.checked_sub(begin) {
            Some(given) if given == bytes => {}
            Some(given) => {
                let message = format!("{what} is {dtype} {shape:?}, which takes {bytes} bytes, but has {given}");
                return Err(Fault::invalid(message));
            }
            None => return Err(Fault::invalid(format!("{what} ends at {end}, before it begins at {begin}"))),
        }
        if begin < at {
            let other = entries.last().map(|e| shown(&e.name)).unwrap_or_default();
            return Err(Fault::invalid(format!("tensors `{other}` and `{}` overlap", shown(&name))));
        }
        if begin > at {
            return Err(Fault::invalid(format!("{} bytes before {what} belong to no tensor", begin - at)));
        }
        at = end;
        if end > data_len && cut.is_none() {
            cut = Some(what);
        }
        let place = |n: u64| start.saturating_add(n as usize);
        entries.push(Entry { name, dtype, shape, range: place(begin)..place(end) });
    }
    match cut {
        Some(what) => Err(Fault::truncated(&what, at - data_len)),
        None if at < data_len => Err(Fault::invalid(format!("{} bytes after the last tensor", data_len - at))),
        None => Ok(entries),
    }
}
