"""Three ways to learn features of which a linear model can fit the training labels (Imani et al. §3, §4.2).

>>> import torch
>>> x, y = torch.eye(6), torch.arange(6.0)
>>> learn("network", x, y, units=12, epochs=1)(x).shape
torch.Size([6, 12])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Real
from torch import Tensor

from repalign import linear, models, train
from repalign.alignment import gd_loss, spectrum, unit_rows
from repalign.data import Dataset
from repalign.features import extract
from repalign.papers.imani.handmade import dictionary, learn_dictionary

KINDS = {
    "network": "ReLU network",
    "rbf": "RBF network",
    "dictionary": "dictionary learning",
}
ETAS = (0.01, 0.1, 1.0, 10.0)  # the step sizes of figure 1


def learn(
    kind: str,
    x: Float[Tensor, "n d"],
    y: Real[Tensor, " n"],
    *,
    units: int,
    epochs: int = 100,
    passes: int = 10,
    bandwidth: float = 1.0,
    alpha: float = 0.05,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Callable[[Float[Tensor, "m d"]], Float[Tensor, "m units"]]:
    """Learn ``units`` features on x and y; returns the function that computes them, of these or other rows.

    ``"network"``: the hidden layer of a ReLU network that starts as torch's layers do. ``"rbf"``: the units
    of an RBF network of that ``bandwidth``, whose centers start at rows of x. Both train for ``epochs`` on
    the squared loss, by Adam.
    ``"dictionary"``: sparse codes in a dictionary learned in ``passes``, with the penalty ``alpha``; it
    never sees y.
    """
    if kind not in KINDS:
        raise ValueError(f"kind should be one of {', '.join(KINDS)}, but is {kind!r}.")
    if kind == "dictionary":
        atoms = learn_dictionary(x, units, alpha=alpha, passes=passes, seed=seed)
        return lambda rows: dictionary(rows, learned=atoms, alpha=alpha)
    net: models.MLP | models.RBFNetwork
    if kind == "network":
        net = models.MLP(x.shape[1], 1, depth=1, width=units, init="torch", seed=seed)
    else:
        centers = x[torch.arange(units) % len(x)]
        net = models.RBFNetwork(x.shape[1], 1, units=units, bandwidth=bandwidth, centers=centers, seed=seed)
    net = net.to(device)
    train.fit(net, x, y, loss="squared", epochs=epochs, seed=seed)
    return lambda rows: extract(net, rows)[net.probed[0]]


def examine(
    phi: Float[Tensor, "n d"],
    y: Real[Tensor, " n"],
    *,
    trained: int,
    etas: Sequence[float],
    steps: Real[Tensor, " t"],
    tau: Float[Tensor, " t"],
) -> list[dict[str, Any]]:
    """What alignment and gradient descent say of features: rows of ``rows``, ``what``, ``at`` and ``value``.

    The first ``trained`` samples are for training, the others for the test. A constant is appended. Then
    ``rows`` are "scaled" to length one, or taken "as learned" and divided by one number, the root of their
    mean squared length. Scaled rows descend with the best of ``etas``, the others with n/σ₁², half of the
    largest stable step size. Curves have the step or the threshold in ``at``, single numbers NaN.
    """
    phi, y = phi.double(), y.double()
    try:
        return _examined(phi, y, trained, etas, steps, tau)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # LAPACK's SVD has failed to converge on sparse codes with many equal singular values. No number here
        # depends on the order of features, and in another order it converges.
        return _examined(phi.flip(1), y, trained, etas, steps, tau)


def _examined(
    phi: Tensor, y: Tensor, trained: int, etas: Sequence[float], steps: Tensor, tau: Tensor
) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    on, whole = phi[:trained] != 0, float(y[:trained].square().sum())
    plain = torch.cat([phi, phi.new_ones(len(phi), 1)], dim=1)
    size = float(plain[:trained].square().sum(dim=1).mean().sqrt())
    for rows, scaled in (("scaled", unit_rows(plain)), ("as learned", plain / size)):
        parts = scaled[:trained], y[:trained], scaled[trained:], y[trained:]
        spec = spectrum(*parts[:2])
        own = trained / float(spec.sigma[0]) ** 2
        path = linear.squared_descent(*parts, eta=etas if rows == "scaled" else own, steps=steps)
        alone = gd_loss(spec, own / trained, steps) / trained
        curves = {
            "training error": (steps, path.train),
            "test error": (steps, path.test),
            "training error, own step size": (steps, alone),
            "alignment": (tau, spec.alignment(tau)),
        }
        numbers = {
            "step size": path.eta,
            "own step size": own,
            "size": size,
            "whole": whole,
            "share left": float(spec.residual) / whole,
            "area": float(spec.area()) / (math.sqrt(trained) * whole),
            "independent": float((spec.sigma > 0).sum()),
            "never on": float((~on).all(dim=0).sum()),
            "always on": float(on.all(dim=0).sum()),
            "on, of a sample": float(on.double().sum(dim=1).mean()),
        }
        for what, (at, values) in curves.items():
            pairs = zip(at.tolist(), values.tolist(), strict=True)
            out += [dict(rows=rows, what=what, at=float(a), value=v) for a, v in pairs]
        out += [dict(rows=rows, what=what, at=math.nan, value=v) for what, v in numbers.items()]
    return out


def learn_and_examine(
    samples: Dataset,
    *,
    kind: str,
    units: int,
    epochs: int,
    passes: int,
    bandwidth: float,
    alpha: float,
    seed: int,
    steps: Real[Tensor, " t"],
    tau: Float[Tensor, " t"],
    etas: Sequence[float] = ETAS,
    device: str | torch.device = "cpu",
) -> list[dict[str, Any]]:
    """One run of figures 1 and 5: :func:`learn` on the first half of ``samples``, :func:`examine` on both.

    Samples are scaled to length one, and their labels moved to [-1, 1].
    """
    x, half = unit_rows(samples.x), len(samples) // 2
    low, high = samples.y.min(), samples.y.max()
    y = 2 * (samples.y - low) / (high - low) - 1
    learned = learn(
        kind,
        x[:half],
        y[:half],
        units=units,
        epochs=epochs,
        passes=passes,
        bandwidth=bandwidth,
        alpha=alpha,
        seed=seed,
        device=device,
    )
    return examine(learned(x), y, trained=half, etas=etas, steps=steps, tau=tau)
