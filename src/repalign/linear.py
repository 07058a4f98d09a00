"""Linear models on fixed features: gradient descent from zero, on training and test data.

For the squared loss a thousand steps cost one SVD; the logistic loss is iterated over the full batch. Both
take several step sizes at once, at little more than the cost of one, and keep the best.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Real
from torch import Tensor
from torch.nn.functional import softplus

from repalign._arrays import COUNTED, class_numbers, numbers, numpy_too, same_rows, working
from repalign.alignment.descent import log_decay

LOG2 = math.log(2)
# A number whose square overflows, while its products with ordinary numbers do not.
HUGE = 1e200


class Descent(NamedTuple):
    """Learning curves at the asked steps: mean loss and error on both data sets, ‖w‖, and the step size."""

    steps: Real[Tensor, " t"]
    train: Float[Tensor, " t"]
    test: Float[Tensor, " t"]
    train_error: Float[Tensor, " t"]
    test_error: Float[Tensor, " t"]
    norm: Float[Tensor, " t"]
    eta: float


@numpy_too
def squared_descent(
    phi: Float[Tensor, "n d"],
    y: Real[Tensor, " n"],
    test_phi: Float[Tensor, "m d"],
    test_y: Real[Tensor, " m"],
    *,
    eta: float | Sequence[float],
    steps: Real[Tensor, " t"],
) -> Descent:
    """Gradient descent on half the mean squared error, in closed form (Imani prop. 1).

    The update is w ← w − (η/n) Φᵀ(Φw − y), that of torch's SGD on ``mse_loss`` with a rate of η/2. ``train``
    and ``test`` are mean squared errors, the errors are shares of wrong signs, for ±1 labels; where all
    labels are 0 or 1, of wrong sides of ½. Of several step sizes the one with the lowest training loss at the
    last of ``steps`` is kept, as the papers choose.

    >>> x = torch.eye(3).double()
    >>> squared_descent(x, x[0], x, x[0], eta=1.5, steps=torch.tensor([0, 1])).train
    tensor([0.3333, 0.0833], dtype=torch.float64)
    >>> squared_descent(x, x[0], x, x[0], eta=(0.1, 1.5, 10), steps=torch.tensor([0, 1])).eta
    1.5
    """
    if class_numbers(y):
        warnings.warn(COUNTED, stacklevel=3)
    phi, y, test_phi, test_y = _checked(phi, y, test_phi, test_y)
    a, b, test_a, test_b = (working(v) for v in (phi, y, test_phi, test_y))
    u, sigma, vh = torch.linalg.svd(a, full_matrices=False)
    t = torch.as_tensor(steps).to(a).reshape(-1)
    keep = sigma > max(a.shape) * torch.finfo(torch.float64).eps * sigma[0]
    u, sigma, vh = u[:, keep], sigma[keep], vh[keep]
    target = (u.mT @ b) / sigma  # the weights of least squares, in the basis of right singular vectors

    def weights(eta: float, t: Tensor) -> Tensor:
        return _learned(eta * sigma.square() / len(a), t) * target

    etas = _several(eta)
    ends = torch.cat([weights(one, t[-1:]) for one in etas])
    chosen = etas[_lowest((ends @ (u * sigma).mT - b).square().mean(dim=1))]
    w = weights(chosen, t)
    fits = w @ (u * sigma).mT, w @ (test_a @ vh.mT).mT
    losses = [(f - v).square().mean(dim=1) for f, v in zip(fits, (b, test_b), strict=True)]
    between = _between(b)
    errors = [_error(f - between, v - between) for f, v in zip(fits, (b, test_b), strict=True)]
    return _curves(t, losses, errors, w, chosen, phi)


def norm_at(path: Descent, shares: Sequence[float]) -> Float[Tensor, " s"]:
    """‖w‖ where ``path`` has removed each of ``shares`` of the training loss, NaN where it never does.

    The path begins at step 0, where nothing is removed; between two of its steps the norm is interpolated.

    >>> x = torch.eye(2).double()
    >>> path = squared_descent(2 * x, x[0], x, x[0], eta=1e-4, steps=torch.arange(20_000))
    >>> norm_at(path, [0.75, 1.0])         # half of the weight that fits removes three quarters
    tensor([0.2500,    nan], dtype=torch.float64)
    """
    if path.steps[0] != 0:
        raise ValueError(f"the path should begin at step 0, but begins at step {float(path.steps[0]):g}.")
    removed = 1 - path.train / path.train[0]
    wanted = torch.as_tensor(shares).to(removed)
    after = torch.searchsorted(removed, wanted).clamp(1, len(removed) - 1)
    start, end = removed[after - 1], removed[after]
    norm = path.norm[after - 1].lerp(path.norm[after], (wanted - start) / (end - start))
    return norm.where((wanted > 0) & (wanted <= removed[-1]), torch.nan)


@numpy_too
def logistic_descent(
    phi: Float[Tensor, "n d"],
    y: Real[Tensor, " n"],
    test_phi: Float[Tensor, "m d"],
    test_y: Real[Tensor, " m"],
    *,
    eta: float | Sequence[float],
    steps: Real[Tensor, " t"],
) -> Descent:
    """Gradient descent on the mean logistic loss log(1 + exp(−f·y))/log 2, full batch, labels ±1.

    Of several step sizes the best is kept, as in :func:`squared_descent`; one product per step serves all.

    >>> x = torch.eye(2).double()
    >>> y = torch.tensor([1.0, -1.0]).double()
    >>> logistic_descent(x, y, x, y, eta=1.0, steps=torch.tensor([0, 10])).train_error
    tensor([1., 0.], dtype=torch.float64)
    """
    phi, y, test_phi, test_y = _checked(phi, y, test_phi, test_y)
    if not ((y == 1) | (y == -1)).all():
        raise ValueError(
            "labels of the logistic loss should be 1 and -1; see data.labels for how to make them."
        )
    a, b, test_a, test_b = (working(v) for v in (phi, y, test_phi, test_y))
    t = torch.as_tensor(steps).long().reshape(-1)
    wanted = set(t.tolist())
    signed = a * b[:, None]
    etas = _several(eta)
    rates = torch.tensor(etas, dtype=a.dtype, device=a.device) / (len(a) * LOG2)
    w = torch.zeros(a.shape[1], len(etas), dtype=a.dtype, device=a.device)
    kept: dict[int, Tensor] = {}
    for step in range(max(wanted) + 1):
        if step in wanted:
            kept[step] = w.clone()
        w += rates * (signed.mT @ torch.sigmoid(-(signed @ w)))
    last = kept[int(t[-1])]
    chosen = _lowest(softplus(-(signed @ last)).mean(dim=0))
    weights = torch.stack([kept[step][:, chosen] for step in t.tolist()])
    fits = weights @ a.mT, weights @ test_a.mT
    losses = [softplus(-f * v).mean(dim=1) / LOG2 for f, v in zip(fits, (b, test_b), strict=True)]
    errors = [_error(f, v) for f, v in zip(fits, (b, test_b), strict=True)]
    return _curves(t, losses, errors, weights, etas[chosen], phi)


def _learned(x: Float[Tensor, " k"], t: Float[Tensor, " t"]) -> Float[Tensor, "t k"]:
    """1 − (1 − x)^t without cancellation for small x; a step beyond 1 alternates in sign."""
    sign = torch.where((x > 1) & (t[:, None] % 2 == 1), -1.0, 1.0)
    power = log_decay(x, t)
    learned = torch.where(x < 1, -torch.expm1(power), 1 - sign * torch.exp(power))
    # What has diverged stays finite, or 0 · ∞ would spoil the directions beside it; its square is infinite.
    return learned.clamp(-HUGE, HUGE)


def _several(eta: float | Sequence[float]) -> list[float]:
    etas = [float(one) for one in eta] if isinstance(eta, Sequence) else [float(eta)]
    if not etas or not all(0 < one < math.inf for one in etas):
        raise ValueError(f"eta should be one positive step size or several, but is {eta!r}.")
    return etas


def _lowest(final: Float[Tensor, " e"]) -> int:
    """Index of the step size with the lowest final training loss; what diverged never wins."""
    if len(final) > 1 and not torch.isfinite(final).any():
        raise ValueError("no step size converged: try smaller ones.")
    return int(final.nan_to_num(nan=torch.inf).argmin())


def _between(y: Float[Tensor, " n"]) -> float:
    """What parts the two classes: ½ for the labels 0 and 1, else 0, so that signs count."""
    zeros, ones = y == 0, y == 1
    return 0.5 if bool((zeros | ones).all() & zeros.any()) else 0.0


def _error(f: Float[Tensor, "t n"], v: Float[Tensor, " n"]) -> Float[Tensor, " t"]:
    """Share of wrong signs."""
    return (f.sign() != v.sign()).double().mean(dim=1)


def _curves(
    t: Tensor, losses: list[Tensor], errors: list[Tensor], weights: Tensor, eta: float, like: Tensor
) -> Descent:
    train, test, train_error, test_error = (part.to(like) for part in (*losses, *errors))
    return Descent(t.to(like), train, test, train_error, test_error, weights.norm(dim=1).to(like), eta)


def _checked(phi: Tensor, y: Tensor, test_phi: Tensor, test_y: Tensor) -> tuple[Tensor, ...]:
    phi, test_phi = numbers(phi, "phi", "n d"), numbers(test_phi, "test_phi", "m d")
    y, test_y = numbers(y, "y", "n"), numbers(test_y, "test_y", "m")
    same_rows(phi, y, "phi and y")
    same_rows(test_phi, test_y, "test_phi and test_y")
    if phi.shape[1] != test_phi.shape[1]:
        raise ValueError(
            f"phi and test_phi should have the same number of features, but have {phi.shape[1]} and "
            f"{test_phi.shape[1]}."
        )
    return phi, y, test_phi, test_y
