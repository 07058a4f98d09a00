"""Two classes of many: which to take, and alignment with the tasks of telling two apart (Imani et al. §7)."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repalign._arrays import numbers, numpy_too, same_rows, working
from repalign.alignment import pair_spectra
from repalign.data.sets import lookup


class ClassPairs(NamedTuple):
    """One row for each two classes, as ``itertools.combinations`` orders them, of n samples together.

    area   area under the curve of alignment, as a share of the largest possible, n√n
    value  the curve itself, as a share of ‖y‖² = n
    """

    area: Float[Tensor, " p"]
    value: Float[Tensor, "p t"]


@numpy_too
def class_pairs(phi: Float[Tensor, "n d"], y: Int[Tensor, " n"], tau: Float[Tensor, " t"]) -> ClassPairs:
    """Alignment of the samples of two classes with labels ±1 that tell which is which, for every two classes.

    ``y`` holds class numbers. Thresholds ``tau`` are shares of √n, the largest singular value that n rows of
    length one can have.

    >>> phi, y = torch.eye(3)[[0, 0, 1, 2]], torch.tensor([0, 0, 1, 1])
    >>> class_pairs(phi, y, torch.tensor([0.0, 0.6])).value     # all of y, then the class whose rows agree
    tensor([[1.0000, 0.5000]])
    """
    phi = numbers(phi, "phi", "n d")
    same_rows(phi, y, "phi and y")
    y, rows = y.to(phi.device), working(phi)
    areas, values = [], []
    for (first, second), spec in pair_spectra(rows @ rows.mT, y).items():
        n = int(((y == first) | (y == second)).sum())
        areas.append(spec.area() / n**1.5)
        values.append(spec.curve(tau * n**0.5).value / n)
    return ClassPairs(torch.stack(areas).to(phi), torch.stack(values).to(phi))


def class_pair(name: str, number: int) -> list[int]:
    """Two classes of a set: all pairs in one random order, counted by ``number``, from the start again after.

    Runs with different numbers, such as seeds that follow each other, have different pairs.

    >>> class_pair("cifar10", 0), class_pair("cifar10", 1), class_pair("cifar10", 45)
    ([0, 3], [4, 9], [0, 3])
    """
    every = list(combinations(range(len(lookup(name).classes)), 2))
    if not every:
        raise ValueError(f"{name} has no two classes.")
    return [int(c) for c in np.random.default_rng(0).permutation(every)[number % len(every)]]
