"""Looking at a model while it trains: evaluate, measure and keep it, at chosen times."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from repalign.train.context import device_of, evaluating, mixed, own_randomness
from repalign.train.history import History
from repalign.train.recipes import Loss, SeesModel
from repalign.train.snapshots import Writer
from repalign.train.targets import accuracy, evaluate

Measure = Callable[[nn.Module, float], Any]
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Times:
    """When to look, in steps: after whole epochs, and after steps."""

    batches: int
    ends: frozenset[int]
    steps: frozenset[int]

    @classmethod
    def of(
        cls, at: Collection[int] | None, at_steps: Collection[int] | None, epochs: int, batches: int
    ) -> Times:
        """The times ``at``, in epochs (default: all), and ``at_steps``."""
        ends = list(range(epochs + 1) if at is None else at)
        steps = [] if at_steps is None else list(at_steps)
        for name, given, last in (("at", ends, epochs), ("at_steps", steps, epochs * batches)):
            wrong = [t for t in given if not (t == int(t) and 0 <= t <= last)]
            if wrong:
                raise ValueError(f"{name} should be whole numbers from 0 to {last}, but holds {wrong[:3]}.")
        return cls(batches, frozenset(int(t) * batches for t in ends), frozenset(int(t) for t in steps))


@dataclass(frozen=True)
class Stops:
    """When to stop: see :func:`repalign.train.fit`."""

    epochs: int
    loss: float | None
    fit: int | None
    patience: int | None

    def __post_init__(self) -> None:
        for name, value in (("stop_fit", self.fit), ("patience", self.patience)):
            if value is not None and value < 1:
                raise ValueError(f"{name} should be 1 or more, but is {value}.")


@dataclass
class Best:
    """The weights at the lowest test loss so far, and that loss."""

    loss: float = math.inf
    weights: dict[str, Tensor] | None = None

    def see(self, model: nn.Module, loss: float) -> None:
        """Keep the weights of ``model`` if this is the lowest loss."""
        if loss < self.loss:
            self.loss = loss
            self.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def restore(self, model: nn.Module) -> None:
        """Give ``model`` the weights that were kept; none were where every loss was NaN."""
        if self.weights is not None:
            model.load_state_dict(self.weights)


@dataclass(frozen=True)
class Watch:
    """What to do with a model while it trains on (x, y)."""

    times: Times
    stops: Stops
    loss: Loss | SeesModel
    seed: int
    train: Pair
    full_train: bool
    test: Pair | None
    measure: Measure | None
    writer: Writer | None = None
    best: Best | None = None

    def __post_init__(self) -> None:
        if self.stops.patience is not None and self.test is None:
            raise ValueError("patience waits for a lower test loss: pass test=(x, y), too.")
        if self.best is not None and self.test is None:
            raise ValueError("best keeps the weights of the lowest test loss: pass test=(x, y), too.")
        if self.test is not None and (len(self.test[0]) != len(self.test[1]) or len(self.test[0]) == 0):
            rows = [len(part) for part in self.test]
            raise ValueError(f"test should be (x, y) with one row per sample each, but has {rows} rows.")

    def end_epoch(self, model: nn.Module, history: History) -> None:
        """Decide whether to stop, and look, after the epoch that the history has just got."""
        epoch, stops = len(history.loss), self.stops
        if stops.loss is not None and history.loss[-1] < stops.loss:
            history.stopped = "loss"
        if stops.fit is not None:
            history.perfect = history.perfect + 1 if accuracy(model, *self.train) == 1 else 0
            if history.perfect >= stops.fit:
                history.stopped = "fit"
        if epoch == stops.epochs and not history.stopped:
            history.stopped = "epochs"
        looked = self.look(model, history, epoch * self.times.batches, last=bool(history.stopped))
        if stops.patience is not None and not history.stopped and history.plateau(stops.patience):
            history.stopped = "plateau"
            if not looked:  # the evaluations that decided were inside the epoch
                self.look(model, history, epoch * self.times.batches, last=True)

    def look(self, model: nn.Module, history: History, step: int, *, last: bool = False) -> bool:
        """Evaluate, measure and keep ``model`` if this is the time, or the ``last`` one; was it?"""
        at_end, at_step = last or step in self.times.ends, step in self.times.steps
        if not (at_end or at_step):
            return False
        if self.full_train or self.test:
            history.steps.append(step)
        for name, pair in (("train", self.train if self.full_train else None), ("test", self.test)):
            if pair is not None:
                loss, share = evaluate(model, *pair, self.loss)
                getattr(history, f"{name}_loss").append(loss)
                if name == "test" and self.best is not None:
                    self.best.see(model, loss)
                if share is not None:
                    getattr(history, f"{name}_accuracy").append(share)
        if self.measure is not None:
            whole, rest = divmod(step, self.times.batches)
            # Of a seed of its own: a run that resumes measures the same, and what is drawn here does not
            # change what the training draws.
            with own_randomness(mixed(self.seed, "measure", step), device_of(model)), evaluating(model):
                found = self.measure(model, step / self.times.batches if rest else whole)
            if at_end:
                history.measured[whole] = found
            if at_step:
                history.measured_steps[step] = found
        if self.writer is not None:
            self.writer.write(model, step)
        return True
