//! Decoding of stored rows to 32-bit floats, the same in every bit as the reference implementation of each block type.

use crate::grids;
use crate::types::TensorType;
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::fmt;

/// The bytes are no whole number of blocks, or not as many as the output wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongSize {
    /// Type of the row.
    pub ty: TensorType,
    /// Bytes given.
    pub bytes: usize,
    /// Values wanted.
    pub values: usize,
}

impl fmt::Display for WrongSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {} do not hold {} values", self.bytes, self.ty, self.values)
    }
}

impl std::error::Error for WrongSize {}

/// Decodes one or more whole rows.
pub fn decode_row(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), WrongSize> {
    if ty.row_bytes(out.len()) != Some(bytes.len()) {
        return Err(WrongSize { ty, bytes: bytes.len(), values: out.len() });
    }
    match ty {
        TensorType::F32 => each(bytes, out, |b: &[u8; 4], y: &mut [f32; 1]| y[0] = f32::from_le_bytes(*b)),
        TensorType::F16 => halves(bytes, out),
        TensorType::BF16 => each(bytes, out, |b: &[u8; 2], y: &mut [f32; 1]| {
            y[0] = f32::from_bits(u32::from(word(b, 0)) << 16);
        }),
        TensorType::Q4_0 => each(bytes, out, q4_0),
        TensorType::Q4_1 => each(bytes, out, q4_1),
        TensorType::Q5_0 => each(bytes, out, q5_0),
        TensorType::Q5_1 => each(bytes, out, q5_1),
        TensorType::Q8_0 => each(bytes, out, q8_0),
        TensorType::Q2_K => each(bytes, out, q2_k),
        TensorType::Q3_K => each(bytes, out, q3_k),
        TensorType::Q4_K => each(bytes, out, q4_k),
        TensorType::Q5_K => each(bytes, out, q5_k),
        TensorType::Q6_K => each(bytes, out, q6_k),
        TensorType::IQ4_NL => each(bytes, out, iq4_nl),
        TensorType::IQ4_XS => each(bytes, out, iq4_xs),
        TensorType::IQ2_XXS => each(bytes, out, iq2_xxs),
        TensorType::IQ2_XS => each(bytes, out, iq2_xs),
        TensorType::IQ2_S => each(bytes, out, iq2_s),
        TensorType::IQ3_XXS => each(bytes, out, iq3_xxs),
        TensorType::IQ3_S => each(bytes, out, iq3_s),
        TensorType::IQ1_S => each(bytes, out, iq1_s),
        TensorType::IQ1_M => each(bytes, out, iq1_m),
    }
    Ok(())
}

/// Applies a block's decoder to all blocks.
fn each<const B: usize, const N: usize>(bytes: &[u8], out: &mut [f32], block: impl Fn(&[u8; B], &mut [f32; N])) {
    let (blocks, _) = bytes.as_chunks::<B>();
    let (rows, _) = out.as_chunks_mut::<N>();
    for (b, y) in blocks.iter().zip(rows) {
        block(b, y);
    }
}

/// Halves, many at a time: the processor's instructions for them are looked up once a piece.
fn halves(bytes: &[u8], out: &mut [f32]) {
    let mut piece = [f16::ZERO; 256];
    for (b, y) in bytes.chunks(2 * piece.len()).zip(out.chunks_mut(piece.len())) {
        for (half, b) in piece.iter_mut().zip(b.as_chunks().0) {
            *half = f16::from_le_bytes(*b);
        }
        piece[..y.len()].convert_to_f32_slice(y);
    }
}

fn word(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn long(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn half(b: &[u8], at: usize) -> f32 {
    f16::from_bits(word(b, at)).to_f32()
}

fn q4_0(b: &[u8; 18], y: &mut [f32; 32]) {
    let d = half(b, 0);
    for i in 0..16 {
        y[i] = d * (f32::from(b[2 + i] & 15) - 8.0);
        y[i + 16] = d * (f32::from(b[2 + i] >> 4) - 8.0);
    }
}

fn q4_1(b: &[u8; 20], y: &mut [f32; 32]) {
    let (d, m) = (half(b, 0), half(b, 2));
    for i in 0..16 {
        y[i] = d * f32::from(b[4 + i] & 15) + m;
        y[i + 16] = d * f32::from(b[4 + i] >> 4) + m;
    }
}

/// Quants of five bits: the fifth bits at `high`, the nibbles behind them.
fn five_bits(b: &[u8], high: usize) -> [f32; 32] {
    let h = long(b, high);
    let mut q = [0.0; 32];
    for i in 0..16 {
        let nibbles = u32::from(b[high + 4 + i]);
        q[i] = ((nibbles & 15) | (h >> i & 1) << 4) as f32;
        q[i + 16] = ((nibbles >> 4) | (h >> (i + 16) & 1) << 4) as f32;
    }
    q
}

fn q5_0(b: &[u8; 22], y: &mut [f32; 32]) {
    let d = half(b, 0);
    for (y, q) in y.iter_mut().zip(five_bits(b, 2)) {
        *y = d * (q - 16.0);
    }
}

fn q5_1(b: &[u8; 24], y: &mut [f32; 32]) {
    let (d, m) = (half(b, 0), half(b, 2));
    for (y, q) in y.iter_mut().zip(five_bits(b, 4)) {
        *y = d * q + m;
    }
}

fn q8_0(b: &[u8; 34], y: &mut [f32; 32]) {
    let d = half(b, 0);
    for (y, &q) in y.iter_mut().zip(&b[2..]) {
        *y = f32::from(q as i8) * d;
    }
}

fn q2_k(b: &[u8; 84], y: &mut [f32; 256]) {
    let (d, dmin) = (half(b, 80), half(b, 82));
    for (g, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (n, j, side) = (g / 8, g / 2 % 4, g % 2);
        let scale = d * f32::from(b[g] & 15);
        let min = dmin * f32::from(b[g] >> 4);
        for (l, y) in y.iter_mut().enumerate() {
            *y = scale * f32::from(b[16 + 32 * n + 16 * side + l] >> (2 * j) & 3) - min;
        }
    }
}

fn q3_k(b: &[u8; 110], y: &mut [f32; 256]) {
    let d = half(b, 108);
    for (g, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (n, j, side) = (g / 8, g / 2 % 4, g % 2);
        let low = b[96 + g % 8] >> (4 * (g / 8)) & 15;
        let high = b[104 + g % 4] >> (2 * (g / 4)) & 3;
        let scale = d * (f32::from(low | high << 4) - 32.0);
        for (l, y) in y.iter_mut().enumerate() {
            let at = 16 * side + l;
            let q = f32::from(b[32 + 32 * n + at] >> (2 * j) & 3);
            let less = if b[at] >> (4 * n + j) & 1 == 0 { 4.0 } else { 0.0 };
            *y = scale * (q - less);
        }
    }
}

/// Scale and minimum of group `g` of a Q4_K or Q5_K block, 6 bits each in 12 bytes from 4.
fn scale_min(b: &[u8], g: usize) -> (f32, f32) {
    let s = |i: usize| b[4 + i];
    if g < 4 {
        (f32::from(s(g) & 63), f32::from(s(g + 4) & 63))
    } else {
        (f32::from(s(g + 4) & 15 | s(g - 4) >> 6 << 4), f32::from(s(g + 4) >> 4 | s(g) >> 6 << 4))
    }
}

fn q4_k(b: &[u8; 144], y: &mut [f32; 256]) {
    let (d, dmin) = (half(b, 0), half(b, 2));
    for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_min(b, g);
        let (scale, min) = (d * scale, dmin * min);
        let quants = &b[16 + 32 * (g / 2)..][..32];
        for (y, q) in y.iter_mut().zip(quants) {
            *y = scale * f32::from(q >> (4 * (g % 2)) & 15) - min;
        }
    }
}

fn q5_k(b: &[u8; 176], y: &mut [f32; 256]) {
    let (d, dmin) = (half(b, 0), half(b, 2));
    for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_min(b, g);
        let (scale, min) = (d * scale, dmin * min);
        let (high, quants) = (&b[16..48], &b[48 + 32 * (g / 2)..][..32]);
        for ((y, q), h) in y.iter_mut().zip(quants).zip(high) {
            *y = scale * f32::from(q >> (4 * (g % 2)) & 15 | (h >> g & 1) << 4) - min;
        }
    }
}

fn q6_k(b: &[u8; 210], y: &mut [f32; 256]) {
    let d = half(b, 208);
    for (g, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (n, j, side) = (g / 8, g / 2 % 4, g % 2);
        let scale = d * f32::from(b[192 + g] as i8);
        for (l, y) in y.iter_mut().enumerate() {
            let at = 16 * side + l;
            let low = b[64 * n + 32 * (j & 1) + at] >> (4 * (j >> 1)) & 15;
            let high = b[128 + 32 * n + at] >> (2 * j) & 3;
            *y = scale * (f32::from(low | high << 4) - 32.0);
        }
    }
}

/// Levels of the IQ4 types.
const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn iq4_level(nibble: u8) -> f32 {
    f32::from(IQ4_LEVELS[usize::from(nibble & 15)])
}

fn iq4_nl(b: &[u8; 18], y: &mut [f32; 32]) {
    let d = half(b, 0);
    for i in 0..16 {
        y[i] = d * iq4_level(b[2 + i]);
        y[i + 16] = d * iq4_level(b[2 + i] >> 4);
    }
}

fn iq4_xs(b: &[u8; 136], y: &mut [f32; 256]) {
    let (d, high) = (half(b, 0), word(b, 2));
    for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = b[4 + g / 2] >> (4 * (g & 1)) & 15;
        let scale = d * (f32::from(u16::from(low) | (high >> (2 * g) & 3) << 4) - 32.0);
        for i in 0..16 {
            y[i] = scale * iq4_level(b[8 + 16 * g + i]);
            y[i + 16] = scale * iq4_level(b[8 + 16 * g + i] >> 4);
        }
    }
}

/// Seven sign bits and an eighth that makes the number of set bits even.
fn even_signs(bits: u32) -> u8 {
    let bits = (bits & 127) as u8;
    bits | (bits.count_ones() as u8 & 1) << 7
}

/// Eight levels of a packed row (2 bits each), scaled; a set sign bit negates.
fn row_of_8(y: &mut [f32], row: u16, levels: [i8; 3], scale: f32, signs: u8) {
    for (j, y) in y.iter_mut().enumerate() {
        let value = scale * f32::from(levels[usize::from(row >> (2 * j) & 3).min(2)]);
        *y = if signs >> j & 1 == 1 { -value } else { value };
    }
}

/// Four levels of a packed row (4 bits each), scaled; a set sign bit negates.
fn row_of_4(y: &mut [f32], row: u16, levels: [i8; 8], scale: f32, signs: u8) {
    for (j, y) in y.iter_mut().enumerate() {
        let value = scale * f32::from(levels[usize::from(row >> (4 * j) & 7)]);
        *y = if signs >> j & 1 == 1 { -value } else { value };
    }
}

fn iq2_xxs(b: &[u8; 66], y: &mut [f32; 256]) {
    let d = half(b, 0);
    for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let w = long(b, 6 + 8 * g);
        let scale = d * (0.5 + (w >> 28) as f32) * 0.25;
        for (l, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let row = grids::IQ2_XXS[usize::from(b[2 + 8 * g + l])];
            row_of_8(y, row, grids::IQ2_XXS_LEVELS, scale, even_signs(w >> (7 * l)));
        }
    }
}

/// Scale of the row `l` of a group whose two four-bit scales are in one byte.
fn nibble_scale(d: f32, scales: u8, l: usize) -> f32 {
    d * (0.5 + f32::from(scales >> (4 * (l / 2)) & 15)) * 0.25
}

fn iq2_xs(b: &[u8; 74], y: &mut [f32; 256]) {
    let d = half(b, 0);
    for (k, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let w = word(b, 2 + 2 * k);
        let row = grids::IQ2_XS[usize::from(w & 511)];
        let scale = nibble_scale(d, b[66 + k / 4], k % 4);
        row_of_8(y, row, grids::IQ2_XS_LEVELS, scale, even_signs(u32::from(w >> 9)));
    }
}

fn iq2_s(b: &[u8; 82], y: &mut [f32; 256]) {
    let d = half(b, 0);
    for (k, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (g, l) = (k / 4, k % 4);
        let high = usize::from(b[66 + g] >> (2 * l) & 3);
        let row = grids::IQ2_S[usize::from(b[2 + k]) | high << 8];
        row_of_8(y, row, grids::IQ2_S_LEVELS, nibble_scale(d, b[74 + g], l), b[34 + k]);
    }
}

fn iq3_xxs(b: &[u8; 98], y: &mut [f32; 256]) {
    let d = half(b, 0);
    for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let w = long(b, 66 + 4 * g);
        let scale = d * (0.5 + (w >> 28) as f32) * 0.5;
        for (k, y) in y.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let row = grids::IQ3_XXS[usize::from(b[2 + 8 * g + k])];
            let signs = even_signs(w >> (7 * (k / 2))) >> (4 * (k & 1));
            row_of_4(y, row, grids::IQ3_XXS_LEVELS, scale, signs);
        }
    }
}

fn iq3_s(b: &[u8; 110], y: &mut [f32; 256]) {
    let d = half(b, 0);
    for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = d * (1.0 + 2.0 * f32::from(b[106 + g / 2] >> (4 * (g & 1)) & 15));
        for (k, y) in y.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let high = usize::from(b[66 + g] >> k & 1);
            let row = grids::IQ3_S[usize::from(b[2 + 8 * g + k]) | high << 8];
            row_of_4(y, row, grids::IQ3_S_LEVELS, scale, b[74 + 4 * g + k / 2] >> (4 * (k & 1)));
        }
    }
}

/// Eight levels of a packed row, shifted, then scaled.
fn shifted_row(y: &mut [f32], row: u16, scale: f32, shift: f32) {
    for (j, y) in y.iter_mut().enumerate() {
        *y = scale * (f32::from(grids::IQ1_S_LEVELS[usize::from(row >> (2 * j) & 3).min(2)]) + shift);
    }
}

/// How far the levels of the IQ1 types are shifted, one way or the other.
fn iq1_shift(down: bool) -> f32 {
    if down { -0.125 } else { 0.125 }
}

fn iq1_s(b: &[u8; 50], y: &mut [f32; 256]) {
    let d = half(b, 0);
    for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let h = word(b, 34 + 2 * g);
        let scale = d * (2.0 * f32::from(h >> 12 & 7) + 1.0);
        for (l, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = usize::from(h >> (3 * l) & 7);
            let row = grids::IQ1_S[usize::from(b[2 + 4 * g + l]) | high << 8];
            shifted_row(y, row, scale, iq1_shift(h >> 15 == 1));
        }
    }
}

fn iq1_m(b: &[u8; 56], y: &mut [f32; 256]) {
    let s = [word(b, 48), word(b, 50), word(b, 52), word(b, 54)];
    let d = f16::from_bits(s[0] >> 12 | s[1] >> 8 & 0xF0 | s[2] >> 4 & 0xF00 | s[3] & 0xF000).to_f32();
    for (k, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (g, l) = (k / 4, k % 4);
        let scale = d * (2.0 * f32::from(s[g / 2] >> (6 * (g % 2) + 3 * (l / 2)) & 7) + 1.0);
        let h = b[32 + k / 2] >> (4 * (l & 1));
        let row = grids::IQ1_S[usize::from(b[k]) | usize::from(h & 7) << 8];
        shifted_row(y, row, scale, iq1_shift(h & 8 != 0));
    }
}
