//! Seeded tiny checkpoints for tests and benchmarks.
//!
//! A checkpoint is a table (names, shapes, means and deviations of its tensors, metadata, a prompt) and a seed; its
//! weights come from one rule (module [`fill`]) that every language reproduces bit for bit. So only expected outputs
//! are stored, and the file is written where a test needs it.
//!
//! This crate writes GGUF by itself. The writer shares no constant of the format with the reader, so that a mistake in one
//! is seen by the other. Module [`reference`](mod@reference) runs a checkpoint in 64-bit floats.

mod blocks;
mod draft;
mod error;
mod expected;
pub mod fill;
mod fitted;
mod gguf;
mod quantize;
pub mod reference;
mod shapes;
mod storage;
mod table;
mod types;
mod vocabulary;

pub use draft::Draft;
pub use error::{Error, Result};
pub use expected::{Expected, Output, fixtures};
pub use gguf::{Fill, Layout, write, write_table};
pub use shapes::{SHAPES, Wanted, checkpoint, shape};
pub use storage::Storage;
pub use table::{Source, Table, TensorRow, Tokenizer};
pub use types::Types;
