//! Writing of GGUF files.

use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::table::{Source, Table, TensorRow};
use crate::types::Types;
use crate::vocabulary::vocabulary;
use serde_json::Value;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Tensors begin at multiples of this.
pub(crate) const ALIGNMENT: usize = 32;
/// Random blocks made at a time.
const BLOCKS: usize = 1 << 12;
/// Checkpoints with more values than this are filled with random blocks if nothing else is asked.
const MANY: usize = 1 << 26;

/// What matrices are filled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// The table's values, quantised.
    Values,
    /// Random blocks with the table's deviations.
    Blocks,
}

impl Fill {
    /// Names of the command line.
    pub const ALL: [(&'static str, Self); 2] = [("values", Self::Values), ("blocks", Self::Blocks)];

    /// The fill of a name.
    pub fn named(name: &str) -> Result<Self> {
        Self::ALL.iter().find(|(n, _)| *n == name).map(|&(_, f)| f).ok_or_else(|| Error::Unknown {
            what: "fill",
            name: name.to_owned(),
            known: Self::ALL.map(|(n, _)| n).join(", "),
        })
    }

    /// Values; blocks where a type takes no values, or where there are more than 67 million values.
    fn usual(table: &Table, types: Types) -> Self {
        let many = table.tensors.iter().map(TensorRow::elements).sum::<usize>() > MANY;
        if many || types.of(table).iter().any(|s| !s.takes_values()) { Self::Blocks } else { Self::Values }
    }
}

/// How a checkpoint is written.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Types of the matrices.
    pub types: Types,
    /// What they are filled with; by itself, what [`Fill`] says.
    pub fill: Option<Fill>,
    /// Number of files.
    pub parts: usize,
}

impl From<Types> for Layout {
    fn from(types: Types) -> Self {
        Self { types, fill: None, parts: 1 }
    }
}

impl From<Storage> for Layout {
    fn from(storage: Storage) -> Self {
        Types::Single(storage).into()
    }
}

/// A tensor, and how it is stored.
struct Stored<'a> {
    row: &'a TensorRow,
    storage: Storage,
    blocks: Option<Blocks>,
}

impl Stored<'_> {
    fn bytes(&self) -> usize {
        self.storage.bytes(self.row.elements()).next_multiple_of(ALIGNMENT)
    }

    fn write(&self, seed: u32, writer: &mut impl Write) -> std::io::Result<()> {
        let elements = self.row.elements();
        let mut bytes = Vec::new();
        if let Some(blocks) = &self.blocks {
            let all = elements / self.storage.facts().values;
            for first in (0..all).step_by(BLOCKS) {
                blocks.write(first, BLOCKS.min(all - first), &mut bytes);
                writer.write_all(&bytes)?;
            }
        } else {
            let piece = self.row.piece();
            let mut values = vec![0.0; piece.min(elements)];
            for at in (0..elements).step_by(piece) {
                let len = values.len().min(elements - at);
                self.row.values(seed, at, &mut values[..len]);
                bytes.clear();
                self.storage.store(&values[..len], &mut bytes);
                writer.write_all(&bytes)?;
            }
        }
        writer.write_all(&vec![0; self.bytes() - self.storage.bytes(elements)])
    }
}

/// Writes a table's checkpoint, with its matrices as 32-bit floats, from the table's file.
pub fn write_table(table: impl AsRef<Path>, out: impl AsRef<Path>) -> Result<()> {
    write(&Table::load(table.as_ref())?, Storage::F32, out).map(|_| ())
}

/// Writes a checkpoint, and gives its files: the one named, or where there are several STEM-00001-of-00003.gguf.
pub fn write(table: &Table, layout: impl Into<Layout>, out: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    let (layout, out) = (layout.into(), out.as_ref());
    let tensors = plan(table, layout)?;
    if !(1..=tensors.len()).contains(&layout.parts) {
        return Err(Error::Table(format!("{} parts of {} tensors", layout.parts, tensors.len())));
    }
    let mut files = Vec::new();
    for (number, part) in parts(&tensors, layout.parts).into_iter().enumerate() {
        let path = part_path(out, number, layout.parts);
        let header = header(table, layout, (number, tensors.len()), part)?;
        let written = write_part(&path, &header, part, table.seed);
        files.push(path.clone());
        if let Err(error) = written {
            // Half a checkpoint is worse than none.
            files.iter().for_each(|file| drop(std::fs::remove_file(file)));
            return Err(Error::io(&path, error));
        }
    }
    Ok(files)
}

fn write_part(path: &Path, header: &[u8], part: &[Stored<'_>], seed: u32) -> std::io::Result<()> {
    let mut writer = BufWriter::with_capacity(1 << 20, File::create(path)?);
    writer.write_all(header)?;
    part.iter().try_for_each(|tensor| tensor.write(seed, &mut writer))?;
    writer.flush()
}

fn part_path(out: &Path, number: usize, parts: usize) -> PathBuf {
    if parts == 1 {
        return out.to_owned();
    }
    let stem = out.file_stem().unwrap_or_default().to_string_lossy();
    out.with_file_name(format!("{stem}-{:05}-of-{parts:05}.gguf", number + 1))
}

/// Tensors in as many groups as there are parts, about equal in bytes.
fn parts<'a, 'b>(tensors: &'a [Stored<'b>], parts: usize) -> Vec<&'a [Stored<'b>]> {
    let all: usize = tensors.iter().map(Stored::bytes).sum();
    let (mut groups, mut rest, mut written) = (Vec::new(), tensors, 0);
    for part in 1..=parts {
        let mut len = 0;
        // enough for this part, and at least one tensor for each part to come
        while rest.len() - len > parts - part && (part == parts || len == 0 || written < all / parts * part) {
            written += rest[len].bytes();
            len += 1;
        }
        let (group, others) = rest.split_at(len);
        groups.push(group);
        rest = others;
    }
    groups
}

fn plan(table: &Table, layout: Layout) -> Result<Vec<Stored<'_>>> {
    let fill = layout.fill.unwrap_or_else(|| Fill::usual(table, layout.types));
    let tensors = table.tensors.iter().zip(layout.types.of(table));
    tensors
        .map(|(row, storage)| {
            if !matches!(row.source, Source::Stream) {
                return Ok(Stored { row, storage: storage.taking_values(), blocks: None });
            }
            let blocks = match fill {
                Fill::Blocks => Blocks::new(storage, row.stream(table.seed), row.std),
                Fill::Values if storage.takes_values() => None,
                Fill::Values => {
                    return Err(Error::Table(format!(
                        "`{}` would be {}, which takes no values here, only random blocks",
                        row.name,
                        storage.name()
                    )));
                }
            };
            Ok(Stored { row, storage, blocks })
        })
        .collect()
}

/// The head of a part: its number, and the number of tensors of all.
fn header(table: &Table, layout: Layout, part: (usize, usize), tensors: &[Stored<'_>]) -> Result<Vec<u8>> {
    let mut entries = Entries::default();
    if part.0 == 0 {
        describe(table, layout.types, &mut entries)?;
    }
    if layout.parts > 1 {
        entries.entry("split.no", 2, &(part.0 as u16).to_le_bytes());
        entries.entry("split.count", 2, &(layout.parts as u16).to_le_bytes());
        entries.entry("split.tensors.count", 5, &(part.1 as i32).to_le_bytes());
    }
    let mut header = start(tensors.len(), &entries);
    let mut offset = 0_usize;
    for tensor in tensors {
        header.extend(tensor_info(&tensor.row.name, &tensor.row.shape, tensor.storage, offset));
        offset += tensor.bytes();
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT), 0);
    Ok(header)
}

/// What a file begins with: its number of tensors, and the metadata.
pub(crate) fn start(tensors: usize, entries: &Entries) -> Vec<u8> {
    let mut header = b"GGUF".to_vec();
    header.extend(3_u32.to_le_bytes());
    header.extend((tensors as u64).to_le_bytes());
    header.extend(entries.count.to_le_bytes());
    header.extend(&entries.bytes);
    header
}

/// Where a tensor is and what it looks like. Shapes are given outermost first.
pub(crate) fn tensor_info(name: &str, shape: &[u64], storage: Storage, offset: usize) -> Vec<u8> {
    let mut info = string(name);
    info.extend((shape.len() as u32).to_le_bytes());
    info.extend(shape.iter().rev().flat_map(|n| n.to_le_bytes()));
    info.extend(storage.facts().number.to_le_bytes());
    info.extend((offset as u64).to_le_bytes());
    info
}

/// Metadata of the whole checkpoint.
fn describe(table: &Table, types: Types, entries: &mut Entries) -> Result<()> {
    for (key, kind, value) in &table.metadata {
        if key == "general.file_type" && types != Types::Single(Storage::F32) {
            entries.number(key, types.file_type());
        } else {
            entries.any(key, kind, value)?;
        }
    }
    let tokenizer = &table.tokenizer;
    let tokens = vocabulary(tokenizer);
    entries.text("tokenizer.ggml.model", &tokenizer.model);
    entries.text("tokenizer.ggml.pre", &tokenizer.pre);
    entries.array("tokenizer.ggml.tokens", 8, tokens.iter().map(|(t, _)| string(t)));
    entries.array("tokenizer.ggml.token_type", 5, tokens.iter().map(|(_, t)| t.to_le_bytes().to_vec()));
    // Readers want a merge; this pair is in no vocabulary.
    entries.array("tokenizer.ggml.merges", 8, [string("a b")].into_iter());
    entries.number("tokenizer.ggml.eos_token_id", tokenizer.eos);
    entries.number("tokenizer.ggml.eot_token_id", tokenizer.eot);
    entries.entry("tokenizer.ggml.add_bos_token", 7, &[u8::from(tokenizer.add_bos)]);
    entries.text("tokenizer.chat_template", &tokenizer.chat_template);
    Ok(())
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// Metadata as stored.
#[derive(Default)]
pub(crate) struct Entries {
    count: u64,
    bytes: Vec<u8>,
}

impl Entries {
    pub(crate) fn entry(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.count += 1;
        self.bytes.extend(string(key));
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(value);
    }

    pub(crate) fn number(&mut self, key: &str, value: u32) {
        self.entry(key, 4, &value.to_le_bytes());
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        self.entry(key, 8, &string(value));
    }

    pub(crate) fn array(&mut self, key: &str, kind: u32, elements: impl ExactSizeIterator<Item = Vec<u8>>) {
        let mut value = kind.to_le_bytes().to_vec();
        value.extend((elements.len() as u64).to_le_bytes());
        elements.for_each(|e| value.extend(e));
        self.entry(key, 9, &value);
    }

    /// An entry of a table.
    fn any(&mut self, key: &str, kind: &str, value: &Value) -> Result<()> {
        let wrong = || Error::Table(format!("metadata key `{key}`: {value} is not of the type `{kind}`"));
        if let Some(element) = kind.strip_suffix("[]") {
            let values = value.as_array().ok_or_else(wrong)?;
            let elements = values.iter().map(|v| stored(element, v)).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
            let number = type_number(element).ok_or_else(wrong)?;
            self.array(key, number, elements.into_iter());
        } else {
            let (number, value) = type_number(kind).zip(stored(kind, value)).ok_or_else(wrong)?;
            self.entry(key, number, &value);
        }
        Ok(())
    }
}

fn type_number(kind: &str) -> Option<u32> {
    match kind {
        "u32" => Some(4),
        "i32" => Some(5),
        "f32" => Some(6),
        "bool" => Some(7),
        "str" => Some(8),
        "u64" => Some(10),
        _ => None,
    }
}

fn stored(kind: &str, value: &Value) -> Option<Vec<u8>> {
    Some(match kind {
        "u32" => u32::try_from(value.as_u64()?).ok()?.to_le_bytes().to_vec(),
        "i32" => i32::try_from(value.as_i64()?).ok()?.to_le_bytes().to_vec(),
        "u64" => value.as_u64()?.to_le_bytes().to_vec(),
        "f32" => (value.as_f64()? as f32).to_le_bytes().to_vec(),
        "bool" => vec![u8::from(value.as_bool()?)],
        "str" => string(value.as_str()?),
        _ => return None,
    })
}
