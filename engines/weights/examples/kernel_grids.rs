//! Writes kernels/ns/grids.hpp, the lattice tables for the kernels, from `src/grids.rs`:
//!
//!     cargo run -p ns-weights --example kernel_grids > kernels/ns/grids.hpp

#![allow(clippy::print_stdout, reason = "the example's output")]

#[allow(dead_code, reason = "of the tables' module only some parts are used")]
#[path = "../src/grids.rs"]
mod grids;

use std::fmt::Write;

fn main() {
    print!("{}", header());
}

/// The header's text.
pub fn header() -> String {
    // the notice: the comment at the head of the tables
    let notice = include_str!("../src/grids.rs").lines().map_while(|line| line.strip_prefix("//!"));
    let mut out = String::new();
    for (i, line) in notice.enumerate() {
        match i {
            0 => out.push_str("// Lattice tables of the IQ block types, constants of the file format. Written from engines/weights/src/grids.rs by\n"),
            1 => out.push_str("// engines/weights/examples/kernel_grids.rs; do not edit.\n"),
            _ => {
                let _ = writeln!(out, "//{line}");
            }
        }
    }
    out.push_str("#pragma once\n#include \"kernel.hpp\"\n\n// Rows of 8 levels of 2 bits or of 4 levels of 4 bits, lowest first.\nnamespace ns::grids {\n");
    table(&mut out, "IQ2_XXS", &grids::IQ2_XXS_LEVELS, &grids::IQ2_XXS);
    table(&mut out, "IQ2_XS", &grids::IQ2_XS_LEVELS, &grids::IQ2_XS);
    table(&mut out, "IQ2_S", &grids::IQ2_S_LEVELS, &grids::IQ2_S);
    table(&mut out, "IQ3_XXS", &grids::IQ3_XXS_LEVELS, &grids::IQ3_XXS);
    table(&mut out, "IQ3_S", &grids::IQ3_S_LEVELS, &grids::IQ3_S);
    table(&mut out, "IQ1", &grids::IQ1_S_LEVELS, &grids::IQ1_S);
    out.push_str("} // namespace ns::grids\n");
    out
}

fn table(out: &mut String, name: &str, levels: &[i8], rows: &[u16]) {
    let levels: Vec<String> = levels.iter().map(ToString::to_string).collect();
    let _ = writeln!(out, "constexpr i8 {name}_LEVELS[{}] = {{{}}};", levels.len(), levels.join(", "));
    let _ = writeln!(out, "constexpr u16 {name}[{}] = {{", rows.len());
    for line in rows.chunks(16) {
        let words: Vec<String> = line.iter().map(|row| format!("0x{row:04x},")).collect();
        let _ = writeln!(out, "    {}", words.join(" "));
    }
    out.push_str("};\n");
}
