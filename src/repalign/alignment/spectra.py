"""Singular values, the power of labels along each direction, and the alignment curve (Imani et al. §4)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Real
from torch import Tensor

from repalign._arrays import (
    COUNTED,
    as_numpy,
    check,
    class_numbers,
    numbers,
    numpy_too,
    rounding,
    same_rows,
    working,
)
from repalign.alignment.reduction import Reduced, reduce_blocks, top_left_vectors


class Curve(NamedTuple):
    """An alignment curve: ``value[i]`` is the alignment at threshold ``tau[i]``."""

    tau: Float[Tensor, " t"]
    value: Float[Tensor, " t *c"]


class Spectrum(NamedTuple):
    """What a representation and labels have to do with each other, in the basis of the SVD.

    sigma     (k,)       singular values of Φ, descending, k = min(n, d) or ``top``; exactly 0 beyond the rank
    power     (k, ...)   (uᵢᵀy)², 0 beyond the rank; a trailing axis when y had one
    residual  (...)      what is left of ‖y‖² outside the range of Φ: the least-squares loss
    """

    sigma: Float[Tensor, " k"]
    power: Float[Tensor, " k *c"]
    residual: Float[Tensor, " *c"]

    def alignment(self, tau: float | Tensor) -> Tensor:
        """Alignment at ``tau``, as :func:`alignment`, without another decomposition."""
        return _alignment(self, tau)

    def curve(self, tau: Tensor | None = None) -> Curve:
        """The curve over ``tau``, as :func:`alignment_curve`, without another decomposition."""
        return _curve(self, tau)

    def area(self) -> Float[Tensor, " *c"]:
        """The area under the curve over all thresholds, Σᵢ σᵢ(uᵢᵀy)²: one number per representation.

        With rows of length one, where σ₁ ≤ √n, it is at most √n·‖y‖².

        >>> float(spectrum(torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([3.0, 4.0])).area())
        34.0
        """
        return _area(self)

    @property
    def eigenvalues(self) -> Float[Tensor, " k"]:
        """σᵢ²: the eigenvalues of the kernel ΦΦᵀ, which has the same modes."""
        return self.sigma**2

    def cumulative(self, *, each: bool = False) -> Float[Tensor, " k *c"]:
        """C(ρ): the share of the targets' power in the first ρ modes (Canatar & Pehlevan eq. 3), (k,).

        Over all targets together, or with ``each=True`` one curve for every target. Relative to what the
        representation can express at all (to the first ``top`` modes, where only those were found), so
        the curve ends at 1.

        >>> s = spectrum(torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([[1.0, 0.0], [1.0, 2.0]]))
        >>> s.cumulative(), s.cumulative(each=True)[:, 1]
        (tensor([0.1667, 1.0000]), tensor([0., 1.]))
        """
        return _cumulative(self, each)


@numpy_too
def unit_rows(phi: Float[Tensor, "n d"], *, constant: bool = False) -> Float[Tensor, "n e"]:
    """Scale every row to length one, as Imani et al. do before they compare representations (§4).

    With ``constant=True`` a feature that is always 1 is appended first, in place of a bias: what the
    authors' demo does. A row of zeros has no direction and stays as it is.

    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    phi = numbers(phi, "phi", "n d")
    if constant:
        phi = torch.cat([phi, phi.new_ones(len(phi), 1)], dim=1)
    # Dividing by the largest entry first keeps the square of a huge or tiny entry representable.
    largest = phi.abs().amax(dim=1, keepdim=True)
    phi = phi / largest.where(largest > 0, 1)
    norm = torch.linalg.vector_norm(phi, dim=1, keepdim=True)
    return phi / norm.where(norm > 0, 1)


@numpy_too
def spectrum(
    phi: Float[Tensor, "n d"] | Iterable[tuple[Tensor, Tensor]],
    y: Real[Tensor, " n *c"] | None = None,
    *,
    top: int | None = None,
) -> Spectrum:
    """Singular values of Φ and the power of y along each left singular vector (Imani eq. 1).

    Computed in float64 whatever comes in, from the triangular factor of [Φ, y]: the SVD then works on
    a small square matrix and the n×k singular vectors are never formed. Singular values below
    max(n, d)·ε·σ₁ count as zero, and what y has there belongs to the residual.

    When n rows do not fit in memory, give an iterable of pairs (phi_block, y_block) in place of both: each
    is seen once. For very large inputs, ``top=k`` finds the k strongest directions alone; the residual is
    then all that y has outside of them. Where the k-th singular value is not alone, which of the directions
    that share it are among the k is arbitrary.

    >>> s = spectrum(torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), torch.tensor([1.0, 2.0, 3.0]))
    >>> s.sigma, s.power, s.residual
    (tensor([2., 1.]), tensor([1., 4.]), tensor(9.))
    """
    if top is not None and not top >= 1:
        raise ValueError(f"top should be a number of directions, at least 1, but is {top}.")
    if y is None:
        if isinstance(phi, Tensor):
            raise ValueError("y should be given with phi: spectrum(phi, y). Only row blocks bring their own.")
        reduced = reduce_blocks(phi)
        out = _decompose(reduced, top)
        return as_numpy(out) if reduced.numpy else out
    if class_numbers(y):
        warnings.warn(COUNTED, stacklevel=3)
    phi, y = numbers(phi, "phi", "n d"), check(y, "y", "n *c")
    same_rows(phi, y, "phi and y")
    n, d = phi.shape
    b = working(y).reshape(n, -1)
    found = top_left_vectors(phi, top) if top is not None and 8 * top < min(n, d) else None
    if found is not None:
        return _spectrum(*found, Reduced(phi, b, n, phi, y.shape[1:]))
    a = working(phi)
    if n >= d:
        # R of [Φ, y] holds the R of Φ and, beside it, y in the same rotated basis.
        r = torch.linalg.qr(torch.cat([a, b], dim=1), mode="r").R
        a, b = r[:d, :d], r[:, d:]
    elif d > 1.2 * n:
        # Φ = Rᵀ Qᵀ has the left singular vectors of Rᵀ, and y needs no rotation. For a Φ that is hardly
        # wider than tall the factor would cost what it saves.
        a = torch.linalg.qr(a.mT, mode="r").R.mT
    return _decompose(Reduced(a, b, n, phi, y.shape[1:]), top)


def _decompose(reduced: Reduced, top: int | None) -> Spectrum:
    u, sigma, _ = torch.linalg.svd(reduced.a, full_matrices=False)
    return _spectrum(u[:, :top], sigma[:top], reduced)


def _spectrum(u: Tensor, sigma: Tensor, reduced: Reduced) -> Spectrum:
    least = max(reduced.n, reduced.like.shape[1]) * torch.finfo(torch.float64).eps * sigma[0]
    return in_modes(u, sigma.where(sigma > least, 0), reduced.b, reduced.like, reduced.trailing)


def in_modes(u: Tensor, sigma: Tensor, b: Tensor, like: Tensor, trailing: torch.Size) -> Spectrum:
    """The labels ``b`` along the modes u; those with σ = 0 are beyond the rank and hold nothing."""
    # Rows of y below those of Φ are outside its range.
    inside, outside = b[: len(u)], b[len(u) :]
    along = (u.mT @ inside).where(sigma[:, None] > 0, 0)
    # Subtracting vectors keeps a small residual accurate; ‖y‖² − Σ power would not.
    residual = (inside - u @ along).square().sum(dim=0) + outside.square().sum(dim=0)
    out = Spectrum(sigma, along.square().reshape(len(sigma), *trailing), residual.reshape(trailing))
    return Spectrum(*(part.to(like.device, like.dtype) for part in out))


@numpy_too
def alignment(
    phi: Float[Tensor, "n d"], y: Real[Tensor, " n *c"], tau: float | Tensor
) -> Float[Tensor, "..."]:
    """Alignment(Φ, y, τ) = Σ over σᵢ ≥ τ of (uᵢᵀy)² (Imani eq. 2).

    ``tau`` is a number or a vector of thresholds; the result has its shape, then that of one label.
    The definition assumes rows of length at most one: call :func:`unit_rows` first to compare
    representations. At τ = 0 it is ‖y‖² projected on the range of Φ. A threshold equal to a singular
    value up to rounding includes it, so equal singular values always count together: up to 8ε of the
    precision of Φ beside σ₁, and ε of the precision in which a tensor ``tau`` comes beside itself.

    >>> alignment(torch.eye(2), torch.tensor([3.0, 4.0]), tau=0.5)
    tensor(25.)
    """
    return _alignment(spectrum(phi, y), tau)


@numpy_too
def alignment_curve(phi: Float[Tensor, "n d"], y: Real[Tensor, " n *c"], tau: Tensor | None = None) -> Curve:
    """The alignment at each threshold of ``tau``; by default at every point where the curve drops.

    The curve is piecewise constant: its value on (σᵢ₊₁, σᵢ] is the one at σᵢ, so the default, 0 and the
    singular values in ascending order, holds all of it. Draw it with ``step(tau, value, where="pre")``.

    >>> alignment_curve(torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([3.0, 4.0]))
    Curve(tau=tensor([0., 1., 2.]), value=tensor([25., 25.,  9.]))
    """
    return _curve(spectrum(phi, y), tau)


@numpy_too
def _curve(spectrum: Spectrum, tau: Tensor | None) -> Curve:
    sigma = spectrum.sigma
    if tau is None:
        positive = sigma[sigma > 0].flip(0)
        tau = torch.cat([sigma.new_zeros(1), positive])
    tau = check(tau, "tau", "t")
    return Curve(tau.to(sigma), _alignment(spectrum, tau))


@numpy_too
def _area(spectrum: Spectrum) -> Tensor:
    return torch.tensordot(spectrum.sigma, spectrum.power, dims=1)


@numpy_too
def _cumulative(spectrum: Spectrum, each: bool) -> Tensor:
    power = working(spectrum.power)
    if not each:
        power = power.reshape(len(power), -1).sum(dim=1)
    summed = power.cumsum(dim=0)
    if not (summed[-1] > 0).all():
        raise ValueError(
            "the targets have no power in the range of this representation, so no share of it can be "
            "given. Are all targets zero?"
        )
    return (summed / summed[-1]).to(spectrum.power)


@numpy_too
def _alignment(spectrum: Spectrum, tau: float | Tensor) -> Tensor:
    sigma, power, _ = spectrum
    # A number of Python has the digits of float64, which torch.as_tensor would cut to those of float32.
    given = tau if isinstance(tau, Tensor) else torch.as_tensor(np.asarray(tau))
    tau = given.to(sigma.device, sigma.dtype)
    if torch.isnan(tau).any():
        raise ValueError("tau should be a threshold, but is or holds NaN.")
    # Singular values are known to some ε·σ₁ only, and a threshold to its own rounding: compare with that
    # much slack.
    eps = 8 * torch.finfo(sigma.dtype).eps + len(sigma) * torch.finfo(torch.float64).eps
    slack = eps * sigma[0] + rounding(given) * tau.reshape(-1).abs()
    count = torch.searchsorted(-sigma.contiguous(), -(tau.reshape(-1) - slack), right=True)
    summed = torch.cat([power.new_zeros(1, *power.shape[1:]), power.cumsum(dim=0)])
    return summed[count].reshape(tau.shape + power.shape[1:])
