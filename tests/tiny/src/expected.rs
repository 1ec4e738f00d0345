//! Expected outputs of tables: `NAME.json` and `NAME.f32` in tests/fixtures/llm.

use crate::error::{Error, Result};
use crate::table::Table;
use std::path::{Path, PathBuf};

/// The folder of the stored tables and outputs.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/llm")
}

/// A table with what a right engine gives for its prompt.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The checkpoint, its prompt (`tokens`) and the rows of the taps (`tap_rows`).
    pub table: Table,
    values: Vec<f32>,
}

/// One stored output.
#[derive(Debug, Clone, Copy)]
pub struct Output<'a> {
    /// Sizes, outermost first: rows, then values of a row.
    pub shape: &'a [usize],
    /// All rows.
    pub values: &'a [f32],
}

impl<'a> Output<'a> {
    /// Values of a row.
    pub fn row(&self, index: usize) -> Option<&'a [f32]> {
        let width: usize = self.shape.iter().skip(1).product();
        self.values.chunks_exact(width.max(1)).nth(index)
    }
}

impl Expected {
    /// Reads what is stored under a name.
    pub fn load(name: &str) -> Result<Self> {
        Self::read(&fixtures().join(format!("{name}.json")))
    }

    /// Reads a table and the values beside it.
    pub fn read(json: &Path) -> Result<Self> {
        let table = Table::load(json)?;
        let path = json.with_extension("f32");
        let bytes = std::fs::read(&path).map_err(|e| Error::io(&path, e))?;
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        for (name, shape, start) in &table.outputs {
            let end = shape.iter().try_fold(1_usize, |n, &d| n.checked_mul(d)).and_then(|n| n.checked_add(*start));
            if end.is_none_or(|end| end > values.len()) {
                return Err(Error::Table(format!("{}: output `{name}` is not within the values", path.display())));
            }
        }
        Ok(Self { table, values })
    }

    /// The prompt.
    pub fn tokens(&self) -> &[u32] {
        &self.table.tokens
    }

    /// The trunk's greedy token after the prompt, then the drafts chained from it; empty without a draft block.
    pub fn draft_tokens(&self) -> &[u32] {
        self.table.draft_tokens.get("only").map_or(&[], Vec::as_slice)
    }

    /// An output by name: `logits` (all rows), `tap.NAME-LAYER` (rows `tap_rows`), `draft.rows` (the draft block's logits
    /// of the prompt's last rows: row p knows the trunk's row p and token p + 1, the last one the trunk's greedy token),
    /// `draft.chain` (logits of the chained drafts).
    pub fn output(&self, name: &str) -> Option<Output<'_>> {
        let (_, shape, start) = self.table.outputs.iter().find(|(n, ..)| n == name)?;
        let len: usize = shape.iter().product();
        Some(Output { shape, values: self.values.get(*start..start + len)? })
    }

    /// Names of all outputs.
    pub fn outputs(&self) -> impl Iterator<Item = &str> {
        self.table.outputs.iter().map(|(n, ..)| n.as_str())
    }
}
