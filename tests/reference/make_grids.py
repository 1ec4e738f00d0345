"""Writes engines/weights/src/grids.rs, the lattice tables of the IQ block types.

    python tests/reference/make_grids.py > engines/weights/src/grids.rs

The tables are constants of the file format. They are taken from PyPI gguf 0.19.0 (gguf/quants.py, MIT), Python 3.11,
numpy 2.4.6. A row is packed into 16 bits, first value lowest: 8 values of 2 bits or 4 values of 4 bits, each the index
into the type's list of levels."""
import numpy as np
from gguf import quants

NOTICE = """\
//! Lattice tables of the IQ block types, constants of the file format. Written by tests/reference/make_grids.py; do not
//! edit.
//!
//! Taken from gguf-py (gguf/quants.py), which is part of ggml:
//!
//! MIT License
//!
//! Copyright (c) 2023-2024 The ggml authors
//!
//! Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
//! documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
//! rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
//! persons to whom the Software is furnished to do so, subject to the following conditions:
//!
//! The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
//! Software.
//!
//! THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
//! WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
//! COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
//! OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def main():
    print(NOTICE)
    for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"):
        kind = getattr(quants, name)
        kind.init_grid()
        rows, width = kind.grid_shape
        levels = np.array(kind.grid_map, dtype=np.float32)
        index = (kind.grid.reshape(rows, width, 1) == levels).argmax(axis=-1)
        bits = 16 // width
        packed = (index << (bits * np.arange(width))).sum(axis=1)
        print(f"/// Levels of {name}.")
        print(f"pub(crate) const {name}_LEVELS: [i8; {len(kind.grid_map)}] = [{', '.join(str(v) for v in kind.grid_map)}];\n")
        print(f"/// Rows of {width} levels of {name}, {bits} bits each.")
        print("#[rustfmt::skip]")
        print(f"pub(crate) static {name}: [u16; {rows}] = [")
        for at in range(0, rows, 14):
            print("    " + " ".join(f"0x{v:04x}," for v in packed[at:at + 14]))
        print("];\n" if name != "IQ1_S" else "];")


main()
