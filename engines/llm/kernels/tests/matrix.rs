//! Matrices of every type against float64 sums over what ns-weights decodes.

#![allow(clippy::unwrap_used, reason = "tests stop at the first failure")]

mod harness;

use harness::{Bench, Numbers, bench, bits, error};
use ns_llm_kernels::matrix::{MATVEC_ROWS, Matrices, Matrix, RawRows, TYPES};
use ns_llm_kernels::product::{OwnGemm, Products, Scratch};
use ns_llm_kernels::{ErrorKind, act, at};
use ns_sycl::{Buffer, DeviceClass};
use ns_weights::{TensorType, decode_row};

/// The types that are tested: all, or those in `NS_TEST_TYPES` (names with commas between), for slow devices.
fn types() -> Vec<TensorType> {
    let wanted = std::env::var("NS_TEST_TYPES").unwrap_or_default();
    let named: Vec<TensorType> =
        wanted.split_terminator(',').map(|name| TensorType::from_name(name).unwrap()).collect();
    if named.is_empty() { TYPES.to_vec() } else { named }
}

/// Bytes of random blocks: any quants, scales of ordinary size.
fn random_rows(ty: TensorType, rows: usize, cols: usize, n: &mut Numbers) -> Vec<u8> {
    let mut bytes = Vec::new();
    let half = |n: &mut Numbers| half::f16::from_f32((n.unit() as f32 - 0.5) * 0.1).to_le_bytes();
    for _ in 0..rows * cols / ty.block_elements() {
        let mut block: Vec<u8> = (0..ty.block_bytes()).map(|_| n.word() as u8).collect();
        match ty {
            TensorType::F32 => block.copy_from_slice(&n.normal().to_le_bytes()),
            TensorType::F16 => block.copy_from_slice(&half::f16::from_f32(n.normal()).to_le_bytes()),
            TensorType::BF16 => block.copy_from_slice(&half::bf16::from_f32(n.normal()).to_le_bytes()),
            TensorType::Q6_K => block[208..210].copy_from_slice(&half(n)),
            TensorType::Q3_K => block[108..110].copy_from_slice(&half(n)),
            TensorType::IQ1_M => {
                // the half is in the upper nibbles of four words
                for (k, nibble) in
                    u16::from_le_bytes(half(n)).to_le_bytes().iter().flat_map(|b| [b & 15, b >> 4]).enumerate()
                {
                    block[49 + 2 * k] = block[49 + 2 * k] & 15 | nibble << 4;
                }
            }
            TensorType::Q2_K => {
                block[80..82].copy_from_slice(&half(n));
                block[82..84].copy_from_slice(&half(n));
            }
            TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q5_K | TensorType::Q4_K => {
                block[0..2].copy_from_slice(&half(n));
                block[2..4].copy_from_slice(&half(n));
            }
            _ => block[0..2].copy_from_slice(&half(n)),
        }
        bytes.extend(block);
    }
    bytes
}

fn decoded(ty: TensorType, raw: &[u8], rows: usize, cols: usize) -> Vec<f32> {
    let mut out = vec![0.0; rows * cols];
    decode_row(ty, raw, &mut out).unwrap();
    out
}

/// A width of the type: about `near`, not always a multiple of 32 for floats.
fn widths(ty: TensorType) -> &'static [usize] {
    match ty.block_elements() {
        1 => &[1, 33, 576],
        32 => &[32, 96, 576],
        _ => &[256, 768],
    }
}

/// Numbers of matrix rows; fewer on a graphics card, which may be a pretended one.
fn row_counts(class: DeviceClass) -> &'static [usize] {
    match class {
        DeviceClass::Cpu => &[1, 7, 17, 577],
        DeviceClass::Gpu => &[7, 130],
    }
}

struct Case {
    ty: TensorType,
    rows: usize,
    cols: usize,
    raw: Vec<u8>,
    weights: Vec<f32>,
    matrix: Matrix,
}

fn case(b: &Bench, ty: TensorType, rows: usize, cols: usize) -> Case {
    let raw = random_rows(ty, rows, cols, &mut Numbers((rows * 10_007 + cols) as u64 + u64::from(ty.id())));
    let weights = decoded(ty, &raw, rows, cols);
    let matrix = Matrix::pack(b.kernels, &b.queue, ty, cols, &[RawRows { rows, data: &raw }]).unwrap();
    Case { ty, rows, cols, raw, weights, matrix }
}

/// Every shape of every type.
fn cases(b: &Bench, mut check: impl FnMut(&Bench, &Case)) {
    for ty in types() {
        for &rows in row_counts(b.device.class()) {
            for &cols in widths(ty) {
                check(b, &case(b, ty, rows, cols));
            }
        }
    }
}

fn act_rows(b: &Bench, x: &[f32], m: usize, cols: usize) -> (Buffer, usize) {
    let stride = act::stride(cols, b.device.class());
    let act = b.poisoned(m * stride);
    let x = b.put(x);
    b.kernels.rows.to_act(&b.queue, at(&x, cols), at(&act, stride), (m, cols)).unwrap();
    b.queue.wait().unwrap();
    (act, stride)
}

/// Sums in float64 and, for the tolerance, the sums of magnitudes.
fn reference(c: &Case, x: &[f32], m: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut sums, mut sizes) = (Vec::new(), Vec::new());
    for x in x.chunks(c.cols).take(m) {
        for w in c.weights.chunks(c.cols) {
            let products = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w));
            sums.push(products.clone().sum());
            sizes.push(products.map(f64::abs).sum());
        }
    }
    (sums, sizes)
}

/// Largest error relative to the sum of magnitudes of a result's products.
fn worst(got: &[f32], (sums, sizes): &(Vec<f64>, Vec<f64>)) -> f64 {
    assert_eq!(got.len(), sums.len());
    got.iter().zip(sums).zip(sizes).fold(0.0, |worst, ((&g, &s), &size)| {
        let e = (f64::from(g) - s).abs() / (size + 1e-30);
        if e.is_nan() { f64::INFINITY } else { worst.max(e) }
    })
}

/// f32 sums of a few hundred values; on graphics cards the activations have 16 bits. The minimum of Q4_K and Q4_1 is taken off as
/// `m * sum(x)`, whose parts are bigger than the products: hence not the last few bits.
fn tolerance(class: DeviceClass) -> f64 {
    match class {
        DeviceClass::Cpu => 2e-6,
        DeviceClass::Gpu => 6e-5,
    }
}

#[test]
fn expansion_gives_the_decoders_values() {
    let b = bench();
    cases(&b, |b, c| {
        let first = c.rows / 3;
        let count = c.rows - first;
        let out = b.poisoned(count * c.cols * 4 + 4);
        c.matrix.dequant_f32(&b.queue, (&out, 0), first, count).unwrap();
        let got: Vec<f32> = b.read(&out, count * c.cols + 1);
        let want: Vec<f64> = c.weights[first * c.cols..].iter().map(|&v| f64::from(v)).collect();
        let peak = want.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
        // d q + m in one rounding where the decoder has two
        let e = error(&got[..count * c.cols], &want, peak);
        assert!(e <= 1.2e-7, "{} {}x{}: error {e}", c.ty, c.rows, c.cols);
        assert!(got[count * c.cols].is_nan(), "wrote behind the end");
        if matches!(c.ty, TensorType::F32 | TensorType::F16 | TensorType::BF16 | TensorType::Q8_0 | TensorType::Q4_0) {
            // numbers equal; a negative zero may come out as a positive one
            assert!(got[..count * c.cols] == c.weights[first * c.cols..], "{}: exact", c.ty);
        }
        let out = b.poisoned(count * c.cols * 2);
        c.matrix.dequant_f16(&b.queue, (&out, 0), first, count).unwrap();
        let halves: Vec<u16> = b.read(&out, count * c.cols);
        for (i, (&h, &f)) in halves.iter().zip(&got).enumerate() {
            assert_eq!(h, half::f16::from_f32(f).to_bits(), "{} {}x{} value {i}: half of {f}", c.ty, c.rows, c.cols);
        }
    });
}

#[test]
fn embedding_copies_rows() {
    let b = bench();
    for ty in types() {
        let cols = *widths(ty).last().unwrap();
        let c = case(&b, ty, 577, cols);
        let all = b.poisoned(577 * cols * 4);
        c.matrix.dequant_f32(&b.queue, (&all, 0), 0, 577).unwrap();
        let all: Vec<f32> = b.read(&all, 577 * cols);
        let ids = [576, 0, 16, 577, 15, -1, 0];
        let out = b.poisoned(ids.len() * cols * 4);
        c.matrix.embed(&b.queue, (&b.put(&ids), 0), ids.len(), (&out, 0)).unwrap();
        let got: Vec<f32> = b.read(&out, ids.len() * cols);
        for (i, &id) in ids.iter().enumerate() {
            let zeros = vec![0.0; cols];
            let want = usize::try_from(id).ok().and_then(|r| all.get(r * cols..(r + 1) * cols)).unwrap_or(&zeros);
            assert_eq!(bits(&got[i * cols..(i + 1) * cols]), bits(want), "{ty}: id {id}");
        }
    }
}

#[test]
fn products_with_a_few_rows() {
    let b = bench();
    cases(&b, |b, c| {
        let x = Numbers(c.cols as u64).normals(MATVEC_ROWS * c.cols);
        let (act, stride) = act_rows(b, &x, MATVEC_ROWS, c.cols);
        let want = reference(c, &x, MATVEC_ROWS);
        let ldy = c.rows + 3;
        let mut first: Vec<u32> = Vec::new();
        for m in (1..=MATVEC_ROWS).rev() {
            let y = b.poisoned(m * ldy * 4);
            c.matrix.matvec(&b.queue, at(&act, stride), m, at(&y, ldy), false).unwrap();
            let all: Vec<f32> = b.read(&y, m * ldy);
            let got: Vec<f32> = all.chunks(ldy).flat_map(|r| r[..c.rows].to_vec()).collect();
            assert!(all.chunks(ldy).all(|r| r[c.rows..].iter().all(|v| v.is_nan())), "wrote between rows");
            if m == MATVEC_ROWS {
                let e = worst(&got, &want);
                assert!(e <= tolerance(b.device.class()), "{} {}x{}: error {e}", c.ty, c.rows, c.cols);
                first = bits(&got);
            }
            assert_eq!(bits(&got), first[..m * c.rows], "{} {}x{}: other bits with {m} rows", c.ty, c.rows, c.cols);
        }
    });
}

#[test]
fn more_rows_than_one_launch_and_addition() {
    let b = bench();
    let some = [TensorType::Q4_1, TensorType::Q8_0, TensorType::Q6_K, TensorType::Q2_K, TensorType::IQ3_S];
    for ty in types().into_iter().filter(|ty| some.contains(ty)) {
        let (rows, cols, m) = (49, 256, 21);
        let c = case(&b, ty, rows, cols);
        let x = Numbers(3).normals(m * cols);
        let (act, stride) = act_rows(&b, &x, m, cols);
        let y = b.put(&vec![1.0_f32; m * rows]);
        c.matrix.matvec(&b.queue, at(&act, stride), m, at(&y, rows), true).unwrap();
        let mut want = reference(&c, &x, m);
        want.0.iter_mut().for_each(|v| *v += 1.0);
        want.1.iter_mut().for_each(|v| *v += 1.0);
        let e = worst(&b.read::<f32>(&y, m * rows), &want);
        assert!(e <= tolerance(b.device.class()), "{ty}: error {e}");
    }
}

fn check_product(b: &Bench, c: &Case, products: &Products, m: usize, limit: f64) {
    let (ldx, ldy) = (c.cols + 5, c.rows + 2);
    let x = Numbers(m as u64).normals(m * ldx);
    let tight: Vec<f32> = x.chunks(ldx).flat_map(|r| r[..c.cols].to_vec()).collect();
    let mut want = reference(c, &tight, m);
    let x = b.put(&x);
    let y = b.poisoned(m * ldy * 4);
    for add in [false, true] {
        products.run(b.kernels, &b.queue, &c.matrix, at(&x, ldx), m, at(&y, ldy), add).unwrap();
        let all: Vec<f32> = b.read(&y, m * ldy);
        assert!(all.chunks(ldy).all(|r| r[c.rows..].iter().all(|v| v.is_nan())), "wrote between rows");
        let got: Vec<f32> = all.chunks(ldy).flat_map(|r| r[..c.rows].to_vec()).collect();
        let e = worst(&got, &want);
        assert!(e <= limit, "{} {}x{} with {m} rows, add {add}: error {e}", c.ty, c.rows, c.cols);
        want.0.iter_mut().for_each(|v| *v *= 2.0);
        want.1.iter_mut().for_each(|v| *v *= 2.0);
    }
}

#[test]
fn products_with_many_rows() {
    let b = bench();
    let products = Products::own(b.kernels);
    cases(&b, |b, c| {
        for m in [1, 11, 68] {
            check_product(b, c, &products, m, 2e-6);
        }
    });
}

#[test]
fn products_with_shared_out_rows() {
    let b = bench();
    let scratch = Scratch { rows: 400, cols: 768, weights: 1 << 16 };
    let products = Products::open(b.kernels, scratch).unwrap();
    let limit = if products.uses_mkl() { 2e-3 } else { 2e-6 };
    check_product(&b, &case(&b, TensorType::Q4_1, 65, 608), &products, 397, limit);
    check_product(&b, &case(&b, TensorType::Q4_K, 40, 768), &products, 150, limit);
}

#[test]
fn a_row_of_a_product_does_not_depend_on_the_others() {
    let b = bench();
    let products = Products::own(b.kernels);
    let c = case(&b, TensorType::Q4_1, 577, 576);
    let x = Numbers(9).normals(200 * 576);
    let buffer = b.put(&x);
    let run = |m: usize| -> Vec<f32> {
        let y = b.poisoned(m * 577 * 4);
        products.run(b.kernels, &b.queue, &c.matrix, at(&buffer, 576), m, at(&y, 577), false).unwrap();
        b.read(&y, m * 577)
    };
    let all = bits(&run(200));
    for m in [1, 2, 5, 13, 97, 199] {
        assert_eq!(bits(&run(m)), all[..m * 577], "{m} rows");
    }
}

#[test]
fn fused_parts_give_the_rows_of_each() {
    let b = bench();
    for ty in types() {
        let cols = widths(ty)[1];
        let whole = case(&b, ty, 131, cols);
        let row = whole.raw.len() / 131;
        let part = |from: usize, to: usize| RawRows { rows: to - from, data: &whole.raw[from * row..to * row] };
        let parts = [part(0, 5), part(5, 64), part(64, 64), part(64, 131)];
        let fused = Matrix::pack(b.kernels, &b.queue, ty, cols, &parts).unwrap();
        assert_eq!((fused.rows(), fused.cols(), fused.ty(), fused.bytes()), (131, cols, ty, whole.matrix.bytes()));
        let (one, two): (Vec<u8>, Vec<u8>) =
            (b.read(whole.matrix.packed(), fused.bytes()), b.read(fused.packed(), fused.bytes()));
        // padding between the planes of the gpu layout is nobody's
        if b.device.class() == DeviceClass::Cpu {
            assert!(one == two, "{ty}: packed otherwise");
        }
        let expand = |m: &Matrix| -> Vec<f32> {
            let out = b.poisoned(131 * cols * 4);
            m.dequant_f32(&b.queue, (&out, 0), 0, 131).unwrap();
            b.read(&out, 131 * cols)
        };
        assert_eq!(bits(&expand(&fused)), bits(&expand(&whole.matrix)), "{ty}");
    }
}

#[test]
fn rows_stream_through_the_staging_block() {
    let b = bench();
    // 20 MiB of file bytes: two pieces, the cut inside a group of 16 rows
    let (rows, cols) = (33_001, 992);
    let raw: Vec<u8> = {
        let mut n = Numbers(5);
        let piece = random_rows(TensorType::Q4_1, 97, cols, &mut n);
        piece.iter().copied().cycle().take(rows * cols / 32 * 20).collect()
    };
    let matrix = Matrix::pack(b.kernels, &b.queue, TensorType::Q4_1, cols, &[RawRows { rows, data: &raw }]).unwrap();
    let want = decoded(TensorType::Q4_1, &raw[..97 * cols / 32 * 20], 97, cols);
    let cut = (16 << 20) / (cols / 32 * 20);
    for first in [0, cut - 40, rows - 97] {
        let out = b.poisoned(97 * cols * 4);
        matrix.dequant_f32(&b.queue, (&out, 0), first, 97).unwrap();
        let got: Vec<f32> = b.read(&out, 97 * cols);
        for r in 0..97 {
            let w = (first + r) % 97;
            let want: Vec<f64> = want[w * cols..(w + 1) * cols].iter().map(|&v| f64::from(v)).collect();
            assert!(error(&got[r * cols..(r + 1) * cols], &want, 1.0) <= 1.2e-7, "row {} of the matrix", first + r);
        }
    }
    Matrices::release_staging(&b.kernels.matrices);
}

#[test]
fn plain_products() {
    let b = bench();
    let gemm = OwnGemm::load(b.kernels).unwrap();
    for (m, n, k) in [(1, 1, 1), (7, 17, 33), (65, 130, 300), (100, 67, 576)] {
        let mut r = Numbers((m * n + k) as u64);
        let (x, w) = (r.normals(m * k), r.normals(n * k));
        let rounded = |v: &[f32]| -> Vec<half::f16> { v.iter().map(|&f| half::f16::from_f32(f)).collect() };
        let sums = |x: &[f32], w: &[f32]| {
            let (mut sums, mut sizes) = (Vec::new(), Vec::new());
            for x in x.chunks(k) {
                for w in w.chunks(k) {
                    let products = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w));
                    sums.push(1.0 + products.clone().sum::<f64>());
                    sizes.push(1.0 + products.map(f64::abs).sum::<f64>());
                }
            }
            (sums, sizes)
        };
        let ones = vec![1.0_f32; m * n];
        let y = b.put(&ones);
        gemm.f32(&b.queue, (m, n, k), at(&b.put(&x), k), at(&b.put(&w), k), at(&y, n), true).unwrap();
        let e = worst(&b.read::<f32>(&y, m * n), &sums(&x, &w));
        assert!(e <= 2e-6, "f32 {m}x{n}x{k}: error {e}");
        let (hx, hw) = (rounded(&x), rounded(&w));
        let words = |v: &[half::f16]| -> Vec<u16> { v.iter().map(|h| h.to_bits()).collect() };
        let floats = |v: &[half::f16]| -> Vec<f32> { v.iter().map(|h| h.to_f32()).collect() };
        let y = b.put(&ones);
        gemm.f16(&b.queue, (m, n, k), at(&b.put(&words(&hx)), k), at(&b.put(&words(&hw)), k), at(&y, n), true).unwrap();
        let e = worst(&b.read::<f32>(&y, m * n), &sums(&floats(&hx), &floats(&hw)));
        assert!(e <= 2e-6, "f16 {m}x{n}x{k}: error {e}");
    }
}

#[test]
fn wrong_operands_are_refused() {
    let b = bench();
    let c = case(&b, TensorType::Q4_1, 17, 96);
    let refused = |r: ns_llm_kernels::Result<()>, word: &str| {
        let e = r.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Argument);
        assert!(e.to_string().contains(word), "{e}");
    };
    let pack = |ty, cols, rows, bytes: &[u8]| {
        Matrix::pack(b.kernels, &b.queue, ty, cols, &[RawRows { rows, data: bytes }]).map(|_| ())
    };
    refused(pack(TensorType::Q4_1, 96, 17, &c.raw[1..]), "1019 bytes are not 17 rows");
    refused(pack(TensorType::Q4_1, 95, 17, &c.raw), "cannot have 17 rows of 95");
    refused(pack(TensorType::IQ1_S, 256, 1, &[0; 50]), "IQ1_S");
    refused(pack(TensorType::Q4_1, 96, 0, &[]), "rows is 0");
    let stride = act::stride(96, b.device.class());
    let (act, y) = (b.poisoned(stride), b.poisoned(17 * 4));
    refused(c.matrix.matvec(&b.queue, at(&act, stride), 2, at(&y, 17), false), "act needs");
    refused(c.matrix.matvec(&b.queue, at(&act, stride), 1, at(&y, 16), false), "rows of y are 16 apart");
    refused(c.matrix.dequant_f32(&b.queue, (&y, 0), 17, 1), "rows 17 and 1 more");
    refused(c.matrix.embed(&b.queue, (&y, 2), 1, (&y, 0)), "ids starts at byte 2");
}

#[test]
fn sizes_in_advance_are_the_sizes_taken() {
    let b = bench();
    cases(&b, |b, c| {
        let bytes = Matrix::packed_bytes(c.ty, c.rows, c.cols, b.device.class()).unwrap();
        assert_eq!(bytes, c.matrix.bytes() as u64);
    });
    let gpu = |ty, rows, cols| Matrix::packed_bytes(ty, rows, cols, DeviceClass::Gpu);
    assert_eq!(gpu(TensorType::Q8_0, 3, 64), Some(256 + 256));
    assert_eq!(gpu(TensorType::Q6_K, 1, 256), Some(4 * 256));
    assert_eq!(gpu(TensorType::Q4_K, 1, 512), Some(512));
    assert_eq!(gpu(TensorType::Q2_K, 1, 256), Some(3 * 256));
    assert_eq!(gpu(TensorType::IQ1_S, 1, 256), None);
    assert_eq!(gpu(TensorType::Q8_0, usize::MAX, 64), None);
    assert_eq!(Matrix::packed_bytes(TensorType::Q4_K, 17, 256, DeviceClass::Cpu), Some(32 * 148));
    // over 4 GiB
    assert_eq!(gpu(TensorType::F16, 1 << 20, 4096), Some(1 << 33));
}
