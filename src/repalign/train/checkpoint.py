"""A run's state in a file, from which the same call goes on: to the bit, whatever was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repalign import _named as named
from repalign._code import fingerprint
from repalign._files import atomic, is_sealed, seal
from repalign.train.context import in_training
from repalign.train.history import History
from repalign.train.watch import Best

# What torch keeps in every module; of it only the hooks that take part in a step count.
_BOOKKEEPING = {*vars(nn.Module()), "_compiled_call_impl"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def run_key(config: dict[str, Any], model: nn.Module, data: Sequence[tuple[Tensor, Tensor]]) -> str:
    """A fingerprint of all that a run depends on, but the state it starts from and what it measures.

    The state is what the file holds, weights and the buffers of ``state_dict``: a new process may make
    its network from other random numbers, and gets the file's. All else about the network counts: hooks,
    other buffers, and attributes of modules; one that has no fingerprint counts by its type.
    What a run measures may use anything that lives in the process, also what the run itself changes: it
    cannot tell one run from another.
    """
    parts = [(name, part, _attributes(part)) for name, part in model.named_modules()]
    with _by_name(model):
        network = {
            "parameters": [
                (k, tuple(p.shape), p.dtype, p.requires_grad) for k, p in model.named_parameters()
            ],
            "buffers": [(k, tuple(b.shape), b.dtype) for k, b in model.named_buffers()],
            "modules": [(name, type(part), part.extra_repr()) for name, part, _ in parts],
            "attributes": [(name, [(k, _content(v)) for k, v in found]) for name, _, found in parts],
            "in training": in_training(model),
        }
        return fingerprint([config, network, list(data)], "the configuration of fit")


def _attributes(part: nn.Module) -> list[tuple[str, Any]]:
    """What a module computes with, beside its parameters, parts, and what the state holds of its buffers."""
    found = []
    of_torch = type(part).__module__.partition(".")[0] == "torch"
    for name, value in sorted(vars(part).items()):
        if name in _BOOKKEEPING or isinstance(getattr(type(part), name, None), cached_property):
            continue
        if isinstance(value, Tensor) and (of_torch or not value.is_leaf):  # made of weights: weight_norm
            value = (tuple(value.shape), value.dtype)
        found.append((name, value))
    found += [(name, part._buffers[name]) for name in sorted(part._non_persistent_buffers_set)]
    for kind in _HOOKS:  # their numbers count all hooks of the process
        flags = [getattr(part, f"{kind}_{flag}", {}) for flag in ("with_kwargs", "always_called")]
        for number, hook in getattr(part, kind).items():
            found += [(kind, hook), (f"{kind} flags", [number in flag for flag in flags])]
    return found


def _content(value: Any) -> Any:
    try:
        return fingerprint(value)
    except Exception:  # locks, weak references, open files: each refuses in its own way
        return "no fingerprint", f"{type(value).__module__}.{type(value).__qualname__}"


@contextmanager
def _by_name(model: nn.Module) -> Iterator[None]:
    """Meanwhile the network's own parts have their names as fingerprints.

    A hook or an attribute may refer to the network: it then depends on which part it is, not on weights.
    """
    own: dict[int, tuple[str, Any]] = {id(part): (name, part) for name, part in model.named_modules()}
    own.update((id(t), (name, t)) for name, t in model.state_dict(keep_vars=True).items())
    own.update((id(p), (name, p)) for name, p in model.named_parameters())
    before = [
        (vars(one), vars(one).get("fingerprint")) for _, one in own.values() if hasattr(one, "__dict__")
    ]
    try:
        for name, one in own.values():
            if hasattr(one, "__dict__"):
                vars(one)["fingerprint"] = f"part {name}"
        yield
    finally:
        for names, old in before:
            if old is None:
                names.pop("fingerprint", None)
            else:
                names["fingerprint"] = old


def save(
    path: Path,
    key: str,
    model: nn.Module,
    descent: Any,
    history: History,
    epoch: int,
    best: Best | None = None,
) -> None:
    """Write the state after ``epoch`` epochs, whole or not at all."""
    state = {
        "key": key,
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": descent.state_dict(),
        "history": pack(vars(history)),
    }
    if best is not None:
        state["best"] = (best.loss, best.weights)
    with atomic(path) as part:
        torch.save(state, part)
        seal(part)


def resume(
    path: Path, key: str, model: nn.Module, descent: Any, best: Best | None = None
) -> tuple[History, int]:
    """The history and the number of epochs done; weights and the optimizer's state go where they belong."""
    if not path.exists():
        return History(), 0
    try:
        if not is_sealed(path):
            raise ValueError("its bytes are not those that were written, or another version wrote it")
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
    try:
        history = History(**unpack(state["history"]))
    except ValueError as error:
        raise ValueError(f"the measurements in the checkpoint {path} cannot be read: {error}.") from None
    model.load_state_dict(state["model"])
    descent.load_state_dict(state["optimizer"])
    if best is not None:
        best.loss, best.weights = state["best"]
    return history, int(state["epoch"])


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
    if isinstance(value, tuple):
        return "named", (*named.name_of(value), [pack(v) for v in value])
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
        module, name, fields, items = content
        return named.make(module, name, fields, [unpack(v) for v in items])
    return [unpack(v) for v in content] if kind == "list" else tuple(unpack(v) for v in content)
