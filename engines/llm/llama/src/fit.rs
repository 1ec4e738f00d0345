//! What is worked out before a model is opened: the chunk asked for, the sizes that follow, and the memory that all of it takes.

use crate::device_error;
use crate::params::Params;
use crate::weights;
use crate::work::Sizes;
use ns_llm::{DevicePlan, Error, ErrorKind, LoadOptions, OptionValues, Plan, Result};
use ns_llm_kernels::attention::{CELL_ALIGN, KvPrecision};
use ns_llm_kernels::product::Scratch;
use ns_sycl::{Device, DeviceClass};
use ns_weights::ModelFile;

/// Memory for weights expanded for oneMKL.
const EXPANDED_WEIGHTS: usize = 64 << 20;

/// Prompt tokens of a pass.
fn chunk_option(options: &OptionValues) -> Result<usize> {
    let Some(text) = options.get("chunk") else { return Ok(512) };
    match text.parse() {
        Ok(n) if (16..=4096).contains(&n) => Ok(n),
        _ => Err(Error::new(ErrorKind::Option, format!("option `chunk` is `{text}`; it takes 16 to 4096"))),
    }
}

/// How a model will be opened.
pub struct Fit {
    /// Prompt tokens of a pass.
    pub chunk: usize,
    /// Precision of the cache.
    pub precision: KvPrecision,
    /// Sizes of cache and buffers.
    pub sizes: Sizes,
    /// Memory of the prompt products.
    pub scratch: Scratch,
    /// Memory of the device.
    pub plan: Plan,
}

impl Fit {
    /// Works out a model on the one device of the options.
    pub fn new(
        file: &ModelFile,
        p: &Params,
        options: &LoadOptions,
        values: &OptionValues,
        device: &Device,
    ) -> Result<Self> {
        if options.contexts.is_empty() || options.contexts.contains(&0) {
            return Err(Error::new(ErrorKind::Option, "at least one session of at least one token is needed"));
        }
        if let Some(long) = options.contexts.iter().find(|&&c| c > p.context_length) {
            return Err(Error::new(
                ErrorKind::Option,
                format!("a context of {long} tokens is longer than the model's {}", p.context_length),
            ));
        }
        let chunk = chunk_option(values)?;
        let precision = match (values.get("kv"), device.class()) {
            (Some("f16"), _) | (None, DeviceClass::Gpu) => KvPrecision::F16,
            _ => KvPrecision::F32,
        };
        let cells: Vec<usize> = options.contexts.iter().map(|c| c.next_multiple_of(CELL_ALIGN)).collect();
        let sizes = Sizes::new(p, device.class(), chunk, cells.iter().sum(), precision);
        let widest = p.hidden_size.max(p.n_ff).max(p.n_heads * p.head_dim);
        let scratch = Scratch { rows: chunk, cols: widest, weights: EXPANDED_WEIGHTS };
        let info = device.info();
        let known = |what: ns_sycl::Result<u64>| what.map_err(|e| device_error("cannot tell the device's memory", e));
        let plan = DevicePlan {
            selector: options.devices.first().cloned().unwrap_or_default(),
            name: info.name.clone(),
            layers: (0, p.n_layers),
            parts: vec!["embedding".to_owned(), "head".to_owned()],
            weights: weights::packed_bytes(file, device.class()),
            caches: cells.iter().map(|&c| sizes.cell(p) * c as u64).collect(),
            work: sizes.work(p) + scratch.bytes(device.class()) as u64,
            total: info.total_memory,
            free: known(device.free_memory())?,
            margin: known(device.margin())?,
        };
        Ok(Self { chunk, precision, sizes, scratch, plan: Plan { devices: vec![plan] } })
    }
}
