//! The engine of llama-architecture models.
//!
//! Forward pass (llama.md of the model's specification, checked against transformers' `LlamaForCausalLM`):
//!
//! ```text
//! x = token_embd[t]
//! each layer:  h = rms(x) * attn_norm
//!              q = rope(W_q h), k = rope(W_k h), v = W_v h
//!              x += W_o concat_a( softmax_t(q_a . k_t / sqrt(head_dim)) v_t )       key head = a / (n_heads / n_kv)
//!              h = rms(x) * ffn_norm;   x += W_down( silu(W_gate h) * (W_up h) )
//! logits = W_head ( rms(x) * output_norm )
//! ```
//!
//! Rotation pairs adjacent values: files of this architecture have their query and key rows permuted for it.
//!
//! Where things are: [`params`] what a file must hold, `weights` the matrices on the device, [`arena`] and `session`
//! the conversations, `fit` the sizes and the memory plan before a load, `work` the buffers of a pass, `passes` the kernels of a pass, `engine` the contract.

mod checkpoint;
mod engine;
mod fit;
mod kernel_checks;
pub mod params;
mod passes;
mod session;
mod weights;
mod work;

use ns_llm::{Engine, Error, ErrorKind, LoadOptions, Moment, OptionSpec, Progress, Registration, Result};
use ns_weights::ModelFile;
use std::path::Path;

/// Options of the engine.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "kv",
        env: "NS_KV",
        value: "f16|f32",
        allowed: &["f16", "f32"],
        help: "precision of the key-value cache (default f16 on a card, f32 on the CPU device)",
        moment: Moment::Load,
    },
    OptionSpec {
        name: "chunk",
        env: "NS_PREFILL_CHUNK",
        value: "TOKENS",
        allowed: &[],
        help: "prompt tokens read in one pass, 16 to 4096 (default 512)",
        moment: Moment::Load,
    },
    OptionSpec {
        name: "gemm",
        env: "NS_GEMM",
        value: "auto|own",
        allowed: &["auto", "own"],
        help: "prompt products: the fastest way of the device, or our own kernel (default auto)",
        moment: Moment::Load,
    },
    OptionSpec {
        name: "graph",
        env: "NS_GRAPH",
        value: "0|1",
        allowed: &["0", "1"],
        help: "replay decode passes as recorded graphs (default 1)",
        moment: Moment::Load,
    },
];

/// The engine's entry in a tool's table.
pub const REGISTRATION: Registration =
    Registration { name: "llama", architectures: &["llama"], options: OPTIONS, max_devices: 1, plan, load, info };

fn open_file(path: &Path) -> Result<ModelFile> {
    ModelFile::open(path).map_err(|e| Error::with_source(ErrorKind::Model, "cannot open the model", e))
}

fn load(path: &Path, options: &LoadOptions, progress: Progress<'_>) -> Result<Box<dyn Engine>> {
    let file = open_file(path)?;
    Ok(Box::new(engine::Llama::load(file, options, progress)?))
}

fn plan(path: &Path, options: &LoadOptions) -> Result<ns_llm::Plan> {
    engine::Llama::plan(&open_file(path)?, options)
}

fn info(path: &Path) -> Result<ns_llm::ModelInfo> {
    params::info(&open_file(path)?)
}

/// A kernel's error as the contract's.
fn kernel_error(what: &str, error: ns_llm_kernels::Error) -> Error {
    let kind = if error.kind() == ns_llm_kernels::ErrorKind::Memory { ErrorKind::Memory } else { ErrorKind::Device };
    Error::with_source(kind, what, error)
}

/// A runtime error as the contract's.
fn device_error(what: &str, error: ns_sycl::Error) -> Error {
    let kind = if error.is_out_of_memory() { ErrorKind::Memory } else { ErrorKind::Device };
    Error::with_source(kind, what, error)
}
