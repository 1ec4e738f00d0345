//! Each decode product of the model against the exact path: the file's own blocks, decoded, multiplied in float64.

use crate::engine::Qwen35;
use crate::stage::Stage;
use crate::weights::Mixer;
use crate::{device_error, kernel_error};
use ns_llm::{Error, ErrorKind, KernelCheck, Result};
use ns_llm_kernels::{Matrix, act, at};
use ns_sycl::bytes_of;
use ns_weights::{ModelFile, decode_row};

/// Rows of a matrix that are compared.
const ROWS: usize = 64;
/// Bound of the difference, relative to the largest exact value. The gpu layout rounds activations to 16 bits.
const BOUND: f64 = 2e-4;

/// Matrices of a stage with the names of their first tensors: one of every role, in the first layer of each kind.
fn cases<'a>(engine: &Qwen35, stage: &'a Stage) -> Vec<(String, Stored<'a>)> {
    let mut cases = Vec::new();
    let mut seen = [false; 2];
    for (place, layer) in stage.weights.layers.iter().enumerate() {
        let index = stage.share.layers.start + place;
        let name = |role: &str| format!("blk.{index}.{role}.weight");
        let kind = usize::from(matches!(layer.mixer, Mixer::Delta(_)));
        if std::mem::replace(&mut seen[kind], true) {
            continue;
        }
        cases.push((name("ffn_down"), Stored::Main(&layer.down)));
        cases.extend(layer.gate_up.parts.first().map(|(m, _)| (name("ffn_gate"), Stored::Main(m))));
        match &layer.mixer {
            Mixer::Full(full) => {
                cases.push((name("attn_output"), Stored::Main(&full.output)));
                cases.extend(full.qkv.parts.first().map(|(m, _)| (name("attn_q"), Stored::Main(m))));
            }
            Mixer::Delta(delta) => {
                cases.push((name("ssm_out"), Stored::Main(&delta.output)));
                cases.extend(delta.mixer.parts.first().map(|(m, _)| (name("attn_qkv"), Stored::Main(m))));
            }
        }
    }
    if stage.share.last {
        if let Ok(head) = stage.weights.head() {
            let name = if engine.p.tied { "token_embd.weight" } else { "output.weight" };
            cases.push((name.to_owned(), Stored::Main(head)));
        }
        if let (Some(draft), Some((_, block))) = (&stage.weights.draft, engine.files.draft()) {
            cases.push((format!("blk.{}.nextn.eh_proj.weight", block.index), Stored::Draft(&draft.join)));
        }
    }
    cases
}

/// A matrix and which file its tensors are in.
enum Stored<'a> {
    Main(&'a Matrix),
    Draft(&'a Matrix),
}

/// Checks one matrix of every role on every device.
pub fn run(engine: &Qwen35) -> Result<Vec<KernelCheck>> {
    let mut results = Vec::new();
    for stage in &engine.stages {
        for (name, matrix) in cases(engine, stage) {
            let (file, matrix) = match matrix {
                Stored::Main(m) => (&engine.files.main, m),
                Stored::Draft(m) => (engine.files.draft().map_or(&engine.files.main, |d| d.0), m),
            };
            results.push(check(file, &name, matrix, stage)?);
        }
    }
    Ok(results)
}

fn check(file: &ModelFile, name: &str, matrix: &Matrix, stage: &Stage) -> Result<KernelCheck> {
    let tensor = file.tensor(name).ok_or_else(|| Error::new(ErrorKind::Model, format!("tensor {name} is missing")))?;
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let (device, queue) = (&stage.device, &stage.queue);
    let stride = act::stride(cols, device.class());
    // smooth and never zero: any pattern that is not constant will do
    let x: Vec<f32> = (0..cols).map(|i| ((i * 37 + 11) % 101) as f32 / 50.0 - 1.01).collect();
    let alloc = |n: usize| device.alloc(n).map_err(|e| device_error("no memory for the check", e));
    let (xs, acts, y) = (alloc(cols * 4)?, alloc(stride)?, alloc(rows * 4)?);
    queue.write(&xs, 0, bytes_of(&x)).map_err(|e| device_error("cannot write the check's input", e))?;
    let failed = |e| kernel_error(&format!("the product of {name} failed"), e);
    stage.kernels.rows.to_act(queue, at(&xs, cols), at(&acts, stride), (1, cols)).map_err(failed)?;
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
