//! Writes a seeded checkpoint.

use clap::Parser;
use ns_tiny::{Result, SHAPES, Storage, Table, shape, write};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write a checkpoint of random but reproducible weights, for tests and benchmarks.
#[derive(Parser)]
#[command(name = "nextsycl-tiny", version)]
struct Arguments {
    /// Architecture: llama.
    #[arg(required_unless_present = "table")]
    architecture: Option<String>,
    /// Shape: tiny, small, smollm2-135m, llama-3.2-1b, llama-3.1-8b.
    #[arg(long, default_value = SHAPES[0])]
    shape: String,
    /// A table in place of architecture and shape.
    #[arg(long, conflicts_with_all = ["architecture", "shape", "seed"])]
    table: Option<PathBuf>,
    /// Type of the matrices: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q6_K. Rows that do not fit a type's
    /// blocks take the nearest one they fit.
    #[arg(long = "type", value_name = "TYPE", default_value = "F32")]
    storage: String,
    /// Seed of the weights.
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// The file to write.
    #[arg(long)]
    out: PathBuf,
}

fn run(arguments: &Arguments) -> Result<String> {
    let storage = Storage::named(&arguments.storage)?;
    let table = match &arguments.table {
        Some(path) => Table::load(path)?,
        None => shape(arguments.architecture.as_deref().unwrap_or_default(), &arguments.shape, arguments.seed)?,
    };
    write(&table, storage, &arguments.out)?;
    let values: usize = table.tensors.iter().map(ns_tiny::TensorRow::elements).sum();
    Ok(format!("{}: {} tensors, {values} values", arguments.out.display(), table.tensors.len()))
}

fn main() -> ExitCode {
    let (message, code) = match run(&Arguments::parse()) {
        Ok(message) => (message, ExitCode::SUCCESS),
        Err(error) => (format!("error: {error}"), ExitCode::FAILURE),
    };
    // Nothing is left to do where even this fails.
    let _ = writeln!(std::io::stderr(), "{message}");
    code
}
