//! The engine of llama-architecture models.
