"""How many directions of a kernel count, by its strongest or by the entropy of all; how fast they decay."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Real
from torch import Tensor

from repalign._arrays import indistinct, numbers, numpy_too, rounding, working

# Up to so many rows or columns a whole decomposition costs next to nothing.
SMALL = 64
# Steps between two looks at whether the strongest direction is found: each look waits for the device.
LOOK = 8


@numpy_too
def stable_rank(K: Real[Tensor, "n d"], *, features: bool = False) -> Float[Tensor, ""]:
    """‖K‖_F² / ‖K‖₂² = Σ λᵢ² / λ₁²: how many directions are as strong as the first (Lou §G.1).

    Of any matrix; at least 1, at most the rank. With ``features=True`` the matrix holds features X, and
    the rank is that of their kernel XXᵀ, which is never formed. For a centered kernel, and ỹ the centered
    labels scaled to length one, CKA(K, yyᵀ) = Σᵢ (λᵢ/λ₁)(uᵢᵀỹ)² / √stable_rank.

    Only the strongest direction is looked for, by Lanczos steps, until ‖K‖₂ is known to 1e-10 (float32:
    1e-8); a spectrum so flat that this takes too long is decomposed whole, as are small matrices.

    >>> stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0])))
    tensor(1.5000)
    >>> stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0])), features=True)
    tensor(1.1250)
    """
    K = numbers(K, "K", "n d")
    k, power = working(K), 4 if features else 2
    largest = k.detach().abs().max()
    if not 1e-70 < largest < 1e70:
        # Powers of such entries are no longer numbers.
        k = k / largest.where(largest > 0, 1)
    top = None
    if min(k.shape) > SMALL:
        top = _strongest(k, 1e-10 if K.dtype == torch.float64 else 1e-8)
    if top is None:
        values = _singular_values(k)
        return (values / values.max()).pow(power).sum().to(K)
    whole = _gram_norm(k) if features else torch.linalg.vector_norm(k)
    return (whole / top ** (power // 2)).square().to(K)


@numpy_too
def effective_rank(K: Real[Tensor, "n d"]) -> Float[Tensor, ""]:
    """exp of the entropy of the singular values as shares (Roy & Vetterli 2007; Lou §G.1, note 11).

    Of any matrix; between 1 and the rank, which it reaches when all singular values are equal.

    >>> effective_rank(torch.eye(10))
    tensor(10.)
    """
    K = numbers(K, "K", "n d")
    values = _singular_values(working(K))
    share = values / values.sum()
    return torch.special.entr(share).sum().exp().to(K)


def _singular_values(k: Tensor) -> Tensor:
    symmetric = k.shape[0] == k.shape[1] and torch.equal(k, k.mT)
    values = torch.linalg.eigvalsh(k).abs() if symmetric else torch.linalg.svdvals(k)
    if values.max() == 0:
        raise ValueError("K should not be zero: the rank of a zero kernel is 0, and no share can be taken.")
    return values


def _gram_norm(x: Tensor) -> Tensor:
    """‖XXᵀ‖_F, a strip of the smaller of XXᵀ and XᵀX at a time."""
    x = x if x.shape[1] <= x.shape[0] else x.mT
    return torch.stack([(part.mT @ x).square().sum() for part in x.split(1024, dim=1)]).sum().sqrt()


def _strongest(k: Tensor, tolerance: float) -> Tensor | None:
    """The largest singular value, from products with K and Kᵀ alone; None when it is not found soon.

    Golub–Kahan–Lanczos with full orthogonalization: K V = U B and Kᵀ U = V Bᵀ + β v eᵀ with B bidiagonal. The
    largest singular value of B, with vectors p and q, is one of K up to β|p_last|. The start is random, so
    that it holds something of every direction. Steps beyond a quarter of the smaller side would cost what a
    whole decomposition does.
    """
    n, d = k.shape
    steps = min(n, d) // 4
    with torch.no_grad():
        start = torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        right, left = k.new_zeros(steps + 1, d), k.new_zeros(steps, n)
        right[0] = (start / torch.linalg.vector_norm(start)).to(k.device)
        alpha, beta = k.new_zeros(steps), k.new_zeros(steps)
        for j in range(steps):
            left[j], alpha[j] = _next(k @ right[j], left[:j])
            right[j + 1], beta[j] = _next(left[j] @ k, right[: j + 1])
            if (j + 1) % LOOK and j + 1 < steps:
                continue
            b = torch.diag(alpha[: j + 1]) + torch.diag(beta[:j], 1)
            p, values, qh = torch.linalg.svd(b)
            if beta[j] * p[-1, 0].abs() <= tolerance * values[0]:
                u, v = p[:, 0] @ left[: j + 1], qh[0] @ right[: j + 1]
                break
        else:
            return None
    # Written so, the value has the right gradient: vectors of length one do not change at first order.
    return u @ (k @ v)


def _next(w: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """The part of ``w`` outside ``basis``, scaled to length one, and its length; a zero stays zero."""
    for _ in range(2):
        w = w - (basis @ w) @ basis
    length = torch.linalg.vector_norm(w)
    return w / length.where(length > 0, 1), length


class PowerLaw(NamedTuple):
    """λᵢ ∝ i^−exponent for the eigenvalues from the ``first`` to the ``last``, and how well that fits."""

    exponent: Float[Tensor, ""]
    r2: Float[Tensor, ""]
    first: int
    last: int


@numpy_too
def power_law(
    K: Real[Tensor, "n d"], *, features: bool = False, first: int = 1, last: int | None = None
) -> PowerLaw:
    """How fast the eigenvalues of a kernel decay: the exponent of λᵢ ∝ i^−α (Stringer et al. 2019).

    A straight line through log λ over log i, for i from ``first`` to ``last`` (default: all that rounding
    does not hide), every decade of i with the same weight. A spectrum need not be a power law: ``r2`` is the
    share of the variance of log λ that the line explains, and both ends of a spectrum of few samples bend, so
    look at inner ranges as well. With ``features=True`` the matrix holds features X, and the eigenvalues are
    those of XXᵀ. The kernel is taken as it is: center it first where the mean is not meant.

    >>> law = power_law(torch.diag(torch.arange(1.0, 101.0) ** -1.5))
    >>> round(float(law.exponent), 4), round(float(law.r2), 4), law.first, law.last
    (1.5, 1.0, 1, 100)
    """
    given = K
    K = numbers(K, "K", "n d")
    values = _eigenvalues(working(K), given, features)
    last = len(values) if last is None else last
    if not 1 <= first <= last - 2 <= len(values) - 2:
        raise ValueError(
            f"first and last should leave three eigenvalues or more of the {len(values)} that are not zero, "
            f"but are {first} and {last}."
        )
    rank = torch.arange(first, last + 1, dtype=values.dtype, device=values.device)
    a, b, weight = rank.log(), values[first - 1 : last].log(), 1 / rank
    a, b = (v - (weight * v).sum() / weight.sum() for v in (a, b))
    slope = (weight * a * b).sum() / (weight * a * a).sum()
    varies = (weight * b * b).sum()
    # Eigenvalues that are all the same lie on a line exactly.
    left = (weight * (b - slope * a).square()).sum()
    r2 = torch.where(varies > 0, 1 - left / varies.where(varies > 0, 1), 1.0)
    return PowerLaw((-slope).to(K), r2.to(K), first, last)


def _eigenvalues(k: Tensor, given: Tensor, features: bool) -> Tensor:
    """The eigenvalues above rounding, descending: of a kernel, or of that of features."""
    if features:
        values = torch.linalg.svdvals(k)
        values = values[values > max(k.shape) * rounding(given) * values[0]].square()
    else:
        if k.shape[0] != k.shape[1] or not torch.allclose(
            k, k.mT, rtol=1e-4, atol=float(k.abs().max()) * 1e-5
        ):
            raise ValueError(
                f"K should be a kernel, square and symmetric, but this {tuple(k.shape)} is not. Of features "
                "take power_law(X, features=True)."
            )
        values = torch.linalg.eigvalsh((k + k.mT) / 2).flip(0)
        values = values[values > indistinct(values, given)]
    if len(values) == 0:
        raise ValueError("K should not be zero: it has no eigenvalues to decay.")
    return values
