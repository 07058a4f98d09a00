"""What a spectrum says about generalization: the test error of kernel regression."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Real
from torch import Tensor

from repalign._arrays import at_least_single, check, numpy_too, same_rows, working

# Newton's steps fall by a constant factor at worst before they become quadratic: far fewer are needed.
STEPS = 1000


@numpy_too
def predicted_error(
    eigenvalues: Float[Tensor, " k"],
    power: Float[Tensor, " k *c"],
    samples: Real[Tensor, " t"] | int,
    *,
    ridge: float = 0.0,
    noise: float | Float[Tensor, " *c"] = 0.0,
    outside: float | Float[Tensor, " *c"] = 0.0,
) -> Float[Tensor, "*t *c"]:
    """Mean squared test error of kernel regression, from the kernel's spectrum (Canatar et al. 2021).

    The kernel is Σ η φ(x)φ(x'), the target Σ a φ(x); the modes φ are orthonormal in the mean over inputs.
    ``eigenvalues`` are η, ``power`` is a², one column per target, ``outside`` the power of the targets that
    no mode reaches. Of a pool of n inputs with a :class:`Spectrum` s they are ``s.eigenvalues / n``,
    ``s.power / n`` and ``s.residual / n``. Regression on P ``samples`` is f(x) = k(x)ᵀ(K + λI)⁻¹y, where K is
    their P × P kernel as it is, not divided by P, and λ is the ``ridge``. ``noise`` is the variance of what
    is added to the labels y; the error is the distance from the target itself. With κ the largest solution
    of κ = λ + κ Σ η/(κ + Pη), and γ = Σ Pη²/(κ + Pη)²,

        error = (Σ a² κ²/(κ + Pη)² + outside + γ·noise) / (1 − γ).

    It stands for the mean over draws of the samples, and is the better the more samples and modes count.
    Modes that are not learned act as noise on those that are: the error may rise with P. It is infinite
    where λ = 0, P is the number of modes, and there is noise.

    >>> predicted_error(torch.ones(4), torch.ones(4), torch.tensor([0, 1, 2, 4, 8]))  # 4 − P, and then 0
    tensor([4., 3., 2., 0., 0.])
    """
    given, power = check(eigenvalues, "eigenvalues", "k"), check(power, "power", "k *c")
    same_rows(given, power, "eigenvalues and power")
    if not (math.isfinite(ridge) and ridge >= 0):
        raise ValueError(f"ridge should be 0 or more, but is {ridge}.")
    eta, a2 = working(given), working(power)
    p, s2, lost = (torch.as_tensor(v, dtype=eta.dtype, device=eta.device) for v in (samples, noise, outside))
    named = {"eigenvalues": eta, "power": a2, "samples": p, "noise": s2, "outside": lost}
    for name, value in named.items():
        if not (torch.isfinite(value) & (value >= 0)).all():
            raise ValueError(f"{name} should be finite and not negative, but some are not.")
    left, rest = _unlearned(eta, p.reshape(-1), ridge)
    trailing = power.shape[1:]
    rest = rest.reshape(-1, *[1] * len(trailing))
    error = torch.tensordot(left.square(), a2, dims=1) + lost + (1 - rest) * s2
    # As many samples as modes, and no noise: nothing is left to be divided by nothing.
    error = torch.where((error == 0) & (rest == 0), 0.0, error / rest)
    return error.reshape(p.shape + trailing).to(at_least_single(given))


def _unlearned(eta: Tensor, p: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """κ/(κ + Pη), the share of each coefficient that is not learned, (t, k), and 1 − γ, (t,)."""
    positive = eta[eta > 0]
    kappa, p = _resolution(positive, p, ridge)[:, None], p[:, None]
    left = torch.where(eta > 0, kappa / (kappa + p * eta), 1.0)
    # Where κ solves its equation, 1 − γ is a sum of positive numbers: nothing cancels.
    rest = ridge / kappa + (kappa * positive / (kappa + p * positive).square()).sum(1, keepdim=True)
    return left, torch.where(kappa > 0, rest, 1 - len(positive) / p.clamp(min=1)).squeeze(1)


def _resolution(eta: Tensor, p: Tensor, ridge: float) -> Tensor:
    """The largest κ with κ = λ + κ Σ η/(κ + Pη), (t,), for eigenvalues above 0.

    κ − λ − κ Σ η/(κ + Pη) is convex in κ and not negative at λ + Σ η: from there Newton's steps fall to its
    largest root and never pass it. They end where rounding would turn them back.
    """
    kappa = torch.full_like(p, ridge) + eta.sum()
    if ridge == 0:
        kappa = kappa.where(p < len(eta), 0.0)  # all modes are learned
    for _ in range(STEPS):
        share = eta / (kappa[:, None] + p[:, None] * eta)
        value = kappa - ridge - kappa * share.sum(1)
        slope = 1 - p * share.square().sum(1)
        lower = (kappa - value / slope).clamp(min=ridge)
        if not (lower < kappa).any():
            break
        kappa = torch.where(lower < kappa, lower, kappa)
    return kappa
