"""How layers change while a network trains (Sharon & Dar §3): every logged epoch beside every other.

``Evolution`` is a ``measure`` for :func:`repalign.train.fit`: at each logged epoch it measures errors and
keeps the kernels of layers on some probe images, never the weights. Afterwards one product gives CKA of all
pairs of epochs, for which :mod:`repalign.papers.sharon.transitions` has numbers.

>>> from repalign import models, train
>>> x, y = torch.randn(60, 8, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
>>> net, look = models.MLP(8, 3, width=16, depth=1), Evolution(x[40:], (x[:40], y[:40]), (x[40:], y[40:]))
>>> history = train.fit(net, x[:40], y[:40], epochs=9, at=(0, 1, 3, 9), measure=look)
>>> look.epochs, {layer: tuple(of.shape) for layer, of in look.cka().items()}
([0, 1, 3, 9], {'act1': (4, 4)})
"""

from __future__ import annotations

import copy
import math
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from repalign.features.hooks import extract
from repalign.kernels.grid import Packer, product
from repalign.train import accuracy, fit, log_epochs

Pair = tuple[Tensor, Tensor]
Names = str | Sequence[str] | None
KINDS = OLD, NEW = "training", "recomputed"  # statistics of batch norm
MAPS = PLAIN, DEBIASED, STALE = "plain", "debiased", "statistics of training"


class Kernels:
    """Kernels of layers, kept as they come, for the CKA of every pair of times.

    Each is centered, scaled and packed: 5/8 n² numbers whatever the width of a layer, in temporary files,
    which the system holds in memory while there is room. With ``batch_size`` kernels are those of batches,
    and CKA is their average (Sharon F.2: 4 of 512).
    """

    def __init__(self, batch_size: int | None = None, debiased: Sequence[bool] = (False, True)) -> None:
        self.batch_size, self.debiased = batch_size, tuple(debiased)
        self.layers: list[str] = []
        self.bytes = 0
        self._files: dict[Any, Any] = {}

    def keep(self, found: Mapping[str, Tensor]) -> None:
        """Add a time: {layer: (n, d)}, the same layers and samples each time."""
        self.layers = self.layers or list(found)
        for layer in self.layers:
            for debiased in self.debiased:
                packer = Packer(found[layer], layer, "gram", debiased, self.batch_size)
                packed = torch.as_tensor(packer.pack()).float().cpu().numpy()
                self.bytes += self._file(layer, debiased).write(packed.tobytes())
                self._length = len(packed)

    def cka(self, debiased: bool = False) -> dict[str, Tensor]:
        """CKA of every time with every other: {layer: (times, times)}, in float64."""
        return {layer: self._product(self._file(layer, debiased)) for layer in self.layers}

    def _file(self, *key: Any) -> Any:
        if key not in self._files:
            self._files[key] = tempfile.TemporaryFile()  # noqa: SIM115
            weakref.finalize(self, self._files[key].close)
        return self._files[key]

    def _product(self, file: Any) -> Tensor:
        file.flush()
        packed = torch.from_numpy(np.memmap(file, np.float32, "r+").reshape(-1, self._length))
        return product(packed, packed)  # in blocks of columns, each read once


class Evolution:
    """A network through its training: called as ``measure(net, epoch)`` by ``fit``.

    ``errors`` then has rows: epoch, ``statistics`` and the shares of ``train`` and ``test`` (images, labels)
    that are classified wrongly. The statistics of batch norm lag behind the weights; "recomputed" are those
    of all training images, without augmentation, for the weights as they are, in a copy. Without batch norm
    both are the same. Kernels of ``layers`` (as for :func:`extract`) are kept on ``probe``, with the
    statistics in ``keep``; options are those of :class:`Kernels`.
    """

    def __init__(
        self, probe: Tensor, train: Pair, test: Pair, layers: Names = None, *, keep: Names = NEW, **how: Any
    ) -> None:
        self.probe, self.layers, self.sets = probe, layers, {"train": train, "test": test}
        self.kernels = {kind: Kernels(**how) for kind in KINDS if kind in (keep or ())}
        self.epochs: list[float] = []
        self.errors: list[dict[str, Any]] = []
        self.fresh: nn.Module | None = None  # the network as last seen, with recomputed statistics

    def __call__(self, net: nn.Module, epoch: float) -> list[dict[str, Any]]:
        self.epochs.append(epoch)
        self.fresh = recomputed(net, self.sets["train"][0])
        rows: list[dict[str, Any]] = []
        for kind, model in zip(KINDS, (net, self.fresh), strict=True):
            if kind in self.kernels:
                found = extract(model, self.probe, self.layers)
                self.kernels[kind].keep({layer: phi.to(self.probe.device) for layer, phi in found.items()})
            if not rows or model is not net:
                wrong = {name: 1 - accuracy(model, *pair) for name, pair in self.sets.items()}
            rows.append({"epoch": epoch, "statistics": kind, **wrong})
        self.errors += rows
        return rows

    def cka(self, debiased: bool = False, statistics: str = NEW) -> dict[str, Tensor]:
        """CKA of every logged epoch with every other: {layer: (epochs, epochs)}."""
        return self.kernels[statistics].cka(debiased)


def logged(epochs: int, looks: int | Sequence[tuple[int, int, int]]) -> list[int]:
    """So many epochs, evenly spread on a logarithmic axis, or all of them where ``looks`` are more.

    ``looks`` may also be ranges, as (start, stop, step); the last epoch is always one of them.

    >>> logged(4, 9), logged(10, ((0, 3, 1), (3, 10, 3)))
    ([0, 1, 2, 3, 4], [0, 1, 2, 3, 6, 9, 10])
    """
    if not isinstance(looks, int):
        return sorted({epochs, *(epoch for steps in looks for epoch in range(*steps))})
    return log_epochs(epochs, looks) if looks <= epochs else list(range(epochs + 1))


class Watched(NamedTuple):
    """What :func:`watched` found: rows of errors, maps by kind and layer, minutes and bytes."""

    errors: list[dict[str, Any]]
    maps: dict[str, dict[str, Tensor]]
    cost: dict[str, float]


def watched(
    net: nn.Module, train: Pair, test: Pair, *, probes: int, part: int,
    looks: int | Sequence[tuple[int, int, int]], epochs: int, names: Sequence[str] | None = None,
    kinds: Sequence[str] = MAPS, **how: Any,
) -> Watched:  # fmt: skip
    """Train ``net`` by ``fit(net, *train, epochs=epochs, **how)`` and follow its layers, ``net.probed``.

    There are ``looks`` at it (see :func:`logged`), on the first ``probes`` test samples, in batches of
    ``part``. ``kinds`` of maps: plain, debiased, and plain with the statistics of training, which networks
    without batch norm do not have. ``names`` are what to call the layers.
    """
    kinds = [kind for kind in kinds if kind != STALE or _has_batch_norm(net)]
    biased = tuple(kind == DEBIASED for kind in kinds if kind != STALE)
    look = Evolution(test[0][:probes], train, test, batch_size=part, debiased=biased)
    look.kernels |= {OLD: Kernels(part, debiased=(False,))} if STALE in kinds else {}
    begun = time.perf_counter()
    history = fit(net, *train, epochs=epochs, at=logged(epochs, looks), measure=look, **how)
    spent, trained = time.perf_counter() - begun, sum(history.seconds)
    maps = {kind: look.cka(kind == DEBIASED, OLD if kind == STALE else NEW) for kind in kinds}
    minutes = trained, spent - trained, time.perf_counter() - begun - spent
    cost = {
        f"{what}, minutes": v / 60 for what, v in zip(("training", "looks", "maps"), minutes, strict=True)
    }
    cost["kept kernels, MB"] = look.kernels[NEW].bytes / len(biased) / 1e6  # of one kind
    weights = sum(v.numel() * v.element_size() for v in net.state_dict().values())
    cost["checkpoints would be, MB"] = weights * len(look.epochs) / 1e6
    called = names or look.kernels[NEW].layers
    maps = {
        kind: {name: cka.float() for name, cka in zip(called, of.values(), strict=True)}
        for kind, of in maps.items()
    }
    return Watched(look.errors, maps, cost)


def recomputed(net: nn.Module, x: Tensor) -> nn.Module:
    """A copy of ``net`` whose batch norm has the statistics of ``x``; ``net`` itself where there is none."""
    if not _has_batch_norm(net):
        return net
    new = copy.deepcopy(net)
    update_bn(x.chunk(math.ceil(len(x) / 500)), new)
    return new


def _has_batch_norm(net: nn.Module) -> bool:
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in net.modules())
