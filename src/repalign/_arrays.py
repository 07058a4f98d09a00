"""At the door of every measure: numpy or torch comes in, is checked once, and leaves as it came.

One rule of precision for all measures: float64 in, float64 out; float32 in, float32 out; float16 and bfloat16
are read as they are and measured in float32 or more, and what comes out is float32, since sums of squares
overflow float16 and have two digits in bfloat16. Of several arguments the first one decides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def numpy_too(fn: Callable[P, R]) -> Callable[P, R]:
    """Let a function of tensors take numpy arrays and, when it got only those, return them."""

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        seen: set[type] = set()
        args_, kwargs_ = _map((args, kwargs), lambda leaf: _to_torch(leaf, seen))
        out = fn(*args_, **kwargs_)
        numpy_only = np.ndarray in seen and Tensor not in seen
        return as_numpy(out) if numpy_only else out

    return wrapper


def _to_torch(leaf: Any, seen: set[type]) -> Any:
    if isinstance(leaf, Tensor):
        seen.add(Tensor)
    elif isinstance(leaf, np.ndarray):
        seen.add(np.ndarray)
        refuse_words(leaf, "an array of labels or features")
        # A read-only or negatively strided array cannot be shared with torch: copy it.
        shareable = leaf.flags.writeable and all(step >= 0 for step in leaf.strides)
        return torch.from_numpy(leaf if shareable else leaf.copy())
    return leaf


def as_numpy(tree: R) -> R:
    """The same with every tensor as a numpy array."""
    return _map(tree, _to_numpy)


def _to_numpy(leaf: Any) -> Any:
    return leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else leaf


def _map(tree: Any, fn: Callable[[Any], Any]) -> Any:
    """Apply ``fn`` to the leaves of nested tuples (named ones too), lists and dicts."""
    if isinstance(tree, dict):
        return {key: _map(value, fn) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_map(value, fn) for value in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(_map(value, fn) for value in tree)
    return fn(tree)


def check(value: Any, name: str, dims: str) -> Tensor:
    """``value`` as a finite real tensor with one axis per word of ``dims``, or an error that helps.

    ``dims`` names the axes, as in ``"n d"``; ``"n *c"`` allows any number of trailing axes.
    Integers become float64. An empty axis is refused.
    """
    if not isinstance(value, Tensor):
        value = np.asarray(value)
        refuse_words(value, name)
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(value)
    expected = f"{name} should have shape ({', '.join(dims.split())})"
    words = dims.split()
    open_end = words[-1:] != [] and words[-1].startswith("*")
    fits = tensor.ndim >= len(words) - 1 if open_end else tensor.ndim == len(words)
    if not fits:
        raise ValueError(f"{expected}, but has shape {tuple(tensor.shape)}.{_hint(tensor, words)}")
    if 0 in tensor.shape:
        raise ValueError(f"{expected} with no empty axis, but has shape {tuple(tensor.shape)}.")
    if tensor.is_complex():
        raise TypeError(f"{name} should be real, but is {tensor.dtype}. Pass its real part.")
    if not tensor.is_floating_point():
        tensor = tensor.double()
    # A finite sum proves every entry finite, at a tenth of the cost of looking at each.
    bad = ~torch.isfinite(tensor) if not torch.isfinite(tensor.sum()) else torch.zeros(())
    if bad.any():
        first = tuple(int(i) for i in bad.nonzero()[0])
        raise ValueError(
            f"{name} should be finite, but {int(bad.sum())} of {tensor.numel()} entries are NaN or "
            f"infinite, the first at {first}. Drop those rows, or look for a diverged run."
        )
    return tensor


def refuse_words(value: Any, name: str) -> None:
    """An error where an array or a list holds words or other objects in place of numbers."""
    if np.asarray(value).dtype.kind in "OSU":
        raise TypeError(
            f"{name} should hold numbers, but holds words or other objects: number the words of labels by "
            "numpy.unique(labels, return_inverse=True)[1]."
        )


def numbers(value: Any, name: str, dims: str) -> Tensor:
    """``value`` as :func:`check` returns it, in at least float32: what measures compute with."""
    return at_least_single(check(value, name, dims))


def at_least_single(tensor: Tensor) -> Tensor:
    """Half precision as float32, which is exact; float32 and float64 as they are."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def rounding(value: Any) -> float:
    """By how much, relative to themselves, the given numbers may have been rounded: ε of their precision."""
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return torch.finfo(value.dtype if floating else torch.float64).eps


def indistinct(eigenvalues: Tensor, given: Any) -> Tensor:
    """Eigenvalues of the symmetric matrix ``given`` up to this size cannot be told from rounding.

    By rounding its entries in the precision of ``given`` an eigenvalue moves by up to ε‖K‖ (Weyl), by
    computing in at least float32 by some n·ε·|λ|max.
    """
    computed = len(eigenvalues) * min(rounding(given), torch.finfo(torch.float32).eps)
    entries = rounding(given) * torch.linalg.vector_norm(eigenvalues)
    return torch.maximum(computed * eigenvalues.abs().max(), entries)


def _hint(tensor: Tensor, words: list[str]) -> str:
    if tensor.ndim > len(words) >= 2:
        return " Flatten each sample first: x.flatten(1)."
    if tensor.ndim == 1 and len(words) == 2 and class_numbers(tensor):
        return " Class numbers? Give repalign.data.one_hot(y). One feature? Use x[:, None]."
    if tensor.ndim == 1 and len(words) == 2:
        return " One sample or one feature? Use x[None] or x[:, None]."
    return ""


# What to say of labels that are taken as they are, and most likely were not meant so.
COUNTED = (
    "y holds whole numbers other than -1 and 1, and they count as numbers: class 2 as twice class 1. For "
    "classes give repalign.data.one_hot(y), or repalign.data.signs(y) where there are two; for numbers "
    "y.float()."
)


def class_numbers(y: Any) -> bool:
    """Are these one whole number per sample, and not all ±1? They look like classes.

    >>> class_numbers(torch.tensor([0, 2, 1])), class_numbers(torch.tensor([1, -1]))
    (True, False)
    """
    if not isinstance(y, Tensor):
        refuse_words(y, "y")
        y = torch.as_tensor(np.asarray(y))
    whole = y.ndim == 1 and not y.is_floating_point() and not y.is_complex()
    return whole and bool(((y != 1) & (y != -1)).any())


def same_rows(a: Tensor, b: Tensor, names: str) -> None:
    """Both have one row per sample, or an error."""
    if a.shape[0] != b.shape[0]:
        raise ValueError(
            f"{names} should have one row per sample each, but have {a.shape[0]} and {b.shape[0]} rows."
        )


def working(tensor: Tensor) -> Tensor:
    """The tensor in float64, where decompositions are done; MPS has no float64 and goes to the CPU."""
    return tensor.to("cpu", torch.float64) if tensor.device.type == "mps" else tensor.double()
