"""Numbers for what a reader sees in a map of CKA over epochs (Sharon & Dar §3): blocks, drift, return.

A map is (epochs, epochs), the first epoch is initialization, and epochs rise.

>>> two = np.kron(np.eye(2), np.ones((4, 4)))       # two blocks of four epochs with nothing in common
>>> novelty(two, [2, 3, 4, 5, 6, 8, 11, 18])[3:6]
array([nan,  1., nan])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

STILL = 1e-5  # a median novelty at or below this is that of a layer that hardly changes


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
    fits = np.flatnonzero(np.asarray(train, float) <= perfect + 1e-9)  # one of 200 is 0.5%, rounded up
    fit = int(fits[0]) if len(fits) else None
    best = int(np.argmin(np.asarray(test, float)[: fit or None]))
    return Milestones(fit, best, np.flatnonzero(at >= 0.75 * at[-1]).tolist())


def summary(cka: Any, epochs: Any, when: Milestones) -> dict[str, float]:
    """What the functions below say of one map, NaN where they cannot.

    Novelties are over their median (``largest`` is not); of a layer that is still most of the time, with a
    median of at most 1e-5, there is no such ratio.
    """
    new = novelty(cka, epochs)
    there = new[np.isfinite(new)] if np.isfinite(new).any() else np.full(1, np.nan)
    middle = float(np.median(there))
    middle = middle if middle > STILL else math.nan
    return {
        "change": change(cka),
        "nearby": change(cka, epochs, ratio=1.5),
        "returned": math.nan if when.fit is None else returned(cka, when.best, when.late),
        "peak": float(there.max() / middle),
        "largest": float(there.max()),
        "at_fit": math.nan if when.fit is None else float(new[when.fit] / middle),
        "set_apart": set_apart(cka, when.late),
    }


def described(
    errors: Iterable[Mapping[str, Any]], maps: Mapping[str, Mapping[str, Any]], *, perfect: float = 0.005
) -> list[dict[str, Any]]:
    """A row for each kind of map and each layer of what :func:`~repalign.papers.sharon.watched` found.

    Beside the summary of its map, errors of the whole network, with recomputed statistics: the epoch in which
    perfect fitting starts (``start``, NaN if never), the ``best`` test error before it, the ``highest`` since
    then (``highest_stale`` with the statistics of training; NaN if there is none), and the ``last``.
    """
    rows = list(errors)
    stale, fresh = ([r for r in rows if r["statistics"] == kind] for kind in ("training", "recomputed"))
    epochs, test = [r["epoch"] for r in fresh], [r["test"] for r in fresh]
    when = milestones(epochs, [r["train"] for r in fresh], test, perfect=perfect)
    whole = {
        "start": math.nan if when.fit is None else float(epochs[when.fit]),
        "best": test[when.best],
        "highest": max(test[when.best + 1 :], default=math.nan),
        "highest_stale": max((r["test"] for r in stale[when.best + 1 :]), default=math.nan),
        "last": test[-1],
    }
    return [
        {"kind": kind, "layer": layer, **whole, **summary(cka, epochs, when)}
        for kind, layers in maps.items()
        for layer, cka in layers.items()
    ]


def returned(cka: Any, best: int, late: Sequence[int]) -> float:
    """Mean CKA of ``late`` epochs with the first epoch, minus that with the ``best``."""
    rows = np.asarray(cka, float)[list(late)]
    return float(rows[:, 0].mean() - rows[:, best].mean())


def set_apart(cka: Any, late: Sequence[int]) -> float:
    """Mean CKA of pairs of ``late`` epochs, minus that of late with earlier ones; NaN without such pairs."""
    values, mine = np.asarray(cka, float), np.isin(np.arange(len(cka)), list(late))
    return _mean(values[np.triu(np.outer(mine, mine), 1)]) - _mean(values[np.outer(mine, ~mine)])


def change(cka: Any, epochs: Any = None, *, ratio: float = math.inf) -> float:
    """Mean of 1 − CKA over pairs of epochs, those with at most this ``ratio`` (never 0); NaN without any."""
    values = np.asarray(cka, float)
    near = np.triu(np.ones(values.shape, bool), 1)
    if math.isfinite(ratio):
        at = np.asarray(epochs, float)
        near &= (at[None, :] <= ratio * at[:, None] * (1 + 1e-9)) & (at[:, None] > 0)
    return _mean(1 - values[near])


def novelty(cka: Any, epochs: Any, *, window: float = 3.0) -> np.ndarray:
    """How much a new block begins at each epoch s: mean CKA of pairs on one side of s, minus across it.

    Sides are the epochs from s / ``window`` up to s, and from s on to s · ``window``. NaN where the logged
    epochs do not reach as far, or where a side has fewer than three of them: among the first epochs, which
    are whole numbers, sides would be so uneven that a steady drift looks like a new block.
    """
    values, at = np.asarray(cka, float), np.asarray(epochs, float)
    found = np.full(len(at), np.nan)
    for i, s in enumerate(at):
        low, high = s / window * (1 - 1e-9), s * window * (1 + 1e-9)
        sides = [np.flatnonzero(side) for side in ((at >= low) & (at < s), (at >= s) & (at <= high))]
        whole = at[at > 0].min() <= s / window * (1 + 1e-9) and s * window * (1 - 1e-9) <= at[-1]
        if whole and min(map(len, sides)) > 2:
            same = [values[np.ix_(side, side)][np.triu_indices(len(side), 1)] for side in sides]
            found[i] = np.concatenate(same).mean() - values[np.ix_(*sides)].mean()
    return found


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else math.nan
