//! Row kernels against float64.

#![allow(clippy::unwrap_used, reason = "tests stop at the first failure")]

mod harness;

use harness::{Bench, Numbers, bench, bits, error};
use ns_llm_kernels::attention::{Cache, Heads, KvPrecision};
use ns_llm_kernels::rows::{Rope, RopePairs, RowState, write_states};
use ns_llm_kernels::{Strided, act, at};
use ns_sycl::{Buffer, DeviceClass};

const ODD: [usize; 7] = [1, 31, 33, 576, 1000, 1536, 4099];

fn rms_reference(x: &[f32], w: &[f32], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / x.len() as f64;
    x.iter().zip(w).map(|(&v, &w)| f64::from(v) / (mean + eps).sqrt() * f64::from(w)).collect()
}

/// Checks all parts of activation rows against the values they should hold, to `relative` of the largest value of a block.
fn check_act(b: &Bench, buffer: &Buffer, stride: usize, cols: usize, want: &[Vec<f64>], relative: f64) {
    let bytes: Vec<u8> = b.read(buffer, stride * want.len());
    let f32_at = |o: usize| f32::from_le_bytes(bytes[o..o + 4].try_into().unwrap());
    for (r, want) in want.iter().enumerate() {
        let row = r * stride;
        for block in 0..act::blocks(cols) {
            let n = 32.min(cols - block * 32);
            let x: Vec<f32> = (0..32).map(|i| f32_at(row + (block * 32 + i) * 4)).collect();
            let want = &want[block * 32..block * 32 + n];
            let peak = want.iter().fold(0.0_f64, |m, v| m.max(v.abs()));

            assert!(
                x[..n].iter().zip(want).all(|(&g, &w)| (f64::from(g) - w).abs() <= relative * w.abs().max(peak * 1e-3))
            );
            assert!(x[n..].iter().all(|&v| v == 0.0), "padding of block {block} of {cols} columns");
            let sum: f64 = x.iter().map(|&v| f64::from(v)).sum();
            let got = f64::from(f32_at(row + act::sums(cols) + block * 4));
            assert!((got - sum).abs() <= 32.0 * peak * 1e-6, "block sum {got}, wanted {sum}");
            if b.device.class() == DeviceClass::Gpu {
                let d = f64::from(f32_at(row + act::scales(cols) + block * 4));
                let mut total = 0.0;
                for (i, &v) in x.iter().enumerate() {
                    let hi = f64::from(bytes[row + act::high(cols) + block * 32 + i].cast_signed());
                    let lo = f64::from(bytes[row + act::low(cols) + block * 32 + i].cast_signed());
                    let q = 256.0 * hi + lo;
                    total += q;
                    assert!(
                        (d * q - f64::from(v)).abs() <= d * 0.51,
                        "value {i} of block {block}: {v}, stored {}",
                        d * q
                    );
                }
                let s = f64::from(f32_at(row + act::scaled_sums(cols) + block * 4));
                assert!((s - d * total).abs() <= 1e-6 * (d * total).abs() + 1e-30);
            }
        }
    }
}

#[test]
fn rms_norm_and_its_activation_rows() {
    let b = bench();
    let mut n = Numbers(1);
    for dim in ODD {
        let (rows, ld) = (3, dim + 5);
        let mut x = n.normals(rows * ld);
        // a row of large and one of tiny values
        x[ld..ld + dim].iter_mut().for_each(|v| *v *= 1e4);
        x[2 * ld..2 * ld + dim].iter_mut().for_each(|v| *v *= 1e-4);
        let w = n.normals(dim);
        let (dx, dw) = (b.put(&x), b.put(&w));
        let out = b.poisoned(rows * ld * 4);
        b.kernels.rows.rms_norm(&b.queue, at(&dx, ld), (&dw, 0), at(&out, ld), (rows, dim), 1e-5).unwrap();
        let got: Vec<f32> = b.read(&out, rows * ld);
        let want: Vec<Vec<f64>> = (0..rows).map(|r| rms_reference(&x[r * ld..r * ld + dim], &w, 1e-5)).collect();
        for r in 0..rows {
            let e = error(&got[r * ld..r * ld + dim], &want[r], 1e-30);
            assert!(e < 1e-6, "rms_norm of {dim}: relative error {e:e}");
            assert!(got[r * ld + dim..(r + 1) * ld].iter().all(|v| v.is_nan()), "wrote beyond the row");
        }
        let stride = act::stride(dim, b.device.class());
        let act = b.poisoned(rows * stride);
        b.kernels.rows.rms_norm_act(&b.queue, at(&dx, ld), (&dw, 0), at(&act, stride), (rows, dim), 1e-5).unwrap();
        check_act(&b, &act, stride, dim, &want, 1e-6);
        let plain: Vec<f32> = b.read(&act, dim);
        assert_eq!(bits(&plain), bits(&got[..dim]), "both forms of the norm agree bit for bit");
    }
}

#[test]
fn activation_rows_of_plain_and_swiglu_rows() {
    let b = bench();
    let mut n = Numbers(2);
    for cols in ODD {
        let rows = 2;
        let ld = 2 * cols + 3;
        let x: Vec<f32> = n.normals(rows * ld).iter().map(|v| v * 5.0).collect();
        let dx = b.put(&x);
        let stride = act::stride(cols, b.device.class()) + 64;
        let plain = b.poisoned(rows * stride);
        b.kernels.rows.to_act(&b.queue, at(&dx, ld), at(&plain, stride), (rows, cols)).unwrap();
        let want: Vec<Vec<f64>> =
            (0..rows).map(|r| x[r * ld..r * ld + cols].iter().map(|&v| f64::from(v)).collect()).collect();
        check_act(&b, &plain, stride, cols, &want, 1e-12);

        let want: Vec<Vec<f64>> = (0..rows)
            .map(|r| {
                (0..cols)
                    .map(|i| {
                        let (g, u) = (f64::from(x[r * ld + i]), f64::from(x[r * ld + cols + i]));
                        g / (1.0 + (-g).exp()) * u
                    })
                    .collect()
            })
            .collect();
        let gated = b.poisoned(rows * stride);
        b.kernels.rows.swiglu_act(&b.queue, at(&dx, ld), at(&gated, stride), (rows, cols)).unwrap();
        check_act(&b, &gated, stride, cols, &want, 2e-6);
        let out = b.poisoned(rows * cols * 4);
        b.kernels.rows.swiglu(&b.queue, at(&dx, ld), at(&out, cols), (rows, cols)).unwrap();
        let e = error(&b.read(&out, rows * cols), &want.concat(), 1e-30);
        assert!(e < 2e-6, "swiglu of {cols}: relative error {e:e}");
    }
}

/// Gates from -200 to 200: exact throughout, nothing where e^-gate is too large for a float32, and NaN stays NaN.
#[test]
fn swiglu_of_all_gates() {
    let b = bench();
    let n = 40_001;
    let mut x: Vec<f32> = (0..n).map(|i| (i as f32 - 20_000.0) * 0.01).collect();
    x.extend([f32::NEG_INFINITY, f32::INFINITY, f32::NAN, f32::from_bits(u32::MAX), f32::MAX, -3.0e38]);
    let cols = x.len();
    x.resize(2 * cols, 1.0);
    let (dx, out) = (b.put(&x), b.poisoned(cols * 4));
    b.kernels.rows.swiglu(&b.queue, at(&dx, 2 * cols), at(&out, cols), (1, cols)).unwrap();
    let got: Vec<f32> = b.read(&out, cols);
    let want: Vec<f64> = x[..n].iter().map(|&g| f64::from(g) / (1.0 + (-f64::from(g)).exp())).collect();
    let e = error(&got[..n], &want, 1e-30);
    assert!(e < 4e-7, "relative error {e:e}");
    assert!(got[n].is_nan() && got[n + 2].is_nan() && got[n + 3].is_nan(), "{:?}", &got[n..]);
    assert!(got[n + 1] == f32::INFINITY && got[n + 4] == f32::MAX && got[n + 5] == 0.0, "{:?}", &got[n..]);
}

/// A row's result does not depend on the rows beside it.
#[test]
fn rows_are_independent_of_their_number() {
    let b = bench();
    let x = Numbers(3).normals(8 * 577);
    let dx = b.put(&x);
    let stride = act::stride(577, b.device.class());
    let (all, one) = (b.poisoned(8 * stride), b.poisoned(8 * stride));
    b.kernels.rows.rms_norm_act(&b.queue, at(&dx, 577), (&dx, 0), at(&all, stride), (8, 577), 1e-6).unwrap();
    for r in 0..8 {
        let (x, out) = (
            Strided { buffer: &dx, offset: r * 577 * 4, ld: 577 },
            Strided { buffer: &one, offset: r * stride, ld: stride },
        );
        b.kernels.rows.rms_norm_act(&b.queue, x, (&dx, 0), out, (1, 577), 1e-6).unwrap();
    }
    assert_eq!(b.read::<u8>(&all, 8 * stride), b.read::<u8>(&one, 8 * stride));
}

/// A cache of 8-bit values as float32, in the order of the other precisions.
fn expanded(bytes: &[u8], heads: Heads, cells: usize) -> Vec<f32> {
    let d = heads.head_dim;
    let blocks = cells / 16;
    let mut all = Vec::new();
    for (b, block) in bytes.chunks_exact(17 * d).enumerate() {
        let (numbers, scales) = block.split_at(16 * d);
        let is_key = (b / blocks / heads.n_kv).is_multiple_of(2);
        all.extend((0..16 * d).map(|at| {
            let (i, t) = if is_key { (at / 16, at % 16) } else { (at % d, at / d) };
            let place = if is_key { i / 4 * 64 + t * 4 + i % 4 } else { t / 4 * 4 * d + i * 4 + t % 4 };
            let scale = &scales[(i / 32 * 16 + t) * 2..][..2];
            half::f16::from_le_bytes([scale[0], scale[1]]).to_f32() * f32::from(numbers[place] as i8)
        }));
    }
    all
}

/// Rotation at small and large positions, both pairings, all precisions, part of a head; and where keys and values land.
#[test]
fn rope_and_cache_store() {
    let b = bench();
    let mut n = Numbers(4);
    let cells = 64;
    for (pairs, precision, head_dim, rot_dim) in [
        (RopePairs::Adjacent, KvPrecision::F16, 64, 64),
        (RopePairs::Neox, KvPrecision::F32, 64, 64),
        (RopePairs::Adjacent, KvPrecision::F32, 80, 48),
        (RopePairs::Neox, KvPrecision::F16, 256, 64),
        (RopePairs::Neox, KvPrecision::Q8, 256, 64),
        (RopePairs::Adjacent, KvPrecision::Q8, 64, 64),
    ] {
        let heads = Heads { n_heads: 6, n_kv: 2, head_dim };
        let (rows, columns, layer) = (3, 10 * head_dim, 1);
        let ld = columns + 16;
        let qkv = n.normals(rows * ld);
        let inv_freq: Vec<f32> =
            (0..rot_dim / 2).map(|j| 100_000_f64.powf(-2.0 * j as f64 / rot_dim as f64) as f32).collect();
        let cache_len = 2 * 2 * 2 * cells * head_dim;
        let cache = b.poisoned(precision.size(cache_len));
        let states: Vec<RowState> = [(0, 16), (13, 16), (17, 32)]
            .iter()
            .map(|&(position, first)| RowState {
                position,
                kv_offset: (first * head_dim) as u64,
                active: true,
                ..RowState::default()
            })
            .collect();
        let table = b.poisoned(rows * 32);
        write_states(&b.queue, &table, 0, &states).unwrap();
        let (dx, df) = (b.put(&qkv), b.put(&inv_freq));
        let rope = Rope { pairs, rot_dim, inv_freq: (&df, 0), attn_factor: 1.25 };
        let layer_cache = Cache { buffer: &cache, precision, cells, layer };
        b.kernels.rows.rope_store(&b.queue, at(&dx, ld), &layer_cache, (&table, 0), &rope, heads, rows).unwrap();
        let got: Vec<f32> = b.read(&dx, rows * ld);
        let cache: Vec<f32> = match precision {
            KvPrecision::F32 => b.read(&cache, cache_len),
            KvPrecision::F16 => {
                b.read::<u16>(&cache, cache_len).iter().map(|&h| half::f16::from_bits(h).to_f32()).collect()
            }
            KvPrecision::Q8 => expanded(&b.read(&cache, precision.size(cache_len)), heads, cells),
        };
        let mut written = 0;
        for (r, state) in states.iter().enumerate() {
            for h in 0..10 {
                let x: Vec<f64> = qkv[r * ld + h * head_dim..][..head_dim].iter().map(|&v| f64::from(v)).collect();
                let mut want = x.clone();
                for (j, &f) in inv_freq.iter().enumerate().take(if h < 8 { rot_dim } else { 0 }) {
                    let (i, k) = if pairs == RopePairs::Neox { (j, j + rot_dim / 2) } else { (2 * j, 2 * j + 1) };
                    let (s, c) = (f64::from(state.position) * f64::from(f)).sin_cos();
                    want[i] = (x[i] * c - x[k] * s) * 1.25;
                    want[k] = (x[i] * s + x[k] * c) * 1.25;
                }
                let e = error(&got[r * ld + h * head_dim..][..head_dim], &want, 1.0);
                assert!(e < 5e-7, "head {h}: error {e:e}");
                if h >= 6 {
                    let base = (layer * 2 * 2 + h - 6) * cells * head_dim + state.kv_offset as usize;
                    let p = state.position as usize;
                    let stored: Vec<f32> = (0..head_dim)
                        .map(|i| {
                            cache
                                [base + if h < 8 { p / 16 * 16 * head_dim + i * 16 + p % 16 } else { p * head_dim + i }]
                        })
                        .collect();
                    let e = error(&stored, &want, 1.0);
                    let bound = match precision {
                        KvPrecision::F32 => 5e-7,
                        KvPrecision::F16 => 6e-4,
                        // half a step of the largest of 32 values, about 4.5 of them here
                        KvPrecision::Q8 => 0.02,
                    };
                    assert!(e < bound, "stored head {h}: error {e:e}");
                    written += head_dim;
                }
            }
            assert_eq!(bits(&got[r * ld + columns..(r + 1) * ld]), bits(&qkv[r * ld + columns..(r + 1) * ld]));
        }
        assert_eq!(cache.iter().filter(|v| !v.is_nan()).count(), written, "nothing else was stored");
    }
}

/// The angle stays exact up to the longest contexts: sine and cosine within 3e-7 of the exact ones everywhere.
#[test]
fn rope_angles_at_large_positions() {
    let b = bench();
    let cells = 262_160;
    let heads = Heads { n_heads: 1, n_kv: 1, head_dim: 64 };
    let inv_freq: Vec<f32> = (0..32).map(|j| 500_000_f64.powf(-2.0 * f64::from(j) / 64.0) as f32).collect();
    let cache = b.poisoned(2 * cells * 64 * 2);
    let df = b.put(&inv_freq);
    let mut n = Numbers(5);
    let positions: Vec<u32> = [1, 4095, 65_537, 131_071, 262_143, 262_144]
        .into_iter()
        .chain((0..194).map(|_| (n.word() % 262_145) as u32))
        .collect();
    let states: Vec<RowState> =
        positions.iter().map(|&position| RowState { position, active: true, ..RowState::default() }).collect();
    let table = b.poisoned(states.len() * 32);
    write_states(&b.queue, &table, 0, &states).unwrap();
    // (1, 0) rotates to (cos, sin)
    let qkv: Vec<f32> = (0..states.len() * 192).map(|i| if i.is_multiple_of(2) { 1.0 } else { 0.0 }).collect();
    let dx = b.put(&qkv);
    let rope = Rope { pairs: RopePairs::Adjacent, rot_dim: 64, inv_freq: (&df, 0), attn_factor: 1.0 };
    let cache = Cache { buffer: &cache, precision: KvPrecision::F16, cells, layer: 0 };
    b.kernels.rows.rope_store(&b.queue, at(&dx, 192), &cache, (&table, 0), &rope, heads, states.len()).unwrap();
    let got: Vec<f32> = b.read(&dx, qkv.len());
    let mut worst = 0.0_f64;
    for (r, &p) in positions.iter().enumerate() {
        for (j, &f) in inv_freq.iter().enumerate() {
            let (s, c) = (f64::from(p) * f64::from(f)).sin_cos();
            worst = worst.max((f64::from(got[r * 192 + 2 * j]) - c).abs());
            worst = worst.max((f64::from(got[r * 192 + 2 * j + 1]) - s).abs());
        }
    }
    assert!(worst < 3e-7, "worst error {worst:e}");
}

#[test]
fn element_wise() {
    let b = bench();
    let mut n = Numbers(6);
    for count in [1, 15, 1001, 70_001] {
        let (x, y) = (n.normals(count), n.normals(count));
        let (dx, dy, half) = (b.put(&x), b.put(&y), b.poisoned(count * 2));
        b.kernels.rows.convert_f16(&b.queue, (&dx, 0), (&half, 0), count).unwrap();
        let want: Vec<u16> = x.iter().map(|&v| half::f16::from_f32(v).to_bits()).collect();
        assert_eq!(b.read::<u16>(&half, count), want);
        b.kernels.rows.add(&b.queue, (&dx, 0), (&dy, 0), count).unwrap();
        let want: Vec<f32> = x.iter().zip(&y).map(|(a, b)| a + b).collect();
        assert_eq!(bits(&b.read(&dx, count)), bits(&want));
    }
    let (rows, cols, ld) = (3, 37, 41);
    let x = n.normals(rows * ld);
    let (dx, half) = (b.put(&x), b.poisoned(rows * cols * 2));
    b.kernels.rows.convert_rows_f16(&b.queue, at(&dx, ld), (&half, 0), (rows, cols)).unwrap();
    let want: Vec<u16> = (0..rows * cols).map(|i| half::f16::from_f32(x[i / cols * ld + i % cols]).to_bits()).collect();
    assert_eq!(b.read::<u16>(&half, rows * cols), want);
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let b = bench();
    let small = b.poisoned(64);
    let rows = &b.kernels.rows;
    let message = |e: ns_llm_kernels::Error| e.to_string();
    let e = rows.add(&b.queue, (&small, 0), (&small, 0), 17).unwrap_err();
    assert_eq!(message(e), "kernel add: x needs 68 bytes from byte 0 on, the block has 64");
    let e = rows.add(&b.queue, (&small, 2), (&small, 0), 1).unwrap_err();
    assert_eq!(message(e), "kernel add: x starts at byte 2, not at an element of 4 bytes");
    let e = rows.swiglu(&b.queue, at(&small, 7), at(&small, 4), (1, 4)).unwrap_err();
    assert_eq!(message(e), "kernel swiglu: rows of gate_up are 7 apart but have 8 elements");
    let e = rows.to_act(&b.queue, at(&small, 16), at(&small, 1024), (1, 16)).unwrap_err();
    assert!(message(e).contains("act needs"), "an activation row of 16 values is longer than 64 bytes");
}
