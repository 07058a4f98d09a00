"""What happened in a run, when to look at it, and when to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch


class DivergedError(RuntimeError):
    """The loss became NaN or infinite."""


@dataclass
class History:
    """What happened in a run.

    Per epoch: ``loss`` and ``accuracy``, averages over the epoch's samples as the network was when it saw
    each of them, the last step's ``lr``, and ``seconds``. At the chosen times, counted in ``steps``: the
    evaluations ``train_loss``, ``train_accuracy`` (of the whole training set), ``test_loss`` and
    ``test_accuracy``, and what ``measure`` returned: ``measured[epoch]`` and ``measured_steps[step]``.
    An accuracy is empty where labels are no classes. ``stopped`` says why: epochs, loss, fit or plateau.
    """

    loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    train_loss: list[float] = field(default_factory=list)
    train_accuracy: list[float] = field(default_factory=list)
    test_loss: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)
    measured: dict[int, Any] = field(default_factory=dict)
    measured_steps: dict[int, Any] = field(default_factory=dict)
    batches: int = 1  # steps of an epoch
    perfect: int = 0
    stopped: str = ""

    def rows(self) -> list[dict[str, float]]:
        """The evaluations as rows of a table: step, epoch (a fraction), and what was evaluated.

        >>> History(steps=[0, 2], batches=4, test_loss=[0.7, 0.5]).rows()
        [{'step': 0, 'epoch': 0.0, 'test_loss': 0.7}, {'step': 2, 'epoch': 0.5, 'test_loss': 0.5}]
        """
        names = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
        columns = {name: getattr(self, name) for name in names if getattr(self, name)}
        return [
            {"step": step, "epoch": step / self.batches, **{name: v[i] for name, v in columns.items()}}
            for i, step in enumerate(self.steps)
        ]

    def add_epoch(self, losses: list[float], sizes: list[int], lr: float, seconds: float, who: str) -> None:
        """The mean losses of an epoch's batches and their sizes, as one average over its samples."""
        for step, value in enumerate(losses, start=len(self.loss) * self.batches):
            check_finite(value, step, self.batches, who)
        self.loss.append(math.fsum(map(math.prod, zip(losses, sizes, strict=True))) / sum(sizes))
        self.lr.append(lr)
        self.seconds.append(round(seconds, 4))

    def plateau(self, patience: int) -> bool:
        """Is the lowest test loss older than the last ``patience`` evaluations?"""
        recent, before = self.test_loss[-patience:], self.test_loss[:-patience]
        return bool(before) and min(recent) >= min(before)


def check_finite(loss: float, step: int, batches: int, who: str) -> None:
    """Raise an error that says where and for whom the loss was lost."""
    if not math.isfinite(loss):
        raise DivergedError(
            f"the loss became {loss} at step {step} (epoch {step // batches + 1}). Try a smaller lr. {who}."
        )


def log_epochs(epochs: int, count: int = 30) -> list[int]:
    """About ``count`` epochs from 0 to ``epochs``, dense at first.

    >>> log_epochs(100, 7)
    [0, 1, 3, 6, 16, 40, 100]
    """
    grid = torch.logspace(0, math.log10(max(epochs, 1)), count - 1, dtype=torch.float64)
    return sorted({0, epochs, *(round(v) for v in grid.tolist())})


def log_steps(n: int, batch_size: int, epochs: float = 1, count: int = 30) -> list[int]:
    """About ``count`` numbers of steps from 0 to the end of ``epochs``, dense at first; for ``at_steps``.

    >>> log_steps(n=1000, batch_size=10, count=7)        # of the first epoch
    [0, 1, 3, 6, 16, 40, 100]
    """
    return log_epochs(round(epochs * math.ceil(n / batch_size)), count)
