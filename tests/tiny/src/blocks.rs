//! Random blocks: a type's quants are random bits, and its scales are set so that the values have the deviation asked
//! for and the mean 0. A checkpoint of any size is written as fast as random bits are made, and no block type needs a
//! search for good scales.
//!
//! The bits are those of [`philox`] with counter `(i, 1, 0, 0)` and the key of the tensor's values. Blocks of 256 have
//! random scales within a block; the block's own scale is one of four that differ by up to a third.

use crate::fill::Stream;
use crate::quantize::six_bits;
use crate::storage::Storage;
use half::f16;

/// Factors of a block's scale. Their mean square is 1.
const FACTORS: [f64; 4] = [0.8, 0.9, 1.055, 1.205];

/// The random blocks of a tensor.
pub(crate) struct Blocks {
    storage: Storage,
    stream: Stream,
    scales: [f16; 4],
}

impl Blocks {
    /// `None` where a type has no blocks.
    pub(crate) fn new(storage: Storage, stream: Stream, std: f64) -> Option<Self> {
        let unit = deviation(storage)?;
        Some(Self { storage, stream, scales: FACTORS.map(|f| f16::from_f64(f * std / unit)) })
    }

    /// Blocks from number `first` on, a multiple of 16.
    pub(crate) fn write(&self, first: usize, count: usize, out: &mut Vec<u8>) {
        let bytes = self.storage.facts().bytes;
        out.clear();
        for i in first * bytes / 16..((first + count) * bytes).div_ceil(16) {
            out.extend(self.stream.bits(i as u32).into_iter().flat_map(u32::to_le_bytes));
        }
        out.truncate(count * bytes);
        for block in out.chunks_exact_mut(bytes) {
            self.settle(block);
        }
    }

    /// Puts a block's scale in its place, and makes minima half of the range where the type has any.
    fn settle(&self, b: &mut [u8]) {
        let put = |b: &mut [u8], at: usize, d: f16| b[at..at + 2].copy_from_slice(&d.to_le_bytes());
        let times = |d: f16, n: f32| f16::from_f32(d.to_f32() * n);
        // bits that are about to be overwritten
        let spare = |b: u8| (self.scales[usize::from(b & 3)], b & 4 != 0);
        let either = |(d, negative): (f16, bool)| if negative { -d } else { d };
        match self.storage {
            Storage::F32 | Storage::F16 | Storage::BF16 => {}
            Storage::Q8_0 => {
                put(b, 0, spare(b[0]).0);
                // no writer gives this one, which has no counterpart
                b[2..].iter_mut().filter(|q| **q == 0x80).for_each(|q| *q = 0);
            }
            // quants around the middle have a mean of half a step: half of the blocks turn it round
            Storage::Q4_0 | Storage::Q5_0 | Storage::IQ4_NL => put(b, 0, either(spare(b[0]))),
            Storage::Q4_1 | Storage::Q5_1 => {
                let d = spare(b[0]).0;
                put(b, 0, d);
                put(b, 2, times(d, if self.storage == Storage::Q4_1 { -7.5 } else { -15.5 }));
            }
            Storage::Q2_K => {
                let d = spare(b[80]).0;
                put(b, 80, d);
                put(b, 82, times(d, 1.5));
                b[..16].iter_mut().for_each(|s| *s = *s & 15 | *s << 4);
            }
            Storage::Q4_K | Storage::Q5_K => {
                let d = spare(b[0]).0;
                put(b, 0, d);
                put(b, 2, times(d, if self.storage == Storage::Q4_K { 7.5 } else { 15.5 }));
                let mut scales = [0; 8];
                scales.iter_mut().zip(&b[4..12]).for_each(|(s, b)| *s = b & 63);
                b[4..16].copy_from_slice(&six_bits(&scales, &scales));
            }
            Storage::Q3_K => put(b, 108, spare(b[108]).0),
            Storage::Q6_K => put(b, 208, spare(b[208]).0),
            Storage::IQ1_S
            | Storage::IQ2_XXS
            | Storage::IQ2_XS
            | Storage::IQ2_S
            | Storage::IQ3_XXS
            | Storage::IQ3_S
            | Storage::IQ4_XS => put(b, 0, spare(b[0]).0),
            // four bits of the scale at the top of each of four words
            Storage::IQ1_M => {
                let d = spare(b[49] >> 4).0.to_bits();
                for i in 0..4 {
                    let top = &mut b[49 + 2 * i];
                    *top = *top & 15 | ((d >> (4 * i)) as u8 & 15) << 4;
                }
            }
        }
    }
}

/// Deviation of a type's values where the scale of its blocks is 1.
fn deviation(storage: Storage) -> Option<f64> {
    // Mean squares of whole numbers: all of so many bits around the middle, and from 0 up.
    let signed = |bits: i32| (4_f64.powi(bits) + 2.0) / 12.0;
    let unsigned = |bits: i32| (2_f64.powi(bits) - 1.0) * (2_f64.powi(bits + 1) - 1.0) / 6.0;
    // Of 0.5, 1.5, ...
    let halves = |bits: i32| (4_f64.powi(bits + 1) - 1.0) / 12.0;
    // From 0 up, about their mean.
    let spread = |bits: i32| (4_f64.powi(bits) - 1.0) / 12.0;
    let square = match storage {
        Storage::F32 | Storage::F16 | Storage::BF16 => return None,
        Storage::Q8_0 => 127.0 * 128.0 * 255.0 / 3.0 / 256.0,
        Storage::Q4_0 => signed(4),
        Storage::Q5_0 => signed(5),
        Storage::Q4_1 => spread(4),
        Storage::Q5_1 => spread(5),
        Storage::Q2_K => unsigned(4) * spread(2),
        Storage::Q3_K => signed(6) * signed(3),
        Storage::Q4_K => unsigned(6) * spread(4),
        Storage::Q5_K => unsigned(6) * spread(5),
        Storage::Q6_K => signed(8) * signed(6),
        // Scales times mean squares over the types' tables.
        Storage::IQ4_NL => IQ4_LEVELS,
        Storage::IQ4_XS => signed(6) * IQ4_LEVELS,
        Storage::IQ1_S | Storage::IQ1_M => 4.0 * halves(3) * (9735.0 / 16384.0 + 1.0 / 64.0),
        Storage::IQ2_XXS => halves(4) / 16.0 * (1_094_513.0 / 2048.0),
        Storage::IQ2_XS => halves(4) / 16.0 * (2_402_206.0 / 4096.0),
        Storage::IQ2_S => halves(4) / 16.0 * (4_889_327.0 / 8192.0),
        Storage::IQ3_XXS => halves(4) / 4.0 * (974_480.0 / 1024.0),
        Storage::IQ3_S => 4.0 * halves(4) * (118_112.0 / 2048.0),
    };
    Some(square.sqrt())
}

/// Mean square of the levels of the IQ4 types.
const IQ4_LEVELS: f64 = 72_768.0 / 16.0;
