"""CKA of many pairs at once: kernels flattened to unit vectors, pairs as one matrix product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repalign._arrays import same_rows
from repalign.kernels.loaders import Loader, sources

# Rows of a kernel are made in so many strips, of which only the part up to the diagonal is needed.
STRIPS = 4
# Columns of the last product whose sum stays in the working precision; beyond, float64 adds up.
COLUMNS = 2**14
# Representations from the far side that are compared with the held block in one product.
GROUP = 16


class Features(NamedTuple):
    """A batch on the features' side: ⟨K, L⟩ = ‖XᵀY‖² + the debiasing terms, from the diagonal of K."""

    x: Tensor
    diagonal: Tensor | None


Packed = Tensor | list[Features]


def enough(n: int, debiased: bool) -> None:
    """n is large enough for the estimator, or an error."""
    least = 4 if debiased else 2
    if n < least:
        kind = "debiased CKA and HSIC need" if debiased else "CKA and HSIC need"
        raise ValueError(f"{kind} at least {least} samples (per batch), but there are {n}.")


class Packer:
    """One representation, centered and scaled so that its product with itself is 1."""

    def __init__(
        self,
        x: Tensor,
        name: str,
        side: str,
        debiased: bool,
        batch_size: int | None = None,
        average: str = "cka",
        given: torch.dtype | None = None,
    ) -> None:
        self.x, self.name, self.side, self.debiased, self.average = x, name, side, debiased, average
        self.given = given or x.dtype
        n = len(x)
        size = batch_size or n
        if n % size:
            raise ValueError(
                f"n should be a multiple of batch_size, but {name} has {n} samples and batch_size is {size}. "
                f"Drop {n % size} samples or take another batch size."
            )
        enough(size, debiased)
        self.batches = x.split(size)

    def pack(self, out: Tensor | None = None) -> Packed:
        """A flat vector (into ``out``) on the Gram side, a list with one entry per batch on the other."""
        if self.side == "features":
            return self._features()
        length = packed_length(len(self.batches[0]))
        flat = self.x.new_empty(len(self.batches) * length) if out is None else out
        norms = []
        buffer = torch.empty_like(self.batches[0])
        for batch, part in zip(self.batches, flat.split(length), strict=True):
            x, trace = self._centered(batch, buffer)
            _packed_gram(x, part, self.debiased)
            norm = torch.linalg.vector_norm(part, dtype=torch.float64)
            norms.append(self._usable(float(norm), 16 * torch.finfo(x.dtype).eps * trace))
        for part, scale in zip(flat.split(length), self._scales(norms), strict=True):
            part.mul_(scale)
        return flat

    def _features(self) -> list[Features]:
        batches, norms = [], []
        for batch in self.batches:
            x, trace = self._centered(batch.double(), None)
            one = Features(x, x.square().sum(dim=1) if self.debiased else None)
            norm = math.sqrt(max(0.0, float(_inner_many([one], one)[0])))
            batches.append(one)
            # The norm is the root of a difference here, so only half of the digits can vouch for it.
            norms.append(self._usable(norm, 1e-7 * trace if self.debiased else 0.0))
        return [
            Features(one.x * math.sqrt(scale), None if one.diagonal is None else one.diagonal * scale)
            for one, scale in zip(batches, self._scales(norms), strict=True)
        ]

    def _scales(self, norms: list[float]) -> list[float]:
        if self.average == "cka":
            return [1 / (norm * math.sqrt(len(norms))) for norm in norms]
        return [1 / math.sqrt(sum(norm**2 for norm in norms))] * len(norms)

    def _centered(self, batch: Tensor, buffer: Tensor | None) -> tuple[Tensor, float]:
        """The features without their mean, and what is left of their squared length."""
        mean = batch.mean(dim=0)
        x = torch.sub(batch, mean, out=buffer)
        removed = len(x) * float(torch.linalg.vector_norm(mean, dtype=torch.float64)) ** 2
        trace = float(torch.linalg.vector_norm(x)) ** 2
        if trace < 1e-4 * removed:
            # Far from 0 the first mean was rounded: what is left of it goes now.
            x -= x.mean(dim=0)
            trace = float(torch.linalg.vector_norm(x)) ** 2
        if trace <= (16 * torch.finfo(self.given).eps) ** 2 * removed:
            raise ValueError(
                f"{self.name} should vary over the samples, but is constant, so CKA is undefined. "
                f"A dead layer, or the same sample n times?"
            )
        return x, trace

    def _usable(self, norm: float, rounding: float) -> float:
        if norm <= rounding:
            raise ValueError(
                f"the debiased kernel of {self.name} is zero: all samples are equally far apart, so "
                f"CKA is undefined. Use debiased=False."
            )
        return norm


def packed_length(n: int) -> int:
    """Entries of a packed symmetric n×n matrix."""
    return sum((stop - start) * stop for start, stop in _strips(n))


def _strips(n: int) -> list[tuple[int, int]]:
    cuts = [n * i // STRIPS for i in range(STRIPS + 1)]
    return [(a, b) for a, b in pairwise(cuts) if b > a]


def _packed_gram(x: Tensor, out: Tensor, debiased: bool) -> None:
    """The kernel of centered features in strips up to the diagonal; what is off it counts √2-fold."""
    n, at = len(x), 0
    diagonal = torch.linalg.vector_norm(x, dim=1).square() if debiased else None
    for start, stop in _strips(n):
        strip = out[at : at + (stop - start) * stop].view(stop - start, stop)
        torch.mm(x[start:stop], x[:stop].mT, out=strip)
        if diagonal is not None:
            # Features are centered, so row i sums to 0 with, and to −Kᵢᵢ without, its diagonal entry.
            strip += diagonal[start:stop, None] / (n - 2)
            strip += diagonal[:stop] / (n - 2) - diagonal.sum() / ((n - 1) * (n - 2))
            strip[:, start:].fill_diagonal_(0)
        strip[:, :start] *= math.sqrt(2)
        at += strip.numel()


def _inner_many(many: Sequence[Features], one: Features) -> Tensor:
    """⟨K, L⟩ of centered kernels (U-centered ones with diagonals), for many K and one L."""
    cross = (torch.cat([f.x for f in many], dim=1).mT @ one.x).square().sum(dim=1)
    ends = torch.tensor([f.x.shape[1] for f in many], device=cross.device)
    value = torch.segment_reduce(cross, "sum", lengths=ends)
    if one.diagonal is None:
        return value
    n = len(one.diagonal)
    diagonals = torch.stack([f.diagonal for f in many if f.diagonal is not None])
    value -= n / (n - 2) * (diagonals @ one.diagonal)
    return value + diagonals.sum(dim=1) * one.diagonal.sum() / ((n - 1) * (n - 2))


def product(a: Any, b: Any) -> Tensor:
    """CKA of every packed representation of ``a`` with every one of ``b``, in float64."""
    if isinstance(a[0], list):
        columns = [sum(_inner_many([rep[i] for rep in a], batch) for i, batch in enumerate(one)) for one in b]
        return torch.stack([c for c in columns if isinstance(c, Tensor)], dim=1)
    left, right = (v if isinstance(v, Tensor) else torch.stack(v) for v in (a, b))
    total = left.new_zeros(len(left), len(right), dtype=torch.float64)
    for x, y in zip(left.split(COLUMNS, dim=1), right.split(COLUMNS, dim=1), strict=True):
        total += x @ y.mT
    return total


def grid(
    reps: Any,
    other: Any,
    *,
    debiased: bool,
    batch_size: int | None,
    average: str,
    side: str,
    max_bytes: int,
) -> Tensor:
    """All pairs, in blocks of as many packed representations as ``max_bytes`` holds."""
    rows = sources(reps, "reps")
    cols = rows if other is None else sources(other, "other")
    first = rows[0]()
    n, d = first.shape
    size = batch_size or n
    if side == "auto":
        side = _cheaper_side(size, d, len(rows) * len(cols) / (len(rows) + len(cols)), max_bytes)
    wide = torch.float64 if first.dtype == torch.float64 else torch.float32
    length = n // size * packed_length(size) if side == "gram" else n * (d + debiased)
    block = max(1, max_bytes // (length * (wide.itemsize if side == "gram" else 8)))

    def pack(load: Loader, into: Tensor | None) -> Packed:
        x = load()
        same_rows(first, x, f"reps[0] and {load.name}")
        return Packer(x.to(wide), load.name, side, debiased, batch_size, average, x.dtype).pack(into)

    def packed(loads: list[Loader]) -> Any:
        if side == "features":
            return [pack(load, None) for load in loads]
        held = first.new_empty(len(loads), length, dtype=wide)
        for load, into in zip(loads, held, strict=True):
            pack(load, into)
        return held

    out = first.new_zeros(len(rows), len(cols), dtype=torch.float64)
    for start in range(0, len(rows), block):
        here = slice(start, min(start + block, len(rows)))
        held = packed(rows[here])
        if other is None:
            out[here, here] = product(held, held)
        for at in range(here.stop if other is None else 0, len(cols), min(GROUP, block)):
            there = slice(at, min(at + min(GROUP, block), len(cols)))
            out[here, there] = product(held, packed(cols[there]))
            if other is None:
                out[there, here] = out[here, there].mT
    return out.to(first.dtype)


def _cheaper_side(n: int, d: int, pairs_each: float, max_bytes: int) -> str:
    """By multiplications per representation: n²d/2 for its kernel and n²/2 per pair, or nd² per pair."""
    if packed_length(n) * 8 > max_bytes:
        return "features"
    gram, features = n * n * (d + pairs_each) / 2, pairs_each * n * d * d
    return "features" if d < n and features < gram else "gram"
