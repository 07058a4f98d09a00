"""Three ways to learn features of which a linear model can fit the training labels (Imani et al. §3, §4.2).

>>> import torch
>>> x, y = torch.eye(6), torch.arange(6.0)
>>> learn("network", x, y, units=12, epochs=1)(x).shape
torch.Size([6, 12])
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Real
from torch import Tensor

from repalign import features, models, train

KINDS = {
    "network": "ReLU network",
    "rbf": "RBF network",
    "dictionary": "dictionary learning",
}


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
        atoms = features.learn_dictionary(x, units, alpha=alpha, passes=passes, seed=seed)
        return lambda rows: features.dictionary(rows, learned=atoms, alpha=alpha)
    net: models.MLP | models.RBFNetwork
    if kind == "network":
        net = models.MLP(x.shape[1], 1, depth=1, width=units, init="torch", seed=seed)
    else:
        centers = x[torch.arange(units) % len(x)]
        net = models.RBFNetwork(x.shape[1], 1, units=units, bandwidth=bandwidth, centers=centers, seed=seed)
    net = net.to(device)
    train.fit(net, x, y, loss="squared", epochs=epochs, seed=seed)
    return lambda rows: features.extract(net, rows)[net.probed[0]]
