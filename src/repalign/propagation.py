"""How a wide ReLU network at initialization forgets its input (Lou, Mingard, Hayou §3.2–3.4, appendix A).

Two inputs of equal length and correlation c₀ enter a network of infinite width with weights of variance
2/width. Layer by layer their correlation rises to 1 (forward: the network forgets which was which), and
gradients sent back for the two grow apart (backward). Both are exact recursions of one number per layer.
Near 1 a correlation has no digits left, so everything here recurs in the gap 1 − c.

>>> correlations(0.0, depth=3)
tensor([0.0000, 0.3183, 0.4937, 0.6048], dtype=torch.float64)
>>> round(float(equilibrium_layer(0.1, depth=100)), 1)     # forward and backward loss balance here
22.8
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Integer
from numpy.typing import NDArray
from torch import Tensor

from repalign._arrays import at_least_single, numpy_too

Array = NDArray[np.float64]

# From any start, the angle is below 0.4 after so many layers; from there a short series is exact.
HEAD = 24
# Plain floats beat numpy, call by call, up to about so many starts.
FEW = 10


@numpy_too
def correlations(c0: float | Float[Tensor, "*b"], depth: int) -> Float[Tensor, "*b l"]:
    """Correlation of two inputs after 0, 1, …, ``depth`` ReLU layers: c ← g(c) (Lou eq. 3 of appendix A).

    g(c) = (c·arcsin c + √(1 − c²))/π + c/2. ``c0`` is a number or any array of them; the layers are the
    last axis. For what is left to 1 use :func:`gaps`: deep down, c itself is 1 to all digits.

    >>> correlations(torch.tensor([-1.0, 1.0]), depth=2)
    tensor([[-1.0000,  0.0000,  0.3183],
            [ 1.0000,  1.0000,  1.0000]])
    """
    start, like = _starts(c0, "c0", -1.0, 1.0)
    return _shaped(1 - _recur(1 - start, _depth(depth) + 1), like)


@numpy_too
def gaps(gap0: float | Float[Tensor, "*b"], depth: int) -> Float[Tensor, "*b l"]:
    """1 − c after 0, 1, …, ``depth`` ReLU layers, from 1 − c₀, to full relative accuracy.

    Falls as 9π²/2l² from every start: the information loss of theorem 1.

    >>> gaps(1e-12, depth=10**5)[-1]                        # c would have lost 4 digits of it
    tensor(9.7065e-13, dtype=torch.float64)
    """
    start, like = _starts(gap0, "gap0", 0.0, 2.0)
    return _shaped(_recur(start, _depth(depth) + 1), like)


@numpy_too
def forward_information(c0: float | Float[Tensor, "*b"], depth: int) -> Float[Tensor, "*b l"]:
    """What enters layers 1 … ``depth``: E[φ(z)φ(z′)] = c/2 in the layer before (Lou def. 2).

    It tends to 1/2 whatever the inputs were; ½ − value is half of :func:`gaps`, Θ(l⁻²) (theorem 1).
    Layer 1 is linear in the input and has c = c₀.

    >>> forward_information(0.0, depth=3)
    tensor([0.0000, 0.1592, 0.2469], dtype=torch.float64)
    """
    start, like = _starts(c0, "c0", -1.0, 1.0)
    return _shaped(0.5 - _recur(1 - start, _depth(depth)) / 2, like)


@numpy_too
def backward_information(c0: float | Float[Tensor, "*b"], depth: int) -> Float[Tensor, "*b l"]:
    """Covariance of the gradients at layers 1 … ``depth``, 1 at the last (Lou def. 2, eq. 4 of appendix A).

    The product of g′(c) = 1 − arccos(c)/π over the layers from there to the last but one. For layers
    l ≪ L it is Θ((l/L)³), for l = αL it tends to α³ (theorem 2).

    >>> backward_information(0.0, depth=3)
    tensor([0.3016, 0.6031, 1.0000], dtype=torch.float64)
    """
    start, like = _starts(c0, "c0", -1.0, 1.0)
    rates = _log_rates(_recur(1 - start, _depth(depth)))
    # Summed from the last layer on, so that early layers of a deep network lose nothing.
    rates[-1] = 0
    return _shaped(np.exp(np.cumsum(rates[::-1], axis=0)[::-1]), like)


@numpy_too
def equilibrium_layer(
    c0: float | Float[Tensor, "*b"], depth: int | Integer[Tensor, " t"]
) -> Float[Tensor, "*b *t"]:
    """The layer where forward and backward loss balance, of Θ(L^{3/5}) (Lou corollary 1).

    Forward loss ½ − c/2 falls with the layer, backward information rises: the layer, a real number, where
    the two cross on logarithmic axes. ``depth`` is the number of layers or a vector of such numbers (as an
    array; all are served by one recursion). Layer 1 when they have crossed before it.

    >>> equilibrium_layer(0.1, torch.tensor([10, 100, 1000]))
    tensor([  3.7777,  22.8445, 107.7849], dtype=torch.float64)
    """
    start, like = _starts(c0, "c0", -1.0, 1.0)
    if (start == 1).any():
        raise ValueError("c0 should be below 1: the same input twice is never told apart, at no layer.")
    wanted = np.asarray(depth.cpu() if isinstance(depth, Tensor) else depth)
    for one in wanted.reshape(-1):
        _depth(one)
    gap = _recur(1 - start, int(wanted.max()))
    log_loss = np.log(gap / 2)
    rates = _log_rates(gap)
    # Σ over k < l, counted from layer 2: the first rate may be log 0, for opposite inputs.
    passed = np.vstack([-rates[:1], np.zeros_like(rates[:1]), np.cumsum(rates[1:], axis=0)])[: len(gap)]
    # Balance: log_loss(l) = passed(L) − passed(l). The left minus the right falls strictly in l.
    height = log_loss + passed
    found = [
        [_crossing(height[:, j], passed[t - 1, j]) for t in wanted.reshape(-1)] for j in range(len(start))
    ]
    out = np.asarray(found).reshape(tuple(like.shape) + wanted.shape)
    return torch.from_numpy(out).to(like.device, like.dtype)


def _crossing(height: Array, level: float) -> float:
    """Where ``height``, falling over layers 1, 2, …, reaches ``level``, on a logarithmic layer axis."""
    after = int(np.searchsorted(-height, -level))
    if after == 0:
        return 1.0
    above, below = height[after - 1], height[after]
    share = (above - level) / (above - below) if math.isfinite(above) else 1.0
    return float(after * ((after + 1) / after) ** share)


def _log_rates(gap: Array) -> Array:
    """log g′(c): by how much two gradients grow apart in one layer."""
    with np.errstate(divide="ignore"):
        return np.log1p(-2 * np.arcsin(np.sqrt(gap / 2)) / np.pi)


def _recur(gap: Array, count: int) -> Array:
    """The first ``count`` gaps, (count, starts). With c = cos θ: gap ← gap − (sin θ − θ cos θ)/π."""
    out = np.empty((count, len(gap)))
    out[0] = gap
    for i in range(1, min(HEAD, count)):
        theta = 2 * np.arcsin(np.sqrt(out[i - 1] / 2))
        lost = np.where(theta < 1, _series(theta), np.sin(theta) - theta * np.cos(theta))
        out[i] = np.maximum(out[i - 1] - lost / np.pi, 0)
    if count <= HEAD:
        return out
    if len(gap) <= FEW:
        for column in range(len(gap)):
            out[HEAD:, column] = _recur_one(float(out[HEAD - 1, column]), count - HEAD)
    else:
        for i in range(HEAD, count):
            theta = 2 * np.arcsin(np.sqrt(out[i - 1] / 2))
            np.subtract(out[i - 1], _series(theta) / np.pi, out=out[i])
    return out


def _series(theta: Array) -> Array:
    """sin θ − θ cos θ for θ < 1, where the difference would cancel: Σ (−1)ᵏ⁺¹ 2k θ²ᵏ⁺¹/(2k+1)!."""
    q = theta * theta
    tail = 1 / 3991680 - q * (1 / 518918400 - q / 93405312000)
    return theta * q * (1 / 3 - q * (1 / 30 - q * (1 / 840 - q * (1 / 45360 - q * tail))))


def _recur_one(gap: float, count: int) -> list[float]:
    """The loop of one start in plain floats: a million layers in a second."""
    asin, sqrt, third = math.asin, math.sqrt, 1 / 3
    a, b, c, d, e, inverse_pi = 1 / 30, 1 / 840, 1 / 45360, 1 / 3991680, 1 / 518918400, 1 / math.pi
    out = []
    for _ in range(count):
        theta = 2 * asin(sqrt(gap / 2))
        q = theta * theta
        gap -= theta * q * (third - q * (a - q * (b - q * (c - q * (d - q * e))))) * inverse_pi
        out.append(gap)
    return out


def _starts(value: float | Tensor, name: str, low: float, high: float) -> tuple[Array, Tensor]:
    """The starts as a flat float64 array, and a tensor that says how the answer should look."""
    like = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    like = at_least_single(like) if like.is_floating_point() else like.double()
    start = like.detach().cpu().double().reshape(-1).numpy()
    if len(start) == 0 or not ((start >= low) & (start <= high)).all():
        raise ValueError(f"{name} should be in [{low:g}, {high:g}], but is {value}.")
    return start, like


def _depth(depth: int | np.integer) -> int:
    if int(depth) != depth or depth < 1:
        raise ValueError(f"depth should be a whole number of layers, at least 1, but is {depth}.")
    return int(depth)


def _shaped(layers: Array, like: Tensor) -> Tensor:
    out = torch.from_numpy(np.ascontiguousarray(layers.T)).to(like.device, like.dtype)
    return out.reshape(*like.shape, len(layers))
