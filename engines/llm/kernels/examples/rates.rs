//! Bytes a second of the matrix-vector products of every type, in one run:
//!
//!     cargo run --release -p ns-llm-kernels --example rates [-- DEVICE [ROWS COLS [TYPE...]]]
//!
//! GB/s are those of the file's bytes, the figure to hold against a device's memory; one row, four and eight. GFLOP/s are those of a
//! prompt product of 512 rows by our own kernel.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the example's output")]

use std::error::Error;
use std::time::{Duration, Instant};

use ns_llm_kernels::matrix::TYPES;
use ns_llm_kernels::product::Products;
use ns_llm_kernels::{Kernels, Matrix, RawRows, act, at};
use ns_sycl::{Device, Locations};
use ns_weights::TensorType;

/// How long each product is repeated.
const SPAN: Duration = Duration::from_millis(400);
/// Rows of a prompt product.
const PROMPT: usize = 512;

fn main() {
    if let Err(e) = run() {
        eprintln!("rates: {e}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, otherwise: usize| words.get(i).map_or(Ok(otherwise), |w| w.parse());
    let (rows, cols) = (number(1, 4096)?, number(2, 4096)?);
    let mut types = Vec::new();
    for name in words.iter().skip(3) {
        types.push(TensorType::from_name(name).ok_or_else(|| format!("unknown type `{name}`"))?);
    }
    if types.is_empty() {
        types = TYPES.to_vec();
    }
    let device = Device::open(words.first().map_or("cpu", String::as_str))?;
    let kernels = Kernels::load(&device, &Locations::discover().kernels)?;
    let queue = device.queue()?;
    let stride = act::stride(cols, device.class());
    let x = device.alloc(cols * 4 * 8)?;
    queue.fill(&x, 0, cols * 4 * 8, 0x3c)?;
    let rows_of_x = device.alloc(stride * 8)?;
    kernels.rows.to_act(&queue, at(&x, cols), at(&rows_of_x, stride), (8, cols))?;
    let prompt = device.alloc(cols * 4 * PROMPT)?;
    let values: Vec<f32> =
        (0..cols * PROMPT).map(|i| (i.wrapping_mul(2_654_435_761) >> 7 & 0xffff) as f32 / 32768.0 - 1.0).collect();
    queue.write_slice(&prompt, 0, &values)?;
    let products = Products::own(&kernels);
    let y = device.alloc(rows * 4 * PROMPT)?;
    println!(
        "{rows} rows of {cols}; best of many in {SPAN:?}\n{:8} {:>9} {:>9} {:>9}  GB/s{:>23} GFLOP/s",
        "", "1 row", "4 rows", "8 rows", "512 rows"
    );
    for ty in types {
        let bytes = ty.row_bytes(cols).ok_or("the width is no whole number of blocks")? * rows;
        // the same few scales everywhere: what counts is the time
        let raw: Vec<u8> = (0..bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3f).collect();
        let matrix = Matrix::pack(&kernels, &queue, ty, cols, &[RawRows { rows, data: &raw }])?;
        let mut rates = Vec::new();
        for m in [1, 4, 8] {
            let mut best = f64::INFINITY;
            let began = Instant::now();
            while began.elapsed() < SPAN {
                let start = Instant::now();
                matrix.matvec(&queue, at(&rows_of_x, stride), m, at(&y, rows), false)?;
                queue.wait()?;
                best = best.min(start.elapsed().as_secs_f64());
            }
            rates.push(bytes as f64 / best / 1e9);
        }
        let mut best = f64::INFINITY;
        let began = Instant::now();
        while began.elapsed() < SPAN {
            let start = Instant::now();
            products.run(&kernels, &queue, &matrix, at(&prompt, cols), PROMPT, at(&y, rows), false)?;
            queue.wait()?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        let product = 2.0 * (PROMPT * rows * cols) as f64 / best / 1e9;
        let gw = rates[0] * rows as f64 * cols as f64 / bytes as f64;
        println!(
            "{:8} {:9.1} {:9.1} {:9.1}  {gw:5.1} Gweights/s {product:9.1}",
            ty.name(),
            rates[0],
            rates[1],
            rates[2]
        );
    }
    Ok(())
}
