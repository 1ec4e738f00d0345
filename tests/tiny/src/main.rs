//! Writes a seeded checkpoint.

use clap::Parser;
use ns_tiny::{Draft, Error, Fill, Layout, Result, Table, Types, Wanted, checkpoint, write};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write a checkpoint of random but reproducible weights, for tests and benchmarks.
#[derive(Parser)]
#[command(name = "nextsycl-tiny", version)]
struct Arguments {
    /// Architecture: llama, qwen35.
    #[arg(value_name = "ARCHITECTURE", required_unless_present_any = ["table", "arch"])]
    architecture: Option<String>,
    /// Architecture, in place of the first argument.
    #[arg(long, conflicts_with = "architecture")]
    arch: Option<String>,
    /// Shape. llama: tiny, small, smollm2-135m, llama-3.2-1b, llama-3.1-8b. qwen35: tiny, small, 0.8b, 4b, 27b.
    #[arg(long, default_value = "tiny")]
    shape: String,
    /// A table in place of architecture and shape.
    #[arg(long, conflicts_with_all = ["architecture", "arch", "shape", "seed", "vocab", "fitted"])]
    table: Option<PathBuf>,
    /// Types of the matrices: the mixes Q4_K_M and Q3_K_M, or one for all: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1,
    /// Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS. Rows that do
    /// not fit a type's blocks take the nearest one they fit.
    #[arg(long = "type", value_name = "TYPE", default_value = "F32")]
    types: String,
    /// Seed of the weights.
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Number of tokens, in place of the shape's.
    #[arg(long)]
    vocab: Option<u64>,
    /// Where the draft block goes: inside, beside (in a second file, OUT-mtp.gguf), none. Inside where there is one.
    #[arg(long)]
    draft: Option<String>,
    /// Weights that make a text whose drafts hit (qwen35, with an output of its own): about 2.5 of 3 are accepted a step.
    #[arg(long)]
    fitted: bool,
    /// What the matrices are filled with: values (random and quantised) or blocks (random ones, fast at any size). Blocks
    /// for types that are not quantised here (Q2_K, Q3_K and the IQ types) and above 67 million values, else values.
    #[arg(long)]
    fill: Option<String>,
    /// Split over so many files: OUT-00001-of-00003.gguf.
    #[arg(long, value_name = "PARTS", default_value_t = 1)]
    split: usize,
    /// The file to write.
    #[arg(long)]
    out: PathBuf,
}

fn run(arguments: &Arguments) -> Result<String> {
    let layout = Layout {
        types: Types::named(&arguments.types)?,
        fill: arguments.fill.as_deref().map(Fill::named).transpose()?,
        parts: arguments.split,
    };
    let draft = arguments.draft.as_deref().map(Draft::named).transpose()?;
    let architecture = arguments.architecture.as_deref().or(arguments.arch.as_deref()).unwrap_or_default();
    let table = match &arguments.table {
        Some(path) => Table::load(path)?,
        None => checkpoint(Wanted {
            architecture,
            shape: &arguments.shape,
            seed: arguments.seed,
            vocabulary: arguments.vocab,
            fitted: arguments.fitted,
        })?,
    };
    if draft.is_some() && table.draft_blocks() == 0 {
        return Err(Error::Table(format!("`{}` has no draft block", table.name)));
    }
    let one = |table: &Table, layout: Layout, out: &Path| {
        let files = write(table, layout, out)?;
        let values: usize = table.tensors.iter().map(ns_tiny::TensorRow::elements).sum();
        let first = files.first().map(|f| f.display().to_string()).unwrap_or_default();
        let more = if files.len() > 1 { format!(" and {} more", files.len() - 1) } else { String::new() };
        Ok(format!("{first}{more}: {} tensors, {values} values", table.tensors.len()))
    };
    match draft.unwrap_or_default() {
        Draft::Inside => one(&table, layout, &arguments.out),
        Draft::None => one(&table.without_draft(), layout, &arguments.out),
        Draft::Beside => {
            let (trunk, draft) = (table.without_draft(), table.only_draft()?);
            let lines = [
                one(&trunk, layout, &arguments.out)?,
                one(&draft, Layout { parts: 1, ..layout }, &Draft::beside(&arguments.out))?,
            ];
            Ok(lines.join("\n"))
        }
    }
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
