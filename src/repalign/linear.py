"""Linear models on fixed features: gradient descent from zero, on training and test data.

For the squared loss a thousand steps cost one SVD; the logistic loss is iterated over the full batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Real
from torch import Tensor

from repalign._arrays import check, numpy_too, same_rows, working


class Descent(NamedTuple):
    """Learning curves at the asked steps: mean loss and error on both data sets, and ‖w‖."""

    steps: Real[Tensor, " t"]
    train: Float[Tensor, " t"]
    test: Float[Tensor, " t"]
    train_error: Float[Tensor, " t"]
    test_error: Float[Tensor, " t"]
    norm: Float[Tensor, " t"]


@numpy_too
def squared_descent(
    phi: Float[Tensor, "n d"],
    y: Real[Tensor, " n"],
    test_phi: Float[Tensor, "m d"],
    test_y: Real[Tensor, " m"],
    *,
    eta: float,
    steps: Real[Tensor, " t"],
) -> Descent:
    """Gradient descent on the mean squared error, in closed form (Imani prop. 1).

    The update is w ← w − (η/n) Φᵀ(Φw − y). ``train`` and ``test`` are mean squared errors, the errors
    are shares of wrong signs (for ±1 labels).

    >>> x = torch.eye(3).double()
    >>> squared_descent(x, x[0], x, x[0], eta=1.5, steps=torch.tensor([0, 1])).train
    tensor([0.3333, 0.0833], dtype=torch.float64)
    """
    phi, y, test_phi, test_y = _checked(phi, y, test_phi, test_y)
    a, b = working(phi), working(y)
    u, sigma, vh = torch.linalg.svd(a, full_matrices=False)
    t = torch.as_tensor(steps).to(a).reshape(-1)
    keep = sigma > max(a.shape) * torch.finfo(torch.float64).eps * sigma[0]
    u, sigma, vh = u[:, keep], sigma[keep], vh[keep]
    x = eta * sigma.square() / len(a)
    # 1 − (1 − x)^t without cancellation for small x; a step beyond 1 alternates in sign.
    rate = torch.where(x < 1, torch.log1p(-x.clamp(max=1 - 1e-300)), torch.log((x - 1).clamp(min=1e-300)))
    sign = torch.where((x > 1) & (t[:, None] % 2 == 1), -1.0, 1.0)
    power = torch.exp(t[:, None] * rate)
    learned = torch.where(x < 1, -torch.expm1(t[:, None] * rate), 1 - sign * power)
    weights = learned * ((u.mT @ b) / sigma)  # in the basis of right singular vectors
    fitted = weights @ (u * sigma).mT
    predicted = weights @ (working(test_phi) @ vh.mT).mT
    return _summary(t, fitted, b, predicted, working(test_y), weights.norm(dim=1), phi)


@numpy_too
def logistic_descent(
    phi: Float[Tensor, "n d"],
    y: Real[Tensor, " n"],
    test_phi: Float[Tensor, "m d"],
    test_y: Real[Tensor, " m"],
    *,
    eta: float,
    steps: Real[Tensor, " t"],
) -> Descent:
    """Gradient descent on the mean logistic loss log(1 + exp(−f·y))/log 2, full batch, labels ±1.

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
    a, b, ta, tb = (working(v) for v in (phi, y, test_phi, test_y))
    t = torch.as_tensor(steps).long().reshape(-1)
    wanted = set(t.tolist())
    log2 = torch.log(torch.tensor(2.0, dtype=torch.float64)).item()
    signed = a * b[:, None]
    w = torch.zeros(a.shape[1], dtype=a.dtype, device=a.device)
    kept: dict[int, Tensor] = {}
    for step in range(max(wanted) + 1):
        if step in wanted:
            kept[step] = w.clone()
        w += (eta / (len(a) * log2)) * (signed.mT @ torch.sigmoid(-(signed @ w)))
    weights = torch.stack([kept[step] for step in t.tolist()])
    train, test = weights @ a.mT, weights @ ta.mT
    loss = (torch.nn.functional.softplus(-f * v).mean(dim=1) / log2 for f, v in ((train, b), (test, tb)))
    out = _summary(t.double(), train, b, test, tb, weights.norm(dim=1), phi)
    return out._replace(**{k: v.to(phi) for k, v in zip(("train", "test"), loss, strict=True)})


def best(curves: Sequence[Descent]) -> int:
    """Index of the step size with the lowest final training loss, as the papers choose; NaN never wins."""
    final = torch.stack([torch.as_tensor(c.train[-1]) for c in curves])
    if not torch.isfinite(final).any():
        raise ValueError("no step size converged: try smaller ones.")
    return int(final.nan_to_num(nan=torch.inf).argmin())


def _checked(phi: Tensor, y: Tensor, test_phi: Tensor, test_y: Tensor) -> tuple[Tensor, ...]:
    phi, test_phi = check(phi, "phi", "n d"), check(test_phi, "test_phi", "m d")
    y, test_y = check(y, "y", "n"), check(test_y, "test_y", "m")
    same_rows(phi, y, "phi and y")
    same_rows(test_phi, test_y, "test_phi and test_y")
    if phi.shape[1] != test_phi.shape[1]:
        raise ValueError(
            f"phi and test_phi should have as many features, but have {phi.shape[1]} and {test_phi.shape[1]}."
        )
    return phi, y, test_phi, test_y


def _summary(
    t: Tensor, train: Tensor, y: Tensor, test: Tensor, test_y: Tensor, norm: Tensor, like: Tensor
) -> Descent:
    def loss(f: Tensor, v: Tensor) -> Tensor:
        return (f - v).square().mean(dim=1)

    def error(f: Tensor, v: Tensor) -> Tensor:
        return (f.sign() != v.sign()).double().mean(dim=1)

    parts = (t, loss(train, y), loss(test, test_y), error(train, y), error(test, test_y), norm)
    return Descent(*(part.to(like) for part in parts))
