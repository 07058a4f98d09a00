"""The losses, optimizers, schedules and augmentation that the papers name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

V = TypeVar("V")

Loss = Callable[[Tensor, Tensor], Tensor]
Schedule = Callable[[float, int], float]
Augment = Callable[[Tensor, torch.Generator], Tensor]


def squared(output: Tensor, y: Tensor) -> Tensor:
    """Squared error of each sample, summed over outputs; class numbers count as one-hot."""
    if by_class(output, y):
        y = y[:, None] == torch.arange(output.shape[1], device=y.device)
    if len(y) != len(output) or y.numel() != output.numel():
        raise ValueError(
            f"squared loss needs a target for each of the model's outputs {_per_sample(output)}, or class "
            f"numbers, but the labels are {y.dtype} {_per_sample(y)}."
        )
    if not y.is_floating_point():
        y = y.to(torch.promote_types(output.dtype, torch.float32))
    return (output.reshape(len(y), -1) - y.reshape(len(y), -1)).square().sum(dim=1)


def logistic(output: Tensor, y: Tensor) -> Tensor:
    """log(1 + exp(−f·y)) / log 2 of each sample, with labels ±1 (Imani §2)."""
    if output.numel() != len(y) or y.numel() != len(y):
        raise ValueError(
            f"logistic loss needs one output and one label ±1 per sample, but there are outputs "
            f"{_per_sample(output)} and labels {_per_sample(y)}. For several outputs take cross_entropy."
        )
    return functional.softplus(-output.reshape(len(y)) * y.reshape(len(y))) / math.log(2)


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each sample, with class numbers or probabilities of classes as labels."""
    numbers = not y.is_floating_point() and y.shape == (*output.shape[:1], *output.shape[2:])
    if output.ndim < 2 or output.shape[1] < 2 or not (numbers or y.shape == output.shape):
        raise ValueError(
            f"cross_entropy needs an output for each class, and class numbers (integers) as labels or a "
            f"probability for each class, but there are outputs {_per_sample(output)} and {y.dtype} labels "
            f"{_per_sample(y)}."
        )
    return functional.cross_entropy(output, y.long() if numbers else y, reduction="none")


LOSSES: dict[str, Loss] = {"squared": squared, "logistic": logistic, "cross_entropy": cross_entropy}


@dataclass(frozen=True)
class SeesModel:
    """A loss that needs more than the outputs: ``SeesModel(f)`` is called as ``f(model, x, y)``.

    ``f`` returns a value per sample, or their mean. It runs the model itself: once, twice, or in part.
    """

    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]


def by_class(output: Tensor, y: Tensor) -> bool:
    """Are these class numbers beside an output for each class?"""
    return output.ndim == 2 and output.shape[1] > 1 and y.ndim == 1 and not y.is_floating_point()


def _per_sample(value: Tensor) -> str:
    return f"of shape (n{''.join(f', {side}' for side in value.shape[1:])})"


def _fused(parameters: Sequence[Tensor]) -> bool:
    """One kernel for all parameters, where torch has it: 1.5 times faster steps for a small MLP."""
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)


# Parameters, learning rate, momentum, weight decay; those of others are called by name, see optimizers.
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
