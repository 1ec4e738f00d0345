//! Checked launches of the shared language-model kernels.
//!
//! Every launch checks that its operands lie inside their blocks before anything is started. What a kernel reads from device
//! memory itself (row tables, token ids) cannot be checked here: see the tables' documentation for what they must hold.

pub mod act;
pub mod arena;
pub mod attention;
mod check;
mod error;
pub mod matrix;
pub mod product;
pub mod profile;
pub mod rows;
pub mod sampling;
pub mod silo;

use std::path::{Path, PathBuf};

pub use check::{Check, Strided, at};
pub use error::{Error, ErrorKind, Result};
pub use matrix::{Matrix, RawRows};
use ns_sycl::{Buffer, Device};
pub use product::Products;
pub use profile::{Ceilings, Profile};

/// Device memory from a byte offset on.
pub type At<'a> = (&'a Buffer, usize);

/// The kernels of one device.
pub struct Kernels {
    device: Device,
    dir: PathBuf,
    /// Norms, rotary embedding, SwiGLU, element-wise.
    pub rows: rows::Rows,
    /// Attention of decode rows and prompts.
    pub attention: attention::Attention,
    /// Matrices of stored weights: their modules are loaded when a matrix first needs them.
    pub matrices: matrix::Matrices,
    /// From logits to tokens.
    pub sampling: sampling::Sampling,
}

impl Kernels {
    /// Loads them from the folder of compiled kernels (the one with `llm/` inside).
    ///
    /// # Errors
    /// A module is missing or the device cannot run it.
    pub fn load(device: &Device, kernels: &Path) -> Result<Self> {
        let dir = kernels.join("llm");
        Ok(Self {
            rows: rows::Rows::load(device, &dir)?,
            attention: attention::Attention::load(device, &dir)?,
            sampling: sampling::Sampling::load(device, &dir)?,
            matrices: matrix::Matrices::new(device, &dir),
            device: device.clone(),
            dir,
        })
    }

    /// The device they are for.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The folder they are from.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}
