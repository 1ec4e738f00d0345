//! The kernels on the matrix units against float64. On the CPU device their twins run: the same code, with multiply-adds.

#![allow(clippy::unwrap_used, reason = "tests stop at the first failure")]

mod harness;

use std::sync::Arc;

use harness::{Bench, Numbers, bench, bits, error};
use ns_llm_kernels::attention::{Cache, Chunk, Heads, KvPrecision};
use ns_llm_kernels::matrix::Matrix;
use ns_llm_kernels::product::Products;
use ns_llm_kernels::silo::{Silo, SiloScratch, TYPES};
use ns_llm_kernels::{RawRows, Strided, act, at};
use ns_sycl::{Arg, Buffer, DeviceClass};
use ns_weights::{TensorType, decode_row};

fn silo(b: &Bench, rows: usize, cols: usize, n_heads: usize) -> Silo {
    let dir = b.kernels.dir().join("qwen35/silo");
    Silo::load(b.device, &dir, SiloScratch { rows, cols, n_heads }).unwrap()
}

/// Random rows of a type, in the file's blocks.
fn random_rows(ty: TensorType, rows: usize, cols: usize, n: &mut Numbers) -> Vec<u8> {
    let scale = |n: &mut Numbers| half::f16::from_f32((n.unit() as f32 - 0.5) * 0.1).to_le_bytes();
    let mut bytes = Vec::new();
    for _ in 0..rows * cols / ty.block_elements() {
        let mut block: Vec<u8> = (0..ty.block_bytes()).map(|_| n.word() as u8).collect();
        match ty {
            TensorType::Q6_K => block[208..210].copy_from_slice(&scale(n)),
            TensorType::Q4_K => {
                block[0..2].copy_from_slice(&scale(n));
                block[2..4].copy_from_slice(&scale(n));
            }
            _ => block[0..2].copy_from_slice(&scale(n)),
        }
        bytes.extend(block);
    }
    bytes
}

/// File rows in the gpu layout: a plane for each field of a block, each on a 256-byte boundary. Made here, because the device's own
/// packing makes the cpu layout on the CPU device.
fn gpu_layout(ty: TensorType, raw: &[u8], rows: usize, cols: usize) -> Vec<u8> {
    let fields: &[(usize, usize)] = match ty {
        TensorType::Q8_0 => &[(0, 2), (2, 32)],
        TensorType::Q6_K => &[(0, 128), (128, 64), (192, 16), (208, 2)],
        _ => &[(0, 144)],
    };
    let mut out = Vec::new();
    for &(offset, bytes) in fields {
        for block in raw.chunks_exact(ty.block_bytes()) {
            out.extend(&block[offset..offset + bytes]);
        }
        out.resize(out.len().next_multiple_of(256), 0xff);
    }
    assert_eq!(Some(out.len() as u64), Matrix::packed_bytes(ty, rows, cols, DeviceClass::Gpu));
    out
}

struct Case {
    ty: TensorType,
    n: usize,
    k: usize,
    weights: Vec<f32>,
    packed: Buffer,
}

fn case(b: &Bench, ty: TensorType, n: usize, k: usize, numbers: &mut Numbers) -> Case {
    let raw = random_rows(ty, n, k, numbers);
    let mut weights = vec![0.0; n * k];
    decode_row(ty, &raw, &mut weights).unwrap();
    Case { ty, n, k, weights, packed: b.put(&gpu_layout(ty, &raw, n, k)) }
}

/// The product, checked for writes beside its rows and columns.
fn product(b: &Bench, s: &Silo, c: &Case, x: &[f32], m: usize, before: Option<&[f32]>) -> Vec<f32> {
    let (ldx, ldy, from) = (c.k + 8, c.n.next_multiple_of(4) + 20, 16);
    let mut rows = vec![f32::NAN; m * ldx];
    for (to, row) in rows.chunks_mut(ldx).zip(x.chunks(c.k)) {
        to[..c.k].copy_from_slice(row);
    }
    let dx = b.put(&rows);
    let size = from + m * ldy + 64;
    let mut out = vec![f32::NAN; size];
    if let Some(before) = before {
        for (r, row) in before.chunks(c.n).enumerate() {
            out[from + r * ldy..][..c.n].copy_from_slice(row);
        }
    }
    let dy = b.put(&out);
    let y = Strided { buffer: &dy, offset: from * 4, ld: ldy };
    assert!(s.takes_product(c.ty, m, c.n, c.k, &y), "{} {}x{}", c.ty, c.n, c.k);
    s.product(&b.queue, c.ty, &c.packed, (m, c.n, c.k), at(&dx, ldx), y, before.is_some()).unwrap();
    let got: Vec<f32> = b.read(&dy, size);
    let inside = |i: usize| i >= from && (i - from) / ldy < m && (i - from) % ldy < c.n;
    assert!(
        (0..size).all(|i| inside(i) != got[i].is_nan()),
        "{} m {m}: a value is missing or was written outside",
        c.ty
    );
    (0..m).flat_map(|r| got[from + r * ldy..][..c.n].to_vec()).collect()
}

/// Shapes with ragged ends: matrix rows around tiles of 32, the least widths.
fn shapes(ty: TensorType) -> &'static [(usize, usize)] {
    match ty {
        TensorType::Q8_0 => &[(16, 64), (45, 96), (130, 1056)],
        TensorType::Q4_K => &[(16, 256), (45, 512), (130, 1024)],
        _ => &[(16, 1024), (45, 1024), (70, 1280)],
    }
}

/// Rows of the unit matrix give every expanded weight: the stored one but for the roundings of scale (and minimum) and value to half.
#[test]
fn every_weight_expands_to_its_value() {
    let b = bench();
    let mut numbers = Numbers(41);
    for ty in TYPES {
        for &(n, k) in shapes(ty) {
            let c = case(&b, ty, n, k, &mut numbers);
            let s = silo(&b, k, k, 1);
            let mut x = vec![0.0; k * k];
            (0..k).for_each(|i| x[i * k + i] = 1.0);
            let got = product(&b, &s, &c, &x, k, None);
            let group = ty.block_elements().min(if ty == TensorType::Q6_K { 16 } else { 32 });
            for (i, &w) in c.weights.iter().enumerate() {
                let (row, col) = (i / k, i % k);
                let (v, near) = (got[col * n + row], &c.weights[row * k + col / group * group..][..group]);
                // with a minimum the scale's rounding counts on the whole range of the group: largest less smallest, and zero
                let (low, high) = near.iter().fold((0.0_f32, 0.0_f32), |(l, h), &v| (l.min(v), h.max(v)));
                let size = if ty == TensorType::Q4_K { (high - low) * 1.6 + w.abs() } else { 2.0 * w.abs() };
                let bound = size / 2048.0 + 6e-8;
                assert!((v - w).abs() <= bound, "{ty} {n}x{k} at {row}, {col}: {v} for {w}");
            }
        }
    }
}

/// Against float64, relative to the sum of magnitudes: two roundings to half a product, of which most cancel.
#[test]
fn products_are_right_for_any_number_of_rows() {
    let b = bench();
    let mut numbers = Numbers(42);
    for ty in TYPES {
        for &(n, k) in shapes(ty) {
            let c = case(&b, ty, n, k, &mut numbers);
            for m in [1, 33, 70, 130] {
                let s = silo(&b, m, k, 1);
                let x = numbers.normals(m * k);
                let before = numbers.normals(m * n);
                let got = product(&b, &s, &c, &x, m, None);
                let sums = product(&b, &s, &c, &x, m, Some(&before));
                for (i, (&v, &sum)) in got.iter().zip(&sums).enumerate() {
                    let (row, col) = (i / n, i % n);
                    let (mut want, mut size) = (0.0, 0.0);
                    for (&x, &w) in x[row * k..][..k].iter().zip(&c.weights[col * k..][..k]) {
                        want += f64::from(x) * f64::from(w);
                        size += f64::from(x * w).abs();
                    }
                    assert!(
                        (f64::from(v) - want).abs() <= 4e-4 * size,
                        "{ty} {n}x{k}, row {row}, {col}: {v} for {want}, of {size}"
                    );
                    let total = want + f64::from(before[i]);
                    assert!((f64::from(sum) - total).abs() <= 4e-4 * size + 1e-6, "{ty}: {sum} for {total}");
                }
            }
        }
    }
}

/// A row's bits are the same alone, in a small tile and in a large one.
#[test]
fn rows_do_not_depend_on_the_others() {
    let b = bench();
    let mut numbers = Numbers(43);
    for ty in TYPES {
        let (n, k) = (70, 1024);
        let c = case(&b, ty, n, k, &mut numbers);
        let s = silo(&b, 400, k, 1);
        // as many rows as fill the units with tiles of 64
        let full = 64 * (b.device.info().compute_units as usize * 4).div_ceil(n.div_ceil(32));
        let m = full.min(400);
        let x = numbers.normals(m * k);
        let all = product(&b, &s, &c, &x, m, None);
        for (first, rows) in [(0, 1), (40, 17), (m - 1, 1)] {
            let got = product(&b, &s, &c, &x[first * k..(first + rows) * k], rows, None);
            assert_eq!(bits(&got), bits(&all[first * n..(first + rows) * n]), "{ty} rows {first}..{}", first + rows);
        }
    }
}

/// x as an activation row of the gpu layout, whatever the device: the device's own kernels write its own.
fn act_row(x: &[f32]) -> Vec<u8> {
    let cols = x.len();
    let mut row = vec![0xff; act::stride(cols, DeviceClass::Gpu)];
    for (i, &v) in x.iter().enumerate() {
        row[i * 4..][..4].copy_from_slice(&v.to_le_bytes());
    }
    for (b, block) in x.chunks(32).enumerate() {
        let peak = block.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        let d = peak / 32512.0;
        let q: Vec<i32> = block.iter().map(|v| (v * (32512.0 / peak)).round_ties_even() as i32).collect();
        row[act::scales(cols) + b * 4..][..4].copy_from_slice(&d.to_le_bytes());
        let sum = d * q.iter().sum::<i32>() as f32;
        row[act::scaled_sums(cols) + b * 4..][..4].copy_from_slice(&sum.to_le_bytes());
        for (i, q) in q.iter().enumerate() {
            let high = (q + 128) >> 8;
            row[act::high(cols) + b * 32 + i] = high as i8 as u8;
            row[act::low(cols) + b * 32 + i] = (q - 256 * high) as i8 as u8;
        }
    }
    row
}

/// Products with few rows: one, two and four sub-groups a pair of matrix rows, odd numbers of them; each row's bits the same in any
/// company. Activations have 16 bits, and Q4_K's minima go off in one sum.
#[test]
fn products_with_few_rows() {
    let b = bench();
    let mut numbers = Numbers(47);
    let dir = b.kernels.dir().join("qwen35/silo");
    for ty in TYPES {
        let t = ty.name().to_ascii_lowercase();
        let module = b.device.load_module(&dir, &format!("matvec_{t}")).unwrap();
        for (n, k) in [(1, 256), (7, 768), (130, 1280)] {
            let c = case(&b, ty, n, k, &mut numbers);
            let x = numbers.normals(8 * k);
            let stride = act::stride(k, DeviceClass::Gpu);
            let act = b.put(&x.chunks(k).flat_map(act_row).collect::<Vec<u8>>());
            for split in [1, 2, 4] {
                let groups = (n.div_ceil(2) * split).div_ceil(4);
                let run = |m: usize, first: usize, add: bool| {
                    let ldy = n + 3;
                    let y = if add { b.put(&vec![1.0_f32; m * ldy]) } else { b.poisoned(m * ldy * 4) };
                    let kernel = module.kernel(&format!("matvec_{t}_r{m}")).unwrap();
                    let args = [
                        Arg::Buffer(&c.packed, 0),
                        Arg::Buffer(&act, first * stride),
                        Arg::Buffer(&y, 0),
                        Arg::I32(n as i32),
                        Arg::I32(k as i32),
                        Arg::I32(stride as i32),
                        Arg::I32(ldy as i32),
                        Arg::I32(i32::from(add)),
                    ];
                    b.queue.launch(&kernel, [groups * 64, 1, 1], [64, 1, 1], &args).unwrap();
                    let got: Vec<f32> = b.read(&y, m * ldy);
                    let beside = |v: f32| if add { v == 1.0 } else { v.is_nan() };
                    assert!(
                        got.iter().enumerate().all(|(i, &v)| i % ldy < n || beside(v)),
                        "{ty} wrote beside its rows"
                    );
                    got.chunks(ldy).flat_map(|r| r[..n].to_vec()).collect::<Vec<f32>>()
                };
                let all = run(8, 0, false);
                for (i, &v) in all.iter().enumerate() {
                    let (x, w) = (&x[i / n * k..][..k], &c.weights[i % n * k..][..k]);
                    let products = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w));
                    let (want, size) = (products.clone().sum::<f64>(), products.map(f64::abs).sum::<f64>());
                    assert!(
                        (f64::from(v) - want).abs() <= 6e-5 * size,
                        "{ty} {n}x{k} by {split}, {i}: {v} for {want} of {size}"
                    );
                }
                for (m, first) in [(1, 0), (1, 5), (3, 5)] {
                    assert_eq!(
                        bits(&run(m, first, false)),
                        bits(&all[first * n..(first + m) * n]),
                        "{ty} {m} rows from {first}"
                    );
                }
                let more: Vec<f32> = all[..n].iter().map(|v| 1.0 + v).collect();
                assert_eq!(bits(&run(1, 0, true)), bits(&more), "{ty} added to what was there");
            }
        }
    }
}

/// A cache in half with one session; NaN everywhere else.
struct Session {
    buffer: Buffer,
    heads: Heads,
    cells: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

const FIRST_CELL: usize = 32;
const LAYER: usize = 1;

impl Session {
    fn new(b: &Bench, n: &mut Numbers, heads: Heads, filled: usize) -> Self {
        let cells = FIRST_CELL + filled.next_multiple_of(16) + 16;
        let d = heads.head_dim;
        let mut stored =
            || n.normals(heads.n_kv * filled * d).iter().map(|&v| half::f16::from_f32(v).to_f32()).collect();
        let (keys, values): (Vec<f32>, Vec<f32>) = (stored(), stored());
        let mut all = vec![half::f16::NAN.to_bits(); 2 * 2 * heads.n_kv * cells * d];
        for h in 0..heads.n_kv {
            for t in 0..filled {
                for i in 0..d {
                    let from = (h * filled + t) * d + i;
                    let key_head = ((LAYER * 2 * heads.n_kv + h) * cells + FIRST_CELL) * d;
                    let value_head = (((LAYER * 2 + 1) * heads.n_kv + h) * cells + FIRST_CELL) * d;
                    all[key_head + t / 16 * 16 * d + i * 16 + t % 16] = half::f16::from_f32(keys[from]).to_bits();
                    all[value_head + t * d + i] = half::f16::from_f32(values[from]).to_bits();
                }
            }
        }
        Self { buffer: b.put(&all), heads, cells, keys, values }
    }

    fn cache(&self) -> Cache<'_> {
        Cache { buffer: &self.buffer, precision: KvPrecision::F16, cells: self.cells, layer: LAYER }
    }

    /// Rows of heads with four floats between them, and a row that is not to be written.
    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    fn launch(&self, b: &Bench, s: &Silo, q: &[f32], ldq: usize, rows: usize, position: usize, scale: f32) -> Vec<f32> {
        let cols = self.heads.n_heads * self.heads.head_dim;
        let dq = b.put(q);
        let out = b.poisoned((rows + 1) * (cols + 4) * 4);
        let chunk = Chunk { rows, position, first_cell: FIRST_CELL };
        s.prompt(&b.queue, at(&dq, ldq), &self.cache(), at(&out, cols + 4), chunk, self.heads, scale).unwrap();
        b.read(&out, (rows + 1) * (cols + 4))
    }

    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    fn prompt(&self, b: &Bench, s: &Silo, q: &[f32], ldq: usize, rows: usize, position: usize, scale: f32) -> Vec<f32> {
        let cols = self.heads.n_heads * self.heads.head_dim;
        let got = self.launch(b, s, q, ldq, rows, position, scale);
        assert!(got[rows * (cols + 4)..].iter().all(|v| v.is_nan()), "wrote behind the last row");
        got.chunks(cols + 4).take(rows).flat_map(|r| r[..cols].to_vec()).collect()
    }

    /// Attention of one row of query heads, rounded to half, over cells 0..=position.
    fn reference(&self, q: &[f32], position: usize, scale: f32) -> Vec<f64> {
        let d = self.heads.head_dim;
        let filled = self.keys.len() / d / self.heads.n_kv;
        let mut out = Vec::new();
        for h in 0..self.heads.n_heads {
            let base = h / (self.heads.n_heads / self.heads.n_kv) * filled * d;
            let q: Vec<f64> = q[h * d..][..d].iter().map(|&v| half::f16::from_f32(v).to_f64()).collect();
            let scores: Vec<f64> = (0..=position)
                .map(|t| {
                    self.keys[base + t * d..].iter().zip(&q).map(|(&k, &q)| f64::from(k) * q).sum::<f64>()
                        * f64::from(scale)
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            out.extend((0..d).map(|i| {
                weights.iter().enumerate().map(|(t, w)| w * f64::from(self.values[base + t * d + i])).sum::<f64>()
                    / total
            }));
        }
        out
    }
}

/// The weights are rounded to half (2^-11 of each), so the error is below 2^-11 of the values' mean size; scores to float32.
#[test]
fn prompt_attention() {
    let b = bench();
    let mut n = Numbers(44);
    // work-groups of one, two and four heads
    for (n_heads, n_kv) in [(3, 3), (6, 1), (8, 2)] {
        let heads = Heads { n_heads, n_kv, head_dim: 256 };
        let cols = n_heads * 256;
        let s = silo(&b, 300, cols, n_heads);
        for (rows, position) in [(1, 0), (33, 0), (70, 15), (20, 250), (40, 530)] {
            let session = Session::new(&b, &mut n, heads, rows + position);
            let ldq = cols + 24;
            let q = n.normals(rows * ldq);
            for scale in [1.0 / 16.0, 2.0] {
                let got = session.prompt(&b, &s, &q, ldq, rows, position, scale);
                for r in (0..rows).step_by(7).chain([rows - 1]) {
                    let want = session.reference(&q[r * ldq..][..cols], position + r, scale);
                    let e = error(&got[r * cols..][..cols], &want, 1.0);
                    assert!(e < 5e-4, "{n_heads} heads, row {r} of {rows} at {position}, scale {scale}: error {e:e}");
                }
            }
        }
    }
}

/// A row of a chunk is the same bit for bit whatever the chunk.
#[test]
fn prompt_rows_do_not_depend_on_the_chunk() {
    let b = bench();
    let mut n = Numbers(45);
    let heads = Heads { n_heads: 2, n_kv: 1, head_dim: 256 };
    let session = Session::new(&b, &mut n, heads, 330);
    let s = silo(&b, 330, 512, 2);
    let q = n.normals(330 * 512);
    let whole = session.prompt(&b, &s, &q, 512, 330, 0, 0.0625);
    for (first, rows) in [(0, 64), (64, 86), (7, 20), (329, 1), (250, 80)] {
        let got = session.prompt(&b, &s, &q[first * 512..(first + rows) * 512], 512, rows, first, 0.0625);
        assert_eq!(bits(&got), bits(&whole[first * 512..(first + rows) * 512]), "rows {first}..{}", first + rows);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let b = bench();
    let mut n = Numbers(46);
    let s = silo(&b, 4, 256, 1);
    let c = case(&b, TensorType::Q4_K, 32, 256, &mut n);
    let x = b.put(&n.normals(5 * 256));
    let y = b.poisoned(5 * 64 * 4);
    let run = |ty, m, k, y: Strided<'_>| {
        s.product(&b.queue, ty, &c.packed, (m, 32, k), at(&x, k), y, false).unwrap_err().to_string()
    };
    let e = run(TensorType::Q4_0, 1, 256, at(&y, 32));
    assert_eq!(e, "products of type Q4_0 on the matrix units are not supported");
    let e = run(TensorType::Q4_K, 5, 256, at(&y, 32));
    assert_eq!(e, "kernel silo product: 5 rows with 32 x 256 of type Q4_K do not fit its blocks");
    let e = run(TensorType::Q4_K, 1, 256, at(&y, 33));
    assert!(e.contains("do not fit its blocks"), "{e}");
    let e = run(TensorType::Q6_K, 1, 256, at(&y, 32));
    assert!(e.contains("do not fit its blocks"), "{e}");
    let e = run(TensorType::Q8_0, 1, 256, at(&y, 32));
    assert_eq!(e, "kernel silo product: the matrix is smaller than its gpu layout");
    // narrower heads, and a cache in float32, go to the other kernels
    let heads = Heads { n_heads: 1, n_kv: 1, head_dim: 256 };
    let session = Session::new(&b, &mut n, heads, 4);
    let chunk = Chunk { rows: 4, position: 0, first_cell: FIRST_CELL };
    assert!(s.takes_prompt(&session.cache(), &at(&y, 256), Chunk { rows: 1, ..chunk }, heads));
    assert!(!s.takes_prompt(&session.cache(), &at(&y, 256), chunk, Heads { head_dim: 128, ..heads }));
    let wide = Cache { precision: KvPrecision::F32, ..session.cache() };
    assert!(!s.takes_prompt(&wide, &at(&y, 256), chunk, heads));
}

/// The CPU device never takes a silo by itself, and a card with matrix units takes it unless `NS_SILO=0`: its kernels load and are
/// launched, through the engines' own way to them. What a pretended card computes then is not looked at.
#[test]
fn a_card_opens_its_silo() {
    let b = bench();
    let scratch = SiloScratch { rows: 64, cols: 1024, n_heads: 4 };
    let off = std::env::var_os("NS_SILO").is_some_and(|v| v == "0");
    let Some(silo) = Silo::open(b.kernels, "qwen35", scratch).unwrap() else {
        assert!(off || !b.device.info().has_matrix_units || b.device.class() == DeviceClass::Cpu);
        return;
    };
    assert!(!off && b.device.class() == DeviceClass::Gpu);
    let mut n = Numbers(48);
    let products = Products::own(b.kernels).with_silo(Some(Arc::new(silo)));
    for ty in TYPES {
        let raw = random_rows(ty, 96, 1024, &mut n);
        let matrix = Matrix::pack(b.kernels, &b.queue, ty, 1024, &[RawRows { rows: 96, data: &raw }]).unwrap();
        let x = b.put(&n.normals(64 * 1024));
        let y = b.poisoned(64 * 96 * 4);
        products.run(b.kernels, &b.queue, &matrix, at(&x, 1024), 64, at(&y, 96), false).unwrap();
        let stride = act::stride(1024, DeviceClass::Gpu);
        let act = b.poisoned(8 * stride);
        b.kernels.rows.to_act(&b.queue, at(&x, 1024), at(&act, stride), (8, 1024)).unwrap();
        matrix.matvec(&b.queue, at(&act, stride), 8, at(&y, 96), false).unwrap();
        b.queue.wait().unwrap();
    }
    for (n_heads, n_kv) in [(3, 3), (2, 1), (4, 1)] {
        let heads = Heads { n_heads, n_kv, head_dim: 256 };
        let session = Session::new(&b, &mut n, heads, 64);
        let silo = Silo::open(b.kernels, "qwen35", scratch).unwrap().unwrap();
        session.launch(&b, &silo, &n.normals(64 * n_heads * 256), n_heads * 256, 64, 0, 0.0625);
    }
}
