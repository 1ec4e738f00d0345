//! Types tensors are stored in.

use crate::error::{Error, Result};
use crate::quantize;
use half::{bf16, f16};

/// How a matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types, missing_docs)] // names of the format
pub enum Storage {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
}

/// What the format says of a type.
pub(crate) struct Facts {
    /// Name on the command line.
    pub(crate) name: &'static str,
    /// Number in tensor infos.
    pub(crate) number: u32,
    /// Values of a block.
    pub(crate) values: usize,
    /// Bytes of a block.
    pub(crate) bytes: usize,
    /// `general.file_type` of a file of this type.
    pub(crate) file_type: u32,
}

impl Storage {
    /// All types.
    pub const ALL: [Self; 22] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ1_S,
        Self::IQ1_M,
        Self::IQ2_XXS,
        Self::IQ2_XS,
        Self::IQ2_S,
        Self::IQ3_XXS,
        Self::IQ3_S,
        Self::IQ4_NL,
        Self::IQ4_XS,
    ];

    /// Bytes of a row of this many values, which are whole blocks.
    pub fn row_bytes(self, columns: usize) -> usize {
        let facts = self.facts();
        columns / facts.values * facts.bytes
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// The type of a name, capitals or not.
    pub fn named(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|s| s.name().eq_ignore_ascii_case(name)).ok_or_else(|| Error::Unknown {
            what: "type",
            name: name.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }

    pub(crate) fn facts(self) -> Facts {
        let of = |name, number, values, bytes, file_type| Facts { name, number, values, bytes, file_type };
        match self {
            Self::F32 => of("F32", 0, 1, 4, 0),
            Self::F16 => of("F16", 1, 1, 2, 1),
            Self::BF16 => of("BF16", 30, 1, 2, 32),
            Self::Q4_0 => of("Q4_0", 2, 32, 2 + 16, 2),
            Self::Q4_1 => of("Q4_1", 3, 32, 4 + 16, 3),
            Self::Q5_0 => of("Q5_0", 6, 32, 2 + 4 + 16, 8),
            Self::Q5_1 => of("Q5_1", 7, 32, 4 + 4 + 16, 9),
            Self::Q8_0 => of("Q8_0", 8, 32, 2 + 32, 7),
            Self::Q2_K => of("Q2_K", 10, 256, 16 + 64 + 4, 10),
            Self::Q3_K => of("Q3_K", 11, 256, 32 + 64 + 12 + 2, 11),
            Self::Q4_K => of("Q4_K", 12, 256, 4 + 12 + 128, 14),
            Self::Q5_K => of("Q5_K", 13, 256, 4 + 12 + 32 + 128, 16),
            Self::Q6_K => of("Q6_K", 14, 256, 128 + 64 + 16 + 2, 18),
            Self::IQ2_XXS => of("IQ2_XXS", 16, 256, 2 + 64, 19),
            Self::IQ2_XS => of("IQ2_XS", 17, 256, 2 + 64 + 8, 20),
            Self::IQ3_XXS => of("IQ3_XXS", 18, 256, 2 + 96, 23),
            Self::IQ1_S => of("IQ1_S", 19, 256, 2 + 32 + 16, 24),
            Self::IQ4_NL => of("IQ4_NL", 20, 32, 2 + 16, 25),
            Self::IQ3_S => of("IQ3_S", 21, 256, 2 + 64 + 8 + 32 + 4, 26),
            Self::IQ2_S => of("IQ2_S", 22, 256, 2 + 64 + 8 + 8, 28),
            Self::IQ4_XS => of("IQ4_XS", 23, 256, 2 + 2 + 4 + 128, 30),
            Self::IQ1_M => of("IQ1_M", 29, 256, 32 + 16 + 8, 31),
        }
    }

    /// The type for rows of this many values: where they are no whole number of blocks of 256, one of blocks of 32 with
    /// a bit more precision; where not of those, 16-bit floats. llama.cpp chooses the same.
    pub(crate) fn for_rows_of(self, columns: usize) -> Self {
        let fits = |s: Self| columns.is_multiple_of(s.facts().values);
        if fits(self) {
            return self;
        }
        let other = match self {
            Self::Q2_K | Self::Q3_K => Self::Q4_0,
            Self::Q4_K => Self::Q5_0,
            Self::Q5_K => Self::Q5_1,
            Self::Q6_K => Self::Q8_0,
            _ => Self::IQ4_NL,
        };
        if fits(other) { other } else { Self::F16 }
    }

    /// Whether values can be stored in this type here. The others are only filled with random blocks.
    pub fn takes_values(self) -> bool {
        !matches!(
            self,
            Self::Q2_K
                | Self::Q3_K
                | Self::IQ1_S
                | Self::IQ1_M
                | Self::IQ2_XXS
                | Self::IQ2_XS
                | Self::IQ2_S
                | Self::IQ3_XXS
                | Self::IQ3_S
                | Self::IQ4_NL
                | Self::IQ4_XS
        )
    }

    /// The type itself, or where it takes no values one that does.
    pub(crate) fn taking_values(self) -> Self {
        if self.takes_values() { self } else { Self::Q8_0 }
    }

    /// Bytes of so many values, a whole number of blocks.
    pub(crate) fn bytes(self, elements: usize) -> usize {
        let facts = self.facts();
        elements / facts.values * facts.bytes
    }

    /// Appends stored values, a whole number of blocks.
    ///
    /// # Panics
    /// When the type takes no values.
    pub(crate) fn store(self, values: &[f32], out: &mut Vec<u8>) {
        fn each<const N: usize>(values: &[f32], out: &mut Vec<u8>, block: impl Fn(&[f32; N], &mut Vec<u8>)) {
            values.as_chunks().0.iter().for_each(|b| block(b, out));
        }
        match self {
            Self::F32 => values.iter().for_each(|v| out.extend(v.to_le_bytes())),
            Self::F16 => values.iter().for_each(|&v| out.extend(f16::from_f32(v).to_le_bytes())),
            Self::BF16 => values.iter().for_each(|&v| out.extend(bf16::from_f32(v).to_le_bytes())),
            Self::Q8_0 => each(values, out, quantize::q8_0),
            Self::Q4_0 => each(values, out, quantize::q4_0),
            Self::Q4_1 => each(values, out, quantize::q4_1),
            Self::Q5_0 => each(values, out, quantize::q5_0),
            Self::Q5_1 => each(values, out, quantize::q5_1),
            Self::Q4_K => each(values, out, quantize::q4_k),
            Self::Q5_K => each(values, out, quantize::q5_k),
            Self::Q6_K => each(values, out, quantize::q6_k),
            _ => unreachable!("values are never given to {}", self.name()),
        }
    }
}
