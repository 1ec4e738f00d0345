//! Models and engines of the tests.

// Each test program uses a part of it.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use ns_llm::{Engine, LoadOptions, Moment, OptionValues};
use ns_llm_qwen35::{OPTIONS, REGISTRATION};
use ns_tiny::{Storage, Table, Wanted};
use std::path::{Path, PathBuf};

/// Largest difference of a float32 engine from the float64 reference: five times that of other float32 implementations.
pub const TOLERANCE: f32 = 5e-5;

pub fn model(name: &str, dir: &tempfile::TempDir) -> PathBuf {
    let path = dir.path().join(format!("{name}.gguf"));
    ns_tiny::write_table(ns_tiny::fixtures().join(format!("{name}.json")), &path).unwrap();
    path
}

pub fn open(path: &Path, options: &[(&str, &str)], contexts: Vec<usize>) -> Box<dyn Engine> {
    (REGISTRATION.load)(path, &load_options(options, 1, contexts), &mut |_, _| {}).unwrap()
}

pub fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}

/// The device of the tests.
pub fn device() -> String {
    std::env::var("NS_TEST_DEVICE").unwrap_or_else(|_| "cpu".into())
}

/// Options of a load.
pub fn load_options(options: &[(&str, &str)], devices: usize, contexts: Vec<usize>) -> LoadOptions {
    LoadOptions {
        devices: vec![device(); devices],
        contexts,
        options: OptionValues::check(OPTIONS, options.iter().copied(), Moment::Load).unwrap(),
        ..LoadOptions::single(&device(), 1)
    }
}

/// A checkpoint whose drafts hit most of the time.
pub fn fitted() -> Table {
    let wanted = Wanted { architecture: "qwen35", shape: "tiny", seed: 3, vocabulary: None, fitted: true };
    ns_tiny::checkpoint(wanted).unwrap()
}

/// Writes a checkpoint in one type.
pub fn write(table: &Table, storage: &str, path: &Path) {
    ns_tiny::write(table, Storage::named(storage).unwrap(), path).unwrap();
}
