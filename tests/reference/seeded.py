"""Seeded weights: tiny checkpoints that need no storing.

    python seeded.py known-answer               the values every implementation must reproduce
    python seeded.py list                       names of the built-in configurations
    python seeded.py table NAME OUT.json        a configuration as a language-neutral table
    python seeded.py gguf NAME|TABLE.json OUT.gguf [f32|f16|bf16]

A table (JSON) holds: name, architecture, seed, metadata [[key, type, value], ...] without the tokenizer's lists,
tokenizer {pre, size, specials, chat_template}, tensors [[name, shape outermost first, mean, std], ...] in file order,
tokens (the prompt's ids). Values are filled in GGUF space: what the file stores, not what a checkpoint of another
program would hold.

Python 3.11, numpy 2.4.6; writing a file also needs gguf 0.19.0 (PyPI)."""
import json
import struct
import sys
import zlib

import numpy as np

# ---------------------------------------------------------------------------------------------- the fill

SUM_OF_FOUR_BYTES_STD = np.sqrt(np.float64(21845))      # sqrt(4 * (256^2 - 1) / 12) = 147.80054...


def philox4x32_10(counter, key):
    """counter: four uint32 arrays (or scalars), key: two integers. Returns four uint32 arrays."""
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    c0, c1, c2, c3 = (np.asarray(c, dtype=np.uint64) for c in counter)
    k0, k1 = int(key[0]), int(key[1])
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * c0
        p1 = np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (p1 >> shift) ^ c1 ^ np.uint64(k0), p1 & mask, (p0 >> shift) ^ c3 ^ np.uint64(k1), p0 & mask
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return tuple(c.astype(np.uint32) for c in (c0, c1, c2, c3))


def seeded_words(name, seed, count):
    """The first `count` 32-bit words of the stream of tensor `name`."""
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    zero = np.zeros_like(blocks)
    words = philox4x32_10((blocks, zero, zero, zero), (seed, zlib.crc32(name.encode("utf-8"))))
    return np.stack(words, axis=1).reshape(-1)[:count]


def seeded_values(name, seed, count, mean, std):
    """float32(mean) + float32(float32(z) * float32(std / 147.80054...)), z = the word's four bytes added, less 510."""
    z = seeded_words(name, seed, count).view(np.uint8).reshape(-1, 4).astype(np.int32).sum(axis=1) - 510
    scale = np.float32(np.float64(std) / SUM_OF_FOUR_BYTES_STD)
    return np.float32(mean) + z.astype(np.float32) * scale


def to_half_bits(values, kind):
    """float32 -> f16 or bf16, nearest even, as uint16 bits."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


# ---------------------------------------------------------------------------------------------- tokenizer and prompt

SPECIALS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>",
            "<|user|>", "<|assistant|>", "<|observation|>"]
CHATML = ("{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}"
          "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}")


def byte_alphabet():
    """GPT-2's printable character of every byte."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [b for b in range(256) if b not in plain]
    table = {b: chr(b) for b in plain}
    table.update({b: chr(256 + n) for n, b in enumerate(others)})
    return table


def vocabulary(size, specials):
    """ids 0..2 control, 3 + byte, then the special tokens, then unused pads. Returns (tokens, types)."""
    alphabet = byte_alphabet()
    tokens = ["<unk>", "<s>", "</s>"] + [alphabet[b] for b in range(256)] + list(specials)
    types = [3, 3, 3] + [1] * 256 + [3] * len(specials)
    for i in range(len(tokens), size):
        tokens.append(f"[PAD{i}]")
        types.append(5)
    return tokens, types


def prompt(seed, count, boundaries=()):
    """Printable bytes from the seed; `boundaries` are positions that hold the end-of-text id 2 instead."""
    ids = 3 + 32 + (seeded_words("prompt", seed, count).astype(np.int64) % 95)
    ids[list(boundaries)] = 2
    return [int(i) for i in ids]


# ---------------------------------------------------------------------------------------------- tables

class Table:
    """Collects metadata and tensors of one configuration."""

    def __init__(self, name, architecture, seed, vocab=320, matrix_gain=1.0):
        self.name, self.arch, self.seed, self.vocab, self.matrix_gain = name, architecture, seed, vocab, matrix_gain
        self.metadata, self.tensors = [], []
        self.add("general.architecture", "str", architecture)
        self.add("general.type", "str", "model")
        self.add("general.name", "str", name)
        self.add("general.file_type", "u32", 0)
        self.add("general.quantization_version", "u32", 2)

    def add(self, key, kind, value):
        self.metadata.append([key, kind, value])

    def key(self, key, kind, value):
        self.add(f"{self.arch}.{key}", kind, value)

    def matrix(self, name, *shape, gain=1.0):
        """Standard deviation gain / sqrt(row length)."""
        self.tensors.append([name + ".weight", list(shape), 0.0, float(gain / np.sqrt(shape[-1]))])

    def gamma(self, name, *shape):
        self.tensors.append([name + ".weight", list(shape), 1.0, 0.2])

    def finish(self, pre, template, tokens, **extra):
        return dict(name=self.name, architecture=self.arch, seed=self.seed,
                    rule="value = f32(mean) + f32(f32(z) * f32(std / sqrt(21845))), z = sum of the word's bytes - 510, "
                         "word = philox4x32-10(counter (block,0,0,0), key (seed, crc32(name)))",
                    metadata=self.metadata,
                    tokenizer=dict(model="gpt2", pre=pre, size=self.vocab, specials=SPECIALS, eos=2, eot=260, add_bos=False,
                                   chat_template=template),
                    tensors=self.tensors, tokens=tokens, **extra)


def attention_tensors(t, p, D, heads, kv, d):
    t.matrix(p + "attn_q", heads * d, D)
    t.matrix(p + "attn_k", kv * d, D)
    t.matrix(p + "attn_v", kv * d, D)
    t.matrix(p + "attn_output", D, heads * d)


def ffn_tensors(t, p, D, F, gain=1.0):
    t.matrix(p + "ffn_gate", F, D, gain=gain)
    t.matrix(p + "ffn_up", F, D, gain=gain)
    t.matrix(p + "ffn_down", D, F, gain=1.0 / gain)


def llama_table(name, seed, D, layers, heads, kv, d, F, tied, tokens, base=100000.0):
    t = Table(name, "llama", seed)
    for key, kind, value in [
            ("block_count", "u32", layers), ("context_length", "u32", 512), ("embedding_length", "u32", D),
            ("feed_forward_length", "u32", F), ("attention.head_count", "u32", heads), ("attention.head_count_kv", "u32", kv),
            ("attention.key_length", "u32", d), ("attention.value_length", "u32", d),
            ("attention.layer_norm_rms_epsilon", "f32", 1e-5), ("rope.freq_base", "f32", base),
            ("rope.dimension_count", "u32", d), ("vocab_size", "u32", t.vocab)]:
        t.key(key, kind, value)
    t.matrix("token_embd", t.vocab, D)
    t.gamma("output_norm", D)
    if not tied:
        t.matrix("output", t.vocab, D)
    for i in range(layers):
        p = f"blk.{i}."
        t.gamma(p + "attn_norm", D)
        attention_tensors(t, p, D, heads, kv, d)
        t.gamma(p + "ffn_norm", D)
        ffn_tensors(t, p, D, F)
    return t.finish("smollm", CHATML, prompt(seed, tokens))


def qwen35_table(name, seed, D, delta, heads, kv, key_heads, value_heads, F, tied, tokens, interval=None, head_norm=True):
    """delta: 1 for a DeltaNet layer, 0 for one with full attention. With an interval the pattern is stored as that."""
    t = Table(name, "qwen35", seed)
    layers, d, state = len(delta), 256, 128
    for key, value in [("block_count", layers + 1), ("context_length", 512), ("embedding_length", D),
                       ("feed_forward_length", F), ("attention.head_count", heads), ("attention.head_count_kv", kv),
                       ("attention.key_length", d), ("attention.value_length", d)]:
        t.key(key, "u32", value)
    t.key("attention.layer_norm_rms_epsilon", "f32", 1e-6)
    t.key("rope.freq_base", "f32", 1e7)
    t.key("rope.dimension_count", "u32", 64)
    t.key("rope.dimension_sections", "i32[]", [11, 11, 10, 0])
    for key, value in [("conv_kernel", 4), ("state_size", state), ("group_count", key_heads),
                       ("time_step_rank", value_heads), ("inner_size", value_heads * state)]:
        t.key("ssm." + key, "u32", value)
    if interval:
        t.key("full_attention_interval", "u32", interval)
    else:
        t.key("attention.recurrent_layers", "bool[]", [bool(x) for x in delta] + [False])
    t.key("nextn_predict_layers", "u32", 1)
    t.matrix("token_embd", t.vocab, D)
    t.gamma("output_norm", D)
    if not tied:
        t.matrix("output", t.vocab, D)
    channels, values = (2 * key_heads + value_heads) * state, value_heads * state
    for i, is_delta in enumerate(list(delta) + [0]):             # the last one is the draft block
        p = f"blk.{i}."
        t.gamma(p + "attn_norm", D)
        if is_delta:
            t.matrix(p + "attn_qkv", channels, D)
            t.matrix(p + "attn_gate", values, D)
            t.matrix(p + "ssm_alpha", value_heads, D)
            t.matrix(p + "ssm_beta", value_heads, D)
            t.matrix(p + "ssm_conv1d", channels, 4)
            t.tensors.append([p + "ssm_a", [value_heads], -0.5, 0.12])
            t.tensors.append([p + "ssm_dt.bias", [value_heads], 0.0, 0.5])
            t.gamma(p + "ssm_norm", state)
            t.matrix(p + "ssm_out", D, values)
        else:
            t.matrix(p + "attn_q", 2 * heads * d, D)
            t.matrix(p + "attn_k", kv * d, D)
            t.matrix(p + "attn_v", kv * d, D)
            t.matrix(p + "attn_output", D, heads * d)
            t.gamma(p + "attn_q_norm", d)
            t.gamma(p + "attn_k_norm", d)
        t.gamma(p + "post_attention_norm", D)
        ffn_tensors(t, p, D, F)
    p = f"blk.{layers}.nextn."
    t.matrix(p + "eh_proj", D, 2 * D)
    for part in ["enorm", "hnorm"] + ["shared_head_norm"] * head_norm:
        t.gamma(p + part, D)
    return t.finish("qwen35", CHATML, prompt(seed, tokens))


CONFIGURATIONS = {
    "llama-tied": lambda: llama_table("llama-tied", 101, 192, 3, 3, 1, 64, 384, True, 64),
    "llama": lambda: llama_table("llama", 102, 256, 2, 4, 2, 64, 384, False, 64),
    "qwen35": lambda: qwen35_table("qwen35", 201, 256, [1, 1, 1, 0], 4, 2, 2, 6, 384, False, 64),
    "qwen35-tied": lambda: qwen35_table("qwen35-tied", 202, 128, [1, 0, 1, 0], 2, 1, 2, 4, 256, True, 64, interval=2,
                                        head_norm=False),
}

# ---------------------------------------------------------------------------------------------- files


def load_table(source):
    return CONFIGURATIONS[source]() if source in CONFIGURATIONS else json.load(open(source))


def fill(table):
    """name -> float32 array of every tensor of a table."""
    return {name: seeded_values(name, table["seed"], int(np.prod(shape)), mean, std).reshape(shape)
            for name, shape, mean, std in table["tensors"]}


def write_gguf(table, path, kind="f32"):
    """kind f16 / bf16 converts the matrices (two or more dimensions, both over 8); the rest stays f32."""
    from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
    types = dict(u32=GGUFValueType.UINT32, f32=GGUFValueType.FLOAT32, bool=GGUFValueType.BOOL, str=GGUFValueType.STRING,
                 i32=GGUFValueType.INT32, u64=GGUFValueType.UINT64)
    writer = GGUFWriter(path, table["architecture"])
    for key, value_type, value in table["metadata"]:
        if key == "general.architecture":
            continue                                     # GGUFWriter has written it
        if value_type.endswith("[]"):
            writer.add_key_value(key, value, GGUFValueType.ARRAY, sub_type=types[value_type[:-2]])
        else:
            writer.add_key_value(key, value, types[value_type])
    tokenizer = table["tokenizer"]
    tokens, token_types = vocabulary(tokenizer["size"], tokenizer["specials"])
    writer.add_tokenizer_model(tokenizer["model"])
    writer.add_tokenizer_pre(tokenizer["pre"])
    writer.add_token_list(tokens)
    writer.add_token_types(token_types)
    writer.add_token_merges(["a b"])                     # readers want a non-empty list; this pair is in no vocabulary
    writer.add_eos_token_id(tokenizer["eos"])
    writer.add_eot_token_id(tokenizer["eot"])
    writer.add_add_bos_token(tokenizer["add_bos"])
    writer.add_chat_template(tokenizer["chat_template"])
    for name, values in fill(table).items():
        if kind != "f32" and values.ndim >= 2 and min(values.shape[-2:]) > 8:
            raw = GGMLQuantizationType.F16 if kind == "f16" else GGMLQuantizationType.BF16
            bits = to_half_bits(np.ascontiguousarray(values), kind)
            writer.add_tensor(name, bits.view(np.float16) if kind == "f16" else bits.view(np.uint8), raw_dtype=raw)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def known_answer():
    published = [((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
                 ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
                 ((0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344), (0xa4093822, 0x299f31d0), "d16cfe09 94fdcceb 5001e420 24126ea1"),
                 ((7, 0, 0, 0), (42, 0), "5bbd83b1 68784c85 172067aa 2e6b75b7")]
    for counter, key, expected in published:
        got = " ".join(f"{int(w):08x}" for w in philox4x32_10(counter, key))
        print("philox", counter, key, got, "ok" if got == expected else f"WRONG, expected {expected}")
    values = seeded_values("x", 1, 8, 0.0, 1.0)
    print(f"crc32('x') = {zlib.crc32(b'x'):08x}")
    print("words ", " ".join(f"{int(w):08x}" for w in seeded_words("x", 1, 8)))
    print("values", " ".join(repr(float(v)) for v in values))
    print("bits  ", " ".join(struct.pack(">f", v).hex() for v in values))


def main():
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "known-answer":
        known_answer()
    elif command == "list":
        print("\n".join(CONFIGURATIONS))
    elif command == "table":
        json.dump(load_table(sys.argv[2]), open(sys.argv[3], "w"))
    elif command == "gguf":
        write_gguf(load_table(sys.argv[2]), sys.argv[3], *sys.argv[4:5])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
