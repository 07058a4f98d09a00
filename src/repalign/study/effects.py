"""Effects: named quantities with a value per independent run, an interval, and the side a paper claims.

The 95% interval answers: **yes** when all of it lies on the claimed side, **no** when all of it lies on
the other, **open** otherwise. A verdict follows from the answers; nobody passes it in.

>>> lead = above([0.3, 0.5, 0.4, 0.6])
>>> lead.answer, [round(end, 2) for end in lead.interval]
('yes', [0.24, 0.66])
>>> verdict([lead, below([1.0, -1.0, 0.5])])
'PARTLY'
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
VERDICTS = ("EXACT", "SHOWN", "REPRODUCED", "PARTLY", "OPEN", "NOT REPRODUCED", "UNTESTED")


@dataclass(frozen=True)
class Effect:
    """One quantity: its values, the side on which the paper says it lies, and what the interval answers.

    values    one per independent run; for a share the number of hits and the number of trials
    side      above, below or within
    bound     [bound], or [low, high] for within
    interval  [low, high], or None where a single run gives none
    kind      runs, or share
    paper     the paper's own value, where it gives one
    """

    values: list[float]
    side: str
    bound: list[float]
    mean: float
    interval: list[float] | None
    kind: str = "runs"
    paper: float | None = None

    @property
    def answer(self) -> str:
        """yes, no or open."""
        if self.interval is None:
            return "open"
        low, high = self.interval
        if self.side == "above":
            yes, no = low > self.bound[0], high < self.bound[0]
        elif self.side == "below":
            yes, no = high < self.bound[0], low > self.bound[0]
        else:
            yes = self.bound[0] <= low and high <= self.bound[1]
            no = high < self.bound[0] or low > self.bound[1]
        return "yes" if yes else "no" if no else "open"

    def as_json(self, name: str) -> dict[str, Any]:
        """The effect under its name, as a claim's file holds it."""
        return {"name": name, **asdict(self), "answer": self.answer}


def above(values: Iterable[float], bound: float = 0.0, *, paper: float | None = None) -> Effect:
    """The mean over independent runs lies above ``bound``: Student's interval decides.

    ``values`` has one value per run that shares nothing with the others but what the claim holds fixed:
    differences of two conditions are taken run by run first. ``paper`` is the paper's own value, if any.

    >>> above([1.0, 2.0, 3.0]).answer          # from -0.48 to 4.48
    'open'
    """
    return _of_runs(values, "above", [bound], paper)


def below(values: Iterable[float], bound: float = 0.0, *, paper: float | None = None) -> Effect:
    """The mean over independent runs lies below ``bound``; see :func:`above`."""
    return _of_runs(values, "below", [bound], paper)


def within(values: Iterable[float], low: float, high: float, *, paper: float | None = None) -> Effect:
    """The mean over independent runs lies from ``low`` to ``high``; see :func:`above`.

    >>> within([0.58, 0.61, 0.6], 0.5, 0.7).answer
    'yes'
    """
    if not low < high:
        raise ValueError(f"within should get a low below its high, but got {low} and {high}.")
    return _of_runs(values, "within", [low, high], paper)


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


def share(
    hits: int,
    trials: int,
    *,
    above: float | None = None,
    below: float | None = None,
    paper: float | None = None,
) -> Effect:
    """The share ``hits / trials`` lies above (or below) a bound, one half by default: Wilson's interval.

    >>> share(9, 10).answer, share(6, 10).answer
    ('yes', 'open')
    """
    if above is not None and below is not None:
        raise ValueError("a share has one side: give above= or below=, not both.")
    side = "below" if below is not None else "above"
    bound = 0.5 if above is None and below is None else float(above if below is None else below)  # type: ignore[arg-type]
    if int(hits) != hits or int(trials) != trials or not 0 <= hits <= trials or trials < 1:
        raise ValueError(
            f"a share should be a number of hits out of at least one trial, but got {hits} of {trials}."
        )
    if not 0 <= bound <= 1:
        raise ValueError(f"the bound of a share should lie from 0 to 1, but is {bound}.")
    ends = list(wilson(hits, trials))
    return Effect([float(hits), float(trials)], side, [bound], hits / trials, ends, "share", paper)


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


def interval(values: Iterable[float], level: float = LEVEL) -> tuple[float, float]:
    """Student's interval for the mean of independent runs.

    >>> tuple(round(v, 2) for v in interval([1.0, 2.0, 3.0]))
    (-0.48, 4.48)
    """
    from scipy import stats

    sample = np.asarray(list(values), dtype=float)
    if sample.ndim != 1 or len(sample) < 2:
        raise ValueError(f"an interval needs at least two runs, but got {sample.size}: raise the runs.")
    half = stats.t.ppf((1 + level) / 2, len(sample) - 1) * sample.std(ddof=1) / math.sqrt(len(sample))
    return float(sample.mean() - half), float(sample.mean() + half)


def wilson(hits: int, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's interval for a share: inside [0, 1] and honest for few trials.

    >>> tuple(round(v, 2) for v in wilson(5, 10))
    (0.24, 0.76)
    """
    from scipy import stats

    z = float(stats.norm.ppf((1 + level) / 2))
    p, extra = hits / trials, z * z / trials
    middle = (p + extra / 2) / (1 + extra)
    half = z * math.sqrt(p * (1 - p) / trials + extra / (4 * trials)) / (1 + extra)
    return max(0.0, middle - half), min(1.0, middle + half)


def verdict(effects: Iterable[Effect]) -> str:
    """The verdict that follows from the effects of a claim.

    Every effect yes: REPRODUCED, an intersection-union test whose level does not depend on how many effects
    there are. Some yes: PARTLY. None yes and some no: NOT REPRODUCED. All open: OPEN.
    """
    answers = [effect.answer for effect in effects]
    if not answers:
        raise ValueError("a claim needs at least one effect to have a verdict.")
    if "yes" in answers:
        return "REPRODUCED" if set(answers) == {"yes"} else "PARTLY"
    return "NOT REPRODUCED" if "no" in answers else "OPEN"


def _of_runs(values: Iterable[float], side: str, bound: list[float], paper: float | None) -> Effect:
    sample = np.asarray(values.tolist() if hasattr(values, "tolist") else list(values), dtype=float)
    if sample.ndim != 1 or len(sample) == 0:
        raise ValueError(
            f"an effect should have one number per independent run, but its values have shape "
            f"{sample.shape}. "
            "Average over what is not a run first."
        )
    bad = np.flatnonzero(~np.isfinite(sample))
    if len(bad):
        raise ValueError(
            f"an effect should have finite values, but {len(bad)} of {len(sample)} are NaN or infinite, the "
            f"first in run {bad[0]}. If the quantity does not exist in that run, make another effect of "
            "how often it does (share)."
        )
    if not all(math.isfinite(b) for b in bound):
        raise ValueError(f"the bound of an effect should be finite, but is {bound}.")
    ends = list(interval(sample)) if len(sample) > 1 else None
    return Effect(sample.tolist(), side, [float(b) for b in bound], float(sample.mean()), ends, paper=paper)
