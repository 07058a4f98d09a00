"""Probes of the layers of a network at each logged epoch of its training (Sharon & Dar §4).

>>> from repalign import models
>>> x, y = torch.randn(60, 8, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
>>> found = probed(
...     models.MLP(8, 3, width=16, depth=1), (x[:40], y[:40]), (x[40:], y[40:]), names=["hidden"],
...     kinds={"ridge": {"method": "ridge"}}, at=(0, 1, 3), epochs=3, triplets=2, resolution=4, cka=20,
...     part=20)
>>> found.maps["ridge"]["hidden"].shape, len(found.wrong["ridge"]["hidden"])
(torch.Size([3, 3]), 3)
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from repalign.features.hooks import extract
from repalign.papers.sharon.evolution import Evolution
from repalign.papers.sharon.transitions import change, milestones
from repalign.probes import decision_region_similarity, fit_probes, planes
from repalign.train import fit

Pair = tuple[Tensor, Tensor]
POINTS = 2500  # of planes, that go through a network at a time (one plane at least)


class Probed(NamedTuple):
    """What :func:`probed` found.

    errors  of the network: rows as of :class:`repalign.papers.sharon.evolution.Evolution`
    cka     of the first layer, for every pair of logged epochs
    maps    similarity of decision regions: {kind of probe: {layer: (epochs, epochs)}}
    wrong   share of test samples that a probe gets wrong: {kind of probe: {layer: one for each epoch}}
    cost    minutes, and megabytes of classes kept
    """

    errors: list[dict[str, Any]]
    cka: Tensor
    maps: dict[str, dict[str, Tensor]]
    wrong: dict[str, dict[str, list[float]]]
    cost: dict[str, float]


def probed(
    net: nn.Module, train: Pair, test: Pair, *, names: Sequence[str], at: Sequence[int], epochs: int,
    kinds: Mapping[str, Mapping[str, Any]], triplets: int, resolution: int, cka: int, part: int,
    together: int = 10, seed: int = 0, **how: Any,
) -> Probed:  # fmt: skip
    """Train ``net`` by ``fit(net, *train, ...)``; at epochs ``at`` probe the first of ``net.probed``.

    ``names`` are what to call them. Each of ``kinds`` of probes has its options for ``fit_probes``. Probes
    of ``together`` epochs train at once, layer by layer: beside the copies of the network, with recomputed
    statistics of batch norm, only the features of one layer are in memory. Of test samples and of the
    points of planes through ``triplets`` of training samples only the classes that probes give are kept.
    CKA is that of the first ``cka`` test samples, in batches of ``part``.
    """
    (x, y), (new, truth) = train, test
    layers = list(getattr(net, "probed"))[: len(names)]  # noqa: B009
    look = Evolution(new[:cka], train, test, layers[0], batch_size=part, debiased=(False,))
    g = torch.Generator().manual_seed(seed)
    drawn = torch.stack([torch.randperm(len(x), generator=g)[:3] for _ in range(triplets)])
    nets: list[nn.Module] = []
    told: list[Tensor] = []
    spent = 0.0

    def measure(now: nn.Module, epoch: float) -> None:
        nonlocal spent
        begun = time.perf_counter()
        look(now, epoch)
        fresh = look.fresh
        assert fresh is not None
        nets.append(copy.deepcopy(now) if fresh is now else fresh)
        if len(nets) == together or epoch == epochs:
            told.append(decisions(nets, layers, train, kinds, new, drawn, resolution))
            nets.clear()
        spent += time.perf_counter() - begun

    history = fit(net, x, y, epochs=epochs, at=at, measure=measure, seed=seed, **how)
    classes, n = torch.cat(told), len(new)
    maps: dict[str, dict[str, Tensor]] = {kind: {} for kind in kinds}
    wrong: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    for k, (name, kind) in enumerate((name, kind) for name in names for kind in kinds):
        maps[kind][name] = decision_region_similarity(classes[:, k, n:])
        off = classes[:, k, :n] != truth.cpu()
        wrong[kind][name] = off.double().mean(dim=1).tolist()
    minutes = {"training, minutes": sum(history.seconds) / 60, "probes and planes, minutes": spent / 60}
    cost = {**minutes, "kept classes, MB": classes.numel() / 1e6}
    return Probed(look.errors, look.cka()[layers[0]], maps, wrong, cost)


def decisions(
    nets: Sequence[nn.Module], layers: Sequence[str], train: Pair, kinds: Mapping[str, Mapping[str, Any]],
    new: Tensor, triplets: Tensor, resolution: int,
) -> Tensor:  # fmt: skip
    """The classes that probes give to points: (nets, layers · kinds, points), planes after ``new``."""
    x, y = train
    probes = []
    for layer in layers:
        phi = torch.stack([extract(net, x, layer)[layer].to(x.device) for net in nets])
        probes += [(layer, fit_probes(phi, y, **how)) for how in kinds.values()]
    found = []
    for k, net in enumerate(nets):
        told = []
        for points in _points(new, x, triplets, resolution):
            seen = extract(net, points, layers)
            told.append(torch.stack([fits.one(k).predict(seen[a].to(x)) for a, fits in probes]).byte())
        found.append(torch.cat(told, dim=1).cpu())
    return torch.stack(found)


def _points(new: Tensor, x: Tensor, triplets: Tensor, resolution: int) -> Iterator[Tensor]:
    yield new
    for few in triplets.split(max(1, POINTS // resolution**2)):
        yield planes(x, few, resolution=resolution).flatten(0, 2)


def told_by_probes(found: Mapping[str, Any], *, perfect: float = 0.005) -> list[dict[str, Any]]:
    """Numbers of what :func:`probed` found, as a dict: a row for each kind of probe and each layer.

    ``start`` is the epoch of the first training error of at most ``perfect`` (NaN if never), the best
    epoch that with the lowest test error before. Of the similarity with initialization: ``near`` is its mean
    from the start to twice as long, minus that of the best epoch, and ``gone`` the same mean minus the last
    (NaN if that is among them). ``change`` is the mean of 1 − similarity over pairs; ``wider`` the range of
    similarities over pairs minus that of CKA. ``descent`` is the second descent of a probe's test error: from
    the highest after its own best epoch, the fall to the last or the rise from the best, whichever is
    smaller; ``own_descent`` is that of the network. Where there is no start, these are NaN.
    """
    rows = [row for row in found["errors"] if row["statistics"] == "recomputed"]
    at, train, test = ([row[key] for row in rows] for key in ("epoch", "train", "test"))
    when = milestones(at, train, test, perfect=perfect)
    start = math.nan if when.fit is None else float(at[when.fit])
    hold = [k for k, epoch in enumerate(at) if start <= epoch <= 2 * start]
    told = []
    for kind, maps in found["maps"].items():
        for layer, of in maps.items():
            held, mine = float(of[hold, 0].mean()), found["wrong"][kind][layer]
            numbers = {
                "start": start,
                "near": held - float(of[when.best, 0]),
                "gone": math.nan if 2 * start >= at[-1] else held - float(of[-1, 0]),
                "change": change(of),
                "wider": _range(of) - _range(found["cka"]),
                "descent": _second_descent(mine, when.fit),
                "own_descent": _second_descent(test, when.fit),
            }
            told.append({"kind": kind, "layer": layer, **numbers})
    return told


def _second_descent(errors: Sequence[float], fit: int | None) -> float:
    if not fit:
        return math.nan
    best = min(range(fit), key=errors.__getitem__)
    highest = max(errors[best + 1 :])
    return min(highest - errors[best], highest - errors[-1])


def _range(of: Tensor) -> float:
    pairs = of[torch.triu_indices(len(of), len(of), 1).unbind()]
    return float(pairs.max() - pairs.min())
