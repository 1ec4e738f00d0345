"""Expected outputs of seeded tables: NAME.json (the table, what is stored where) and NAME.f32 (all values, little-endian).

    python make_expected.py OUTDIR NAME|TABLE.json ... [--taps LAYER,LAYER]

tests/fixtures/llm: `make_expected.py tests/fixtures/llm llama --taps 0,1`, `... qwen35 --taps 0,3`, `... llama-tied qwen35-tied`.
All values are forward.py's and draft.py's float64 results rounded to float32. With --taps the named tensors of those layers are stored
for a few rows. Python 3.11, numpy 2.4.6, gguf 0.19.0."""
import json
import os
import sys
import tempfile
import zlib

import numpy as np

import draft
import forward
import seeded

TAP_ROWS = [0, 1, 4, 20, 41, 63]


def collect(table, tap_layers):
    """[(name, float64 array)]"""
    taps = {}

    def tap(name, layer, value):
        if layer in tap_layers or (layer < 0 and tap_layers):
            taps[f"{name}-{layer}" if layer >= 0 else name] = np.asarray(value, np.float64)

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        seeded.write_gguf(table, path)
        model = forward.Model(path, tap)
    logits = forward.forward(model, table["tokens"])
    outputs = [("logits", logits)]
    for name, value in taps.items():
        rows = value[TAP_ROWS]
        outputs.append(("tap." + name, rows.reshape(len(rows), -1)))
    if model.meta("nextn_predict_layers", 0):
        model.tap_function = None
        rows, tokens, chained = draft.chain(model, table["tokens"])
        outputs += [("draft.rows", rows[-8:]), ("draft.chain", chained)]
        table["draft_tokens"] = {"only": tokens}
    table["smallest_gaps"] = {}                              # no choices between scores in this architecture
    return outputs


def write(table, folder, tap_layers=()):
    outputs, offset, index = collect(table, tap_layers), 0, []
    name = table["name"]
    with open(os.path.join(folder, name + ".f32"), "wb") as out:
        for key, value in outputs:
            data = np.ascontiguousarray(value, dtype="<f4")
            out.write(data.tobytes())
            index.append([key, list(data.shape), offset])
            offset += data.size
    fill_crc = 0
    for values in seeded.fill(table).values():
        fill_crc = zlib.crc32(np.ascontiguousarray(values, dtype="<f4").tobytes(), fill_crc)
    table["fill_crc32"] = f"{fill_crc:08x}"
    table["tap_rows"] = TAP_ROWS if tap_layers else []
    table["outputs"] = index
    with open(os.path.join(folder, name + ".json"), "w") as out:        # one metadata entry, tensor or output a line
        parts = []
        for key, value in table.items():
            if key in ("metadata", "tensors", "outputs"):
                parts.append(f"{json.dumps(key)}: [\n  " + ",\n  ".join(json.dumps(row) for row in value) + "\n ]")
            else:
                parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
        out.write("{\n " + ",\n ".join(parts) + "\n}\n")


def main():
    arguments = sys.argv[1:]
    taps = ()
    if "--taps" in arguments:
        at = arguments.index("--taps")
        taps = tuple(int(n) for n in arguments[at + 1].split(","))
        del arguments[at:at + 2]
    for source in arguments[1:]:
        write(seeded.load_table(source), arguments[0], taps)


if __name__ == "__main__":
    main()
