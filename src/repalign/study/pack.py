"""Results as files: one .npz without pickles, from which everything comes back as what it was.

``tree`` in it is JSON in which an array is its position in the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from repalign import _named as named
from repalign._files import atomic

FORMAT = 2  # of the files: part of every key
_PLAIN = (type(None), bool, int, float, str)
_MAKE: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}


def write(path: Path, key: str, value: Any) -> None:
    """Keep ``value`` at ``path``, whole or not at all."""
    arrays: list[np.ndarray] = []
    tree = {"key": key, "value": _pack(value, arrays)}
    text = np.frombuffer(json.dumps(tree).encode(), dtype=np.uint8)
    with atomic(path) as part, part.open("wb") as file:
        np.savez(file, tree=text, **{f"a{i}": a for i, a in enumerate(arrays)})  # type: ignore[arg-type]


def read(path: Path, key: str) -> Any:
    """What was written at ``path`` under ``key``."""
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        tree = json.loads(file["tree"].tobytes())
        if not isinstance(tree, dict) or tree["key"] != key:
            raise ValueError("it belongs to another key")
        return _unpack(tree["value"], file)


def _pack(value: Any, arrays: list[np.ndarray]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (list, tuple, set, frozenset):
        return {kind.__name__: [_pack(v, arrays) for v in value]}
    if kind is dict:
        return {"dict": [[_pack(k, arrays), _pack(v, arrays)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"named": [*named.name_of(value), [_pack(v, arrays) for v in value]]}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is bytes:
        arrays.append(np.frombuffer(value, dtype=np.uint8))
        return {"bytes": len(arrays) - 1}
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        arrays.append(np.asarray(value))
        return {"array" if isinstance(value, np.ndarray) else "scalar": len(arrays) - 1}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.layout == torch.strided:
        plain = value.detach().cpu().resolve_conj().resolve_neg()
        name = str(plain.dtype).removeprefix("torch.")
        if not hasattr(np, name):  # numpy has no bfloat16: its bits, as integers
            plain = plain.view(getattr(torch, f"int{8 * plain.itemsize}"))
        arrays.append(plain.numpy())
        return {"tensor": [len(arrays) - 1, name]}
    raise TypeError(
        f"a stored result is made of numbers, strings and arrays, not {kind.__name__}: "
        "return what it holds, in tuples, lists and dicts."
    )


def _unpack(tree: Any, arrays: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind in _MAKE:
        return _MAKE[kind]([_unpack(v, arrays) for v in value])
    if kind == "dict":
        return {_unpack(k, arrays): _unpack(v, arrays) for k, v in value}
    if kind == "named":
        module, name, fields, items = value
        return named.make(module, name, fields, [_unpack(v, arrays) for v in items])
    if kind == "complex":
        return complex(*value)
    if kind == "tensor":
        import torch

        position, name = value
        dtype = getattr(torch, name)
        tensor = torch.from_numpy(arrays[f"a{position}"])
        return tensor if tensor.dtype == dtype else tensor.view(dtype)
    array = arrays[f"a{value}"]
    return array.tobytes() if kind == "bytes" else array[()] if kind == "scalar" else array
