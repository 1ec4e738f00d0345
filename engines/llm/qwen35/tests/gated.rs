//! Gated attention and the draft block's input against float64.

#![allow(clippy::unwrap_used, reason = "tests stop at the first failure")]

#[path = "../../kernels/tests/harness/mod.rs"]
mod harness;

use harness::{Bench, Numbers, bench, bits, error};
use ns_llm_kernels::attention::{Cache, Heads, KvPrecision, partial_bytes};
use ns_llm_kernels::rows::{RowState, write_states};
use ns_llm_kernels::{act, at};
use ns_llm_qwen35::kernels::Kernels;
use ns_llm_qwen35::kernels::gated::{QueryKey, product_cols};
use ns_sycl::{Buffer, Locations};

const EPS: f32 = 1e-6;
const CELLS: usize = 64;

fn own(b: &Bench) -> Kernels {
    Kernels::load(b.device, &Locations::discover().kernels).unwrap()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn rms(x: &[f32], w: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter().zip(w).map(|(&v, &w)| f64::from(v) * scale * f64::from(w)).collect()
}

/// A cache's numbers in the order of float32 ones; a scale that was not written makes its values NaN.
fn stored(b: &Bench, buffer: &Buffer, precision: KvPrecision, heads: Heads, values: usize) -> Vec<f32> {
    let d = heads.head_dim;
    match precision {
        KvPrecision::F32 => b.read(buffer, values),
        KvPrecision::F16 => b.read::<u16>(buffer, values).iter().map(|&h| half::f16::from_bits(h).to_f32()).collect(),
        KvPrecision::Q8 => {
            let bytes: Vec<u8> = b.read(buffer, precision.size(values));
            let mut all = Vec::new();
            for (n, block) in bytes.chunks_exact(17 * d).enumerate() {
                let (numbers, scales) = block.split_at(16 * d);
                let is_key = (n / (CELLS / 16) / heads.n_kv).is_multiple_of(2);
                all.extend((0..16 * d).map(|at| {
                    let (i, t) = if is_key { (at / 16, at % 16) } else { (at % d, at / d) };
                    let place = if is_key { i / 4 * 64 + t * 4 + i % 4 } else { t / 4 * 4 * d + i * 4 + t % 4 };
                    let scale = &scales[(i / 32 * 16 + t) * 2..][..2];
                    half::f16::from_le_bytes([scale[0], scale[1]]).to_f32() * f32::from(numbers[place] as i8)
                }));
            }
            all
        }
    }
}

struct Case {
    heads: Heads,
    rot_dim: usize,
    precision: KvPrecision,
}

/// What `prepare` left: queries of each row, and the cache.
struct Prepared {
    q: Vec<f32>,
    cache: Vec<f32>,
}

#[allow(clippy::too_many_arguments)]
fn prepare(
    b: &Bench,
    k: &Kernels,
    case: &Case,
    product: &[f32],
    ld: usize,
    norms: [&[f32]; 2],
    inv_freq: &[f32],
    states: &[RowState],
) -> Prepared {
    let (heads, rows, layer) = (case.heads, states.len(), 1);
    let cols = heads.n_heads * heads.head_dim;
    let values = 2 * 2 * heads.n_kv * CELLS * heads.head_dim;
    let cache = b.poisoned(case.precision.size(values));
    let table = b.poisoned(rows * 32);
    write_states(&b.queue, &table, 0, states).unwrap();
    let (dp, dq) = (b.put(product), b.poisoned(rows * (cols + 16) * 4));
    let (dqn, dkn, df) = (b.put(norms[0]), b.put(norms[1]), b.put(inv_freq));
    let how = QueryKey { q_norm: (&dqn, 0), k_norm: (&dkn, 0), eps: EPS, rot_dim: case.rot_dim, inv_freq: (&df, 0) };
    let one = Cache { buffer: &cache, precision: case.precision, cells: CELLS, layer };
    k.gated.prepare(&b.queue, at(&dp, ld), at(&dq, cols + 16), &one, (&table, 0), &how, heads, rows).unwrap();
    assert_eq!(bits(&b.read::<f32>(&dp, product.len())), bits(product), "the product stays as it is");
    let all: Vec<f32> = b.read(&dq, rows * (cols + 16));
    let mut q = Vec::new();
    for row in all.chunks_exact(cols + 16) {
        assert!(row[cols..].iter().all(|v| v.is_nan()), "nothing is written between the rows");
        q.extend(&row[..cols]);
    }
    Prepared { q, cache: stored(b, &cache, case.precision, heads, values) }
}

#[test]
fn queries_keys_and_values() {
    let b = bench();
    let k = own(&b);
    let mut n = Numbers(41);
    for case in [
        Case { heads: Heads { n_heads: 8, n_kv: 2, head_dim: 256 }, rot_dim: 64, precision: KvPrecision::F32 },
        Case { heads: Heads { n_heads: 6, n_kv: 1, head_dim: 256 }, rot_dim: 64, precision: KvPrecision::F16 },
        Case { heads: Heads { n_heads: 6, n_kv: 3, head_dim: 256 }, rot_dim: 64, precision: KvPrecision::Q8 },
        Case { heads: Heads { n_heads: 4, n_kv: 2, head_dim: 64 }, rot_dim: 32, precision: KvPrecision::F32 },
        Case { heads: Heads { n_heads: 2, n_kv: 2, head_dim: 128 }, rot_dim: 128, precision: KvPrecision::Q8 },
        Case { heads: Heads { n_heads: 2, n_kv: 1, head_dim: 80 }, rot_dim: 6, precision: KvPrecision::F16 },
    ] {
        let (heads, d) = (case.heads, case.heads.head_dim);
        let states: Vec<RowState> = [(0_u32, 16), (13, 16), (17, 32), (14, 16)]
            .iter()
            .map(|&(position, first)| RowState {
                position,
                kv_offset: (first * d) as u64,
                active: true,
                ..RowState::default()
            })
            .collect();
        let (rows, ld) = (states.len(), product_cols(heads) + 8);
        let product = n.normals(rows * ld);
        let (q_norm, k_norm) = (n.normals(d), n.normals(d));
        let inv_freq: Vec<f32> =
            (0..case.rot_dim / 2).map(|j| 1e7_f64.powf(-2.0 * j as f64 / case.rot_dim as f64) as f32).collect();
        let got = prepare(&b, &k, &case, &product, ld, [&q_norm, &k_norm], &inv_freq, &states);
        let rotated = |x: &[f32], w: &[f32], position: u32| {
            let x = rms(x, w, EPS);
            let mut y = x.clone();
            for (j, &f) in inv_freq.iter().enumerate() {
                let (s, c) = (f64::from(position) * f64::from(f)).sin_cos();
                let i = j + case.rot_dim / 2;
                y[j] = x[j] * c - x[i] * s;
                y[i] = x[j] * s + x[i] * c;
            }
            y
        };
        let mut written = 0;
        for (r, state) in states.iter().enumerate() {
            let row = &product[r * ld..][..product_cols(heads)];
            for h in 0..heads.n_heads {
                let want = rotated(&row[2 * h * d..][..d], &q_norm, state.position);
                let e = error(&got.q[(r * heads.n_heads + h) * d..][..d], &want, 1.0);
                assert!(e < 1e-6, "{heads:?}, query {h} of row {r}: error {e:e}");
            }
            for h in 0..2 * heads.n_kv {
                let x = &row[(2 * heads.n_heads + h) * d..][..d];
                let is_key = h < heads.n_kv;
                let want = if is_key {
                    rotated(x, &k_norm, state.position)
                } else {
                    x.iter().map(|&v| f64::from(v)).collect()
                };
                let base = (2 * heads.n_kv + h) * CELLS * d + state.kv_offset as usize;
                let p = state.position as usize;
                let at = |i: usize| base + if is_key { p / 16 * 16 * d + i * 16 + p % 16 } else { p * d + i };
                let kept: Vec<f32> = (0..d).map(|i| got.cache[at(i)]).collect();
                let (e, bound) = match case.precision {
                    KvPrecision::F32 => (error(&kept, &want, 1.0), 1e-6),
                    KvPrecision::F16 => (error(&kept, &want, 1.0), 5e-4),
                    // half a step of the largest of each 32
                    KvPrecision::Q8 => {
                        let steps = kept.chunks(32).zip(want.chunks(32)).map(|(k, w)| {
                            let step = w.iter().fold(0.0_f64, |m, v| m.max(v.abs())) / 127.0;
                            k.iter().zip(w).fold(0.0_f64, |m, (k, w)| m.max((f64::from(*k) - w).abs() / step))
                        });
                        (steps.fold(0.0, f64::max), 0.57) // the scale is a half
                    }
                };
                assert!(e < bound, "{heads:?} {:?}, stored head {h} of row {r}: error {e:e}", case.precision);
                written += d;
            }
        }
        let finite = got.cache.iter().filter(|v| !v.is_nan()).count();
        assert_eq!(finite, written, "{heads:?} {:?}: nothing else was stored", case.precision);
        // a row alone has the same bits
        for (r, state) in states.iter().enumerate() {
            let alone = prepare(&b, &k, &case, &product[r * ld..][..ld], ld, [&q_norm, &k_norm], &inv_freq, &[*state]);
            let cols = heads.n_heads * d;
            assert_eq!(bits(&alone.q), bits(&got.q[r * cols..][..cols]), "row {r} alone");
            assert!(alone.cache.iter().zip(&got.cache).all(|(a, g)| a.is_nan() || a.to_bits() == g.to_bits()));
        }
    }
}

/// Zero keys have a zero scale, and stay zero.
#[test]
fn a_zero_row_in_eight_bits() {
    let b = bench();
    let k = own(&b);
    let case = Case { heads: Heads { n_heads: 1, n_kv: 1, head_dim: 64 }, rot_dim: 32, precision: KvPrecision::Q8 };
    let cols = product_cols(case.heads);
    let state = RowState { position: 5, active: true, ..RowState::default() };
    let got = prepare(&b, &k, &case, &vec![0.0; cols], cols, [&[1.0; 64], &[1.0; 64]], &[1.0; 16], &[state]);
    let layer = 2 * CELLS * 64;
    for (i, &v) in got.cache[layer..].iter().enumerate() {
        let of_cell = if i < CELLS * 64 { i / 1024 == 0 && i % 16 == 5 } else { (i - CELLS * 64) / 64 == 5 };
        assert!(if of_cell { v == 0.0 } else { v.is_nan() }, "value {i} is {v}");
    }
}

#[test]
fn joining_with_gates() {
    let b = bench();
    let k = own(&b);
    let mut n = Numbers(42);
    for heads in [
        Heads { n_heads: 8, n_kv: 2, head_dim: 256 },
        Heads { n_heads: 3, n_kv: 1, head_dim: 64 },
        Heads { n_heads: 5, n_kv: 5, head_dim: 80 },
    ] {
        let (d, cols, ld) = (heads.head_dim, heads.n_heads * heads.head_dim, product_cols(heads) + 8);
        let positions = [0_u32, 255, 256, 700];
        let (rows, n_splits) = (positions.len(), 4);
        let product = n.normals(rows * ld);
        // pieces behind a row's last are NaN
        let mut partial = vec![f32::NAN; partial_bytes(rows, heads.n_heads, d, n_splits) / 4];
        for (r, &position) in positions.iter().enumerate() {
            for h in 0..heads.n_heads {
                for s in 0..=position as usize / 256 {
                    let piece = &mut partial[((r * heads.n_heads + h) * n_splits + s) * (d + 2)..][..d + 2];
                    piece.copy_from_slice(&n.normals(d + 2));
                    piece[d + 1] = 1.0 + n.unit() as f32 * 200.0;
                }
            }
        }
        let states: Vec<RowState> =
            positions.iter().map(|&position| RowState { position, ..RowState::default() }).collect();
        let (dp, dg, table) = (b.put(&partial), b.put(&product), b.poisoned(rows * 32));
        write_states(&b.queue, &table, 0, &states).unwrap();
        let stride = act::stride(cols, b.device.class());
        let acts = b.poisoned(rows * stride);
        k.gated
            .combine_act(&b.queue, (&dp, 0), at(&dg, ld), (&table, 0), at(&acts, stride), heads, (rows, n_splits))
            .unwrap();
        let all: Vec<u8> = b.read(&acts, rows * stride);
        let mut ungated = vec![f32::NAN; rows * (cols + 8)];
        for (r, &position) in positions.iter().enumerate() {
            let mut want = Vec::new();
            for h in 0..heads.n_heads {
                let pieces: Vec<Vec<f64>> = (0..=position as usize / 256)
                    .map(|s| {
                        let at = ((r * heads.n_heads + h) * n_splits + s) * (d + 2);
                        partial[at..at + d + 2].iter().map(|&v| f64::from(v)).collect()
                    })
                    .collect();
                let peak = pieces.iter().map(|p| p[d]).fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = pieces.iter().map(|p| (p[d] - peak).exp() * p[d + 1]).sum();
                for i in 0..d {
                    let sum: f64 = pieces.iter().map(|p| (p[d] - peak).exp() * p[i]).sum();
                    ungated[r * (cols + 8) + h * d + i] = (sum / total) as f32;
                    want.push(sum / total * sigmoid(f64::from(product[r * ld + (2 * h + 1) * d + i])));
                }
            }
            let row: Vec<f32> = all[r * stride..][..cols * 4]
                .chunks_exact(4)
                .map(|c| f32::from_le_bytes(c.try_into().unwrap()))
                .collect();
            let e = error(&row, &want, 0.01);
            assert!(e < 2e-6, "{heads:?} row {r}: error {e:e}");
        }
        // the same gates on plain rows
        let attn = b.put(&ungated);
        k.gated.gate(&b.queue, at(&attn, cols + 8), at(&dg, ld), heads, rows).unwrap();
        let got: Vec<f32> = b.read(&attn, ungated.len());
        for r in 0..rows {
            let want: Vec<f64> = (0..cols)
                .map(|i| {
                    let gate = product[r * ld + (2 * (i / d) + 1) * d + i % d];
                    f64::from(ungated[r * (cols + 8) + i]) * sigmoid(f64::from(gate))
                })
                .collect();
            let e = error(&got[r * (cols + 8)..][..cols], &want, 0.01);
            assert!(e < 1e-6, "gate, row {r}: error {e:e}");
            assert!(got[r * (cols + 8) + cols..][..8].iter().all(|v| v.is_nan()));
        }
    }
}

#[test]
fn pairs_of_normed_rows() {
    let b = bench();
    let k = own(&b);
    let mut n = Numbers(43);
    for (dim, rows) in [(32, 1), (96, 3), (1024, 8), (2560, 2)] {
        let (lde, ldh) = (dim + 4, dim + 12);
        let (e, h) = (n.normals(rows * lde), n.normals(rows * ldh));
        let (enorm, hnorm) = (n.normals(dim), n.normals(dim));
        let (de, dh, dne, dnh) = (b.put(&e), b.put(&h), b.put(&enorm), b.put(&hnorm));
        let stride = act::stride(2 * dim, b.device.class());
        let (acts, plain) = (b.poisoned(rows * stride), b.poisoned(rows * 2 * dim * 4));
        let first = (at(&de, lde), (&dne, 0));
        let second = (at(&dh, ldh), (&dnh, 0));
        k.gated.norm_pair_act(&b.queue, first, second, at(&acts, stride), (rows, dim), EPS).unwrap();
        k.gated.norm_pair(&b.queue, first, second, at(&plain, 2 * dim), (rows, dim), EPS).unwrap();
        let got: Vec<f32> = b.read(&plain, rows * 2 * dim);
        for r in 0..rows {
            let mut want = rms(&e[r * lde..][..dim], &enorm, EPS);
            want.extend(rms(&h[r * ldh..][..dim], &hnorm, EPS));
            let e = error(&got[r * 2 * dim..][..2 * dim], &want, 1.0);
            assert!(e < 1e-6, "{dim} values, row {r}: error {e:e}");
        }
        let (again, values) = (b.poisoned(rows * stride), b.put(&got));
        b.kernels.rows.to_act(&b.queue, at(&values, 2 * dim), at(&again, stride), (rows, 2 * dim)).unwrap();
        let (mine, theirs): (Vec<u8>, Vec<u8>) = (b.read(&acts, rows * stride), b.read(&again, rows * stride));
        assert_eq!(mine, theirs, "as activation rows");
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let b = bench();
    let k = own(&b);
    let small = b.poisoned(64);
    let how = QueryKey { q_norm: (&small, 0), k_norm: (&small, 0), eps: EPS, rot_dim: 3, inv_freq: (&small, 0) };
    let heads = Heads { n_heads: 1, n_kv: 1, head_dim: 16 };
    let big = b.poisoned(4096);
    let cache = Cache { buffer: &big, precision: KvPrecision::F32, cells: 16, layer: 0 };
    let e = k
        .gated
        .prepare(&b.queue, at(&big, 64), at(&big, 16), &cache, (&small, 0), &how, heads, 1)
        .unwrap_err()
        .to_string();
    assert_eq!(e, "kernel prepare: rot_dim is 3: it must be even and at most the head's 16");
    let how = QueryKey { rot_dim: 4, ..how };
    let eight = Cache { precision: KvPrecision::Q8, ..cache };
    let e = k
        .gated
        .prepare(&b.queue, at(&big, 64), at(&big, 16), &eight, (&small, 0), &how, heads, 1)
        .unwrap_err()
        .to_string();
    assert_eq!(e, "kernel prepare: a cache of 8-bit values needs heads of a multiple of 32, not of 16");
    let row = (at(&big, 48), (&big, 0));
    let e = k.gated.norm_pair_act(&b.queue, row, row, at(&big, 1024), (1, 48), EPS).unwrap_err().to_string();
    assert_eq!(e, "kernel norm_pair_act: dim is 48: it must be a multiple of 32");
}
