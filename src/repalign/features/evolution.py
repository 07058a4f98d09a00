"""How layers change while a network trains (Sharon & Dar §3): every logged epoch beside every other.

``Evolution`` is a ``measure`` for :func:`repalign.train.fit`: at each logged epoch it measures errors and
keeps the kernels of layers on some probe images, never the weights. Afterwards one product gives CKA of all
pairs of epochs. The functions at the end put numbers to what a reader sees in such a map.

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
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from repalign.features.hooks import extract
from repalign.kernels.grid import Packer, product
from repalign.train import accuracy

Pair = tuple[Tensor, Tensor]
KINDS = ("training", "recomputed")  # batch-norm statistics


class Kernels:
    """Kernels of layers, kept as they come, for the CKA of every pair of times.

    Each is centered, scaled to length one and packed: 5/8 n² numbers, or with batches of m samples 5/8 nm,
    whatever the width of a layer. They go to temporary files, which the system holds in memory while there is
    room. With ``batch_size`` CKA is the average over batches (Sharon F.2: 4 of 512).
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
        self,
        probe: Tensor,
        train: Pair,
        test: Pair,
        layers: str | Sequence[str] | None = None,
        *,
        keep: Sequence[str] = ("recomputed",),
        **options: Any,
    ) -> None:
        self.probe, self.layers = probe, layers
        self.sets = {"train": train, "test": test}
        self.kernels = {kind: Kernels(**options) for kind in KINDS if kind in keep}
        self.epochs: list[float] = []
        self.errors: list[dict[str, Any]] = []

    def __call__(self, net: nn.Module, epoch: float) -> list[dict[str, Any]]:
        self.epochs.append(epoch)
        rows: list[dict[str, Any]] = []
        for kind, model in zip(KINDS, (net, recomputed(net, self.sets["train"][0])), strict=True):
            if kind in self.kernels:
                found = extract(model, self.probe, self.layers)
                self.kernels[kind].keep({layer: phi.to(self.probe.device) for layer, phi in found.items()})
            if not rows or model is not net:
                wrong = {name: 1 - accuracy(model, *pair) for name, pair in self.sets.items()}
            rows.append({"epoch": epoch, "statistics": kind, **wrong})
        self.errors += rows
        return rows

    def cka(self, debiased: bool = False, statistics: str = "recomputed") -> dict[str, Tensor]:
        """CKA of every logged epoch with every other: {layer: (epochs, epochs)}."""
        return self.kernels[statistics].cka(debiased)


def recomputed(net: nn.Module, x: Tensor) -> nn.Module:
    """A copy of ``net`` whose batch norm has the statistics of ``x``; ``net`` itself where there is none."""
    if not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in net.modules()):
        return net
    new = copy.deepcopy(net)
    update_bn(x.chunk(math.ceil(len(x) / 500)), new)
    return new


class Milestones(NamedTuple):
    """Positions among the logged epochs: the first with a perfect fit (or None), the best, the late ones."""

    fit: int | None
    best: int
    late: list[int]


def milestones(epochs: Any, train: Any, test: Any, *, perfect: float = 0.005) -> Milestones:
    """Perfect fitting starts with the first training error of at most ``perfect``; the lowest test error
    before it (of all, where it never starts) is the best; late are the epochs of the last quarter.

    >>> milestones([0, 1, 2, 4, 8, 9], [0.9, 0.5, 0.1, 0, 0, 0], [0.9, 0.5, 0.3, 0.4, 0.2, 0.2])
    Milestones(fit=3, best=2, late=[4, 5])
    """
    at = np.asarray(epochs, float)
    fits = np.flatnonzero(np.asarray(train, float) <= perfect)
    fit = int(fits[0]) if len(fits) else None
    best = int(np.argmin(np.asarray(test, float)[: fit or None]))
    return Milestones(fit, best, np.flatnonzero(at >= 0.75 * at[-1]).tolist())


def returned(cka: Any, best: int, late: Sequence[int]) -> float:
    """Mean CKA of ``late`` epochs with the first epoch, minus that with the ``best``."""
    rows = np.asarray(cka, float)[list(late)]
    return float(rows[:, 0].mean() - rows[:, best].mean())


def set_apart(cka: Any, late: Sequence[int]) -> float:
    """Mean CKA of pairs of ``late`` epochs, minus that of late with earlier ones; NaN without such pairs."""
    values, mine = np.asarray(cka, float), np.isin(np.arange(len(cka)), list(late))
    return _mean(values[np.triu(np.outer(mine, mine), 1)]) - _mean(values[np.outer(mine, ~mine)])


def change(cka: Any, epochs: Any = None, *, ratio: float = math.inf) -> float:
    """Mean of 1 − CKA over pairs of different epochs, those whose ``ratio`` is at most that; NaN without any.

    Epoch 0 is in no pair of a finite ratio.

    >>> change([[1.0, 0.5], [0.5, 1.0]])
    0.5
    """
    values = np.asarray(cka, float)
    near = np.triu(np.ones(values.shape, bool), 1)
    if math.isfinite(ratio):
        at = np.asarray(epochs, float)
        near &= (at[None, :] <= ratio * at[:, None] * (1 + 1e-9)) & (at[:, None] > 0)
    return _mean(1 - values[near])


def novelty(cka: Any, epochs: Any, *, window: float = 3.0) -> np.ndarray:
    """How much a new block begins at each epoch s: mean CKA of pairs on one side of s, minus across it.

    Sides are the epochs from s / ``window`` up to s, and from s on to s · ``window``. NaN where the logged
    epochs do not reach as far, or where a side has fewer than two of them.
    """
    values, at = np.asarray(cka, float), np.asarray(epochs, float)
    found = np.full(len(at), np.nan)
    first = at[at > 0].min(initial=math.inf)
    pairs = np.triu(np.ones(values.shape, bool), 1)
    for i, s in enumerate(at):
        before = (at >= s / window * (1 - 1e-9)) & (at < s)
        after = (at >= s) & (at <= s * window * (1 + 1e-9))
        whole = first <= s / window * (1 + 1e-9) and s * window * (1 - 1e-9) <= at[-1]
        if whole and min(before.sum(), after.sum()) > 1:
            same = np.outer(before, before) | np.outer(after, after)
            found[i] = values[pairs & same].mean() - values[pairs & np.outer(before, after)].mean()
    return found


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else math.nan
