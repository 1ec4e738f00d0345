//! Prints docs/kernels.md: every kernel of a qwen35 pass with its floor on a card.

mod page;

use std::io::Write;

fn main() -> Result<(), String> {
    std::io::stdout().write_all(page::page()?.as_bytes()).map_err(|e| e.to_string())
}
