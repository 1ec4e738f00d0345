//! Which tensor of a checkpoint is stored in which type.

use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::table::{Table, TensorRow};

/// Types of a checkpoint's matrices; all other tensors are 32-bit floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types, missing_docs)] // names of the format
pub enum Types {
    /// All in one type, or the nearest one their rows fit in.
    Single(Storage),
    Q3_K_M,
    Q4_K_M,
}

impl From<Storage> for Types {
    fn from(storage: Storage) -> Self {
        Self::Single(storage)
    }
}

/// How many of a role's tensors have gone by, and how many there are.
#[derive(Default)]
struct Count {
    seen: usize,
    all: usize,
}

impl Count {
    /// The first and the last eighth, and a third of those between.
    fn important(&self) -> bool {
        let (i, eighth) = (self.seen, self.all / 8);
        i < eighth || i >= 7 * self.all / 8 || (i - eighth) % 3 == 2
    }
}

impl Types {
    /// Names of the mixes.
    pub const MIXES: [(&'static str, Self); 2] = [("Q4_K_M", Self::Q4_K_M), ("Q3_K_M", Self::Q3_K_M)];

    /// The mix or the type of a name, capitals or not.
    pub fn named(name: &str) -> Result<Self> {
        if let Some((_, mix)) = Self::MIXES.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)) {
            return Ok(*mix);
        }
        Storage::named(name).map(Self::Single).map_err(|error| match error {
            Error::Unknown { what, name, known } => {
                let mixes = Self::MIXES.map(|(n, _)| n).join(", ");
                Error::Unknown { what, name, known: format!("{mixes}, {known}") }
            }
            other => other,
        })
    }

    /// `general.file_type`.
    pub(crate) fn file_type(self) -> u32 {
        match self {
            Self::Single(storage) => storage.facts().file_type,
            Self::Q3_K_M => 12,
            Self::Q4_K_M => 15,
        }
    }

    /// The type of every tensor of a table. The mixes choose by role as llama.cpp's llama-quantize does (0.7.0, without
    /// an importance matrix; tests/mixes.rs has its choice):
    ///
    /// | role | Q4_K_M | Q3_K_M |
    /// | --- | --- | --- |
    /// | output, or token_embd where it is the output | Q6_K | Q6_K |
    /// | attn_v, attn_qkv | Q6_K where important, else Q4_K | Q5_K the first two, else Q4_K |
    /// | ffn_down | Q6_K where important, else Q4_K | Q5_K the first sixteenth, else Q4_K |
    /// | attn_output | Q4_K | Q4_K |
    /// | all others | Q4_K | Q3_K |
    ///
    /// Important are the first and the last eighth of a role's tensors, and every third between. The draft block's count.
    /// Unlike there, a matrix of 8 rows or fewer stays in 32-bit floats, as in these checkpoints of one type.
    pub fn of(self, table: &Table) -> Vec<Storage> {
        let role = |row: &TensorRow| row.name.trim_end_matches(".weight").rsplit('.').next().unwrap_or("").to_owned();
        let count = |roles: &[&str]| table.tensors.iter().filter(|t| roles.contains(&role(t).as_str())).count();
        let mut values = Count { seen: 0, all: count(&["attn_v", "attn_qkv"]) };
        let mut downs = Count { seen: 0, all: count(&["ffn_down"]) };
        let tied = !table.tensors.iter().any(|t| t.name == "output.weight");
        let mut choose = |row: &TensorRow| {
            let role = role(row);
            let more = self == Self::Q4_K_M;
            let chosen = match (self, role.as_str()) {
                (Self::Single(storage), _) => storage,
                (_, "output") => Storage::Q6_K,
                (_, "token_embd") if tied => Storage::Q6_K,
                (_, "attn_v" | "attn_qkv") if more && values.important() => Storage::Q6_K,
                (_, "ffn_down") if more && downs.important() => Storage::Q6_K,
                (_, "attn_v" | "attn_qkv") if !more && values.seen < 2 => Storage::Q5_K,
                (_, "ffn_down") if !more && downs.seen < downs.all / 16 => Storage::Q5_K,
                (_, "attn_v" | "attn_qkv" | "ffn_down" | "attn_output") => Storage::Q4_K,
                _ if more => Storage::Q4_K,
                _ => Storage::Q3_K,
            };
            match role.as_str() {
                "attn_v" | "attn_qkv" => values.seen += 1,
                "ffn_down" => downs.seen += 1,
                _ => {}
            }
            if row.is_matrix() { chosen.for_rows_of(row.columns()) } else { Storage::F32 }
        };
        table.tensors.iter().map(&mut choose).collect()
    }
}
