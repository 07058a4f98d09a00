"""CKA of many pairs at once: kernels flattened to unit vectors, pairs as one matrix product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
# Bytes of intermediate products of one pair.
ROOM = 2**26


class Features(NamedTuple):
    """A batch on the features' side: ⟨K, L⟩ = ‖XᵀY‖² + the debiasing terms, from the diagonal of K."""

    x: Tensor
    diagonal: Tensor | None


Packed = Tensor | list[Features]
Widths = Sequence[int | None]


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
            norm = math.sqrt(max(0.0, float(_inner_many([one], one, ROOM)[0])))
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


def _inner_many(many: Sequence[Features], one: Features, room: int) -> Tensor:
    """⟨K, L⟩ of centered kernels (U-centered ones with diagonals), for many K and one L."""
    n, e = one.x.shape
    values = []
    for group in _together(many, 8 * (n + e), room):
        if len(group) == 1:
            values.append(_inner(group[0].x, one.x, room).reshape(1))
            continue
        cross = (torch.cat([f.x for f in group], dim=1).mT @ one.x).square_().sum(dim=1)
        widths = torch.tensor([f.x.shape[1] for f in group], device=cross.device)
        values.append(torch.segment_reduce(cross, "sum", lengths=widths))
    value = torch.cat(values)
    if one.diagonal is None:
        return value
    diagonals = torch.stack([f.diagonal for f in many if f.diagonal is not None])
    value -= n / (n - 2) * (diagonals @ one.diagonal)
    return value + diagonals.sum(dim=1) * one.diagonal.sum() / ((n - 1) * (n - 2))


def _together(many: Sequence[Features], bytes_each: int, room: int) -> Iterator[list[Features]]:
    """Groups whose features, side by side, take ``bytes_each`` a column and fit; at least one in each."""
    group: list[Features] = []
    used = 0
    for one in many:
        size = one.x.shape[1] * bytes_each
        if group and used + size > room:
            yield group
            group, used = [], 0
        group.append(one)
        used += size
    yield group


def _inner(x: Tensor, y: Tensor, room: int) -> Tensor:
    """⟨XXᵀ, YYᵀ⟩ = ‖XᵀY‖² in pieces that fit, on the side with fewer multiplications."""
    (n, d), e = x.shape, y.shape[1]
    if d * e <= n * (d + e):
        pieces = x.split(max(1, room // (8 * e)), dim=1)
        return torch.stack([(piece.mT @ y).square_().sum() for piece in pieces]).sum()
    strips = (slice(at, at + max(1, room // (16 * n))) for at in range(0, n, max(1, room // (16 * n))))
    return torch.stack([((x[s] @ x.mT).mul_(y[s] @ y.mT)).sum() for s in strips]).sum()


def product(a: Any, b: Any, room: int = ROOM) -> Tensor:
    """CKA of every packed representation of ``a`` with every one of ``b``, in float64."""
    if isinstance(a[0], list):
        columns = [
            sum(_inner_many([rep[i] for rep in a], batch, room) for i, batch in enumerate(one)) for one in b
        ]
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
    first = rows[0].peek()
    wide, n = first.dtype, len(first)
    like = first.new_empty(n, 0)
    del first
    size = batch_size or n
    length = n // size * packed_length(size)
    if side == "auto":
        widths = [load.width() for load in rows], None if other is None else [load.width() for load in cols]
        side = _cheaper_side(size, *widths, fits=2 * length * wide.itemsize <= max_bytes)

    def pack(load: Loader, into: Tensor | None) -> Packed:
        x = load()
        same_rows(like, x, f"reps[0] and {load.name}")
        return Packer(x.to(wide), load.name, side, debiased, batch_size, average, x.dtype).pack(into)

    def packed(loads: list[Loader], room: int) -> Any:
        """The first of them, as many as fit, but at least one."""
        if side == "gram":
            held = like.new_empty(min(len(loads), max(1, room // (length * wide.itemsize))), length)
            for load, into in zip(loads, held, strict=False):
                pack(load, into)
            return held
        some: list[Packed] = []
        for load in loads:
            # One that does not fit stays loaded, for the next block.
            room -= 8 * n * (load.peek().shape[1] + debiased)
            if some and room < 0:
                break
            some.append(pack(load, None))
        return some

    out = like.new_zeros(len(rows), len(cols), dtype=torch.float64)
    start = 0
    while start < len(rows):
        # Half of the room for the rows' block, a quarter for what it meets, a quarter for their products.
        held = packed(rows[start:], max_bytes // 2)
        here = slice(start, start + len(held))
        if other is None:
            out[here, here] = product(held, held, max_bytes // 4)
        at = here.stop if other is None else 0
        while at < len(cols):
            met = packed(cols[at:], max_bytes // 4)
            there = slice(at, at + len(met))
            out[here, there] = product(held, met, max_bytes // 4)
            if other is None:
                out[there, here] = out[here, there].mT
            at = there.stop
        start = here.stop
    return out.to(wide)


def _cheaper_side(n: int, rows: Widths, cols: Widths | None, *, fits: bool) -> str:
    """By multiplications: n²d/2 for each kernel and n²/2 for each pair, or nd² and nde for a pair."""
    known = [d for d in (*rows, *(cols or ())) if d is not None]
    if len(known) < len(rows) + len(cols or ()):
        return "gram" if fits else "features"
    if max(known) >= n:
        return "gram"  # smaller than the features themselves
    if not fits:
        return "features"
    split = len(rows)
    pairs = split**2 / 2 if cols is None else split * len(cols)
    products = sum(known) ** 2 / 2 if cols is None else sum(known[:split]) * sum(known[split:])
    products += sum(d * d for d in known)
    return "features" if n * products < n * n * (sum(known) + pairs) / 2 else "gram"
