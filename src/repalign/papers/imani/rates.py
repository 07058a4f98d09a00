"""Several learning rates, and the network of the best: how the papers choose where they name no rate.

>>> import torch
>>> x = torch.linspace(-1, 1, 64)[:, None]
>>> how = dict(loss="squared", optimizer="sgd", epochs=20, seed=0)
>>> line, history = fit_best_rate(lambda: torch.nn.Linear(1, 1), x, 3 * x, rates=(0.001, 0.5, 1e6), **how)
>>> history.loss[-1] < 0.001                # 0.5: the first hardly moves, the last diverges
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from repalign.train.history import DivergedError, History
from repalign.train.loop import fit

M = TypeVar("M", bound=nn.Module)


def fit_best_rate(
    new: Callable[[], M], x: Tensor, y: Tensor, *, rates: Sequence[float], **how: Any
) -> tuple[M, History]:
    """Train a ``new()`` network with each of ``rates``; the one whose last epoch has the lowest loss.

    ``how`` are options of :func:`fit`. A rate at which training diverges is passed over.
    """
    if not rates:
        raise ValueError("rates should hold one learning rate or more, but is empty.")
    tried = []
    for rate in rates:
        model = new()
        try:
            tried.append((model, fit(model, x, y, lr=rate, **how)))
        except DivergedError as error:
            last = error
    if not tried:
        raise DivergedError(
            f"training diverged with each of the rates {list(rates)}: try smaller ones."
        ) from last
    return min(tried, key=lambda one: one[1].loss[-1])
