"""What CKA would be by chance: the same two representations with their samples paired at random."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from repalign._arrays import numbers, same_rows, working
from repalign.kernels.classes import warn_of_class_numbers


@dataclass(frozen=True)
class Floor:
    """CKA over all pairings of the rows of two representations.

    mean    over all n! pairings, exactly
    sd      standard deviation over all n! pairings, exactly; NaN below 4 samples
    pvalue  how often a random pairing has the CKA of the given one or more; NaN without draws
    """

    mean: float
    sd: float
    pvalue: float


def cka_floor(X: Float[Tensor, "n d"], Y: Float[Tensor, "n e"], *, draws: int = 999, seed: int = 0) -> Floor:
    """The CKA that X and Y would have if nothing tied the samples of one to those of the other.

    Plain CKA of unrelated representations is far from 0 where samples are few or features many. What it would
    be follows from the two spectra alone: pairing row i of X with row π(i) of Y, for all permutations π,
    leaves both kernels as they are and removes what they share. Mean and standard deviation over all
    permutations are known in closed form (Kazi-Aoual et al. 1995, for the RV coefficient, as statisticians
    call linear CKA). The p-value counts ``draws`` random permutations and the given pairing; ``draws=0``
    leaves it out.

    >>> g = torch.Generator().manual_seed(0)
    >>> x, y = torch.randn(50, 200, generator=g), torch.randn(50, 200, generator=g)
    >>> floor = cka_floor(x, y)                 # their CKA is 0.801
    >>> round(floor.mean, 3), round(floor.sd, 4), floor.pvalue
    (0.8, 0.0057, 0.454)
    """
    warn_of_class_numbers({"X": X, "Y": Y}, stacklevel=2)
    X, Y = numbers(X, "X", "n d"), numbers(Y, "Y", "n e")
    same_rows(X, Y, "X and Y")
    if len(X) < 2 or draws < 0:
        raise ValueError(
            f"a floor needs at least 2 samples and 0 draws or more, but got {len(X)} and {draws}."
        )
    a, b = (_unit_kernel(one, name) for one, name in ((X, "X"), (Y, "Y")))
    mean = float(a.trace() * b.trace()) / (len(a) - 1)
    return Floor(mean, _deviation(a, b), _pvalue(a, b, draws, seed) if draws else math.nan)


def _unit_kernel(x: Tensor, name: str) -> Tensor:
    """The centered kernel of features, in float64, scaled to norm one."""
    x = working(x).double()
    x = x - x.mean(dim=0)
    kernel = x @ x.mT
    norm = torch.linalg.matrix_norm(kernel)
    if norm == 0:
        raise ValueError(
            f"{name} should vary over samples: features that are all the same have no direction."
        )
    return kernel / norm


def _deviation(a: Tensor, b: Tensor) -> float:
    """Standard deviation of ⟨a, PbPᵀ⟩ over all permutations P, of centered kernels of norm one."""
    n = len(a)
    if n < 4:
        return math.nan
    spread = [_fourth(kernel) for kernel in (a, b)]
    sizes = [float(kernel.trace()) ** 2 for kernel in (a, b)]
    pairs = 2 * (n - 1 - sizes[0]) * (n - 1 - sizes[1]) / ((n + 1) * (n - 1) ** 2 * (n - 2))
    # Written as products, so that kernels with equal eigenvalues, where n − 1 − size is 0, need no division.
    tails = spread[0] * spread[1] / ((n + 1) * n * (n - 1) * (n - 2) * (n - 3))
    return math.sqrt(max(pairs + tails, 0.0))


def _fourth(kernel: Tensor) -> float:
    """n(n + 1) Σ kᵢᵢ² − (n − 1)(tr(k)² + 2): how unevenly samples are spread, of a kernel of norm one."""
    n = len(kernel)
    trace = float(kernel.trace())
    return n * (n + 1) * float(kernel.diagonal().square().sum()) - (n - 1) * (trace**2 + 2)


def _pvalue(a: Tensor, b: Tensor, draws: int, seed: int) -> float:
    n = len(a)
    generator = torch.Generator().manual_seed(seed)
    found = (a * b).sum()
    # Rounding must not make the given pairing beat itself, as where all pairings are equal.
    reached = 1
    for _ in range(draws):
        order = torch.randperm(n, generator=generator).to(b.device)
        reached += int((a * b[order][:, order]).sum() >= found - 1e-12)
    return reached / (draws + 1)
