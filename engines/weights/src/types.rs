//! Tensor types of GGUF files and the size of their blocks.

use std::fmt;

macro_rules! tensor_types {
    ($($name:ident = $id:literal, $elements:literal, $bytes:literal;)*) => {
        /// How a tensor's values are stored. A row is a whole number of blocks.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(non_camel_case_types)]
        pub enum TensorType {
            $(
                #[doc = concat!(stringify!($name), ": blocks of ", $elements, " values in ", $bytes, " bytes.")]
                $name,
            )*
        }

        impl TensorType {
            /// Every type this crate reads.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The type with a number of the file format.
            pub fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The file format's number.
            pub fn id(self) -> u32 {
                match self {
                    $(Self::$name => $id,)*
                }
            }

            /// The usual name, in capitals: `Q4_K`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// Values in a block.
            pub const fn block_elements(self) -> usize {
                match self {
                    $(Self::$name => $elements,)*
                }
            }

            /// Bytes of a block.
            pub const fn block_bytes(self) -> usize {
                match self {
                    $(Self::$name => $bytes,)*
                }
            }
        }
    };
}

tensor_types! {
    F32 = 0, 1, 4;
    F16 = 1, 1, 2;
    Q4_0 = 2, 32, 18;
    Q4_1 = 3, 32, 20;
    Q5_0 = 6, 32, 22;
    Q5_1 = 7, 32, 24;
    Q8_0 = 8, 32, 34;
    Q2_K = 10, 256, 84;
    Q3_K = 11, 256, 110;
    Q4_K = 12, 256, 144;
    Q5_K = 13, 256, 176;
    Q6_K = 14, 256, 210;
    IQ2_XXS = 16, 256, 66;
    IQ2_XS = 17, 256, 74;
    IQ3_XXS = 18, 256, 98;
    IQ1_S = 19, 256, 50;
    IQ4_NL = 20, 32, 18;
    IQ3_S = 21, 256, 110;
    IQ2_S = 22, 256, 82;
    IQ4_XS = 23, 256, 136;
    IQ1_M = 29, 256, 56;
    BF16 = 30, 1, 2;
}

impl TensorType {
    /// Bytes of `n` consecutive values; `None` when `n` is no whole number of blocks.
    pub fn row_bytes(self, n: usize) -> Option<usize> {
        if !n.is_multiple_of(self.block_elements()) {
            return None;
        }
        (n / self.block_elements()).checked_mul(self.block_bytes())
    }

    /// The type with a name, capitals or not.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
