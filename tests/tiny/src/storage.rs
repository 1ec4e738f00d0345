//! How matrices are stored.

use crate::error::{Error, Result};
use crate::quantize;
use half::{bf16, f16};

/// A type for the matrices of a checkpoint; all other tensors are 32-bit floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum Storage {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// The upper halves of 32-bit floats.
    BF16,
    /// 8 bits and a scale for 32 values.
    Q8_0,
    /// 4 bits and a scale for 32 values.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32 values.
    Q4_1,
    /// 5 bits and a scale for 32 values.
    Q5_0,
    /// 5 bits, a scale and a minimum for 32 values.
    Q5_1,
    /// 4 bits for 256 values, with scales and minimums in 6 bits for 32 of them.
    Q4_K,
    /// 6 bits for 256 values, with scales in 8 bits for 16 of them.
    Q6_K,
}

impl Storage {
    /// All types, with the names of the command line.
    pub const ALL: [(&'static str, Self); 10] = [
        ("F32", Self::F32),
        ("F16", Self::F16),
        ("BF16", Self::BF16),
        ("Q8_0", Self::Q8_0),
        ("Q4_0", Self::Q4_0),
        ("Q4_1", Self::Q4_1),
        ("Q5_0", Self::Q5_0),
        ("Q5_1", Self::Q5_1),
        ("Q4_K", Self::Q4_K),
        ("Q6_K", Self::Q6_K),
    ];

    /// The type of a name, capitals or not.
    pub fn named(name: &str) -> Result<Self> {
        Self::ALL.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|&(_, s)| s).ok_or_else(|| Error::Unknown {
            what: "type",
            name: name.to_owned(),
            known: Self::ALL.map(|(n, _)| n).join(", "),
        })
    }

    /// Number in tensor infos, values and bytes of a block, and `general.file_type` of a file of this type.
    pub(crate) fn facts(self) -> (u32, usize, usize, u32) {
        match self {
            Self::F32 => (0, 1, 4, 0),
            Self::F16 => (1, 1, 2, 1),
            Self::BF16 => (30, 1, 2, 32),
            Self::Q4_0 => (2, 32, 2 + 16, 2),
            Self::Q4_1 => (3, 32, 4 + 16, 3),
            Self::Q5_0 => (6, 32, 2 + 4 + 16, 8),
            Self::Q5_1 => (7, 32, 4 + 4 + 16, 9),
            Self::Q8_0 => (8, 32, 2 + 32, 7),
            Self::Q4_K => (12, 256, 4 + 12 + 128, 14),
            Self::Q6_K => (14, 256, 128 + 64 + 16 + 2, 18),
        }
    }

    /// The type for rows of this many values: where they are no whole number of blocks of 256, the one of blocks of 32
    /// with a bit more precision; where not of those, 16-bit floats. Other programs choose the same.
    pub(crate) fn for_rows_of(self, columns: usize) -> Self {
        let fits = |s: Self| columns.is_multiple_of(s.facts().1);
        match self {
            s if fits(s) => s,
            Self::Q4_K if fits(Self::Q5_0) => Self::Q5_0,
            Self::Q6_K if fits(Self::Q8_0) => Self::Q8_0,
            _ => Self::F16,
        }
    }

    /// Bytes of so many values, a whole number of blocks.
    pub(crate) fn bytes(self, elements: usize) -> usize {
        let (_, block, bytes, _) = self.facts();
        elements / block * bytes
    }

    /// Appends stored values, a whole number of blocks.
    pub(crate) fn store(self, values: &[f32], out: &mut Vec<u8>) {
        match self {
            Self::F32 => values.iter().for_each(|v| out.extend(v.to_le_bytes())),
            Self::F16 => values.iter().for_each(|&v| out.extend(f16::from_f32(v).to_le_bytes())),
            Self::BF16 => values.iter().for_each(|&v| out.extend(bf16::from_f32(v).to_le_bytes())),
            Self::Q8_0 => values.as_chunks().0.iter().for_each(|b| quantize::q8_0(b, out)),
            Self::Q4_0 => values.as_chunks().0.iter().for_each(|b| quantize::q4_0(b, out)),
            Self::Q4_1 => values.as_chunks().0.iter().for_each(|b| quantize::q4_1(b, out)),
            Self::Q5_0 => values.as_chunks().0.iter().for_each(|b| quantize::q5_0(b, out)),
            Self::Q5_1 => values.as_chunks().0.iter().for_each(|b| quantize::q5_1(b, out)),
            Self::Q4_K => values.as_chunks().0.iter().for_each(|b| quantize::q4_k(b, out)),
            Self::Q6_K => values.as_chunks().0.iter().for_each(|b| quantize::q6_k(b, out)),
        }
    }
}
