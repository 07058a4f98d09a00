"""The gradients of a batch through one parameter, kept in the form that makes their products cheap.

``Outer`` keeps Σₚ b[i, k, p] ⊗ a[i, p] unmultiplied: with one position per sample its Gram matrix is
(a aᵀ) ∘ (b bᵀ), Lou et al., eq. 9. ``Rows`` keeps one row of the Jacobian per sample and output. Both
know three things: ``gram`` with another batch, in the memory ``out`` where that saves a copy; ``pull``,
Ψ v, a vector–Jacobian product; and ``push``, Ψᵀ u, its transpose. The last two take g vectors at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from repalign.tangent.uses import Elementwise, Lookup, Product, Use

# One multiplication in a Gram over positions is followed by a pass through memory: this many times
# the cost of a multiplication inside a matrix product, measured on two cores.
_PASS = 16


@dataclass(frozen=True)
class Outer:
    """Gradients Σₚ b ⊗ a of a weight, and of the bias added in the same call where ``ones`` is set."""

    a: Shaped[Tensor, "n p *d"]  # inputs, or indices of a table with ``rows`` rows
    b: Float[Tensor, "n k p m"]
    ones: bool = False
    rows: int = 0

    def part(self, samples: slice) -> Outer:
        return Outer(self.a[samples], self.b[samples], self.ones, self.rows)

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes

    def forward(self, other: Outer) -> Float[Tensor, "n p n2 p2"]:
        """What the two batches' inputs have in common: a aᵀ, and 1 more for a bias."""
        n, p = self.a.shape[:2]
        if self.rows:
            same = self.a.reshape(-1, 1) == other.a.reshape(1, -1)
            return same.to(self.b.dtype).reshape(n, p, *other.a.shape)
        x, y = self.a.reshape(n * p, -1), other.a.reshape(-1, self.a.shape[2])
        f = x @ y.mT
        return (f + 1 if self.ones else f).reshape(n, p, *other.a.shape[:2])

    def gram(self, other: Outer, trace: bool, out: Tensor | None = None) -> Tensor:
        n, k, p, m = self.b.shape
        n2, k2, p2, _ = other.b.shape
        f = self.forward(other)
        if trace:
            x, y = (o.b.transpose(1, 2).reshape(len(o.b) * o.b.shape[2], -1) for o in (self, other))
            g = (x @ y.mT).reshape(n, p, n2, p2)
            return (g * f).sum(dim=(1, 3)) if p * p2 > 1 else (g * f).reshape(n, n2)
        if p * p2 == 1:
            g = torch.mm(self.b.reshape(n * k, m), other.b.reshape(n2 * k2, m).mT, out=out)
            # Repeated along the columns first, the product runs through contiguous memory.
            g.unflatten(0, (n, k)).mul_(f.reshape(n, n2).repeat_interleave(k2, dim=1)[:, None])
            return g
        # Meeting the forward part first leaves one sum over positions for the outputs of the other side.
        x = self.b.transpose(1, 2).reshape(n, p, k * m)
        g = f.new_empty(n, k, n2, k2)
        for j in range(n2):
            met = torch.bmm(f[:, :, j].mT, x).reshape(n, p2, k, m).transpose(1, 2)
            g[:, :, j] = (met.reshape(n * k, -1) @ other.b[j].reshape(k2, -1).mT).reshape(n, k, k2)
        return g.reshape(n * k, n2 * k2)

    def pull(self, v: Float[Tensor, "n k g"]) -> tuple[Tensor, ...]:
        w = torch.einsum("nkpm,nkg->gmnp", self.b, v).flatten(2)
        if self.rows:
            table = w.new_zeros(w.shape[0], self.rows, w.shape[1])
            return (table.index_add(1, self.a.flatten(), w.mT),)
        u = w @ self.a.flatten(0, 1)
        return (u, w.sum(dim=2)) if self.ones else (u,)

    def push(self, u: tuple[Tensor, ...]) -> Float[Tensor, "n k g"]:
        if self.rows:
            met = u[0][:, self.a].movedim(0, 2)
        else:
            met = torch.einsum("npd,gmd->npgm", self.a, u[0])
            met = met + u[1] if self.ones else met
        return torch.einsum("nkpm,npgm->nkg", self.b, met)


@dataclass(frozen=True)
class Rows:
    """Gradients as they are: one row per sample and output."""

    j: Float[Tensor, "n k q"]

    def part(self, samples: slice) -> Rows:
        return Rows(self.j[samples])

    @property
    def nbytes(self) -> int:
        return self.j.nbytes

    def gram(self, other: Rows, trace: bool, out: Tensor | None = None) -> Tensor:
        joined = (1, 2) if trace else (0, 1)
        return torch.mm(self.j.flatten(*joined), other.j.flatten(*joined).mT, out=out)

    def pull(self, v: Float[Tensor, "n k g"]) -> tuple[Tensor, ...]:
        return (v.flatten(0, 1).mT @ self.j.flatten(0, 1),)

    def push(self, u: tuple[Tensor, ...]) -> Float[Tensor, "n k g"]:
        return self.j @ u[0].mT


Factor = Outer | Rows


def factored(uses: Sequence[Use], entries: Sequence[int], k: int, trace: bool) -> bool:
    """Whether to keep a and b apart: when their Gram over positions costs less than one over columns.

    ``entries`` are the numbers each call returned for one sample, ``k`` is the number of outputs.
    """
    first = uses[0]
    if isinstance(first, Elementwise) or any(type(u) is not type(first) for u in uses):
        return False
    if any(isinstance(u, Product) and (u.shape[0] > 1 or u.transposed) for u in uses) and len(uses) > 1:
        return False
    if isinstance(first, Product) and first.shape[0] > 1:
        return False
    p, (m, d) = _positions(uses, entries), _sides(first)
    per_pair = p**2 * (k * m + d + _PASS) + (0 if trace else p * k**2 * m)
    return p == 1 or per_pair < (k if trace else k**2) * m * d


def size(uses: Sequence[Use], entries: Sequence[int], parameter: Tensor, k: int, apart: bool) -> int:
    """Numbers kept for one sample and k outputs."""
    if not apart:
        return k * parameter.numel()
    m, d = _sides(uses[0])
    return _positions(uses, entries) * (k * m + (1 if isinstance(uses[0], Lookup) else d))


def _sides(use: Use) -> tuple[int, int]:
    """Length of b and of a."""
    if isinstance(use, Lookup):
        return use.shape[1], use.shape[0]
    assert isinstance(use, Product)
    return use.shape[1], use.shape[2]


def _positions(uses: Sequence[Use], entries: Sequence[int]) -> int:
    return sum(entries) // _sides(uses[0])[0]


def factor(
    uses: Sequence[Use], grads: Sequence[Tensor], axes: Sequence[int], n: int, *, apart: bool, ones: bool
) -> Factor:
    """The gradients of one parameter through all calls that use it, with a and b ``apart`` or multiplied.

    Several calls are more positions.
    """
    calls: list[tuple[Any, Tensor, int]] = list(zip(uses, grads, axes, strict=True))
    if apart:
        a = _join([u.saw(n, axis) for u, _, axis in calls], dim=1)
        b = _join([u.returned(g, n, axis) for u, g, axis in calls], dim=2).contiguous()
        if isinstance(uses[0], Lookup):
            return Outer(a, b, rows=uses[0].shape[0])
        return Outer(a[:, :, 0], b[:, :, :, 0], ones)
    rows = [u.rows(g, n, axis) for u, g, axis in calls]
    return Rows(sum(rows[1:], rows[0]).contiguous())


def _join(pieces: list[Tensor], dim: int) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=dim)
