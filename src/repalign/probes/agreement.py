"""On how many points do two vectors of classes agree? All pairs at once, counted exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Points of a block: 128 words of 64 bits from each vector, so that a row of pairs stays in the cache.
BLOCK = 2**13
# One-hot entries that a GPU holds at a time.
ONE_HOT = 2**27


def count_equal(a: Tensor, b: Tensor | None) -> Tensor:
    """(E, F) counts of equal entries between the rows of ``a`` and those of ``b`` (of ``a`` itself)."""
    low = int(a.min()) if b is None else min(int(a.min()), int(b.min()))
    top = int(a.max()) if b is None else max(int(a.max()), int(b.max()))
    if a.device.type == "cpu":
        left = a.numpy()
        right = None if b is None else b.cpu().numpy()
        return torch.from_numpy(by_bits(left, right, low, top))
    return by_products(a, a if b is None else b.to(a.device), low, top)


def by_products(a: Tensor, b: Tensor, low: int, top: int) -> Tensor:
    """Products of one-hot vectors: what a GPU does best."""
    classes = top - low + 1
    # Counts of a block are whole numbers that float32 holds exactly.
    block = max(1, min(2**23, ONE_HOT // ((len(a) + len(b)) * classes)))
    total = torch.zeros(len(a), len(b), dtype=torch.int64, device=a.device)
    for x, y in zip(a.split(block, dim=1), b.split(block, dim=1), strict=True):
        x, y = (torch.nn.functional.one_hot(v.long() - low, classes).flatten(1).float() for v in (x, y))
        total += (x @ y.mT).round().long()
    return total


def by_bits(a: NDArray[Any], b: NDArray[Any] | None, low: int, top: int) -> NDArray[np.int64]:
    """Class numbers as bit planes: two points differ where any plane does, 64 points per operation."""
    rows, points = a.shape
    differ = np.zeros((rows, rows if b is None else len(b)), np.int64)
    bits = max(1, (top - low).bit_length())
    for start in range(0, points, BLOCK):
        left = _planes(a[:, start : start + BLOCK], low, bits)
        right = left if b is None else _planes(b[:, start : start + BLOCK], low, bits)
        found, one = np.empty((2, *right.shape[1:]), np.uint64)
        counts = np.empty(right.shape[1:], np.uint8)
        for i in range(rows):
            # Of one set of vectors only the pairs above the diagonal.
            first = i + 1 if b is None else 0
            f, o, c = found[first:], one[first:], counts[first:]
            np.bitwise_xor(right[0, first:], left[0, i], out=f)
            for plane in range(1, bits):
                np.bitwise_xor(right[plane, first:], left[plane, i], out=o)
                np.bitwise_or(f, o, out=f)
            np.bitwise_count(f, out=c)
            differ[i, first:] += c.sum(axis=1, dtype=np.uint32)
    if b is None:
        differ += differ.T
    return points - differ


def _planes(block: NDArray[Any], low: int, bits: int) -> NDArray[np.uint64]:
    """(bits, rows, words): bit k of every class number, packed; padding is 0 in every row."""
    number = block.astype(np.int64) - low if low else block
    padded = np.pad(number, ((0, 0), (0, -block.shape[1] % 64)))
    return np.stack([np.packbits((padded >> k) & 1, axis=1).view(np.uint64) for k in range(bits)])
