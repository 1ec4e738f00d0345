//! docs/kernels.md is what its program makes of the shapes and the gate's table.

#![allow(clippy::unwrap_used, reason = "tests stop at the first failure")]

#[path = "../examples/kernels_page/page.rs"]
mod page;

#[test]
fn the_page_is_current() {
    let made = page::page().unwrap();
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/kernels.md");
    let kept = std::fs::read_to_string(file).unwrap();
    let line = made.lines().zip(kept.lines()).position(|(a, b)| a != b);
    assert!(
        made == kept,
        "docs/kernels.md is old (line {}): cargo run --release -p ns-llm-qwen35 --example kernels_page > docs/kernels.md",
        line.map_or(made.lines().count().min(kept.lines().count()), |l| l) + 1
    );
}
