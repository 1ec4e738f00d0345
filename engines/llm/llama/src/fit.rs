//! What is checked before a model is opened: the chunk asked for, and that all of it fits on the device.

use crate::params::Params;
use crate::weights;
use crate::work::Sizes;
use ns_llm::{Error, ErrorKind, OptionValues, Result};
use ns_llm_kernels::product::Scratch;
use ns_sycl::Device;
use ns_weights::ModelFile;

/// Prompt tokens of a pass.
pub fn chunk_option(options: &OptionValues) -> Result<usize> {
    let Some(text) = options.get("chunk") else { return Ok(512) };
    match text.parse() {
        Ok(n) if (16..=4096).contains(&n) => Ok(n),
        _ => Err(Error::new(ErrorKind::Option, format!("option `chunk` is `{text}`; it takes 16 to 4096"))),
    }
}

/// Whether weights, cache and buffers fit into the device's free memory.
pub fn check_fit(file: &ModelFile, p: &Params, sizes: &Sizes, device: &Device, scratch: Scratch) -> Result<()> {
    let weights = weights::packed_bytes(file, device.class());
    let (cache, work) = (sizes.cache(p), sizes.work(p) + scratch.bytes(device.class()) as u64);
    let gib = |n: u64| n as f64 / f64::from(1 << 30);
    device.reserve(weights + cache + work).map_err(|e| {
        Error::with_source(
            ErrorKind::Memory,
            format!(
                "the model does not fit on {}: weights {:.2} GiB, key-value cache of {} tokens {:.2} GiB, buffers {:.2} GiB; \
                 a shorter context (--ctx) needs less",
                device.info().name,
                gib(weights),
                sizes.cells,
                gib(cache),
                gib(work)
            ),
            e,
        )
    })
}
