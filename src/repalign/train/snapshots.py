"""The weights of a network at chosen times of its training, in files, to be looked at later one by one."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar, overload

import torch
from torch import nn

from repalign._files import atomic, is_sealed, seal, write_json

T = TypeVar("T")


@dataclass(frozen=True)
class Snapshot:
    """A network's weights and buffers after ``step`` steps, which is ``epoch`` epochs."""

    path: Path
    step: int
    epoch: float

    def load(self, model: nn.Module) -> nn.Module:
        """Put them into ``model``, a network of the same architecture, and return it."""
        if not is_sealed(self.path):
            raise ValueError(
                f"the snapshot {self.path} cannot be read: its bytes are not those that were written, or "
                "another version wrote it. Delete its directory, and train again."
            )
        model.load_state_dict(torch.load(self.path, map_location="cpu", weights_only=True))
        return model


class Snapshots(Sequence[Snapshot]):
    """What ``fit(..., snapshots=directory)`` has kept, in the order of time.

    ``map`` makes of them what :func:`repalign.kernels.cka_grid` and :func:`repalign.probes.fit_probes`
    read one by one, so that many representations never are in memory at once::

        kept = Snapshots("build/run7")
        K = cka_grid(kept.map(model, lambda net: extract(net, x, ["stage1"])["stage1"]))
        plot(kept.epochs, K[0])
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        try:
            batches = json.loads((self.directory / "run.json").read_text(encoding="utf-8"))["batches"]
        except (OSError, ValueError, KeyError) as error:
            raise FileNotFoundError(
                f"{directory} should be a directory that fit(..., snapshots=...) wrote, but it has no "
                f"readable run.json ({type(error).__name__})."
            ) from None
        steps = {int(path.stem.removeprefix("step-")): path for path in self.directory.glob("step-*.pt")}
        self._all = [Snapshot(steps[step], step, step / batches) for step in sorted(steps)]

    @property
    def steps(self) -> list[int]:
        """When they were taken, in steps."""
        return [one.step for one in self._all]

    @property
    def epochs(self) -> list[float]:
        """When they were taken, in epochs."""
        return [one.epoch for one in self._all]

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, index: int) -> Snapshot: ...
    @overload
    def __getitem__(self, index: slice) -> list[Snapshot]: ...
    def __getitem__(self, index: int | slice) -> Snapshot | list[Snapshot]:
        return self._all[index]

    def models(self, model: nn.Module) -> Iterator[nn.Module]:
        """The network at each time, in eval mode: one copy of ``model``, with other weights each time."""
        net = copy.deepcopy(model).eval()
        for one in self._all:
            yield one.load(net)

    def map(self, model: nn.Module, look: Callable[[nn.Module], T]) -> list[Callable[[], T]]:
        """For each time a function that computes ``look(network of that time)`` when called.

        The network is a copy of ``model``, in eval mode, and without gradients.
        """
        net = copy.deepcopy(model).eval()
        return [partial(_look, one, net, look) for one in self._all]


def _look(one: Snapshot, net: nn.Module, look: Callable[[nn.Module], T]) -> T:
    with torch.no_grad():
        return look(one.load(net))


class Writer:
    """Writes snapshots of one run into a directory of its own; ``key`` names the run."""

    def __init__(self, directory: str | Path, key: str, batches: int) -> None:
        self.directory = Path(directory)
        about, card = {"key": key, "batches": batches}, self.directory / "run.json"
        if card.exists():
            if json.loads(card.read_text(encoding="utf-8")) != about:
                raise ValueError(
                    f"the snapshots in {directory} belong to another model, data or configuration. "
                    "Delete them, or name another directory."
                )
        elif self.directory.exists() and any(self.directory.iterdir()):
            raise ValueError(f"{directory} should be empty or not exist yet, but holds something else.")
        else:
            write_json(card, about)

    def write(self, model: nn.Module, step: int) -> None:
        """Keep the model as it is after ``step`` steps."""
        with atomic(self.directory / f"step-{step:08d}.pt") as part:
            torch.save(model.state_dict(), part)
            seal(part)
