//! The kernels' lattice tables are those of this crate.

#![allow(clippy::unwrap_used, reason = "tests stop at the first failure")]

#[allow(dead_code, reason = "its main is not run here")]
#[path = "../examples/kernel_grids.rs"]
mod kernel_grids;

#[test]
fn the_kernels_tables_are_these() {
    let there = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/ns/grids.hpp")).unwrap();
    assert!(
        there == kernel_grids::header(),
        "kernels/ns/grids.hpp is to be written again: see examples/kernel_grids.rs"
    );
}
