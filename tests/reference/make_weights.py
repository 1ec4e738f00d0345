"""Writes tests/fixtures/weights: GGUF files made by the Python gguf package, for tests of the reader.

    python tests/reference/make_weights.py tests/fixtures/weights

Python 3.11, gguf 0.19.0, numpy 2.4.6.

blocks.gguf holds, for every block type, a tensor TYPE of random blocks (finite scales) and TYPE.expected, what
gguf/quants.py decodes them to; and a metadata key of every value type. split-0000N-of-00003.gguf is one model in three
parts."""
import os
import sys

import numpy as np
import gguf
from gguf import GGMLQuantizationType as Type, GGUFValueType as Value

# Offsets of the half-precision scales of a block, and the number of blocks to make.
BLOCKS = {
    "Q4_0": ([0], 16), "Q4_1": ([0, 2], 16), "Q5_0": ([0], 16), "Q5_1": ([0, 2], 16), "Q8_0": ([0], 16),
    "Q2_K": ([80, 82], 4), "Q3_K": ([108], 4), "Q4_K": ([0, 2], 4), "Q5_K": ([0, 2], 4), "Q6_K": ([208], 4),
    "IQ4_NL": ([0], 16), "IQ4_XS": ([0], 4), "IQ2_XXS": ([0], 8), "IQ2_XS": ([0], 8), "IQ2_S": ([0], 8),
    "IQ3_XXS": ([0], 8), "IQ3_S": ([0], 8), "IQ1_S": ([0], 8), "IQ1_M": ([], 8),
}


def random_blocks(rng, kind, scales, count):
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in scales:
        values = (rng.standard_normal(count) * 0.1).astype(np.float16)
        blocks[:, at:at + 2] = values.view(np.uint8).reshape(count, 2)
    if kind == Type.IQ1_M:                                 # its scale is spread over the top nibbles of four words
        words = blocks[:, 48:56].copy().view(np.uint16)
        bits = (rng.standard_normal(count) * 0.1).astype(np.float16).view(np.uint16)
        for i in range(4):
            words[:, i] = (words[:, i] & 0x0FFF) | (((bits >> (4 * i)) & 15) << 12)
        blocks[:, 48:56] = words.view(np.uint8)
    return blocks


def blocks_file(path):
    rng = np.random.default_rng(20261130)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("blocks")
    for key, value, kind in [
            ("t.u8", 200, Value.UINT8), ("t.i8", -100, Value.INT8), ("t.u16", 60000, Value.UINT16),
            ("t.i16", -30000, Value.INT16), ("t.u32", 4000000000, Value.UINT32), ("t.i32", -2000000000, Value.INT32),
            ("t.f32", 0.1, Value.FLOAT32), ("t.true", True, Value.BOOL), ("t.false", False, Value.BOOL),
            ("t.str", "Grüße, 世界", Value.STRING), ("t.u64", 2**64 - 1, Value.UINT64),
            ("t.i64", -2**63, Value.INT64), ("t.f64", 0.1, Value.FLOAT64), ("t.empty", "", Value.STRING)]:
        writer.add_key_value(key, value, kind)
    for key, value, kind in [
            ("a.u16", [1, 60000], Value.UINT16), ("a.i32", [-1, 2, 3], Value.INT32), ("a.f32", [0.5, -2.0], Value.FLOAT32),
            ("a.bool", [True, False, True], Value.BOOL), ("a.str", ["", "b", "Ġc"], Value.STRING)]:
        writer.add_key_value(key, value, Value.ARRAY, sub_type=kind)
    writer.add_key_value("a.nested", [[1, 2], [3]], Value.ARRAY, sub_type=Value.ARRAY)
    writer.add_tensor("first", np.arange(8, dtype=np.float32))           # 32 bytes: offsets 0 and 32
    writer.add_tensor("F16", rng.standard_normal((3, 8)).astype(np.float16))
    for name, (scales, count) in BLOCKS.items():
        kind = Type[name]
        blocks = random_blocks(rng, kind, scales, count).reshape(2, -1)
        writer.add_tensor(name, blocks, raw_dtype=kind)
        expected = gguf.quants.dequantize(blocks, kind).astype(np.float32)
        assert np.isfinite(expected).all(), name
        writer.add_tensor(name + ".expected", expected)
    bits = rng.integers(0, 0x7F00, (2, 32), dtype=np.uint16) | (rng.integers(0, 2, (2, 32), dtype=np.uint16) << 15)
    writer.add_tensor("BF16", bits.view(np.uint8), raw_dtype=Type.BF16)
    writer.add_tensor("BF16.expected", gguf.quants.dequantize(bits.view(np.uint8), Type.BF16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def split_files(folder):
    writer = gguf.GGUFWriter(os.path.join(folder, "split.gguf"), "llama", split_max_tensors=2)
    writer.add_name("split")
    for i in range(5):
        writer.add_tensor(f"t{i}", np.arange(16, dtype=np.float32) + 100 * i)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    folder = sys.argv[1]
    blocks_file(os.path.join(folder, "blocks.gguf"))
    split_files(folder)


main()
