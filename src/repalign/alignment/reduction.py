"""Singular values and left singular vectors of what is too large to decompose whole."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repalign._arrays import COUNTED, check, class_numbers, numbers, same_rows, working

# Directions sought beyond the wanted ones, so that the last of those is found as fast as the first.
SPARE = 10
# A singular pair counts as found when Φᵀu − σv is this small beside σ₁.
FOUND = 1e-10
# Rows turned to float64 at a time.
ROWS = 4096


class Reduced(NamedTuple):
    """Φ and y in a rotated basis of few rows: the same singular values, the same power.

    ``b`` may have more rows than ``a``: there Φ is zero.
    """

    a: Tensor
    b: Tensor
    n: int
    like: Tensor
    trailing: torch.Size
    numpy: bool = False


def reduce_blocks(blocks: Iterable[Any]) -> Reduced:
    """The triangular factor of [Φ, y], from row blocks (Φ_block, y_block) seen once each.

    Rows of the factor so far are put on top of the next rows and factorized again: what is left of any
    number of rows is a triangle of d + c rows.
    """
    r: Tensor | None = None
    waiting: list[Tensor] = []
    like, trailing, n, numpy = torch.empty(0), torch.Size(), 0, False
    for phi, y, array in _checked(blocks):
        if n == 0:
            like, trailing, numpy = phi, y.shape[1:], array
        if phi.shape[1] != like.shape[1] or y.shape[1:] != trailing:
            raise ValueError(
                f"all blocks should have the same number of features as the first, {like.shape[1]} and "
                f"{tuple(trailing)}, but one has {phi.shape[1]} and {tuple(y.shape[1:])}."
            )
        n += len(phi)
        waiting.append(torch.cat([working(phi), working(y).reshape(len(y), -1)], dim=1))
        # Few large factorizations are cheaper than many small ones.
        if sum(map(len, waiting)) >= 2 * waiting[0].shape[1]:
            r, waiting = _triangle(r, waiting), []
    if n == 0:
        raise ValueError("there should be at least one block of rows, but there is none.")
    r = _triangle(r, waiting)
    d = like.shape[1]
    return Reduced(r[:d, :d], r[:, d:], n, like, trailing, numpy)


def _triangle(r: Tensor | None, waiting: list[Tensor]) -> Tensor:
    rows = waiting if r is None else [r, *waiting]
    return torch.linalg.qr(torch.cat(rows), mode="r").R


def _checked(blocks: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor, bool]]:
    for i, block in enumerate(blocks):
        if not isinstance(block, (tuple, list)) or len(block) != 2:
            raise TypeError(
                f"without y, phi should be an iterable of pairs (phi_block, y_block), but block {i} is a "
                f"{type(block).__name__}."
            )
        if i == 0 and class_numbers(block[1]):
            warnings.warn(COUNTED, stacklevel=5)
        phi, y = numbers(block[0], f"phi of block {i}", "n d"), check(block[1], f"y of block {i}", "n *c")
        same_rows(phi, y, f"phi and y of block {i}")
        yield phi, y, isinstance(block[0], np.ndarray)


def top_left_vectors(a: Tensor, k: int, *, seed: int = 0) -> tuple[Tensor, Tensor] | None:
    """The k strongest left singular vectors (n, k) and their singular values, in float64.

    Block Lanczos with full orthogonalization: a basis of the row space grows by what the best pairs so far
    still lack, until they lack nothing. Only products with Φ and Φᵀ are needed. None when the spectrum is
    so flat that this would cost more than the whole decomposition.
    """
    n, d = a.shape
    width = min(k + SPARE, n, d)
    g = torch.Generator().manual_seed(seed)
    block = torch.randn(d, width, generator=g, dtype=torch.float64).to(a.device)
    basis, images = block[:, :0], block.new_zeros(n, 0)
    while basis.shape[1] < max(4 * width, min(n, d) // 8):
        block = _orthonormal(block, basis)
        basis = torch.cat([basis, block], dim=1)
        images = torch.cat([images, _times(a, block)], dim=1)
        q, r = torch.linalg.qr(images)
        w, sigma, zh = torch.linalg.svd(r, full_matrices=False)
        u = q @ w[:, :width]
        lack = _transposed_times(a, u) - basis @ (zh[:width].mT * sigma[:width])
        size = torch.linalg.vector_norm(lack[:, :k], dim=0)
        if (size <= FOUND * sigma[0]).all():
            return u[:, :k], sigma[:k]
        block = lack[:, torch.linalg.vector_norm(lack, dim=0) > FOUND * sigma[0]]
    return None


def _orthonormal(block: Tensor, basis: Tensor) -> Tensor:
    """The part of ``block`` outside ``basis``, orthonormal; twice, since once leaves rounding behind."""
    for _ in range(2):
        block = torch.linalg.qr(block - basis @ (basis.mT @ block)).Q
    return block


def _times(a: Tensor, v: Tensor) -> Tensor:
    return torch.cat([working(rows) @ v for rows in a.split(ROWS)])


def _transposed_times(a: Tensor, u: Tensor) -> Tensor:
    total = u.new_zeros(a.shape[1], u.shape[1])
    for rows, part in zip(a.split(ROWS), u.split(ROWS), strict=True):
        total += working(rows).mT @ part
    return total
