"""What the papers do to labels, each by an explicit seed: the same numbers on every platform.

>>> import torch
>>> y = torch.tensor([0, 1, 1, 0])
>>> signs(y)
tensor([-1.,  1.,  1., -1.])
>>> sorted(shuffled(y, seed=0).tolist())
[0, 0, 1, 1]
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from repalign.data.loading import Dataset

T = TypeVar("T", Tensor, Dataset)


def signs(y: Int[Tensor, " n"], *, dtype: torch.dtype = torch.float32) -> Float[Tensor, " n"]:
    """Labels 0 and 1 as −1 and +1, as in the two-class tasks of Imani et al."""
    if not isinstance(y, Tensor):
        raise TypeError(f"labels should be a tensor, but are {type(y).__name__}: pass torch.as_tensor(y).")
    values = set(y.unique().tolist())
    if not values <= {0, 1}:
        raise ValueError(
            f"signs are for the labels 0 and 1, but there are {sorted(values)[:5]}: "
            "load two classes, as load(…, classes=(a, b))."
        )
    return (2 * y - 1).to(dtype)


def one_hot(
    y: Int[Tensor, " n"], k: int | None = None, *, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "n k"]:
    """A row per label with a single one; ``k`` columns, by default as many as the largest label needs.

    >>> one_hot(torch.tensor([1, 0]))
    tensor([[0., 1.],
            [1., 0.]])
    """
    k = _classes(y, k)
    return torch.nn.functional.one_hot(y, k).to(dtype)


def shuffled(y: Shaped[Tensor, " n *c"], *, seed: int) -> Shaped[Tensor, " n *c"]:
    """The same labels in another order: what is left of a task when inputs no longer explain it."""
    return y[torch.from_numpy(_rng(seed).permutation(len(y))).to(y.device)]


def random_labels(n: int, k: int, *, seed: int) -> Int[Tensor, " n"]:
    """``n`` labels, each uniform on 0 … k−1 (Maennel et al., A.1).

    >>> random_labels(5, 10, seed=0)
    tensor([8, 6, 5, 2, 3])
    """
    if n < 1 or k < 1:
        raise ValueError(f"n and k should be at least 1, but are {n} and {k}.")
    return torch.from_numpy(_rng(seed).integers(0, k, n))


def noisy(y: Int[Tensor, " n"], share: float, *, seed: int, k: int | None = None) -> Int[Tensor, " n"]:
    """A ``share`` of the labels, rounded to whole samples, replaced by a wrong one, uniformly (Sharon, Dar).

    With one seed the samples that are wrong at a smaller share are wrong at a larger one too.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share should be from 0 to 1, but is {share}.")
    k = _classes(y, k)
    if k < 2 and share > 0:
        raise ValueError("a label can only be wrong when there are two classes or more.")
    rng = _rng(seed)
    rows = torch.from_numpy(rng.permutation(len(y))[: round(share * len(y))])
    # A step of 1 … k−1 around the circle of classes never comes back to the start.
    step = torch.from_numpy(rng.integers(1, max(k, 2), len(y)))[: len(rows)]
    out = y.clone()
    out[rows.to(y.device)] = (y.cpu()[rows] + step).remainder(k).to(y)
    return out


def disjoint(data: T, *sizes: int, seed: int) -> tuple[T, ...]:
    """Samples without a common element, drawn uniformly one after the other (Maennel et al., A.1).

    >>> upstream, downstream = disjoint(torch.arange(10), 6, 3, seed=0)
    >>> set(upstream.tolist()) & set(downstream.tolist())
    set()
    """
    if any(size < 1 for size in sizes) or not sizes or sum(sizes) > len(data):
        raise ValueError(f"sizes should be positive and sum to at most {len(data)}, but are {sizes}.")
    order = torch.from_numpy(_rng(seed).permutation(len(data)))
    parts = order[: sum(sizes)].split(list(sizes))
    return tuple(_rows(data, rows) for rows in parts)


def _rows(data: T, rows: Tensor) -> T:
    if isinstance(data, Tensor):
        return data[rows.to(data.device)]
    return dataclasses.replace(data, x=data.x[rows], y=data.y[rows])


def _classes(y: Tensor, k: int | None) -> int:
    if not isinstance(y, Tensor):
        raise TypeError(f"labels should be a tensor, but are {type(y).__name__}: pass torch.as_tensor(y).")
    if y.dtype != torch.int64 or y.ndim != 1 or len(y) == 0:
        raise ValueError(
            f"labels should be torch.int64 of shape (n,), but are {y.dtype} of shape {tuple(y.shape)}. Whole "
            "numbers of another kind: y.long()."
        )
    least, most = int(y.min()), int(y.max())
    if least < 0 or (k is not None and most >= k):
        raise ValueError(f"labels should be from 0 to {(k or most + 1) - 1}, but go from {least} to {most}.")
    return most + 1 if k is None else k


def _rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))
