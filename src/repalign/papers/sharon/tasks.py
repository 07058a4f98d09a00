"""A task as networks see it: images of the size that they take, and labels some of which are wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from repalign.data.labels import noisy
from repalign.data.loading import Dataset, load

Pair = tuple[Float[Tensor, "n c side side"], Int[Tensor, " n"]]


def train_test(name: str, n: int, n_test: int, seeds: Iterable[int]) -> list[dict[str, Any]]:
    """For every seed a ``sample`` of the training set and one of the ``test`` set, as cells take them.

    Sets that have fewer give what they have.

    >>> [(one["seed"], len(one["sample"]), len(one["test"])) for one in train_test("mnist", 20, 30, (5, 6))]
    [(5, 20, 30), (6, 20, 30)]
    """
    return [
        {
            "seed": seed,
            "sample": load(name, n=n, seed=seed, shrink=True),
            "test": load(name, "test", n=n_test, seed=seed, shrink=True),
        }
        for seed in seeds
    ]


def noisy_task(
    sample: Dataset,
    test: Dataset,
    *,
    pixels: int,
    noise: float,
    seed: int,
    device: torch.device | str = "cpu",
) -> tuple[Pair, Pair]:
    """(images, labels) for training and for test: pixels from -1 to 1, averaged to a square of ``pixels``.

    A share ``noise`` of the labels for training is wrong, by ``seed``, as :func:`noisy` makes them.

    >>> from repalign import data
    >>> digits, new = data.load("mnist", n=20), data.load("mnist", "test", n=30)
    >>> (x, y), (z, _) = noisy_task(digits, new, pixels=7, noise=0.1, seed=0)
    >>> x.shape, int((y != digits.y).sum()), len(z)
    (torch.Size([20, 1, 7, 7]), 2, 30)
    """
    small = [adaptive_avg_pool2d(2 * of.x - 1, pixels).to(device) for of in (sample, test)]
    wrong = noisy(sample.y, noise, seed=seed, k=len(sample.classes))
    return (small[0], wrong.to(device)), (small[1], test.y.to(device))
