//! Each decode product of the model against the exact path: the file's own blocks, decoded, multiplied in float64.

use crate::params::Params;
use crate::weights::Weights;
use crate::{device_error, kernel_error};
use ns_llm::{Error, ErrorKind, KernelCheck, Result};
use ns_llm_kernels::{Kernels, Matrix, act, at};
use ns_sycl::{Device, Queue, bytes_of};
use ns_weights::{ModelFile, decode_row};

/// Rows of a matrix that are compared.
const ROWS: usize = 64;
/// Bound of the difference, relative to the largest exact value. The gpu layout rounds activations to 16 bits.
const BOUND: f64 = 2e-4;

/// Checks one matrix of every role in layer 0 and the head.
pub fn run(
    file: &ModelFile,
    weights: &Weights,
    queue: &Queue,
    device: &Device,
    kernels: &Kernels,
    p: &Params,
) -> Result<Vec<KernelCheck>> {
    let layer = weights.layers.first().ok_or_else(|| Error::new(ErrorKind::Model, "the model has no layers"))?;
    let mut cases: Vec<(&str, &Matrix)> = vec![
        (if p.tied { "token_embd.weight" } else { "output.weight" }, weights.head()),
        ("blk.0.attn_output.weight", &layer.output),
        ("blk.0.ffn_down.weight", &layer.down),
    ];
    for (name, fused) in [("blk.0.attn_q.weight", &layer.qkv), ("blk.0.ffn_gate.weight", &layer.gate_up)] {
        cases.extend(fused.parts.first().map(|(matrix, _)| (name, matrix)));
    }
    cases.into_iter().map(|(name, matrix)| check(file, name, matrix, queue, device, kernels)).collect()
}

fn check(
    file: &ModelFile,
    name: &str,
    matrix: &Matrix,
    queue: &Queue,
    device: &Device,
    kernels: &Kernels,
) -> Result<KernelCheck> {
    let tensor = file.tensor(name).ok_or_else(|| Error::new(ErrorKind::Model, format!("tensor {name} is missing")))?;
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let stride = act::stride(cols, device.class());
    // smooth and never zero: any pattern that is not constant will do
    let x: Vec<f32> = (0..cols).map(|i| ((i * 37 + 11) % 101) as f32 / 50.0 - 1.01).collect();
    let alloc = |n: usize| device.alloc(n).map_err(|e| device_error("no memory for the check", e));
    let (xs, acts, y) = (alloc(cols * 4)?, alloc(stride)?, alloc(rows * 4)?);
    queue.write(&xs, 0, bytes_of(&x)).map_err(|e| device_error("cannot write the check's input", e))?;
    let failed = |e| kernel_error(&format!("the product of {name} failed"), e);
    kernels.rows.to_act(queue, at(&xs, cols), at(&acts, stride), (1, cols)).map_err(failed)?;
    matrix.matvec(queue, at(&acts, stride), 1, at(&y, rows), false).map_err(failed)?;
    let got: Vec<f32> = queue.read_vec(&y, 0, rows).map_err(|e| device_error("cannot read the check's result", e))?;
    let (mut worst, mut largest) = (0.0_f64, 0.0_f64);
    let mut row = vec![0.0_f32; cols];
    for (index, got) in got.iter().enumerate().take(ROWS.min(tensor.rows())) {
        let bytes = tensor.row(index).unwrap_or_default();
        decode_row(tensor.ty, bytes, &mut row)
            .map_err(|e| Error::with_source(ErrorKind::Model, format!("tensor {name}"), e))?;
        let exact: f64 = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
        worst = worst.max((exact - f64::from(*got)).abs());
        largest = largest.max(exact.abs());
    }
    Ok(KernelCheck {
        kernel: format!("matvec {}", tensor.ty.name()),
        case: format!("{name} [{rows} x {cols}]"),
        error: if worst.is_nan() { f64::INFINITY } else { worst / largest.max(f64::MIN_POSITIVE) },
        bound: BOUND,
    })
}
