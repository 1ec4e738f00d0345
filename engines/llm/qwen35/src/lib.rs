//! The engine of qwen35 models (Qwen3.5, Qwen3.8): three of four layers are gated DeltaNet, the fourth gated attention.
//!
//! Forward pass (llama.cpp b11434 `src/models/qwen35.cpp` and transformers 5.23 `models/qwen3_5`, checked against both):
//!
//! ```text
//! x = token_embd[t]
//! each layer:  h = rms(x) * attn_norm;            x += full(h) or delta(h)
//!              h = rms(x) * post_attention_norm;  x += W_down( silu(W_gate h) * (W_up h) )
//! logits = W_head ( rms(x) * output_norm )
//!
//! full(h):   per head [q, gate] = W_q h, k = W_k h, v = W_v h;  q = rope(rms(q) * q_norm), k = rope(rms(k) * k_norm)
//!            W_o concat_a( sig(gate_a) softmax_t(q_a . k_t / sqrt(head_dim)) v_t )   key head = a / (n_heads / n_kv)
//! delta(h):  [q, k, v] = silu(conv4(W_qkv h));  q = l2(q) / sqrt(128), k = l2(k) by head;  beta = sig(W_beta h)
//!            S = e^(a softplus(W_alpha h + dt)) S;  S += k (beta (v - S^T k))^T;  o = S^T q     key head = h mod n_key_heads
//!            W_out concat_h( rms(o_h) * ssm_norm * silu(z_h) ),  z = W_z h
//! draft:     for row j and token t = x_{j+1}, n_j the trunk's row after output_norm:
//!            x = W_eh [rms(embed(t)) * enorm; rms(n_j) * hnorm], one full layer with a cache of its own,
//!            n' = rms(x) * head_norm, logits of x_{j+2} = W_head n'; the next draft takes n' for n_j
//! ```
//!
//! Rotation pairs value j with j + rot_dim / 2 of the first rot_dim values. For text the positions of M-RoPE's axes are equal.
//! Files hold value heads in tiled order, norms as 1 + w, and `ssm_a` as -exp.
//!
//! Where things are: [`params`] and `tensors` what a file must hold, `files` which files, `fit` what goes where, `weights` the
//! matrices on a device, [`arena`] and `session` the conversations, `work` the buffers of a pass, `passes` its kernels, `taps` what it shows, `stage` one
//! device's part, `run` passes over all of them, `draft` the draft block at work, `checkpoint` saved states, `engine` the contract.

mod checkpoint;
mod draft;
mod engine;
mod files;
mod fit;
mod kernel_checks;
pub mod kernels;
mod options;
pub mod params;
mod passes;
mod run;
mod session;
mod stage;
mod state;
mod taps;
mod tensors;
mod weights;
mod work;

use ns_llm::{Engine, Error, ErrorKind, LoadOptions, Progress, Registration, Result};
pub use options::OPTIONS;
use std::path::Path;

/// The engine's entry in a tool's table.
pub const REGISTRATION: Registration = Registration {
    name: "qwen35",
    architectures: &["qwen35"],
    options: OPTIONS,
    max_devices: usize::MAX,
    plan,
    load,
    info,
};

fn load(path: &Path, options: &LoadOptions, progress: Progress<'_>) -> Result<Box<dyn Engine>> {
    Ok(Box::new(engine::Qwen35::load(path, options, progress)?))
}

fn plan(path: &Path, options: &LoadOptions) -> Result<ns_llm::Plan> {
    engine::Qwen35::plan(path, options)
}

fn info(path: &Path) -> Result<ns_llm::ModelInfo> {
    let files = files::Files::open(path, None, true)?;
    Ok(tensors::info(&files.main, &files.p, files.beside.as_ref().map(|b| &b.0)))
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
