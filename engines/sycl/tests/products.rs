//! Matrix products of oneMKL and oneDNN against float64, on odd sizes and leading dimensions, outputs poisoned first.
//! They run where the libraries' own kernels run: the CPU device (pretended cards cannot execute them).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Random, refusal};
use ns_sycl::{Batch, Device, ElementType, Gemm, GemmLibrary, Matmul, Queue};

const SIZES: [(usize, usize, usize); 7] =
    [(1, 1, 1), (1, 33, 7), (3, 65, 129), (17, 31, 577), (64, 64, 64), (129, 257, 100), (5, 1536, 576)];

fn cpu() -> (Device, Queue) {
    let d = Device::open("cpu").unwrap();
    let q = d.queue().unwrap();
    (d, q)
}

/// Half of a small float, rounded to nearest even; the numbers here have few bits, so it is exact.
fn half_bits(v: f32) -> u16 {
    let bits = v.to_bits();
    if v == 0.0 {
        return 0;
    }
    let exponent = ((bits >> 23) & 0xff) as i32 - 127 + 15;
    assert!((1..31).contains(&exponent) && bits & 0x1fff == 0, "{v} is no half");
    ((bits >> 16) & 0x8000) as u16 | (exponent as u16) << 10 | ((bits >> 13) & 0x3ff) as u16
}

struct Case {
    m: usize,
    n: usize,
    k: usize,
    ldx: usize,
    ldw: usize,
    ldy: usize,
    x: Vec<f32>,
    w: Vec<f32>,
}

impl Case {
    fn new(random: &mut Random, (m, n, k): (usize, usize, usize), few_bits: bool) -> Self {
        let (ldx, ldw, ldy) = (k + 3, k + 5, n + 2);
        let mut numbers = |n: usize| -> Vec<f32> {
            (0..n).map(|_| if few_bits { (random.bits() % 129) as f32 / 64.0 - 1.0 } else { random.unit() }).collect()
        };
        let (x, w) = (numbers(m * ldx), numbers(n * ldw));
        Self { m, n, k, ldx, ldw, ldy, x, w }
    }

    /// Product and the sum of magnitudes, which errors are relative to.
    fn reference(&self, row: usize, column: usize) -> (f64, f64) {
        (0..self.k).fold((0.0, 0.0), |(sum, size), i| {
            let p = f64::from(self.x[row * self.ldx + i]) * f64::from(self.w[column * self.ldw + i]);
            (sum + p, size + p.abs())
        })
    }

    /// Compares y with `reference + beta * old`; gaps between rows must be as they were.
    fn check(&self, y: &[f32], old: f32, beta: f32, tolerance: f64, what: &str) {
        for row in 0..self.m {
            for column in 0..self.ldy {
                if row == self.m - 1 && column >= self.n {
                    continue;
                }
                let got = y[row * self.ldy + column];
                if column >= self.n {
                    assert!(got.to_bits() == old.to_bits(), "{what}: the gap after row {row} was written");
                    continue;
                }
                let (sum, size) = self.reference(row, column);
                let added = if beta == 0.0 { 0.0 } else { f64::from(beta) * f64::from(old) };
                let error = (f64::from(got) - sum - added).abs();
                assert!(
                    error <= tolerance * (size + added.abs() + 1e-6),
                    "{what} {}x{}x{}: y[{row}][{column}] = {got}, should be {}",
                    self.m,
                    self.n,
                    self.k,
                    sum + added
                );
            }
        }
    }
}

#[test]
fn float_products_are_right_in_both_libraries() {
    let (d, q) = cpu();
    let mut random = Random(21);
    for library in [GemmLibrary::OneMkl, GemmLibrary::OneDnn] {
        let gemm = Gemm::open_with(&d, library).unwrap();
        for size in SIZES {
            let c = Case::new(&mut random, size, false);
            let offset = 64;
            let x = d.alloc(4 * c.x.len() + offset).unwrap();
            let w = d.alloc(4 * c.w.len()).unwrap();
            let y = d.alloc(4 * c.m * c.ldy).unwrap();
            q.write_slice(&x, offset, &c.x).unwrap();
            q.write_slice(&w, 0, &c.w).unwrap();
            for (beta, old) in [(0.0, f32::NAN), (1.0, 0.5), (-2.0, 0.25)] {
                q.write_slice(&y, 0, &vec![old; c.m * c.ldy]).unwrap();
                gemm.f32(&q, c.m, c.n, c.k, (&x, offset), c.ldx, (&w, 0), c.ldw, (&y, 0), c.ldy, beta).unwrap();
                let got = q.read_vec::<f32>(&y, 0, c.m * c.ldy).unwrap();
                c.check(&got, old, beta, 2e-6, &format!("{library:?} beta {beta}"));
            }
        }
    }
}

#[test]
fn half_products_are_right() {
    let (d, q) = cpu();
    let gemm = Gemm::open(&d).unwrap();
    let mut random = Random(22);
    for size in SIZES {
        let c = Case::new(&mut random, size, true);
        let halves = |v: &[f32]| v.iter().map(|v| half_bits(*v)).collect::<Vec<u16>>();
        let x = d.alloc(2 * c.x.len()).unwrap();
        let w = d.alloc(2 * c.w.len()).unwrap();
        let y = d.alloc(4 * c.m * c.ldy).unwrap();
        q.write_slice(&x, 0, &halves(&c.x)).unwrap();
        q.write_slice(&w, 0, &halves(&c.w)).unwrap();
        q.write_slice(&y, 0, &vec![f32::NAN; c.m * c.ldy]).unwrap();
        gemm.f16(&q, c.m, c.n, c.k, (&x, 0), c.ldx, (&w, 0), c.ldw, (&y, 0), c.ldy, 0.0).unwrap();
        c.check(&q.read_vec::<f32>(&y, 0, c.m * c.ldy).unwrap(), f32::NAN, 0.0, 2e-6, "half to float");
    }
}

#[test]
fn batches_equal_single_products() {
    let (d, q) = cpu();
    let gemm = Gemm::open_with(&d, GemmLibrary::OneMkl).unwrap();
    let mut random = Random(23);
    let (m, n, k, count) = (7, 19, 33, 5);
    let x = d.alloc(4 * m * k * count).unwrap();
    let w = d.alloc(4 * n * k).unwrap();
    let (y, z) = (d.alloc(4 * m * n * count).unwrap(), d.alloc(4 * m * n * count).unwrap());
    q.write_slice(&x, 0, &random.units(m * k * count)).unwrap();
    q.write_slice(&w, 0, &random.units(n * k)).unwrap();
    q.fill(&y, 0, y.len(), 0xff).unwrap();
    q.fill(&z, 0, z.len(), 0xff).unwrap();
    let batch = Batch { count, stride_x: m * k, stride_w: 0, stride_y: m * n };
    gemm.batch_f32(&q, m, n, k, (&x, 0), k, (&w, 0), k, (&y, 0), n, batch, 0.0).unwrap();
    for i in 0..count {
        gemm.f32(&q, m, n, k, (&x, 4 * i * m * k), k, (&w, 0), k, (&z, 4 * i * m * n), n, 0.0).unwrap();
    }
    let (a, b) = (q.read_vec::<f32>(&y, 0, m * n * count).unwrap(), q.read_vec::<f32>(&z, 0, m * n * count).unwrap());
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-5), "a batch differs from its products");
    let too_far = Batch { count: count + 1, ..batch };
    let text = refusal(gemm.batch_f32(&q, m, n, k, (&x, 0), k, (&w, 0), k, (&y, 0), n, too_far, 0.0));
    assert!(text.starts_with("operand x of a product: "), "{text}");
}

#[test]
fn integer_products_are_exact() {
    let (d, q) = cpu();
    let matmul = Matmul::open(&d).unwrap();
    let (m, n, k) = (13, 37, 129);
    let mut random = Random(24);
    let numbers = |n: usize, random: &mut Random| (0..n).map(|_| random.bits() as i8).collect::<Vec<i8>>();
    let (x, w) = (numbers(m * k, &mut random), numbers(n * k, &mut random));
    let (bx, bw, by) = (d.alloc(m * k).unwrap(), d.alloc(n * k).unwrap(), d.alloc(4 * m * n).unwrap());
    q.write_slice(&bx, 0, &x).unwrap();
    q.write_slice(&bw, 0, &w).unwrap();
    q.fill(&by, 0, 4 * m * n, 0x77).unwrap();
    matmul.run(&q, (ElementType::S8, ElementType::S32), m, n, k, (&bx, 0), k, (&bw, 0), k, (&by, 0), n, 0.0).unwrap();
    let got = q.read_vec::<i32>(&by, 0, m * n).unwrap();
    for row in 0..m {
        for column in 0..n {
            let sum: i32 = (0..k).map(|i| i32::from(x[row * k + i]) * i32::from(w[column * k + i])).sum();
            assert_eq!(got[row * n + column], sum);
        }
    }
}

#[test]
fn operands_out_of_bounds_are_refused() {
    let (d, q) = cpu();
    let gemm = Gemm::open(&d).unwrap();
    let b = d.alloc(4 * 100).unwrap();
    let run = |x: usize, ldx, w: usize, ldw, y: usize, ldy| {
        refusal(gemm.f32(&q, 10, 10, 10, (&b, x), ldx, (&b, w), ldw, (&b, y), ldy, 0.0))
    };
    assert!(
        run(4, 10, 0, 10, 0, 10)
            .starts_with("operand x of a product: 400 bytes from byte 4 on do not fit a block of 400 bytes")
    );
    assert!(run(0, 10, 0, 11, 0, 10).starts_with("operand w of a product: "));
    assert!(run(0, 10, 0, 10, 0, 9).starts_with("operand y of a product: rows are 9 elements apart but have 10"));
    assert!(run(0, 10, 2, 10, 0, 10).starts_with("operand w of a product starts at byte 2, not at an element"));
    assert!(run(0, usize::MAX, 0, 10, 0, 10).contains("too big"));
}

#[test]
fn recording_a_product_on_the_cpu_is_refused_and_harms_nothing() {
    let (d, q) = cpu();
    let b = d.alloc(400).unwrap();
    q.fill(&b, 0, 400, 0).unwrap();
    for library in [GemmLibrary::OneMkl, GemmLibrary::OneDnn] {
        let gemm = Gemm::open_with(&d, library).unwrap();
        let run = || gemm.f32(&q, 5, 5, 5, (&b, 0), 5, (&b, 100), 5, (&b, 200), 5, 0.0);
        q.begin_graph().unwrap();
        q.fill(&b, 300, 100, 7).unwrap();
        let error = run().unwrap_err();
        assert!(error.is_unsupported());
        assert!(error.to_string().contains("cannot be recorded into a graph on"), "{error}");
        let graph = q.end_graph().unwrap();
        assert_eq!(graph.size(), 1);
        q.replay(&graph).unwrap();
        run().unwrap();
        assert_eq!(q.read_vec::<u8>(&b, 300, 100).unwrap(), [7; 100]);
        q.fill(&b, 300, 100, 0).unwrap();
    }
}
