"""What a spectrum says about gradient descent: the loss at every step, and how many steps suffice."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Real
from torch import Tensor

from repalign._arrays import numpy_too, working
from repalign.alignment.spectra import Spectrum


@numpy_too
def gd_loss(spectrum: Spectrum, eta: float, steps: Real[Tensor, " t"] | int) -> Float[Tensor, "*t *c"]:
    """‖Φw_t − y‖² of gradient descent from w₀ = 0, in closed form (Imani prop. 1, eq. 3).

    The update is w ← w − η Φᵀ(Φw − y). ``steps`` is a step number or a vector of them; a million steps
    cost as much as one. The formula holds for every η; descent converges for η < 2/σ₁².

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
