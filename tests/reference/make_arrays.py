"""Writes tests/fixtures/weights/arrays.safetensors and arrays.pth, for tests of the readers.

    python tests/reference/make_arrays.py tests/fixtures/weights

Python 3.11, numpy 2.4.6, safetensors 0.8.0 (PyPI). The .pth is laid out as torch.save does it (pickle protocol 2, stored
entries, data padded to 64 bytes by an extra field); Python's own pickler and zipfile write it, with stand-ins for the
few names of torch that a checkpoint refers to, so that torch itself is not needed."""
import collections
import os
import pickle
import sys
import types
import zipfile

import io
import numpy as np
from safetensors.numpy import save_file


def arrays():
    rng = np.random.default_rng(7)
    return {"w": rng.standard_normal((3, 5)).astype(np.float32), "h": rng.standard_normal((4,)).astype(np.float16),
            "i": np.array([[-1, 2**40]], dtype=np.int64), "b": np.array([True, False, True]),
            "scalar": np.array(2.5, dtype=np.float64), "empty": np.zeros((0, 4), dtype=np.float32)}


torch, torch_utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
STORAGES = {"float32": "FloatStorage", "float16": "HalfStorage", "int64": "LongStorage", "bool": "BoolStorage",
            "float64": "DoubleStorage"}
for storage in STORAGES.values():
    setattr(torch, storage, type(storage, (), {"__module__": "torch", "__qualname__": storage}))
for function in ("_rebuild_tensor_v2", "_rebuild_parameter"):
    exec(f"def {function}(*arguments): pass", torch_utils.__dict__)
    getattr(torch_utils, function).__module__ = "torch._utils"
sys.modules.update({"torch": torch, "torch._utils": torch_utils})


class Storage:
    def __init__(self, key, array):
        self.key, self.array = key, array


class Tensor:
    """A view of a storage from `offset` on."""

    def __init__(self, storage, offset, shape):
        self.storage, self.offset, self.shape = storage, offset, tuple(shape)

    def __reduce__(self):
        strides = tuple(int(np.prod(self.shape[i + 1:])) for i in range(len(self.shape)))
        return (torch_utils._rebuild_tensor_v2,
                (self.storage, self.offset, self.shape, strides, False, collections.OrderedDict()))


class Parameter:
    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce__(self):
        return torch_utils._rebuild_parameter, (self.tensor, True, collections.OrderedDict())


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        if isinstance(value, Storage):
            return ("storage", getattr(torch, STORAGES[value.array.dtype.name]), value.key, "cpu", value.array.size)
        return None


def save(path, root, storages):
    out = io.BytesIO()
    Pickler(out, protocol=2).dump(root)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        def write(name, data):
            info = zipfile.ZipInfo("arrays/" + name, (1980, 1, 1, 0, 0, 0))
            padding = -(archive.fp.tell() + 30 + len(info.filename) + 4) % 64
            info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
            archive.writestr(info, data)
        write("data.pkl", out.getvalue())
        write("byteorder", b"little")
        for storage in storages:
            write("data/" + storage.key, storage.array.tobytes())
        write("version", b"3\n")


def main():
    folder = sys.argv[1]
    values = arrays()
    save_file(values, os.path.join(folder, "arrays.safetensors"), metadata={"format": "np"})
    storages = [Storage(str(i), np.ascontiguousarray(a).reshape(-1)) for i, a in enumerate(values.values())]
    tensors = {name: Tensor(s, 0, values[name].shape) for name, s in zip(values, storages)}
    tensors["part"] = Tensor(storages[0], 5, (2, 5))         # the last two rows of w
    model = collections.OrderedDict(tensors)
    model._metadata = {"": {"version": 1}}
    root = {"model": model, "step": 100000, "rate": 0.5, "note": "x", "list": [Parameter(tensors["h"]), 2**40, None]}
    save(os.path.join(folder, "arrays.pth"), root, storages)


main()
