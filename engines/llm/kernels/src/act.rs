//! Layout of activation rows, the input of matrix-vector products: the mirror of `kernels/ns/activation.hpp`.
//!
//! float32 values padded to blocks of 32 with zeros, the sum of each block; in the cpu variant the sums of each block's halves, in the
//! gpu variant the same values in 16 bits: a scale, scaled sums of the block and of its halves, and two int8 planes.

use ns_sycl::DeviceClass;

/// Blocks of a row.
#[must_use]
pub const fn blocks(cols: usize) -> usize {
    cols.div_ceil(32)
}

/// Byte offset of the block sums.
#[must_use]
pub const fn sums(cols: usize) -> usize {
    blocks(cols) * 128
}

/// Byte offset of the sums of half blocks: of the values (cpu), or scaled (gpu).
#[must_use]
pub const fn half_sums(cols: usize, class: DeviceClass) -> usize {
    match class {
        DeviceClass::Cpu => blocks(cols) * 132,
        DeviceClass::Gpu => blocks(cols) * 140,
    }
}

/// Byte offset of the scales (gpu).
#[must_use]
pub const fn scales(cols: usize) -> usize {
    blocks(cols) * 132
}

/// Byte offset of the scaled sums (gpu).
#[must_use]
pub const fn scaled_sums(cols: usize) -> usize {
    blocks(cols) * 136
}

/// Byte offset of the upper int8 plane (gpu).
#[must_use]
pub const fn high(cols: usize) -> usize {
    (half_sums(cols, DeviceClass::Gpu) + blocks(cols) * 8).next_multiple_of(16)
}

/// Byte offset of the lower int8 plane (gpu).
#[must_use]
pub const fn low(cols: usize) -> usize {
    high(cols) + blocks(cols) * 32
}

/// Bytes of a row, a multiple of 64: the least distance of rows.
#[must_use]
pub const fn stride(cols: usize, class: DeviceClass) -> usize {
    match class {
        DeviceClass::Cpu => (half_sums(cols, class) + blocks(cols) * 8).next_multiple_of(64),
        DeviceClass::Gpu => (low(cols) + blocks(cols) * 32).next_multiple_of(64),
    }
}
