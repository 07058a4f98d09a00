"""What a spectrum says about gradient descent: the loss at every step, and how many steps suffice."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Real
from torch import Tensor

from repalign._arrays import at_least_single, numpy_too, working
from repalign.alignment.spectra import Spectrum


@numpy_too
def gd_loss(spectrum: Spectrum, eta: float, steps: Real[Tensor, " t"] | int) -> Float[Tensor, "*t *c"]:
    """‖Φw_t − y‖² of gradient descent from w₀ = 0, in closed form (Imani prop. 1, eq. 3).

    The update is w ← w − η Φᵀ(Φw − y). ``steps`` is a step number or a vector of them; a million steps
    cost as much as one. The formula holds for every η; descent converges for η < 2/σ₁². Full-batch SGD of
    torch on ``mse_loss`` with n samples makes the same steps with a rate of η·n/2.

    >>> from repalign.alignment import spectrum
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
    decay = torch.exp(log_decay(eta * sigma.square(), 2 * t.reshape(-1)))
    loss = torch.tensordot(decay, power, dims=1)
    if loss.isnan().any():
        # ∞ · 0: a direction that diverges, but holds nothing, stays so.
        finite = decay.isfinite()
        lost = torch.tensordot((~finite).to(power), (power > 0).to(power), dims=1) > 0
        loss = torch.tensordot(decay.where(finite, 0), power, dims=1).where(~lost, torch.inf)
    loss = (loss + residual).reshape(t.shape + power.shape[1:])
    return loss.to(at_least_single(spectrum.sigma))


def log_decay(x: Float[Tensor, " k"], t: Float[Tensor, " t"]) -> Float[Tensor, "t k"]:
    """t·log|1 − x|: what t steps leave of a direction that one step shrinks by x; nothing lost at t = 0.

    Accurate for small x: errors of the logarithm are multiplied by the number of steps.
    """
    rate = torch.where(x < 1, torch.log1p(-x.clamp(max=1)), torch.log((x - 1).clamp(min=0)))
    # At x = 1 the logarithm is −∞, which step zero must not see.
    return torch.where(t[:, None] == 0, 0.0, t[:, None] * rate)


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
    dtype = torch.promote_types(given[0].dtype if given else torch.get_default_dtype(), torch.float32)
    d, w, t = (torch.as_tensor(v, dtype=torch.float64, device=device) for v in (delta, omega, tau))
    if not (math.isfinite(eta) and eta > 0):
        raise ValueError(f"eta should be a positive step size, but is {eta}.")
    if not (t > 0).all():
        raise ValueError("tau should be above 0: the bound says nothing about directions of no scale.")
    if not ((w >= 0) & (w < d)).all():
        raise ValueError("omega should lie in [0, delta): no more than the alignment can be removed.")
    return (-torch.log1p(-w / d) / (2 * eta * t.square())).to(dtype)
