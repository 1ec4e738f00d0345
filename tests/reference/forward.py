"""Float64 forward passes of llama and qwen35 from a GGUF file. Slow and literal: an oracle for tiny models, not a runtime.

    python forward.py FILE.gguf OUT.npy 100 110 123 ...     token ids; writes logits [tokens, vocab]

A whole sequence at once, no cache. Array letters: T tokens, D hidden width. The drafts of qwen35 are in draft.py. Python 3.11, numpy 2.4.6, gguf 0.19.0."""
import sys

import numpy as np
from gguf import GGUFReader, quants


class Block:
    """The tensors below one name prefix ('' = the whole file, 'blk.3.')."""

    def __init__(self, model, prefix):
        self.model, self.prefix = model, prefix

    def has(self, name):
        return self.prefix + name in self.model.tensors

    def __getitem__(self, name):
        """The tensor NAME.weight, or NAME where it has no such end."""
        full = self.prefix + name
        return self.model.tensors[full + ".weight" if full + ".weight" in self.model.tensors else full]

    def linear(self, x, name):
        """x times the matrix NAME [out, in]."""
        return x @ self[name].T


class Model(Block):
    """A GGUF file: tensors as float64 [outermost dimension first], metadata below the architecture's prefix."""

    def __init__(self, path, tap=None):
        reader = GGUFReader(path)
        self.tensors = {t.name: quants.dequantize(t.data, t.tensor_type).reshape([int(n) for n in t.shape][::-1]).astype(np.float64)
                        for t in reader.tensors}
        self.metadata = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF")}
        self.arch = self.metadata["general.architecture"]
        self.tap_function = tap
        super().__init__(self, "")

    def meta(self, key, default=None):
        value = self.metadata.get(f"{self.arch}.{key}", default)
        if value is None:
            raise KeyError(f"the file has no {self.arch}.{key}")
        return value

    def layer(self, index):
        return Block(self, f"blk.{index}.")

    def tap(self, name, layer, value):
        if self.tap_function:
            self.tap_function(name, layer, value)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms(x, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def rope(x, positions, features, base, adjacent=False, factors=1.0):
    """Rotate the first `features` of x [T, heads, d]; pairs (j, j + features/2), or (2j, 2j + 1) when adjacent."""
    half = features // 2
    angle = np.asarray(positions)[:, None] * base ** (-2 * np.arange(half) / features) / factors
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    first, second = (slice(0, features, 2), slice(1, features, 2)) if adjacent else (slice(0, half), slice(half, features))
    a, b = x[..., first], x[..., second]
    out = x.copy()
    out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
    return out


def causal_mask(T):
    return np.tril(np.ones((T, T), bool))


def attention(q, k, v, visible, scale):
    """q [T, H, d], k and v [T, KV, d]; visible [T, T] booleans."""
    group = q.shape[1] // k.shape[1]
    heads = []
    for h in range(q.shape[1]):
        scores = np.where(visible, q[:, h] @ k[:, h // group].T * scale, -np.inf)
        heads.append(softmax(scores) @ v[:, h // group])
    return np.stack(heads, axis=1)


def llama(model, ids):
    eps, T = model.meta("attention.layer_norm_rms_epsilon"), len(ids)
    heads, kv = model.meta("attention.head_count"), model.meta("attention.head_count_kv")
    d = model.meta("attention.key_length", model.meta("embedding_length") // heads)
    features, base = model.meta("rope.dimension_count", d), model.meta("rope.freq_base", 10000.0)
    factors = model["rope_freqs"] if model.has("rope_freqs.weight") else 1.0
    positions = np.arange(T)
    x = model["token_embd"][np.asarray(ids)]
    for i in range(model.meta("block_count")):
        block = model.layer(i)
        h = rms(x, eps) * block["attn_norm"]
        model.tap("attn_norm", i, h)
        q = rope(block.linear(h, "attn_q").reshape(T, heads, d), positions, features, base, True, factors)
        k = rope(block.linear(h, "attn_k").reshape(T, kv, d), positions, features, base, True, factors)
        v = block.linear(h, "attn_v").reshape(T, kv, d)
        model.tap("Qcur", i, q)
        model.tap("Kcur", i, k)
        o = attention(q, k, v, causal_mask(T), 1 / np.sqrt(d))
        x = x + block.linear(o.reshape(T, -1), "attn_output")
        model.tap("ffn_inp", i, x)
        h = rms(x, eps) * block["ffn_norm"]
        gate, up = block.linear(h, "ffn_gate"), block.linear(h, "ffn_up")
        y = block.linear(silu(gate) * up, "ffn_down")
        model.tap("ffn_out", i, y)
        x = x + y
        model.tap("l_out", i, x)
    n = rms(x, eps) * model["output_norm"]
    model.tap("result_norm", -1, n)
    return model.linear(n, "output" if model.has("output.weight") else "token_embd")


def delta_net(model, block, i, h):
    """Gated DeltaNet: per value head a matrix from key features to value features that fades, forgets what a key stood for
    and learns what it stands for now. Value head v has key head v mod (number of key heads)."""
    key_heads, value_heads, d = (model.meta("ssm." + key) for key in ("group_count", "time_step_rank", "state_size"))
    T, taps = len(h), model.meta("ssm.conv_kernel")
    mixed = block.linear(h, "attn_qkv")
    model.tap("linear_attn_qkv_mixed", i, mixed)
    past = np.vstack([np.zeros((taps - 1, mixed.shape[1])), mixed])
    weights = block["ssm_conv1d"].reshape(-1, taps)
    mixed = silu(sum(past[j:j + T] * weights[:, j] for j in range(taps)))
    model.tap("conv_output_silu", i, mixed)
    wide = key_heads * d
    unit = lambda x: x / np.sqrt((x ** 2).sum(-1, keepdims=True) + 1e-6)
    q, k = unit(mixed[:, :wide].reshape(T, -1, d)), unit(mixed[:, wide:2 * wide].reshape(T, -1, d))
    v = mixed[:, 2 * wide:].reshape(T, value_heads, d)
    beta = sigmoid(block.linear(h, "ssm_beta"))
    model.tap("beta_sigmoid", i, beta)
    x = block.linear(h, "ssm_alpha") + block["ssm_dt.bias"]
    gate = block["ssm_a"] * np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))
    model.tap("gate", i, gate)
    out = np.empty((T, value_heads, d))
    for head in range(value_heads):
        S, kh = np.zeros((d, d)), head % key_heads
        for t in range(T):
            S = np.exp(gate[t, head]) * S
            S = S + np.outer(k[t, kh], beta[t, head] * (v[t, head] - k[t, kh] @ S))
            out[t, head] = q[t, kh] @ S / np.sqrt(d)
    z = block.linear(h, "attn_gate").reshape(T, value_heads, d)
    y = (rms(out, model.meta("attention.layer_norm_rms_epsilon")) * block["ssm_norm"] * silu(z)).reshape(T, -1)
    model.tap("final_output", i, y)
    y = block.linear(y, "ssm_out")
    model.tap("linear_attn_out", i, y)
    return y


def gated_attention(model, block, i, h):
    """Full attention with normed queries and keys, the first features of a head rotated, and an output gate that lies
    behind each head's query rows."""
    heads, kv, d = (model.meta("attention." + key) for key in ("head_count", "head_count_kv", "key_length"))
    eps, T = model.meta("attention.layer_norm_rms_epsilon"), len(h)
    turn = lambda x, gamma: rope(rms(x, eps) * gamma, np.arange(T), model.meta("rope.dimension_count"), model.meta("rope.freq_base"))
    both = block.linear(h, "attn_q").reshape(T, heads, 2, d)
    q = turn(both[:, :, 0], block["attn_q_norm"])
    k = turn(block.linear(h, "attn_k").reshape(T, kv, d), block["attn_k_norm"])
    v = block.linear(h, "attn_v").reshape(T, kv, d)
    model.tap("Qcur", i, q)
    model.tap("Kcur", i, k)
    y = (attention(q, k, v, causal_mask(T), 1 / np.sqrt(d)) * sigmoid(both[:, :, 1])).reshape(T, -1)
    model.tap("attn_gated", i, y)
    y = block.linear(y, "attn_output")
    model.tap("attn_output", i, y)
    return y


def feed_forward(block, h):
    return block.linear(silu(block.linear(h, "ffn_gate")) * block.linear(h, "ffn_up"), "ffn_down")


def qwen35_rows(model, ids):
    """The rows after the last norm: what the head and the draft block take."""
    eps = model.meta("attention.layer_norm_rms_epsilon")
    layers = model.meta("block_count") - model.meta("nextn_predict_layers", 0)
    interval = model.meta("full_attention_interval", 4)
    delta = model.meta("attention.recurrent_layers", [(i + 1) % interval != 0 for i in range(layers)])
    x = model["token_embd"][np.asarray(ids)]
    for i in range(layers):
        block = model.layer(i)
        h = rms(x, eps) * block["attn_norm"]
        model.tap("attn_norm", i, h)
        x = x + (delta_net if delta[i] else gated_attention)(model, block, i, h)
        model.tap("attn_residual", i, x)
        h = rms(x, eps) * block["post_attention_norm"]
        model.tap("attn_post_norm", i, h)
        y = feed_forward(block, h)
        model.tap("ffn_out", i, y)
        x = x + y
        model.tap("l_out", i, x)
    n = rms(x, eps) * model["output_norm"]
    model.tap("result_norm", -1, n)
    return n


def head(model, n):
    return model.linear(n, "output" if model.has("output.weight") else "token_embd")


def forward(model, ids):
    return llama(model, ids) if model.arch == "llama" else head(model, qwen35_rows(model, ids))


def main():
    path, out, *ids = sys.argv[1:]
    np.save(out, forward(Model(path), [int(i) for i in ids]))


if __name__ == "__main__":
    main()
