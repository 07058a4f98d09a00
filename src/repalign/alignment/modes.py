"""Power of targets in the eigenbasis of a kernel or of features, mode by mode (Canatar & Pehlevan)."""

from __future__ import annotations

import warnings
from itertools import combinations

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from repalign._arrays import (
    COUNTED,
    at_least_single,
    check,
    class_numbers,
    indistinct,
    numpy_too,
    rounding,
    same_rows,
    working,
)
from repalign.alignment.spectra import Spectrum, in_modes, spectrum


@numpy_too
def kernel_spectrum(K: Float[Tensor, "n n"], y: Real[Tensor, " n *c"]) -> Spectrum:
    """The spectrum of a kernel and the power of y along each eigenvector, from one decomposition.

    That of any features with K = ΦΦᵀ: ``sigma`` is √λᵢ, ``eigenvalues`` are λᵢ, descending, ``power`` is
    (uᵢᵀy)², and :func:`gd_loss`, ``cumulative``, ``curve`` and ``area`` follow from them. y may hold many
    targets, (n, c). Eigenvalues that rounding cannot tell from zero are zero, and what y has there belongs
    to the residual.

    >>> s = kernel_spectrum(torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([1.0, 3.0]))
    >>> s.eigenvalues, s.power, s.cumulative()
    (tensor([4., 1.]), tensor([9., 1.]), tensor([0.9000, 1.0000]))
    """
    if class_numbers(y):
        warnings.warn(COUNTED, stacklevel=3)
    given, y = check(K, "K", "n n"), check(y, "y", "n *c")
    same_rows(given, y, "K and y")
    if not _symmetric(given):
        raise ValueError(
            f"a kernel should be square and symmetric, but this {tuple(given.shape)} is not. "
            f"Of features take spectrum(phi, y)."
        )
    k = working(given)
    eigenvalues, u = torch.linalg.eigh((k + k.mT) / 2)
    slack = indistinct(eigenvalues, given)
    if eigenvalues[0] < -slack:
        raise ValueError(
            f"a kernel should have no negative eigenvalue, but the smallest is {eigenvalues[0]:.3g} beside "
            f"a largest of {eigenvalues[-1]:.3g}."
        )
    sigma = eigenvalues.where(eigenvalues > slack, 0).sqrt()
    targets = working(y).reshape(len(y), -1)
    return in_modes(u.flip(1), sigma.flip(0), targets, at_least_single(given), y.shape[1:])


@numpy_too
def pair_spectra(K: Float[Tensor, "n n"], y: Int[Tensor, " n"]) -> dict[tuple[int, int], Spectrum]:
    """The spectrum of every task between two classes, from the kernel of all samples.

    ``y`` holds class numbers. Task (a, b), with a < b, has the samples of both classes, with labels −1 and
    +1; its kernel is a block of K, so that features are needed once, however many tasks there are.

    >>> found = pair_spectra(torch.eye(3), torch.tensor([0, 1, 2]))
    >>> list(found), found[0, 2].power
    ([(0, 1), (0, 2), (1, 2)], tensor([1., 1.]))
    """
    K = check(K, "K", "n n")
    same_rows(K, check(y, "y", "n"), "K and y")
    classes = y.unique().tolist()
    if y.is_floating_point() or len(classes) < 2:
        raise ValueError(f"y should hold the numbers of two classes or more, but holds {classes[:3]}.")
    found = {}
    for a, b in combinations(classes, 2):
        at = ((y == a) | (y == b)).nonzero()[:, 0]
        found[a, b] = kernel_spectrum(K[at][:, at], 2 * (y[at] == b).long() - 1)
    return found


@numpy_too
def cumulative_power(
    kernel_or_features: Float[Tensor, "n d"],
    targets: Real[Tensor, " n *c"],
    *,
    kind: str = "auto",
) -> Float[Tensor, " k"]:
    """C(ρ): the share of the targets' power in the first ρ modes (Canatar & Pehlevan eq. 3).

    Entry ρ−1 sums the first ρ modes over all target columns, relative to what the representation can
    express at all; the curve ends at 1. For features the modes are left singular vectors, for a kernel
    its eigenvectors: the same for K = ΦΦᵀ. ``kind="auto"`` takes a square symmetric matrix for a kernel;
    say ``"features"`` or ``"kernel"`` where that guess could be wrong. Where the spectrum is wanted as well,
    :func:`spectrum` or :func:`kernel_spectrum` and then ``.cumulative()`` decompose once.

    >>> cumulative_power(torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([1.0, 1.0]))
    tensor([0.5000, 1.0000])
    """
    m = check(kernel_or_features, "kernel_or_features", "n d")
    same_rows(m, check(targets, "targets", "n *c"), "kernel_or_features and targets")
    if kind not in ("auto", "kernel", "features"):
        raise ValueError(f"kind should be auto, kernel or features, but is {kind!r}.")
    if kind == "kernel" or (kind == "auto" and _symmetric(m)):
        return kernel_spectrum(m, targets).cumulative()
    return spectrum(m, targets).cumulative()


def _symmetric(m: Tensor) -> bool:
    if m.shape[0] != m.shape[1]:
        return False
    eps = rounding(m)
    return torch.allclose(m, m.mT, rtol=max(1e-5, 2 * eps), atol=max(1e-6, eps) * float(m.abs().max()))
