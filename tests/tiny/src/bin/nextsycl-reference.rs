//! Runs qwen35 files in 64-bit floats, and compares logits.

use clap::{Parser, Subcommand};
use ns_tiny::reference::{Drafted, Model, best, write_plain};
use ns_tiny::{Error, Result};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A forward pass of qwen35 in 64-bit floats: slow, and right.
#[derive(Parser)]
#[command(name = "nextsycl-reference", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the logits of a prompt's rows, as little-endian 32-bit floats.
    Logits {
        /// The model.
        model: PathBuf,
        /// Token ids, apart by commas.
        #[arg(long, value_delimiter = ',', required = true)]
        ids: Vec<u32>,
        /// Every row instead of the last one.
        #[arg(long)]
        all: bool,
        /// The file to write.
        #[arg(long)]
        out: PathBuf,
    },
    /// Write a greedy text with drafts, and tell how many of them hit.
    Speculate {
        /// The model.
        model: PathBuf,
        /// A file with its draft block, where that is beside it.
        #[arg(long)]
        draft_model: Option<PathBuf>,
        /// Token ids of the prompt, apart by commas.
        #[arg(long, value_delimiter = ',', required = true)]
        ids: Vec<u32>,
        /// Tokens to write.
        #[arg(long, default_value_t = 64)]
        new: usize,
        /// Guesses a step.
        #[arg(long, default_value_t = 3)]
        drafts: usize,
    },
    /// Compare two files of logits. The difference is told as a part of the first one's spread (standard deviation).
    Compare {
        /// Right ones.
        right: PathBuf,
        /// Others: as many, or the rows at the end.
        other: PathBuf,
        /// Largest difference that passes.
        #[arg(long, default_value_t = 2e-5)]
        bound: f64,
    },
    /// Turn a file of llama.cpp's random test models into one like real ones.
    Plain {
        /// The file.
        model: PathBuf,
        /// The file to write.
        out: PathBuf,
        /// Factors of products and biases stay as they are.
        #[arg(long)]
        keep_factors: bool,
    },
}

fn read(path: &Path) -> Result<Vec<f32>> {
    let bytes = std::fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    Ok(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

fn compare(right: &Path, other: &Path, bound: f64) -> Result<String> {
    let (all, other) = (read(right)?, read(other)?);
    let right = all.len().checked_sub(other.len()).and_then(|start| all.get(start..)).filter(|r| !r.is_empty());
    let right =
        right.ok_or_else(|| Error::Table(format!("{} values cannot be compared with {}", other.len(), all.len())))?;
    let n = right.len() as f64;
    let mean = right.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let spread = (right.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n).sqrt();
    let pairs = right.iter().zip(&other).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs());
    let worst = pairs.fold(0.0, |m, d| if d.is_nan() { f64::INFINITY } else { f64::max(m, d) });
    let line = format!("largest difference {worst:.3e}, spread {spread:.3e}: {:.2e} of it", worst / spread);
    // written so that a spread of 0 or no number fails
    if worst / spread <= bound { Ok(line) } else { Err(Error::Table(format!("{line}, over {bound:.1e}"))) }
}

fn run(command: &Command) -> Result<String> {
    match command {
        Command::Logits { model, ids, all, out } => {
            let model = Model::open(model, None)?;
            let mut sequence = model.sequence();
            let (mut bytes, mut top) = (Vec::new(), 0);
            for (i, &id) in ids.iter().enumerate() {
                let hidden = sequence.push(id)?;
                if *all || i + 1 == ids.len() {
                    let logits = model.logits(&hidden)?;
                    top = best(&logits);
                    bytes.extend(logits.iter().flat_map(|&v| (v as f32).to_le_bytes()));
                }
            }
            std::fs::write(out, bytes).map_err(|source| Error::Io { path: out.clone(), source })?;
            Ok(format!("next token: {top}"))
        }
        Command::Speculate { model, draft_model, ids, new, drafts } => {
            let model = Model::open(model, draft_model.as_deref())?;
            let made = Drafted::new(&model)?.speculate(ids, *new, *drafts)?;
            let tokens: Vec<String> = made.tokens.iter().map(u32::to_string).collect();
            Ok(format!(
                "{}\n{} tokens in {} steps, {} of {} drafts accepted",
                tokens.join(","),
                made.tokens.len(),
                made.steps,
                made.accepted,
                made.guessed
            ))
        }
        Command::Compare { right, other, bound } => compare(right, other, *bound),
        Command::Plain { model, out, keep_factors } => {
            write_plain(model, out, *keep_factors)?;
            Ok(format!("{} written", out.display()))
        }
    }
}

fn main() -> ExitCode {
    let (result, code) = match run(&Arguments::parse().command) {
        Ok(line) => (writeln!(std::io::stdout(), "{line}"), ExitCode::SUCCESS),
        Err(error) => (writeln!(std::io::stderr(), "error: {error}"), ExitCode::FAILURE),
    };
    // Nothing is left to do where even this fails.
    drop(result);
    code
}
