"""The gradients of a batch through one parameter, kept in the form that makes their products cheap.

``Outer`` keeps Σₚ b[i, k, p] ⊗ a[i, p] unmultiplied: with one position per sample its Gram matrix is
(a aᵀ) ∘ (b bᵀ), Lou et al., eq. 9. ``Table`` keeps what each sample does to the rows of a table that it
looks up. ``Rows`` keeps one row of the Jacobian per sample and output. All know ``pull``, Ψ v, a
vector–Jacobian product, and ``push``, Ψᵀ u, its transpose, for g vectors at once. For a Gram matrix, a
factor that is ``dense`` gives ``slices`` of Jacobian rows to multiply; the others know ``gram``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repalign.machine.matmul import rows_by_rows
from repalign.tangent.uses import Lookup, Product, Through, Use

# A multiplication in a Gram over positions costs this many in a Gram over columns: its products are small
# ones. Measured on one core with 16 to 128 positions and 64 to 1024 columns, for all outputs and the trace.
_SMALL = {False: 1.8, True: 0.5}
_ROWS = 40  # of one sample or a few, that meet the other side in one product
_PASS = 16  # and one that is followed by a pass through memory costs so many


@dataclass(frozen=True)
class Outer:
    """Gradients Σₚ b ⊗ a of a weight, and of the bias added in the same call where ``ones`` is set.

    ``dense`` when multiplying b and a, some columns at a time, is cheaper than meeting all positions.
    """

    a: Float[Tensor, "n p d"]
    b: Float[Tensor, "n k p m"]
    ones: bool = False
    dense: bool = False

    def part(self, samples: slice) -> Outer:
        return Outer(self.a[samples], self.b[samples], self.ones, self.dense)

    @property
    def samples(self) -> int:
        return len(self.a)

    def slices(self, width: int) -> Iterator[Float[Tensor, "n k q"]]:
        """The Jacobian, about ``width`` columns at a time."""
        n, k, p, m = self.b.shape
        step = max(1, width // self.a.shape[2])
        turned = self.b.transpose(2, 3)
        for start in range(0, m, step):
            some = turned[:, :, start : start + step].reshape(n, -1, p)
            yield torch.bmm(some, self.a).view(n, k, -1)
        if self.ones:
            yield self.b.sum(dim=2)

    def forward(self, other: Outer) -> Float[Tensor, "n p n2 p2"]:
        """What the two batches' inputs have in common: a aᵀ, and 1 more for a bias."""
        n, p, d = self.a.shape
        f = rows_by_rows(self.a.reshape(n * p, d), other.a.reshape(-1, d))
        return (f.add_(1) if self.ones else f).reshape(n, p, *other.a.shape[:2])

    def gram(self, other: Outer, trace: bool, out: Tensor | None = None) -> Tensor:
        n, k, p, m = self.b.shape
        n2, k2, p2, _ = other.b.shape
        f = self.forward(other)
        if trace:
            x, y = (o.b.transpose(1, 2).reshape(len(o.b) * o.b.shape[2], -1) for o in (self, other))
            g = rows_by_rows(x, y).reshape(n, p, n2, p2)
            g.mul_(f)
            return g.sum(dim=(1, 3)) if p * p2 > 1 else g.reshape(n, n2)
        if p * p2 == 1:
            g = rows_by_rows(self.b.reshape(n * k, m), other.b.reshape(n2 * k2, m), out)
            # Repeated along the columns first, the product runs through contiguous memory.
            g.unflatten(0, (n, k)).mul_(f.reshape(n, n2).repeat_interleave(k2, dim=1)[:, None])
            return g
        # Meeting the forward part first leaves one sum over positions for the outputs of the other side.
        turned = f.permute(2, 0, 3, 1)[:, :, None].expand(n2, n, k, p2, p)
        right = other.b.reshape(n2, k2, p2 * m)
        if f.requires_grad or self.b.requires_grad or right.requires_grad:
            columns = [(t @ self.b).reshape(n * k, p2 * m) @ r.mT for t, r in zip(turned, right, strict=True)]
            return torch.cat(columns, dim=1)
        # In memory that is used again and again, for some samples of this side before the other's is met.
        spare = self.b.new_empty(min(n, max(1, _ROWS // k)), k, p2, m)
        gram = self.b.new_empty(n2 * k2, n * k)
        same = self.b.data_ptr() == other.b.data_ptr() and self.b.shape == other.b.shape
        for i in range(0, n, len(spare)):
            some = spare[: n - i]
            rows = slice(i * k, (i + len(some)) * k)
            for j in range(i if same else 0, n2):
                for e, met in enumerate(some, i):
                    torch.bmm(turned[j, e], self.b[e], out=met)
                torch.mm(right[j], some.view(-1, p2 * m).mT, out=gram[j * k2 : (j + 1) * k2, rows])
            if same:  # symmetric: what is above is a mirror image of what is below
                gram[: rows.start, rows] = gram[rows, : rows.start].mT
        return gram.mT

    def pull(self, v: Float[Tensor, "n k g"]) -> tuple[Tensor, ...]:
        w = torch.einsum("nkpm,nkg->gmnp", self.b, v).flatten(2)
        u = w @ self.a.flatten(0, 1)
        return (u, w.sum(dim=2)) if self.ones else (u,)

    def push(self, u: tuple[Tensor, ...]) -> Float[Tensor, "n k g"]:
        met = torch.einsum("npd,gmd->npgm", self.a, u[0])
        met = met + u[1] if self.ones else met
        return torch.einsum("nkpm,npgm->nkg", self.b, met)


@dataclass(frozen=True)
class Table:
    """Gradients of a table: entry e is what sample ``sample[e]`` does to the row ``row[e]``; rows ascend."""

    sample: Int[Tensor, " e"]
    row: Int[Tensor, " e"]
    b: Float[Tensor, "e k m"]
    samples: int
    rows: int
    dense = False

    @staticmethod
    def of(indices: Int[Tensor, "n p"], b: Float[Tensor, "n k p m"], rows: int) -> Table:
        """Looked up ``indices``, with gradients ``b`` at what was found."""
        n = len(indices)
        place = torch.arange(n, device=indices.device)[:, None]
        codes, entry = torch.unique(indices.long() * n + place, return_inverse=True)
        found = b.transpose(1, 2).flatten(0, 1)
        summed = found.new_zeros(len(codes), *found.shape[1:]).index_add(0, entry.flatten(), found)
        return Table(codes % n, codes // n, summed, n, rows)

    def part(self, samples: slice) -> Table:
        if samples.stop - samples.start == self.samples:
            return self
        kept = ((self.sample >= samples.start) & (self.sample < samples.stop)).nonzero().flatten()
        count = samples.stop - samples.start
        return Table(self.sample[kept] - samples.start, self.row[kept], self.b[kept], count, self.rows)

    def gram(self, other: Table, trace: bool, out: Tensor | None = None) -> Tensor:
        """Only entries of the same row meet: alone with one another, or all that share it in one product."""
        k, k2 = (1, 1) if trace else (self.b.shape[1], other.b.shape[1])
        x, y = (t.b.reshape(len(t.b), 1 if trace else t.b.shape[1], -1) for t in (self, other))
        total = x.new_zeros(self.samples, k, other.samples, k2)
        rows, many = torch.unique_consecutive(self.row, return_counts=True)
        rows2, many2 = torch.unique_consecutive(other.row, return_counts=True)
        common = torch.isin(rows, rows2).nonzero().flatten()
        common2 = torch.isin(rows2, rows).nonzero().flatten()
        starts, starts2 = many.cumsum(0) - many, many2.cumsum(0) - many2
        spans = torch.stack([starts[common], many[common], starts2[common2], many2[common2]], dim=1)
        alone = (spans[:, 1] == 1) & (spans[:, 3] == 1)
        i, j = spans[alone, 0], spans[alone, 2]
        met = torch.bmm(x[i], y[j].mT)
        pairs = total.new_zeros(self.samples * other.samples, k, k2)
        pairs = pairs.index_add(0, self.sample[i] * other.samples + other.sample[j], met)
        total = total + pairs.view(self.samples, other.samples, k, k2).transpose(1, 2)
        for start, count, start2, count2 in spans[~alone].tolist():
            left, right = slice(start, start + count), slice(start2, start2 + count2)
            met = x[left].flatten(0, 1) @ y[right].flatten(0, 1).mT
            met = met.view(count, k, count2, k2)
            if count == self.samples and count2 == other.samples:
                total += met
            else:
                whole = met.new_zeros(count, k, other.samples, k2).index_add(2, other.sample[right], met)
                total.index_add_(0, self.sample[left], whole)
        return total.reshape(self.samples * k, other.samples * k2)

    def pull(self, v: Float[Tensor, "n k g"]) -> tuple[Tensor, ...]:
        w = torch.einsum("ekm,ekg->gem", self.b, v[self.sample])
        return (w.new_zeros(len(w), self.rows, w.shape[2]).index_add(1, self.row, w),)

    def push(self, u: tuple[Tensor, ...]) -> Float[Tensor, "n k g"]:
        met = torch.einsum("ekm,gem->ekg", self.b, u[0][:, self.row])
        return met.new_zeros(self.samples, *met.shape[1:]).index_add(0, self.sample, met)


@dataclass(frozen=True)
class Rows:
    """Gradients as they are: one row per sample and output."""

    j: Float[Tensor, "n k q"]
    dense = True

    def part(self, samples: slice) -> Rows:
        return Rows(self.j[samples])

    @property
    def samples(self) -> int:
        return len(self.j)

    def slices(self, width: int) -> Iterator[Float[Tensor, "n k q"]]:
        yield self.j

    def pull(self, v: Float[Tensor, "n k g"]) -> tuple[Tensor, ...]:
        return (v.flatten(0, 1).mT @ self.j.flatten(0, 1),)

    def push(self, u: tuple[Tensor, ...]) -> Float[Tensor, "n k g"]:
        return self.j @ u[0].mT


Factor = Outer | Table | Rows


def choose(uses: Sequence[Use], positions: Sequence[int], n: int, k: int, trace: bool) -> str:
    """The cheapest form for n samples and k outputs: positions, columns, rows or table.

    ``positions`` are those of each call that matter for the output. A table is never more work than the
    other forms. Of a weight's other three, positions is ``Outer`` as it is, columns is ``Outer`` multiplied
    anew for every block of the kernel, rows is ``Rows``, multiplied once, for where that is also smaller.
    """
    first = uses[0]
    if all(isinstance(u, Lookup) for u in uses):
        return "table"
    if not isinstance(first, Product) or first.shape[0] > 1:
        return "rows"
    if any(not isinstance(u, Product) or u.transposed != first.transposed for u in uses):
        return "rows"
    p, (_, m, d) = sum(positions), first.shape
    if p == 1:
        return "positions"
    meet = p**2 * (k * m + d) * _SMALL[trace] + p**2 * _PASS + (0 if trace else p * k**2 * m * _SMALL[trace])
    multiply = (k if trace else k**2) * m * d + 2 * k * p * m * d / n
    if meet < multiply:
        return "positions"
    return "columns" if p * (k * m + d) < k * m * d else "rows"


def size(uses: Sequence[Use], positions: Sequence[int], parameter: Tensor, k: int, way: str) -> int:
    """Numbers kept for one sample and k outputs."""
    first: Any = uses[0]
    if way == "rows":
        narrow = isinstance(first, Through) and len(uses) == 1 and first.isometric
        return k * (first.numel if narrow else parameter.numel())
    if way == "table":
        return sum(positions) * k * int(first.shape[1])
    _, m, d = first.shape
    return sum(positions) * (k * int(m) + int(d))


def factor(
    uses: Sequence[Use], grads: Sequence[Tensor], axes: Sequence[int], n: int, *, way: str, ones: bool
) -> Factor:
    """The gradients of one parameter through all calls that use it. Several calls are more positions."""
    calls: list[tuple[Any, Tensor, int]] = list(zip(uses, grads, axes, strict=True))
    if way == "rows":
        if isinstance(uses[0], Through) and len(uses) == 1 and uses[0].isometric:
            return Rows(uses[0].use.rows(grads[0], n, axes[0]).contiguous())
        rows = [u.rows(g, n, axis) for u, g, axis in calls]
        return Rows(sum(rows[1:], rows[0]).contiguous())
    a = _join([u.saw(n, axis) for u, _, axis in calls], dim=1)
    b = _join([u.returned(g, n, axis) for u, g, axis in calls], dim=2)
    if way == "table":
        assert isinstance(uses[0], Lookup)
        return Table.of(a, b, uses[0].shape[0])
    a, b = a[:, :, 0].to(b.dtype), b[:, :, :, 0]
    if a.shape[1] > 1:
        # Behind the last attention only the class token matters, say: the others' gradients are 0.
        live = _live(b)
        if not live.all():
            live[0] |= not live.any()
            a, b = a[:, live], b[:, :, live]
    # Of several positions each sample is multiplied by itself, and its outputs may lie apart.
    return Outer(a, b.contiguous() if b.shape[2] == 1 else b, ones, dense=way == "columns")


def _live(b: Float[Tensor, "n k p m"]) -> Bool[Tensor, " p"]:
    """The positions where some gradient is not 0: nearly always the first sample tells."""
    live = (b[0, 0] != 0).any(dim=1)
    return live if live.all() else (b != 0).any(dim=3).flatten(0, 1).any(dim=0)


def _join(pieces: list[Tensor], dim: int) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=dim)
