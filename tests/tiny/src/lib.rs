//! Seeded tiny checkpoints for tests and benchmarks.
