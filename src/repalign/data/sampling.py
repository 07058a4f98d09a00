"""Choosing classes and samples by explicit seed, the same on every platform, and gathering their rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from repalign.data.acquire.formats import Array

Classes = Sequence[str | int] | str | None


def choose_classes(
    name: str, known: Sequence[str], groups: dict[str, tuple[int, ...]], classes: Classes
) -> list[int]:
    """Indices of the classes asked for, in that order: by name, by index, or by the name of a group."""
    if classes is None:
        return list(range(len(known)))
    if not known:
        raise ValueError(f"{name} has numbers as targets, not classes: leave classes out.")
    if isinstance(classes, str):
        if classes not in groups:
            raise ValueError(
                f"{name} has no group of classes {classes!r} (groups: {', '.join(groups) or 'none'}); "
                f"for one class pass a tuple, as ({classes!r},)."
            )
        if max(groups[classes]) >= len(known):
            raise ValueError(f"the group {classes!r} needs all classes of {name}, but here are {len(known)}.")
        return list(groups[classes])
    where = {label: i for i, label in enumerate(known)}
    chosen = [where.get(c, -1) if isinstance(c, str) else int(c) for c in classes]
    wrong = [c for c, i in zip(classes, chosen, strict=True) if not 0 <= i < len(known)]
    if wrong or not chosen or len(set(chosen)) < len(chosen):
        what = f"{wrong[0]!r} is not one" if wrong else "each should be named once, and at least one"
        listed = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
        raise ValueError(f"classes should be among the {len(known)} of {name}, but {what}: {listed}.")
    return chosen


def sample(y: Array, n: int | None, classes: Sequence[int], seed: int) -> Int[np.ndarray, " n"]:
    """Rows of ``n`` samples, shared equally among ``classes``, shuffled; all rows in order without n.

    A class with too few samples gives all it has and the others give more. With one seed a smaller
    sample is part of a larger one. Without classes the targets are numbers, and any row may be drawn.
    """
    if n is None:
        return np.flatnonzero(np.isin(y, classes)) if classes else np.arange(len(y))
    rng = np.random.Generator(np.random.PCG64(seed))
    if not classes:
        return rng.permutation(len(y))[:n]
    pools = [rng.permutation(np.flatnonzero(y == c)) for c in classes]
    quota = share([len(pool) for pool in pools], n)
    rows = np.concatenate([pool[:q] for pool, q in zip(pools, quota, strict=True)])
    return rng.permutation(rows)


def share(available: Sequence[int], n: int) -> list[int]:
    """Split ``n`` as evenly as the classes allow, the remainder going to the first ones.

    >>> share([10, 2, 10], 13)
    [6, 2, 5]
    """
    quota = [0] * len(available)
    left = min(n, sum(available))
    while left:
        unfilled = [i for i, have in enumerate(available) if quota[i] < have]
        each, extra = divmod(left, len(unfilled))
        for rank, i in enumerate(unfilled):
            take = min(each + (rank < extra), available[i] - quota[i])
            quota[i] += take
            left -= take
    return quota


def relabel(y: Array, classes: Sequence[int]) -> Int[np.ndarray, " n"]:
    """Labels as positions in ``classes``."""
    position = np.zeros(max(classes) + 1, np.int64)
    position[list(classes)] = np.arange(len(classes))
    return position[y]


def gather(x: Array, rows: Array, dtype: torch.dtype) -> Tensor:
    """The rows of a stored array as a tensor; bytes become [0, 1] unless bytes are asked for.

    The file is read front to back, a few megabytes at a time and only where rows are wanted: memory
    stays at the result and one block. Touching the map instead would keep the whole file resident.
    """
    images = x.dtype == np.uint8
    if dtype == torch.uint8 and not images:
        raise ValueError("dtype=torch.uint8 is for images; these are numbers.")
    out = torch.empty((len(rows), *x.shape[1:]), dtype=dtype)
    target = out.numpy()
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    step = max(1, (1 << 22) // max(1, x.nbytes // len(x)))
    edges = np.searchsorted(ordered, np.arange(0, len(x) + step, step))
    for start, end in pairwise(edges.tolist()):
        if start < end:
            first, last = int(ordered[start]), int(ordered[end - 1]) + 1
            target[order[start:end]] = _block(x, first, last)[ordered[start:end] - first]
    return out.div_(255) if images and dtype != torch.uint8 else out


def _block(x: Array, first: int, last: int) -> Array:
    """Rows ``first`` to ``last``: read from the file of a mapped array, else as they are."""
    if not isinstance(x, np.memmap) or not x.flags.c_contiguous or x.filename is None:
        return x[first:last]
    width = x.nbytes // len(x)
    count = (last - first) * width // x.itemsize
    flat = np.fromfile(x.filename, x.dtype, count, offset=x.offset + first * width)
    return flat.reshape(last - first, *x.shape[1:])
