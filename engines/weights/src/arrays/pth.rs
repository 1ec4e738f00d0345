//! PyTorch's .pth and .pt: an archive of one pickle and an entry for every storage.

use super::pickle::{self, Id, Node, Storage, Tensor};
use super::{Contents, Entry, shown, size, zip};
use crate::error::Fault;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Longest pickle; those of real models have a few megabytes.
const LONGEST_PICKLE: usize = 32 << 20;
/// Values looked at in search of tensors, their nesting, and the longest name.
const MOST_VISITS: usize = 1 << 18;
const DEEPEST: usize = 16;
const LONGEST_NAME: usize = 1024;

pub(super) fn parse(file: &[u8]) -> Result<Contents, Fault> {
    let archive = zip::entries(file)?;
    let mut pickles = archive.keys().filter_map(|name| name.strip_suffix("data.pkl"));
    let prefix = match (pickles.next(), pickles.next()) {
        (Some(prefix), None) => prefix,
        (None, _) => return Err(Fault::invalid("an archive without `data.pkl`: not a file of PyTorch")),
        _ => return Err(Fault::invalid("an archive with more than one `data.pkl`")),
    };
    let entry = |name: &str| archive.get(&format!("{prefix}{name}")).and_then(|range| file.get(range.clone()));
    if entry("byteorder").is_some_and(|order| order != b"little") {
        return Err(Fault::unsupported("the values are not little-endian"));
    }
    let pickle = entry("data.pkl").unwrap_or_default();
    if pickle.len() > LONGEST_PICKLE {
        return Err(Fault::unsupported(format!("a pickle of {} bytes (at most {LONGEST_PICKLE})", pickle.len())));
    }
    let (nodes, root) = pickle::load(pickle)?;
    let mut search =
        Search { nodes: &nodes, archive: &archive, prefix, visits: 0, names: HashSet::new(), entries: Vec::new() };
    search.visit(root, "", 0)?;
    Ok(Contents { entries: search.entries, metadata: Vec::new() })
}

struct Search<'a> {
    nodes: &'a [Node],
    archive: &'a HashMap<String, Range<usize>>,
    prefix: &'a str,
    visits: usize,
    names: HashSet<String>,
    entries: Vec<Entry>,
}

impl Search<'_> {
    /// Collects the tensors below a value.
    fn visit(&mut self, id: Id, name: &str, depth: usize) -> Result<(), Fault> {
        self.visits += 1;
        if self.visits > MOST_VISITS || depth > DEEPEST || name.len() > LONGEST_NAME {
            return Err(Fault::unsupported(format!("`{}` is nested too deep or holds too much", shown(name))));
        }
        let joined = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
        let nodes = self.nodes;
        match nodes.get(id) {
            Some(Node::Tensor(tensor)) => {
                let entry = self.entry(name, tensor)?;
                if !self.names.insert(name.to_owned()) {
                    return Err(Fault::invalid(format!("tensor `{}` appears twice", shown(name))));
                }
                self.entries.push(entry);
            }
            Some(Node::Dict(items)) => {
                for &(key, value) in items {
                    match nodes.get(key) {
                        Some(Node::Str(key)) => self.visit(value, &joined(key), depth + 1)?,
                        Some(Node::Int(key)) => self.visit(value, &joined(&key.to_string()), depth + 1)?,
                        _ => {}
                    }
                }
            }
            Some(Node::List(items) | Node::Tuple(items)) => {
                for (i, &item) in items.iter().enumerate() {
                    self.visit(item, &joined(&i.to_string()), depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn entry(&self, name: &str, tensor: &Tensor) -> Result<Entry, Fault> {
        let what = format!("tensor `{}`", shown(name));
        let Some(Node::Storage(storage)) = self.nodes.get(tensor.storage) else {
            return Err(Fault::invalid(format!("{what} has no storage")));
        };
        let Tensor { offset, shape, strides, .. } = tensor;
        let Storage { dtype, key, len } = storage;
        let impossible = || Fault::invalid(format!("{what} has an impossible shape {shape:?}"));
        let bytes = size(*dtype, shape).ok_or_else(impossible)?;
        let range = self.archive.get(&format!("{}data/{key}", self.prefix));
        let range = range.ok_or_else(|| {
            Fault::invalid(format!("{what}: the archive has no entry `{}data/{}`", shown(self.prefix), shown(key)))
        })?;
        if len.checked_mul(dtype.size() as u64) != Some(range.len() as u64) {
            return Err(Fault::invalid(format!(
                "{what}: its storage should have {len} values of {dtype}, but has {} bytes",
                range.len()
            )));
        }
        let mut step = 1_u64;
        for (&n, &stride) in shape.iter().zip(strides).rev() {
            if n > 1 && stride != step && bytes > 0 {
                return Err(Fault::unsupported(format!(
                    "{what} is not stored row by row (shape {shape:?}, strides {strides:?})"
                )));
            }
            step = step.saturating_mul(n.max(1));
        }
        let start = offset.checked_mul(dtype.size() as u64);
        let end = start.and_then(|start| start.checked_add(bytes)).filter(|&end| end <= range.len() as u64);
        let (Some(start), Some(_)) = (start, end) else {
            return Err(Fault::invalid(format!("{what} reaches beyond its storage of {len} values")));
        };
        let start = range.start + start as usize;
        Ok(Entry { name: name.to_owned(), dtype: *dtype, shape: shape.clone(), range: start..start + bytes as usize })
    }
}
