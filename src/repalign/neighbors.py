"""Do two representations have the same nearest neighbors? Of all similarities the most local one.

>>> import torch
>>> x = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
>>> mutual_neighbors(x, -2 * x + 5, k=1)
Mutual(share=tensor(1.), chance=0.3333333333333333)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from repalign._arrays import numbers, numpy_too, same_rows, working

# Squared distances are differences of numbers as large as squared lengths: equal up to so much beside those.
ROUNDING = 64 * torch.finfo(torch.float64).eps
# Tables of samples by samples that a block of rows needs at once.
TABLES = 8


class Mutual(NamedTuple):
    """The share of neighbors that two representations have in common, and that of unrelated ones."""

    share: Float[Tensor, ""]
    chance: float


@numpy_too
def mutual_neighbors(
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n e"],
    k: int = 10,
    *,
    cosine: bool = False,
    max_bytes: int = 2**28,
) -> Mutual:
    """The mean share of a sample's k nearest neighbors in X that are among those in Y (Huh et al. 2024).

    By Euclidean distance, or by angle with ``cosine=True``; a sample is no neighbor of its own. 1 for the
    same representation up to rotation, shift and scale. ``chance`` is k/(n − 1): the exact mean over all ways
    to pair the samples of X with those of Y. Samples equally far away share the places that are left, so the
    result does not depend on their order. No n × n matrix is kept: rows are taken in blocks of about
    ``max_bytes``.

    >>> g = torch.Generator().manual_seed(0)
    >>> x, y = torch.randn(200, 5, generator=g), torch.randn(200, 5, generator=g)
    >>> [round(float(mutual_neighbors(x, other).share), 2) for other in (x + 0.1 * y, x + y, y)]
    [0.84, 0.17, 0.05]
    """
    X, Y = numbers(X, "X", "n d"), numbers(Y, "Y", "n e")
    same_rows(X, Y, "X and Y")
    n = len(X)
    if not 1 <= k <= n - 1:
        raise ValueError(f"k should be from 1 to {n - 1}, the other samples, but is {k}.")
    x, y = (_prepared(part, name, cosine) for part, name in ((X, "X"), (Y, "Y")))
    common = x.new_zeros(())
    for rows in torch.arange(n, device=x.device).split(max(1, max_bytes // (8 * TABLES * n))):
        common += (_places(x, rows, k) * _places(y, rows, k)).sum()
    return Mutual((common / (k * n)).to(X), k / (n - 1))


def _prepared(x: Tensor, name: str, cosine: bool) -> Tensor:
    """In float64: without the mean, which distances do not see, or with rows of length one."""
    x = working(x)
    if not cosine:
        return x - x.mean(dim=0)
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    if not (length > 0).all():
        raise ValueError(f"{name} should have no row of zeros with cosine=True: it has no direction.")
    return x / length


def _places(x: Tensor, rows: Tensor, k: int) -> Tensor:
    """How much of a place each sample has among the k neighbors of these rows, (rows, n): k in sum."""
    size = x.square().sum(dim=1)
    scale = size[rows, None] + size
    distance = scale - 2 * x[rows] @ x.mT
    distance[torch.arange(len(rows), device=x.device), rows] = torch.inf
    last = distance.kthvalue(k, dim=1, keepdim=True).values
    slack = ROUNDING * scale
    nearer = distance < last - slack
    tied = (distance - last).abs() <= slack
    left = k - nearer.sum(dim=1, keepdim=True)
    return nearer + tied * (left / tied.sum(dim=1, keepdim=True))
