"""Effects as the first edition's pages call them: without names, which the claim gives them in a dict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from repalign.press import effects
from repalign.press.effects import LEVEL, Effect
from repalign.press.effects import student as interval

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Effect", "above", "below", "interval", "ordered", "ratio", "share", "spearman", "within"]


def above(values: Iterable[float], bound: float = 0.0, *, paper: float | None = None) -> Effect:
    """The mean over independent runs lies above ``bound``."""
    return effects.above("", values, bound, paper=paper)


def below(values: Iterable[float], bound: float = 0.0, *, paper: float | None = None) -> Effect:
    """The mean over independent runs lies below ``bound``."""
    return effects.below("", values, bound, paper=paper)


def within(values: Iterable[float], low: float, high: float, *, paper: float | None = None) -> Effect:
    """The mean over independent runs lies from ``low`` to ``high``."""
    return effects.within("", values, low, high, paper=paper)


def share(
    hits: int,
    trials: int,
    *,
    above: float | None = None,
    below: float | None = None,
    paper: float | None = None,
) -> Effect:
    """The share ``hits / trials`` lies above (or below) a bound, one half by default."""
    return effects.share("", hits, trials, above=above, below=below, paper=paper)


def ordered(runs: pd.DataFrame, *columns: str | Sequence[str]) -> dict[str, Effect]:
    """Effects that say that each column lies above the next, the difference taken run by run.

    ``runs`` has a row for each independent run. Where its index has several levels the last counts the
    runs, and the comparison is made for every value of those before it. Several columns in one place are
    each compared with all in the next.

    >>> import pandas as pd
    >>> areas = pd.DataFrame({"trained": [5.0, 6.0], "pixels": [1.0, 1.5], "HOG": [2.0, 2.5]})
    >>> [f"{k}: {v.mean:g}" for k, v in ordered(areas, "trained", ["pixels", "HOG"]).items()]
    ['trained above pixels: 4.25', 'trained above HOG: 3.25']
    """
    places = [[place] if isinstance(place, str) else list(place) for place in columns]
    missing = [name for place in places for name in place if name not in runs]
    if missing or len(places) < 2:
        raise ValueError(
            f"ordered compares two columns or more of {', '.join(map(str, runs.columns))}, but got {columns}."
        )
    if runs.index.nlevels > 1:
        parts = runs.groupby(level=list(range(runs.index.nlevels - 1)), sort=False)
        return {
            f"{', '.join(map(str, key if isinstance(key, tuple) else (key,)))}: {name}": effect
            for key, part in parts
            for name, effect in ordered(part.reset_index(drop=True), *columns).items()
        }
    found = {}
    for high, low in ((a, b) for first, then in pairwise(places) for a in first for b in then):
        found[f"{high} above {low}"] = above(runs[high] - runs[low])
    return found


def ratio(top: Iterable[float], bottom: Iterable[float], level: float = LEVEL) -> tuple[float, float, float]:
    """The ratio of two means over the same runs, with the ends of Fieller's interval: for the eye.

    For a verdict ask the same of a difference: "more than half of" is ``above(top - bottom / 2)``, which has
    a value per run and the same answer. The ends are infinite where the mean of ``bottom`` may be 0: nothing
    is known of the ratio then.

    >>> tuple(round(v, 2) for v in ratio([1.9, 2.1, 2.3], [0.9, 1.0, 1.1]))
    (2.1, 2.08, 2.13)
    """
    from scipy import stats

    a, b = (np.asarray(list(values), dtype=float) for values in (top, bottom))
    if a.shape != b.shape or a.ndim != 1 or len(a) < 2:
        raise ValueError(
            f"a ratio needs both quantities in the same two runs or more, but they have shapes {a.shape} and "
            f"{b.shape}."
        )
    n = len(a)
    # The ratios r for which the mean of a - r b differs from 0 by no more than its error.
    t = float(stats.t.ppf((1 + level) / 2, n - 1))
    aa, ab, bb = (float(v) for v in np.cov(a, b)[[0, 0, 1], [0, 1, 1]] * t * t / n)
    square = b.mean() ** 2 - bb
    if square <= 0:
        return float(a.mean() / b.mean()), -math.inf, math.inf
    middle = a.mean() * b.mean() - ab
    half = math.sqrt(max(0.0, middle**2 - square * (a.mean() ** 2 - aa)))
    return float(a.mean() / b.mean()), float((middle - half) / square), float((middle + half) / square)


def spearman(
    x: Iterable[float], y: Iterable[float], *, draws: int = 1000, level: float = LEVEL
) -> tuple[float, float, float]:
    """Spearman's correlation of two quantities, with the ends of its bootstrap interval: for the eye.

    Pairs are drawn again with replacement, ``draws`` times, by a fixed seed. A draw in which all values of
    one quantity are the same has no correlation and is left out. Fewer than three pairs, or a quantity that
    never changes, tell nothing: NaN, from -1 to 1.

    >>> spearman(range(20), [v**3 for v in range(20)])[0]
    1.0
    """
    from scipy import stats

    pairs = np.stack([np.asarray(list(v), dtype=float) for v in (x, y)])
    n = pairs.shape[1]
    if not np.isfinite(pairs).all():
        raise ValueError("a correlation needs finite values, but some are NaN or infinite: leave them out.")
    if n < 3 or (np.ptp(pairs, axis=1) == 0).any():
        return math.nan, -1.0, 1.0
    rng = np.random.Generator(np.random.PCG64(0))
    ranks = stats.rankdata(pairs[:, np.vstack([np.arange(n), rng.integers(n, size=(draws, n))])], axis=2)
    a, b = ranks - ranks.mean(axis=2, keepdims=True)
    power = (a * a).sum(axis=1) * (b * b).sum(axis=1)
    some = power > 0
    r = (a * b).sum(axis=1)[some] / np.sqrt(power[some])
    low, high = np.quantile(r[1:], [(1 - level) / 2, (1 + level) / 2])
    return float(np.clip(r[0], -1, 1)), float(low), float(high)
