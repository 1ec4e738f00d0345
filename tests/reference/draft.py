"""The draft block of qwen35 over a whole sequence (float64, on forward.py).

    python draft.py FILE.gguf 100 110 123 ...     token ids; prints the trunk's greedy token and three chained drafts

Row p of the block takes the trunk's row p and token p + 1 and guesses token p + 2. A chain goes on with the block's own
rows and guesses. Python 3.11, numpy 2.4.6, gguf 0.19.0."""
import sys

import numpy as np

import forward as f


def draft(model, rows, tokens):
    """rows [T, D] after the last norm and the token after each: the logits, and rows to go on with."""
    eps, index = model.meta("attention.layer_norm_rms_epsilon"), model.meta("block_count") - 1
    block, own = model.layer(index), f.Block(model, f"blk.{index}.nextn.")
    table = own["embed_tokens"] if own.has("embed_tokens.weight") else model["token_embd"]
    embedded = f.rms(table[np.asarray(tokens)], eps) * own["enorm"]
    x = own.linear(np.hstack([embedded, f.rms(rows, eps) * own["hnorm"]]), "eh_proj")
    x = x + f.gated_attention(model, block, index, f.rms(x, eps) * block["attn_norm"])
    x = x + f.feed_forward(block, f.rms(x, eps) * block["post_attention_norm"])
    out = f.rms(x, eps) * (own["shared_head_norm"] if own.has("shared_head_norm.weight") else model["output_norm"])
    return (own.linear(out, "shared_head_head") if own.has("shared_head_head.weight") else f.head(model, out)), out


def chain(model, ids, steps=3):
    """(logits of every row's draft, the greedy token and the drafts behind it, logits of those)."""
    rows = f.qwen35_rows(model, ids)
    tokens = list(ids[1:]) + [int(f.head(model, rows[-1:])[0].argmax())]
    drafted, chained, first = [tokens[-1]], [], None
    for _ in range(steps):
        logits, out = draft(model, rows, tokens)
        first = logits if first is None else first
        chained.append(logits[-1])
        drafted.append(int(logits[-1].argmax()))
        rows, tokens = np.vstack([rows, out[-1:]]), tokens + drafted[-1:]
    return first, drafted, np.stack(chained)


if __name__ == "__main__":
    print(chain(f.Model(sys.argv[1]), [int(i) for i in sys.argv[2:]])[1])
