//! The engine of qwen35 models (Qwen3.5, Qwen3.8): three of four layers are gated DeltaNet, the fourth gated attention.

pub mod kernels;
