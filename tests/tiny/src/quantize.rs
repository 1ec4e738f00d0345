//! Quantisation. The types of 32 values follow the format's reference rule in every bit. Those of 256 follow a plain
//! rule of our own (extremes decide the scales), since the reference searches for better ones.

use half::f16;

fn half(value: f32, out: &mut Vec<u8>) {
    out.extend(f16::from_f32(value).to_le_bytes());
}

/// The value of a half.
fn rounded(value: f32) -> f32 {
    f16::from_f32(value).to_f32()
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The value farthest from 0, the first of equals.
fn farthest(values: &[f32]) -> f32 {
    values.iter().fold(0.0_f32, |far, &v| if v.abs() > far.abs() { v } else { far })
}

fn extremes(values: &[f32]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), &v| (min.min(v), max.max(v)))
}

pub(crate) fn q8_0(x: &[f32; 32], out: &mut Vec<u8>) {
    let d = farthest(x).abs() / 127.0;
    let id = inverse(d);
    half(d, out);
    out.extend(x.iter().map(|v| (v * id).round() as i8 as u8));
}

/// Quants around the middle, from the value farthest from it.
fn centred(x: &[f32; 32], middle: f32, out: &mut Vec<u8>) -> [u8; 32] {
    let d = farthest(x) / -middle;
    let id = inverse(d);
    half(d, out);
    x.map(|v| (v * id + (middle + 0.5)).clamp(0.0, 2.0 * middle - 1.0) as u8)
}

/// Quants from the smallest value up.
fn from_minimum(x: &[f32; 32], most: f32, out: &mut Vec<u8>) -> [u8; 32] {
    let (min, max) = extremes(x);
    let d = (max - min) / most;
    let id = inverse(d);
    half(d, out);
    half(min, out);
    x.map(|v| ((v - min) * id + 0.5).clamp(0.0, most) as u8)
}

fn nibbles(q: &[u8; 32], out: &mut Vec<u8>) {
    let (low, high) = q.split_at(16);
    out.extend(low.iter().zip(high).map(|(l, h)| l & 15 | h << 4));
}

fn fifth_bits(q: &[u8; 32], out: &mut Vec<u8>) {
    let bits = (0..).zip(q).fold(0_u32, |bits, (i, q)| bits | u32::from(q >> 4) << i);
    out.extend(bits.to_le_bytes());
}

pub(crate) fn q4_0(x: &[f32; 32], out: &mut Vec<u8>) {
    let q = centred(x, 8.0, out);
    nibbles(&q, out);
}

pub(crate) fn q4_1(x: &[f32; 32], out: &mut Vec<u8>) {
    let q = from_minimum(x, 15.0, out);
    nibbles(&q, out);
}

pub(crate) fn q5_0(x: &[f32; 32], out: &mut Vec<u8>) {
    let q = centred(x, 16.0, out);
    fifth_bits(&q, out);
    nibbles(&q, out);
}

pub(crate) fn q5_1(x: &[f32; 32], out: &mut Vec<u8>) {
    let q = from_minimum(x, 31.0, out);
    fifth_bits(&q, out);
    nibbles(&q, out);
}

/// For each group of 32: y = d sc q - dmin mn, with q up to `quants` and 6-bit sc and mn. Writes d, dmin, sc and mn, and
/// gives the q.
fn scales_and_minima(x: &[f32; 256], quants: f32, out: &mut Vec<u8>) -> Vec<[u8; 32]> {
    let groups = x.as_chunks::<32>().0;
    let (mut scales, mut mins) = ([0.0_f32; 8], [0.0_f32; 8]);
    for (group, (scale, min)) in groups.iter().zip(scales.iter_mut().zip(&mut mins)) {
        let (least, most) = extremes(group);
        *min = (-least).max(0.0);
        *scale = (most + *min).max(0.0) / quants;
    }
    let d = rounded(extremes(&scales).1 / 63.0);
    let dmin = rounded(extremes(&mins).1 / 63.0);
    let six = |values: [f32; 8], unit: f32| values.map(|v| (v * inverse(unit)).round().clamp(0.0, 63.0) as u8);
    let (sc, mn) = (six(scales, d), six(mins, dmin));
    half(d, out);
    half(dmin, out);
    out.extend(six_bits(&sc, &mn));
    (0..8)
        .map(|g| {
            let (id, min) = (inverse(d * f32::from(sc[g])), dmin * f32::from(mn[g]));
            groups[g].map(|v| ((v + min) * id).round().clamp(0.0, quants) as u8)
        })
        .collect()
}

/// Eight scales and eight minima of six bits.
pub(crate) fn six_bits(sc: &[u8; 8], mn: &[u8; 8]) -> [u8; 12] {
    let mut out = [0; 12];
    for i in 0..4 {
        out[i] = sc[i] | sc[i + 4] >> 4 << 6;
        out[4 + i] = mn[i] | mn[i + 4] >> 4 << 6;
        out[8 + i] = sc[i + 4] & 15 | mn[i + 4] << 4;
    }
    out
}

pub(crate) fn q4_k(x: &[f32; 256], out: &mut Vec<u8>) {
    let quants = scales_and_minima(x, 15.0, out);
    for pair in quants.as_chunks::<2>().0 {
        out.extend(pair[0].iter().zip(&pair[1]).map(|(low, high)| low | high << 4));
    }
}

/// The fifth bits of all groups go first: bit g of byte l is of value l of group g.
pub(crate) fn q5_k(x: &[f32; 256], out: &mut Vec<u8>) {
    let quants = scales_and_minima(x, 31.0, out);
    out.extend((0..32).map(|l| (0..8).fold(0, |bits, g| bits | quants[g][l] >> 4 << g)));
    for pair in quants.as_chunks::<2>().0 {
        out.extend(pair[0].iter().zip(&pair[1]).map(|(low, high)| low & 15 | high << 4));
    }
}

/// For each group of 16: y = d sc (q - 32), with 6-bit q and 8-bit sc.
pub(crate) fn q6_k(x: &[f32; 256], out: &mut Vec<u8>) {
    let groups = x.as_chunks::<16>().0;
    let mut scales = [0.0_f32; 16];
    for (group, scale) in groups.iter().zip(&mut scales) {
        *scale = farthest(group) / -32.0;
    }
    let d = rounded(farthest(&scales).abs() / 127.0);
    let sc = scales.map(|s| (s * inverse(d)).round().clamp(-128.0, 127.0) as i8);
    let mut q = [0_u8; 256];
    for (i, (q, v)) in q.iter_mut().zip(x).enumerate() {
        *q = ((v * inverse(d * f32::from(sc[i / 16]))).round().clamp(-32.0, 31.0) + 32.0) as u8;
    }
    // 128 values at a time: four runs of 32, low nibbles of runs 0 and 2, then 1 and 3; upper bits of all four.
    let low = |n: usize, l: usize| q[128 * n + l] & 15 | (q[128 * n + 64 + l] & 15) << 4;
    out.extend((0..2).flat_map(|n| (0..64).map(move |l| (n, l))).map(|(n, l)| low(n, l)));
    let high = |n: usize, l: usize| (0..4).fold(0, |b, j| b | q[128 * n + 32 * j + l] >> 4 << (2 * j));
    out.extend((0..2).flat_map(|n| (0..32).map(move |l| (n, l))).map(|(n, l)| high(n, l)));
    out.extend(sc.map(|s| s as u8));
    half(d, out);
}
