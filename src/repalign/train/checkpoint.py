"""A run's state in a file, from which the same call goes on: to the bit, whatever was measured."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repalign._code import fingerprint
from repalign._files import atomic
from repalign.train.context import in_training
from repalign.train.history import History


def run_key(config: dict[str, Any], model: nn.Module, data: Sequence[tuple[Tensor, Tensor]]) -> str:
    """A fingerprint of all that a run depends on, but the weights it starts from and what it measures.

    What a run measures may use anything that lives in the process, also what the run itself changes: it
    cannot tell one run from another.
    """
    network = {
        "parameters": [(k, tuple(p.shape), p.dtype, p.requires_grad) for k, p in model.named_parameters()],
        "modules": [(name, type(part), part.extra_repr()) for name, part in model.named_modules()],
        "in training": in_training(model),
    }
    return fingerprint([config, network, list(data)], "the configuration of fit")


def save(path: Path, key: str, model: nn.Module, descent: Any, history: History, epoch: int) -> None:
    """Write the state after ``epoch`` epochs, whole or not at all."""
    state = {
        "key": key,
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": descent.state_dict(),
        "history": pack(vars(history)),
    }
    with atomic(path) as part:
        torch.save(state, part)


def resume(path: Path, key: str, model: nn.Module, descent: Any) -> tuple[History, int]:
    """The history and the number of epochs done; weights and the optimizer's state go where they belong."""
    if not path.exists():
        return History(), 0
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen kinds for a torn file
        raise ValueError(
            f"the checkpoint {path} cannot be read ({error}). Delete it to start anew."
        ) from None
    if not isinstance(state, dict) or state.get("key") != key:
        raise ValueError(
            f"the checkpoint {path} belongs to another model, data or configuration. "
            "Delete it, or name another file."
        )
    model.load_state_dict(state["model"])
    descent.load_state_dict(state["optimizer"])
    return History(**unpack(state["history"])), int(state["epoch"])


# Measurements as a tree that torch reads back without running code: plain values and tensors stay as they
# are, everything else is a pair (kind, content).


def pack(value: Any) -> Any:
    """Plain values, tensors, numpy's arrays and numbers; lists, tuples, named tuples and dicts of them."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, (np.ndarray, np.generic)) and not (value.dtype.hasobject or value.dtype.names):
        array = np.array(value)  # a copy: of a memory map, of a part of something larger
        raw = torch.from_numpy(array.reshape(-1).view(np.uint8))
        return ("scalar" if isinstance(value, np.generic) else "array", (array.dtype.str, array.shape, raw))
    if type(value) is dict:
        return "dict", [(pack(k), pack(v)) for k, v in value.items()]
    if type(value) in (list, tuple):
        return type(value).__name__, [pack(v) for v in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        kind = type(value)
        return "named", (kind.__module__, kind.__qualname__, [pack(v) for v in value])
    raise TypeError(
        f"with a checkpoint, measure should return numbers, strings, tensors, arrays, or lists, tuples and "
        f"dicts of them, but returned a {type(value).__name__}."
    )


def unpack(tree: Any) -> Any:
    """What :func:`pack` was given."""
    if not isinstance(tree, tuple):
        return tree
    kind, content = tree
    if kind in ("array", "scalar"):
        dtype, shape, raw = content
        array = raw.numpy().view(dtype).reshape(shape)
        return array if kind == "array" else array[()]
    if kind == "dict":
        return {unpack(k): unpack(v) for k, v in content}
    if kind == "named":
        module, name, items = content
        made: Any = importlib.import_module(module)
        for part in name.split("."):
            made = getattr(made, part)
        return made(*map(unpack, items))
    return [unpack(v) for v in content] if kind == "list" else tuple(unpack(v) for v in content)
