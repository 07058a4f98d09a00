"""Alignment of a representation with labels (Imani, Hu, White), and what it says about descent.

A representation Φ is (n, d), one row per sample, with Φ = U Σ Vᵀ. Labels y are (n,), or (n, c) for
several targets at once. Everything here follows from two vectors: the singular values σᵢ and the
power (uᵢᵀy)² that y has along each left singular vector.

>>> import torch
>>> phi = unit_rows(torch.tensor([[2.0, 1.0], [3.0, -2.0], [-1.0, 1.0]]))
>>> y = torch.tensor([1.0, 1.0, -1.0])
>>> s = spectrum(phi, y)
>>> s.power / y.square().sum()          # nearly all of y lies along the first direction
tensor([0.9669, 0.0305])
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Real
from torch import Tensor

from repalign._arrays import as_numpy, check, numpy_too, same_rows, working
from repalign._spectrum import Reduced, reduce_blocks, top_left_vectors


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


@numpy_too
def unit_rows(phi: Float[Tensor, "n d"], *, constant: bool = False) -> Float[Tensor, "n e"]:
    """Scale every row to length one, as Imani et al. do before they compare representations (§4).

    With ``constant=True`` a feature that is always 1 is appended first, in place of a bias: what the
    authors' demo does. A row of zeros has no direction and stays as it is.

    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    phi = check(phi, "phi", "n d")
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
    y: Real[Tensor, "n *c"] | None = None,
    *,
    top: int | None = None,
) -> Spectrum:
    """Singular values of Φ and the power of y along each left singular vector (Imani eq. 1).

    Computed in float64 whatever comes in, from the triangular factor of [Φ, y]: the SVD then works on
    a small square matrix and the n×k singular vectors are never formed. Singular values below
    max(n, d)·ε·σ₁ count as zero, and what y has there belongs to the residual.

    When n rows do not fit in memory, give an iterable of pairs (phi_block, y_block) in place of both: each
    is seen once. For very large inputs, ``top=k`` finds the k strongest directions alone; the residual is
    then all that y has outside of them.

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
    phi, y = check(phi, "phi", "n d"), check(y, "y", "n *c")
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
    b, n, like, trailing = reduced.b, reduced.n, reduced.like, reduced.trailing
    in_range = sigma > max(n, like.shape[1]) * torch.finfo(torch.float64).eps * sigma[0]
    sigma = sigma.where(in_range, 0)
    # Rows of y below those of Φ are outside its range.
    inside, outside = b[: len(u)], b[len(u) :]
    along = (u.mT @ inside).where(in_range[:, None], 0)
    # Subtracting vectors keeps a small residual accurate; ‖y‖² − Σ power would not.
    residual = (inside - u @ along).square().sum(dim=0) + outside.square().sum(dim=0)
    out = Spectrum(sigma, along.square().reshape(len(sigma), *trailing), residual.reshape(trailing))
    return Spectrum(*(part.to(like.device, like.dtype) for part in out))


@numpy_too
def alignment(
    phi: Float[Tensor, "n d"], y: Real[Tensor, "n *c"], tau: float | Tensor
) -> Float[Tensor, "..."]:
    """Alignment(Φ, y, τ) = Σ over σᵢ ≥ τ of (uᵢᵀy)² (Imani eq. 2).

    ``tau`` is a number or a vector of thresholds; the result has its shape, then that of one label.
    The definition assumes rows of length at most one: call :func:`unit_rows` first to compare
    representations. At τ = 0 it is ‖y‖² projected on the range of Φ. A threshold equal to a singular
    value up to rounding includes it, so equal singular values always count together.

    >>> alignment(torch.eye(2), torch.tensor([3.0, 4.0]), tau=0.5)
    tensor(25.)
    """
    return _alignment(spectrum(phi, y), tau)


@numpy_too
def alignment_curve(phi: Float[Tensor, "n d"], y: Real[Tensor, "n *c"], tau: Tensor | None = None) -> Curve:
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
    tau = check(tau, "tau", "t").to(sigma)
    return Curve(tau, _alignment(spectrum, tau))


@numpy_too
def _area(spectrum: Spectrum) -> Tensor:
    return torch.tensordot(spectrum.sigma, spectrum.power, dims=1)


@numpy_too
def _alignment(spectrum: Spectrum, tau: float | Tensor) -> Tensor:
    sigma, power, _ = spectrum
    tau = torch.as_tensor(tau, device=sigma.device).to(sigma.dtype)
    if torch.isnan(tau).any():
        raise ValueError("tau should be a threshold, but is or holds NaN.")
    # Singular values are known to some ε·σ₁ only: compare with that much slack.
    eps = 8 * torch.finfo(sigma.dtype).eps + len(sigma) * torch.finfo(torch.float64).eps
    slack = eps * sigma[0]
    count = torch.searchsorted(-sigma.contiguous(), -(tau.reshape(-1) - slack), right=True)
    summed = torch.cat([power.new_zeros(1, *power.shape[1:]), power.cumsum(dim=0)])
    return summed[count].reshape(tau.shape + power.shape[1:])


@numpy_too
def cumulative_power(
    kernel_or_features: Float[Tensor, "n d"],
    targets: Real[Tensor, "n *c"],
    *,
    kind: str = "auto",
) -> Float[Tensor, " k"]:
    """C(ρ): the share of the targets' power in the first ρ modes (Canatar & Pehlevan eq. 3).

    Entry ρ−1 sums the first ρ modes over all target columns, relative to what the representation can
    express at all; the curve ends at 1. For features the modes are left singular vectors, for a kernel
    its eigenvectors: the same for K = ΦΦᵀ. ``kind="auto"`` takes a square symmetric matrix for a kernel;
    say ``"features"`` or ``"kernel"`` where that guess could be wrong.

    >>> cumulative_power(torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([1.0, 1.0]))
    tensor([0.5000, 1.0000])
    """
    m, y = check(kernel_or_features, "kernel_or_features", "n d"), check(targets, "targets", "n *c")
    same_rows(m, y, "kernel_or_features and targets")
    if kind not in ("auto", "kernel", "features"):
        raise ValueError(f"kind should be auto, kernel or features, but is {kind!r}.")
    square = m.shape[0] == m.shape[1]
    symmetric = square and torch.allclose(m, m.mT, rtol=1e-5, atol=1e-6 * float(m.abs().max()))
    if kind == "kernel" and not symmetric:
        raise ValueError(f"a kernel should be square and symmetric, but this {tuple(m.shape)} is not.")
    if kind == "kernel" or (kind == "auto" and symmetric):
        power = _kernel_power(m, working(y).reshape(len(y), -1))
    else:
        power = spectrum(working(m), working(y).reshape(len(y), -1)).power.sum(dim=1)
    total = power.sum()
    if total <= 0:
        raise ValueError(
            "the targets have no power in the range of this representation, so no share of it can be "
            "given. Are all targets zero?"
        )
    return (power.cumsum(dim=0) / total).to(m.device, m.dtype)


def _kernel_power(kernel: Tensor, targets: Tensor) -> Tensor:
    """Power of the targets along each eigenvector, largest eigenvalue first; 0 beyond the rank."""
    k = working(kernel)
    eigenvalues, vectors = torch.linalg.eigh((k + k.mT) / 2)
    slack = len(k) * torch.finfo(kernel.dtype).eps * eigenvalues.abs().max()
    if eigenvalues[0] < -slack:
        raise ValueError(
            f"a kernel should have no negative eigenvalue, but the smallest is {eigenvalues[0]:.3g} beside "
            f"a largest of {eigenvalues[-1]:.3g}."
        )
    in_range = eigenvalues > slack
    along = (vectors.mT @ targets).where(in_range[:, None], 0)
    return along.square().sum(dim=1).flip(0)


@numpy_too
def gd_loss(spectrum: Spectrum, eta: float, steps: Real[Tensor, " t"] | int) -> Float[Tensor, "*t *c"]:
    """‖Φw_t − y‖² of gradient descent from w₀ = 0, in closed form (Imani prop. 1, eq. 3).

    The update is w ← w − η Φᵀ(Φw − y). ``steps`` is a step number or a vector of them; a million steps
    cost as much as one. The formula holds for every η; descent converges for η < 2/σ₁².

    >>> s = spectrum(torch.eye(2), torch.tensor([3.0, 4.0]))
    >>> gd_loss(s, eta=0.5, steps=torch.tensor([0, 1, 2]))
    tensor([25.0000,  6.2500,  1.5625])
    """
    if not (math.isfinite(eta) and eta > 0):
        raise ValueError(f"eta should be a positive step size, but is {eta}.")
    sigma, power, residual = (working(part) for part in spectrum)
    t = torch.as_tensor(steps, device=sigma.device).double()
    if (t < 0).any() or not torch.isfinite(t).all():
        raise ValueError("steps should be finite and not negative.")
    x = eta * sigma.square()
    # log|1 − x|, accurate for small x: errors here are multiplied by the number of steps.
    rate = torch.where(x < 1, torch.log1p(-x.clamp(max=1)), torch.log((x - 1).clamp(min=0)))
    # The first branch keeps 0 · (−∞) out of step zero, where nothing has decayed yet.
    flat = t.reshape(-1, 1)
    decay = torch.where(flat == 0, 1.0, torch.exp(2 * flat.clamp(min=1e-300) * rate))
    loss = torch.tensordot(decay, power, dims=([1], [0])) + residual
    dtype, device = spectrum.sigma.dtype, spectrum.sigma.device
    return loss.reshape(t.shape + power.shape[1:]).to(device, dtype)


@numpy_too
def iteration_bound(
    delta: float | Tensor, omega: float | Tensor, eta: float, tau: float | Tensor
) -> Float[Tensor, "..."]:
    """−log(1 − ω/δ) / (2ητ²): the iterations that suffice to remove ω < δ of the loss (Imani prop. 2).

    δ is the alignment at threshold τ, for any η below 1/σ₁². Round up for a whole number of steps.

    >>> iteration_bound(delta=1.0, omega=0.9, eta=0.01, tau=2.0)
    tensor(28.7823)
    """
    device = next((v.device for v in (delta, omega, tau) if isinstance(v, Tensor)), None)
    given = [v for v in (delta, omega, tau) if isinstance(v, Tensor) and v.is_floating_point()]
    dtype = given[0].dtype if given else torch.get_default_dtype()
    d, w, t = (torch.as_tensor(v, dtype=torch.float64, device=device) for v in (delta, omega, tau))
    if not (math.isfinite(eta) and eta > 0):
        raise ValueError(f"eta should be a positive step size, but is {eta}.")
    if not (t > 0).all():
        raise ValueError("tau should be above 0: the bound says nothing about directions of no scale.")
    if not ((w >= 0) & (w < d)).all():
        raise ValueError("omega should lie in [0, delta): no more than the alignment can be removed.")
    return (-torch.log1p(-w / d) / (2 * eta * t.square())).to(dtype)
