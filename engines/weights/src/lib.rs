//! Model files: memory-mapped GGUF, safetensors and .pth, checked before use.
//!
//! Nothing a file says is trusted: every length is compared with the bytes that are there before anything is allocated
//! or read, and a file that fails is refused with an error that names it and the key or tensor at fault.

mod arrays;
mod error;
mod gguf;
mod grids;
mod map;
mod types;

pub mod decode;

pub use arrays::{ArrayFile, ArrayView, DType};
pub use decode::decode_row;
pub use error::{Error, ErrorKind, Result};
pub use gguf::split::{shard_paths, total_bytes};
pub use gguf::{Array, ModelFile, Tensor, Value};
pub use types::TensorType;
