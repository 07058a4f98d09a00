"""The losses, optimizers, schedules and augmentation that the papers name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

V = TypeVar("V")

Loss = Callable[[Tensor, Tensor], Tensor]
Schedule = Callable[[float, int], float]
Augment = Callable[[Tensor, torch.Generator], Tensor]


def squared(output: Tensor, y: Tensor) -> Tensor:
    """Squared error of each sample, summed over outputs."""
    return (output.reshape(len(y), -1) - y.reshape(len(y), -1)).square().sum(dim=1)


def logistic(output: Tensor, y: Tensor) -> Tensor:
    """log(1 + exp(−f·y)) / log 2 of each sample, with labels ±1 (Imani §2)."""
    return functional.softplus(-output.reshape(len(y)) * y) / math.log(2)


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each sample, with class indices as labels."""
    return functional.cross_entropy(output, y, reduction="none")


LOSSES: dict[str, Loss] = {"squared": squared, "logistic": logistic, "cross_entropy": cross_entropy}


def _fused(parameters: Sequence[Tensor]) -> bool:
    """One kernel for all parameters, where torch has it: 1.5 times faster steps for a small MLP."""
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)


# Parameters, learning rate, momentum, weight decay.
Maker = Callable[[Sequence[Tensor], float, float, float], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Maker] = {
    "sgd": lambda p, lr, m, wd: torch.optim.SGD(p, lr, weight_decay=wd),
    "momentum": lambda p, lr, m, wd: torch.optim.SGD(p, lr, momentum=m, weight_decay=wd),
    "nesterov": lambda p, lr, m, wd: torch.optim.SGD(p, lr, momentum=m, nesterov=True, weight_decay=wd),
    "adam": lambda p, lr, m, wd: torch.optim.Adam(p, lr, weight_decay=wd, fused=_fused(p)),
    "adamw": lambda p, lr, m, wd: torch.optim.AdamW(p, lr, weight_decay=wd, fused=_fused(p)),
    "rmsprop": lambda p, lr, m, wd: torch.optim.RMSprop(p, lr, weight_decay=wd),
    "adagrad": lambda p, lr, m, wd: torch.optim.Adagrad(p, lr, weight_decay=wd),
}

# The learning rate's factor at a share of all steps and an epoch counted from 0.
SCHEDULES: dict[str, Schedule] = {
    "constant": lambda share, epoch: 1.0,
    "thirds": lambda share, epoch: 3.0 ** -int(3 * share),  # Maennel A.3
    "step30": lambda share, epoch: 0.1 ** (epoch // 30),  # Imani D
    "linear": lambda share, epoch: 1 - share,
    "cosine": lambda share, epoch: (1 + math.cos(math.pi * share)) / 2,
}


def named(table: dict[str, V], given: str | V, what: str) -> V:
    """An entry of ``table``, or ``given`` itself when it is not a name."""
    if not isinstance(given, str):
        return given
    if given not in table:
        raise ValueError(f"unknown {what} {given!r}: choose one of {', '.join(table)}, or pass a function.")
    return table[given]


def crop_and_flip(x: Tensor, generator: torch.Generator, *, pad: int = 4) -> Tensor:
    """Shift every image by up to ``pad`` pixels (zeros move in) and mirror half of them.

    >>> crop_and_flip(torch.ones(2, 3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 8, 8])
    """
    n, _, height, width = x.shape

    def draw(high: int) -> Tensor:
        # Drawn on the CPU, so that every device sees the same augmentation.
        return torch.randint(high, (n,), generator=generator).to(x.device)

    padded = functional.pad(x, (pad, pad, pad, pad))
    rows = draw(2 * pad + 1)[:, None] + torch.arange(height, device=x.device)
    columns = draw(2 * pad + 1)[:, None] + torch.arange(width, device=x.device)
    flip = draw(2).bool()[:, None]
    columns = torch.where(flip, columns.flip(1), columns)
    index: tuple[Any, ...] = (torch.arange(n, device=x.device)[:, None, None], slice(None))
    return padded[(*index, rows[:, :, None], columns[:, None, :])].permute(0, 3, 1, 2)
