//! Attention kernels against float64.

#![allow(clippy::unwrap_used, reason = "tests stop at the first failure")]

mod harness;

use harness::{Bench, Numbers, bench, bits, error};
use ns_llm_kernels::attention::{Cache, Chunk, Heads, KvPrecision, partial_bytes, prompt_scratch_bytes, splits};
use ns_llm_kernels::rows::{RowState, write_states};
use ns_llm_kernels::{Strided, act, at};
use ns_sycl::Buffer;

/// The bytes of a cache of 8-bit values: blocks of 16 cells, first the whole numbers (keys [value / 4][cell][4], values
/// [cell / 4][value][4]), then the scales [32 values][cell]. What is not filled is NaN or -1.
fn quantised(heads: Heads, cells: usize, first_cell: usize, layer: usize, filled: usize, both: [&[f32]; 2]) -> Vec<u8> {
    let d = heads.head_dim;
    let head_bytes = KvPrecision::Q8.size(cells * d);
    let mut all = vec![0xff; 2 * 2 * heads.n_kv * head_bytes];
    for (kind, from) in both.into_iter().enumerate() {
        for h in 0..heads.n_kv {
            let head = ((layer * 2 + kind) * heads.n_kv + h) * head_bytes;
            for t in 0..filled {
                let block = head + (first_cell + t) / 16 * 17 * d;
                for (g, group) in from[(h * filled + t) * d..][..d].chunks_exact(32).enumerate() {
                    // the smallest scale that makes all of them whole numbers again is among these
                    let peak = group.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                    let scale = (1..=127)
                        .map(|q| half::f16::from_f32(peak / q as f32))
                        .find(|s| group.iter().all(|v| v / s.to_f32() == (v / s.to_f32()).round()))
                        .unwrap();
                    block_scale(&mut all[block + 16 * d..][..d], g, t, scale);
                    for (i, v) in group.iter().enumerate() {
                        let i = g * 32 + i;
                        let at = if kind == 0 {
                            i / 4 * 64 + t % 16 * 4 + i % 4
                        } else {
                            t % 16 / 4 * 4 * d + i * 4 + t % 4
                        };
                        all[block + at] = (v / scale.to_f32()) as i8 as u8;
                    }
                }
            }
        }
    }
    all
}

fn block_scale(scales: &mut [u8], group: usize, cell: usize, scale: half::f16) {
    scales[(group * 16 + cell % 16) * 2..][..2].copy_from_slice(&scale.to_le_bytes());
}

/// A cache with one session in random cells, NaN everywhere else.
struct Session {
    buffer: Buffer,
    precision: KvPrecision,
    heads: Heads,
    cells: usize,
    first_cell: usize,
    layer: usize,
    /// `[kv_head][cell][head_dim]`, as stored.
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Session {
    fn new(b: &Bench, n: &mut Numbers, precision: KvPrecision, heads: Heads, filled: usize) -> Self {
        let (first_cell, layer) = (32, 1);
        let cells = first_cell + filled.next_multiple_of(16) + 16;
        let d = heads.head_dim;
        let mut stored = || match precision {
            KvPrecision::F16 => {
                n.normals(heads.n_kv * filled * d).iter().map(|&v| half::f16::from_f32(v).to_f32()).collect()
            }
            KvPrecision::F32 => n.normals(heads.n_kv * filled * d),
            // a scale for 32 values of a cell, and a whole number for each of them
            KvPrecision::Q8 => (0..heads.n_kv * filled * d / 32)
                .flat_map(|_| {
                    let scale = half::f16::from_f32(0.005 + 0.01 * n.unit() as f32).to_f32();
                    (0..32).map(|_| scale * ((n.word() % 255) as f32 - 127.0)).collect::<Vec<f32>>()
                })
                .collect(),
        };
        let (keys, values): (Vec<f32>, Vec<f32>) = (stored(), stored());
        if precision == KvPrecision::Q8 {
            let buffer = b.put(&quantised(heads, cells, first_cell, layer, filled, [&keys, &values]));
            return Self { buffer, precision, heads, cells, first_cell, layer, keys, values };
        }
        let mut all = vec![f32::NAN; 2 * 2 * heads.n_kv * cells * d];
        for h in 0..heads.n_kv {
            for t in 0..filled {
                for i in 0..d {
                    let from = (h * filled + t) * d + i;
                    let key_head = ((layer * 2 * heads.n_kv + h) * cells + first_cell) * d;
                    let value_head = (((layer * 2 + 1) * heads.n_kv + h) * cells + first_cell) * d;
                    all[key_head + t / 16 * 16 * d + i * 16 + t % 16] = keys[from];
                    all[value_head + t * d + i] = values[from];
                }
            }
        }
        let buffer = match precision {
            KvPrecision::F16 => b.put(&all.iter().map(|&v| half::f16::from_f32(v).to_bits()).collect::<Vec<u16>>()),
            _ => b.put(&all),
        };
        Self { buffer, precision, heads, cells, first_cell, layer, keys, values }
    }

    fn cache(&self) -> Cache<'_> {
        Cache { buffer: &self.buffer, precision: self.precision, cells: self.cells, layer: self.layer }
    }

    fn state(&self, position: usize) -> RowState {
        RowState {
            position: position as u32,
            kv_offset: (self.first_cell * self.heads.head_dim) as u64,
            active: true,
            ..RowState::default()
        }
    }

    /// Attention of one row of query heads over cells 0..=position.
    fn reference(&self, q: &[f32], position: usize, scale: f32) -> Vec<f64> {
        let d = self.heads.head_dim;
        let filled = self.keys.len() / d / self.heads.n_kv;
        let mut out = Vec::new();
        for h in 0..self.heads.n_heads {
            let base = h / (self.heads.n_heads / self.heads.n_kv) * filled * d;
            let scores: Vec<f64> = (0..=position)
                .map(|t| {
                    let k = &self.keys[base + t * d..][..d];
                    let dot: f64 = k.iter().zip(&q[h * d..]).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                    dot * f64::from(scale)
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            out.extend((0..d).map(|i| {
                let v = |t: usize| f64::from(self.values[base + t * d + i]);
                scores.iter().enumerate().map(|(t, s)| (s - max).exp() * v(t)).sum::<f64>() / total
            }));
        }
        out
    }
}

const ALL: [KvPrecision; 3] = [KvPrecision::F16, KvPrecision::F32, KvPrecision::Q8];

/// Heads of 80 or 16 have no eight-bit cache.
fn possible(heads: Heads, precision: KvPrecision) -> bool {
    precision != KvPrecision::Q8 || heads.head_dim.is_multiple_of(32)
}

const SHAPES: [Heads; 6] = [
    Heads { n_heads: 9, n_kv: 3, head_dim: 64 },
    Heads { n_heads: 4, n_kv: 4, head_dim: 128 },
    Heads { n_heads: 6, n_kv: 1, head_dim: 80 },
    Heads { n_heads: 2, n_kv: 1, head_dim: 256 },
    Heads { n_heads: 1, n_kv: 1, head_dim: 16 },
    Heads { n_heads: 3, n_kv: 3, head_dim: 96 },
];

/// Decode rows at `positions`, as activation rows: each row's values.
fn decode(
    b: &Bench,
    s: &Session,
    q: &Buffer,
    ldq: usize,
    positions: &[usize],
    n_splits: usize,
    scale: f32,
) -> Vec<Vec<f32>> {
    let rows = positions.len();
    let states: Vec<RowState> = positions.iter().map(|&p| s.state(p)).collect();
    let table = b.poisoned(rows * 32);
    write_states(&b.queue, &table, 0, &states).unwrap();
    let cols = s.heads.n_heads * s.heads.head_dim;
    let partial = b.poisoned(partial_bytes(rows, s.heads.n_heads, s.heads.head_dim, n_splits));
    let stride = act::stride(cols, b.device.class());
    let out = b.poisoned(rows * stride);
    let attention = &b.kernels.attention;
    attention
        .split(&b.queue, at(q, ldq), &s.cache(), (&table, 0), (&partial, 0), s.heads, (rows, n_splits), scale)
        .unwrap();
    attention.combine_act(&b.queue, (&partial, 0), (&table, 0), at(&out, stride), s.heads, (rows, n_splits)).unwrap();
    let all: Vec<f32> = b.read(&out, rows * stride / 4);
    (0..rows).map(|r| all[r * stride / 4..][..cols].to_vec()).collect()
}

#[test]
fn decode_rows() {
    let b = bench();
    let mut n = Numbers(11);
    let positions = [0, 1, 15, 16, 255, 256, 600, 1040];
    for heads in SHAPES {
        for precision in ALL.into_iter().filter(|&p| possible(heads, p)) {
            let s = Session::new(&b, &mut n, precision, heads, 1041);
            let cols = heads.n_heads * heads.head_dim;
            let q = n.normals(8 * (cols + 8));
            let dq = b.put(&q);
            let scale = 1.0 / (heads.head_dim as f32).sqrt();
            let got = decode(&b, &s, &dq, cols + 8, &positions, splits(1040), scale);
            for (r, &p) in positions.iter().enumerate() {
                let want = s.reference(&q[r * (cols + 8)..][..cols], p, scale);
                let e = error(&got[r], &want, 1.0);
                assert!(e < 2e-6, "{heads:?} {precision:?} at {p}: error {e:e}");
            }
        }
    }
}

/// Bit for bit the same whatever the number of pieces reserved and the rows beside it.
#[test]
fn decode_rows_are_exact_in_any_company() {
    let b = bench();
    let mut n = Numbers(12);
    for (heads, precision) in [
        (SHAPES[0], KvPrecision::F16),
        (SHAPES[1], KvPrecision::F16),
        (SHAPES[2], KvPrecision::F16),
        (SHAPES[3], KvPrecision::F32),
        (SHAPES[3], KvPrecision::Q8),
        (SHAPES[5], KvPrecision::Q8),
    ] {
        let s = Session::new(&b, &mut n, precision, heads, 800);
        let cols = heads.n_heads * heads.head_dim;
        let dq = b.put(&n.normals(4 * cols));
        let positions = [799, 3, 256, 511];
        let all = decode(&b, &s, &dq, cols, &positions, 4, 0.1);
        let wide = decode(&b, &s, &dq, cols, &positions, 9, 0.1);
        for (r, &p) in positions.iter().enumerate() {
            assert_eq!(bits(&all[r]), bits(&wide[r]), "more pieces change nothing");
            let dq = b.put(&b.read::<f32>(&dq, 4 * cols)[r * cols..][..cols]);
            let alone = decode(&b, &s, &dq, cols, &[p], splits(p), 0.1);
            assert_eq!(bits(&all[r]), bits(&alone[0]), "alone and in a batch");
        }
    }
}

/// Large scores: the maximum is subtracted, nothing overflows, and one key takes all.
#[test]
fn large_scores() {
    let b = bench();
    let mut n = Numbers(13);
    let heads = SHAPES[0];
    let s = Session::new(&b, &mut n, KvPrecision::F32, heads, 300);
    let q: Vec<f32> = n.normals(576).iter().map(|v| v * 1e3).collect();
    let dq = b.put(&q);
    let got = decode(&b, &s, &dq, 576, &[299], 2, 1.0);
    let e = error(&got[0], &s.reference(&q, 299, 1.0), 1.0);
    // scores of 1e4 have an error of 1e-3
    assert!(e < 5e-3, "error {e:e}");
    let out = prompt(&b, &s, &dq, 576, 1, 299, 1.0);
    let e = error(&out, &s.reference(&q, 299, 1.0), 1.0);
    assert!(e < 5e-3, "prompt: error {e:e}");
}

fn prompt(b: &Bench, s: &Session, q: &Buffer, ldq: usize, rows: usize, position: usize, scale: f32) -> Vec<f32> {
    let cols = s.heads.n_heads * s.heads.head_dim;
    let out = b.poisoned(rows * cols * 4);
    let bytes = prompt_scratch_bytes(b.device.class(), s.precision, s.heads, position + rows);
    let scratch = b.poisoned(bytes.max(1));
    let chunk = Chunk { rows, position, first_cell: s.first_cell };
    b.kernels
        .attention
        .prompt(&b.queue, at(q, ldq), &s.cache(), Some((&scratch, 0)), at(&out, cols), chunk, s.heads, scale)
        .unwrap();
    b.read(&out, rows * cols)
}

#[test]
fn prompt_chunks() {
    let b = bench();
    let mut n = Numbers(14);
    for heads in SHAPES {
        for precision in ALL.into_iter().filter(|&p| possible(heads, p)) {
            for (rows, position) in [(1, 0), (70, 0), (33, 129), (16, 48)] {
                let s = Session::new(&b, &mut n, precision, heads, rows + position);
                let cols = heads.n_heads * heads.head_dim;
                let ldq = cols + 24;
                let q = n.normals(rows * ldq);
                let dq = b.put(&q);
                let scale = 1.0 / (heads.head_dim as f32).sqrt();
                let got = prompt(&b, &s, &dq, ldq, rows, position, scale);
                for r in 0..rows {
                    let want = s.reference(&q[r * ldq..][..cols], position + r, scale);
                    let e = error(&got[r * cols..][..cols], &want, 1.0);
                    assert!(e < 2e-6, "{heads:?} {precision:?}, row {r} of {rows} at {position}: error {e:e}");
                }
            }
        }
    }
}

/// A row of a chunk is the same bit for bit whatever the chunk: cut at multiples of 16 or not.
#[test]
fn prompt_rows_do_not_depend_on_the_chunk() {
    let b = bench();
    let mut n = Numbers(15);
    let heads = SHAPES[0];
    for precision in ALL {
        let s = Session::new(&b, &mut n, precision, heads, 150);
        let q = n.normals(150 * 576);
        let dq = b.put(&q);
        let whole = prompt(&b, &s, &dq, 576, 150, 0, 0.125);
        for (first, rows) in [(0, 64), (64, 86), (7, 20), (149, 1), (33, 100)] {
            let part = b.put(&q[first * 576..(first + rows) * 576]);
            let got = prompt(&b, &s, &part, 576, rows, first, 0.125);
            assert_eq!(bits(&got), bits(&whole[first * 576..(first + rows) * 576]), "rows {first}..{}", first + rows);
        }
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let b = bench();
    let mut n = Numbers(16);
    let s = Session::new(&b, &mut n, KvPrecision::F32, SHAPES[4], 16);
    let q = b.put(&n.normals(16));
    let split = |heads: Heads, cache: &Cache<'_>| {
        b.kernels
            .attention
            .split(&b.queue, at(&q, 16), cache, (&q, 0), (&q, 0), heads, (1, 1), 1.0)
            .unwrap_err()
            .to_string()
    };
    let e = split(Heads { n_heads: 3, n_kv: 2, head_dim: 16 }, &s.cache());
    assert_eq!(e, "kernel attn_split: 3 heads cannot share 2 key heads");
    let e = split(Heads { n_heads: 1, n_kv: 1, head_dim: 24 }, &s.cache());
    assert_eq!(e, "kernel attn_split: head_dim is 24: it must be a multiple of 16 up to 256");
    let e = split(SHAPES[4], &s.cache());
    assert!(e.contains("partial needs 72 bytes"), "{e}");
    let out = b.poisoned(64);
    let far = Chunk { rows: 1, position: 64, first_cell: 16 };
    let to = Strided { buffer: &out, offset: 0, ld: 16 };
    let e = b
        .kernels
        .attention
        .prompt(&b.queue, at(&q, 16), &s.cache(), None, to, far, SHAPES[4], 1.0)
        .unwrap_err()
        .to_string();
    assert_eq!(e, "kernel attn_prompt: 65 cells from cell 16 on are not in the cache of 64 cells");
}
