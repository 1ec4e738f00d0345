//! Where the draft block of a checkpoint is: in the file, in a file of its own, nowhere.

use crate::error::{Error, Result};
use crate::table::Table;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Where the draft block goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Draft {
    /// Behind the trunk's blocks, in the same file.
    #[default]
    Inside,
    /// In a second file that has the embedding, the last norm and the head as well.
    Beside,
    /// Nowhere.
    None,
}

impl Draft {
    /// All places, with the names of the command line.
    pub const ALL: [(&'static str, Self); 3] =
        [("inside", Self::Inside), ("beside", Self::Beside), ("none", Self::None)];

    /// The place of a name.
    pub fn named(name: &str) -> Result<Self> {
        Self::ALL.iter().find(|(n, _)| *n == name).map(|&(_, d)| d).ok_or_else(|| Error::Unknown {
            what: "place of the draft block",
            name: name.to_owned(),
            known: Self::ALL.map(|(n, _)| n).join(", "),
        })
    }

    /// The file of a draft block beside a model: `m-mtp.gguf` beside `m.gguf`.
    pub fn beside(model: &Path) -> PathBuf {
        let stem = model.file_stem().unwrap_or_default().to_string_lossy();
        model.with_file_name(format!("{stem}-mtp.gguf"))
    }
}

impl Table {
    fn number(&self, key: &str) -> u64 {
        let key = format!("{}.{key}", self.architecture);
        self.metadata.iter().find(|(k, ..)| *k == key).and_then(|(.., v)| v.as_u64()).unwrap_or(0)
    }

    /// Draft blocks of the checkpoint.
    pub fn draft_blocks(&self) -> u64 {
        self.number("nextn_predict_layers")
    }

    /// Blocks of the checkpoint that are not for drafts.
    pub fn trunk_blocks(&self) -> u64 {
        self.number("block_count").saturating_sub(self.draft_blocks())
    }

    fn is_of_draft(&self, tensor: &str) -> bool {
        let block =
            tensor.strip_prefix("blk.").and_then(|t| t.split_once('.')).and_then(|(n, _)| n.parse::<u64>().ok());
        block.is_some_and(|n| n >= self.trunk_blocks())
    }

    /// The checkpoint without its draft block, as other programs write it: fewer blocks, and lists with an entry a block
    /// that much shorter.
    pub fn without_draft(&self) -> Self {
        let (trunk, blocks) = (self.trunk_blocks(), self.number("block_count"));
        let mut table = self.clone();
        table.tensors.retain(|t| !self.is_of_draft(&t.name));
        table.metadata.retain(|(k, ..)| !k.ends_with(".nextn_predict_layers"));
        for (key, kind, value) in &mut table.metadata {
            match value {
                _ if key.ends_with(".block_count") => *value = json!(trunk),
                Value::Array(entries)
                    if kind.ends_with("[]") && entries.len() as u64 == blocks && key.contains("_layers") =>
                {
                    entries.truncate(trunk as usize);
                }
                _ => {}
            }
        }
        table.fill_crc32 = None;
        table.draft_tokens.clear();
        table.outputs.retain(|(name, ..)| !name.starts_with("draft."));
        table
    }

    /// The draft block alone, with the tensors it shares with the trunk. The metadata is the whole checkpoint's.
    pub fn only_draft(&self) -> Result<Self> {
        if self.draft_blocks() == 0 {
            return Err(Error::Table(format!("`{}` has no draft block", self.name)));
        }
        let mut table = self.clone();
        table.tensors.retain(|t| !t.name.starts_with("blk.") || self.is_of_draft(&t.name));
        table.fill_crc32 = None;
        Ok(table)
    }
}
