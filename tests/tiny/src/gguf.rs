//! Writing of GGUF files.

use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::table::{Table, TensorRow};
use crate::vocabulary::vocabulary;
use serde_json::Value;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Tensors begin at multiples of this.
const ALIGNMENT: usize = 32;
/// Values made and stored at a time: whole blocks of every type and of the generator.
const PIECE: usize = 1 << 16;

/// Writes a table's checkpoint, with its matrices as 32-bit floats, from the table's file.
pub fn write_table(table: impl AsRef<Path>, out: impl AsRef<Path>) -> Result<()> {
    write(&Table::load(table.as_ref())?, Storage::F32, out)
}

/// Writes a checkpoint. Its matrices are stored in the type given, or the nearest one their rows fit in.
pub fn write(table: &Table, storage: Storage, out: impl AsRef<Path>) -> Result<()> {
    let out = out.as_ref();
    let header = header(table, storage)?;
    let file = File::create(out).map_err(|e| Error::io(out, e))?;
    let mut writer = BufWriter::with_capacity(1 << 20, file);
    let written = writer
        .write_all(&header)
        .and_then(|()| table.tensors.iter().try_for_each(|row| write_tensor(row, table.seed, storage, &mut writer)))
        .and_then(|()| writer.flush());
    written.map_err(|e| {
        // Half a checkpoint is worse than none.
        let _ = std::fs::remove_file(out);
        Error::io(out, e)
    })
}

fn write_tensor(row: &TensorRow, seed: u32, storage: Storage, writer: &mut impl Write) -> std::io::Result<()> {
    let (stream, storage) = (row.stream(seed), stored_as(row, storage));
    let (mut values, mut bytes) = (vec![0.0; PIECE.min(row.elements())], Vec::new());
    let mut at = 0;
    while at < row.elements() {
        let len = values.len().min(row.elements() - at);
        stream.values((at / 4) as u32, &mut values[..len]);
        bytes.clear();
        storage.store(&values[..len], &mut bytes);
        writer.write_all(&bytes)?;
        at += len;
    }
    let size = storage.bytes(row.elements());
    writer.write_all(&vec![0; size.next_multiple_of(ALIGNMENT) - size])
}

fn stored_as(row: &TensorRow, storage: Storage) -> Storage {
    if row.is_matrix() { storage.for_rows_of(row.columns()) } else { Storage::F32 }
}

fn header(table: &Table, storage: Storage) -> Result<Vec<u8>> {
    let mut entries = Entries::default();
    for (key, kind, value) in &table.metadata {
        if key == "general.file_type" && storage != Storage::F32 {
            entries.number(key, storage.facts().3);
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

    let mut header = b"GGUF".to_vec();
    header.extend(3_u32.to_le_bytes());
    header.extend((table.tensors.len() as u64).to_le_bytes());
    header.extend(entries.count.to_le_bytes());
    header.extend(entries.bytes);
    let mut offset = 0_usize;
    for row in &table.tensors {
        let storage = stored_as(row, storage);
        header.extend(string(&row.name));
        header.extend((row.shape.len() as u32).to_le_bytes());
        header.extend(row.shape.iter().rev().flat_map(|n| n.to_le_bytes()));
        header.extend(storage.facts().0.to_le_bytes());
        header.extend((offset as u64).to_le_bytes());
        offset += storage.bytes(row.elements()).next_multiple_of(ALIGNMENT);
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT), 0);
    Ok(header)
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// Metadata as stored.
#[derive(Default)]
struct Entries {
    count: u64,
    bytes: Vec<u8>,
}

impl Entries {
    fn entry(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.count += 1;
        self.bytes.extend(string(key));
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(value);
    }

    fn number(&mut self, key: &str, value: u32) {
        self.entry(key, 4, &value.to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.entry(key, 8, &string(value));
    }

    fn array(&mut self, key: &str, kind: u32, elements: impl ExactSizeIterator<Item = Vec<u8>>) {
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
