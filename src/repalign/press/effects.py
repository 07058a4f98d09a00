"""Effects: named quantities with a value for each independent run, an interval, and the side a paper claims.

The 95% interval answers: **yes** when all of it lies on the claimed side, **no** when all of it lies on
the other, **open** otherwise. A verdict follows from the answers; nobody passes it in. A *condition* is a
quantity that must hold for a claim to be testable at all: where it does not, the verdict is open.

>>> lead = above("layer 2 above layer 1", [0.3, 0.5, 0.4, 0.6])
>>> lead.answer, [round(end, 2) for end in lead.interval]
('yes', [0.24, 0.66])
>>> verdict([lead, below("loss falls", [1.0, -1.0, 0.5])])
'PARTLY'
>>> verdict([lead, condition("networks fit", [0.4, 0.5, 0.45], above=0.99)])
'OPEN'
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
DRAWS = 10_000  # of a bootstrap


@dataclass(frozen=True)
class Effect:
    """One quantity: its values, the side on which the paper says it lies, and what the interval answers.

    name       what it is, in words
    values     one for each independent run; for a share the number of hits and the number of trials
    side       above, below or within
    bound      [bound], or [low, high] for within
    mean       over the runs; the geometric one for a ratio
    interval   [low, high], or None where a single run gives none
    kind       runs, ratio, share, bootstrap, or exact
    paper      the paper's own value, where it gives one
    unit       of the values, such as "points" or "epochs"
    condition  True for what must hold so that the claim can be tested
    """

    name: str
    values: list[float]
    side: str
    bound: list[float]
    mean: float
    interval: list[float] | None
    kind: str = "runs"
    paper: float | None = None
    unit: str = ""
    condition: bool = False

    def __post_init__(self) -> None:
        if not all(math.isfinite(bound) for bound in self.bound):
            raise ValueError(f"{self.name}: the bound of an effect should be finite, but is {self.bound}.")

    @property
    def answer(self) -> str:
        """yes, no or open."""
        if self.interval is None:
            return "open"
        low, high = self.interval
        if self.kind == "exact":  # to rounding: the bound itself is allowed
            return "yes" if high <= self.bound[0] else "no"
        if self.side == "above":
            yes, no = low > self.bound[0], high < self.bound[0]
        elif self.side == "below":
            yes, no = high < self.bound[0], low > self.bound[0]
        else:
            yes = self.bound[0] <= low and high <= self.bound[1]
            no = high < self.bound[0] or low > self.bound[1]
        return "yes" if yes else "no" if no else "open"

    def as_json(self) -> dict[str, Any]:
        """The effect as a file holds it."""
        return {**asdict(self), "answer": self.answer}


def key_of(name: str) -> str:
    """The name of an effect as ``found`` writes it.

    >>> key_of("Layer 2 above layer 1")
    'layer_2_above_layer_1'
    """
    return re.sub(r"\W+", "_", name).strip("_").lower()


def above(
    name: str, values: Iterable[float], bound: float = 0.0, *, paper: float | None = None, unit: str = ""
) -> Effect:
    """The mean over independent runs lies above ``bound``: Student's interval decides.

    ``values`` has one value for each run that shares nothing with the others but what the claim holds fixed:
    differences of two conditions are taken run by run first. ``paper`` is the paper's own value, if any.

    >>> above("rise", [1.0, 2.0, 3.0]).answer          # from -0.48 to 4.48
    'open'
    """
    return _of_runs(name, values, "above", [bound], paper, unit)


def below(
    name: str, values: Iterable[float], bound: float = 0.0, *, paper: float | None = None, unit: str = ""
) -> Effect:
    """The mean over independent runs lies below ``bound``; see :func:`above`."""
    return _of_runs(name, values, "below", [bound], paper, unit)


def within(
    name: str,
    values: Iterable[float],
    low: float,
    high: float,
    *,
    paper: float | None = None,
    unit: str = "",
) -> Effect:
    """The mean over independent runs lies from ``low`` to ``high``; see :func:`above`.

    >>> within("slope", [0.58, 0.61, 0.6], 0.5, 0.7).answer
    'yes'
    """
    if not low < high:
        raise ValueError(f"{name}: within needs a low below its high, but got {low} and {high}.")
    return _of_runs(name, values, "within", [low, high], paper, unit)


def condition(
    name: str,
    values: Iterable[float],
    *,
    above: float | None = None,
    below: float | None = None,
    unit: str = "",
) -> Effect:
    """What must hold for the claim to be testable at all, such as that the networks fit their labels.

    It holds when its answer is yes: the interval of the mean over runs lies on the right side of the bound.

    >>> condition("training accuracy", [1.0, 1.0], above=0.99).answer
    'yes'
    """
    if (above is None) == (below is None):
        raise ValueError(f"the condition {name!r} has one side: give above= or below=, and not both.")
    side, bound = ("above", above) if above is not None else ("below", below)
    assert bound is not None
    return required(_of_runs(name, values, side, [bound], None, unit))


def required(effect: Effect) -> Effect:
    """``effect`` as a condition: the claim can only be tested where its answer is yes.

    >>> fits = required(share("networks that fit", 40, 48, above=0.5))
    >>> fits.condition, verdict([above("rise", [1.0, 1.1]), fits])
    (True, 'REPRODUCED')
    """
    return replace(effect, condition=True)


def at_most(name: str, deviations: Iterable[float], limit: float) -> Effect:
    """An exact statement: no deviation, in whatever trial, is larger than ``limit``.

    >>> at_most("columns are orthonormal", [1e-12, 3e-11], 1e-8).answer
    'yes'
    """
    sample = _sample(name, deviations)
    largest = float(sample.max())
    return Effect(name, [largest], "below", [float(limit)], largest, [largest, largest], "exact")


def ratio(
    name: str,
    top: Iterable[float],
    bottom: Iterable[float],
    *,
    above: float | None = None,
    below: float | None = None,
    paper: float | None = None,
) -> Effect:
    """The geometric mean of ``top / bottom`` over runs lies above (or below) a bound: Student's, in logs.

    >>> double = ratio("twice as wide", [2.0, 4.1, 1.9], [1.0, 2.0, 1.0], above=1.5)
    >>> double.answer, round(double.mean, 2)
    ('yes', 1.98)
    """
    if above is not None and below is not None:
        raise ValueError(f"the ratio {name!r} has one side: give above= or below=, and not both.")
    a, b = _sample(name, top), _sample(name, bottom)
    if a.shape != b.shape:
        raise ValueError(
            f"{name}: a ratio needs both quantities in every run, but got {len(a)} and {len(b)}."
        )
    if (a <= 0).any() or (b <= 0).any():
        raise ValueError(f"{name}: a ratio needs positive values; compare a difference with 0 instead.")
    logs = np.log(a / b)
    ends = [math.exp(end) for end in student(logs)] if len(logs) > 1 else None
    side = "below" if below is not None else "above"
    bound = below if below is not None else 1.0 if above is None else above
    mean = math.exp(float(logs.mean()))
    return Effect(name, (a / b).tolist(), side, [float(bound)], mean, ends, "ratio", paper)


def share(
    name: str,
    hits: int,
    trials: int,
    *,
    above: float | None = None,
    below: float | None = None,
    paper: float | None = None,
) -> Effect:
    """The share ``hits / trials`` lies above (or below) a bound, one half by default: Wilson's interval.

    >>> share("runs that fall", 9, 10).answer, share("runs that rise", 6, 10).answer
    ('yes', 'open')
    """
    if above is not None and below is not None:
        raise ValueError(f"the share {name!r} has one side: give above= or below=, and not both.")
    side = "below" if below is not None else "above"
    bound = float(below) if below is not None else 0.5 if above is None else float(above)
    if int(hits) != hits or int(trials) != trials or not 0 <= hits <= trials or trials < 1:
        raise ValueError(
            f"{name}: a share is a number of hits out of at least one trial, but got {hits} of {trials}."
        )
    if not 0 <= bound <= 1:
        raise ValueError(f"{name}: the bound of a share should lie from 0 to 1, but is {bound}.")
    ends = list(wilson(hits, trials))
    return Effect(name, [float(hits), float(trials)], side, [bound], hits / trials, ends, "share", paper)


def increasing(
    table: pd.DataFrame, column: str, *, along: str, runs: str = "seed", unit: str = ""
) -> Iterator[Effect]:
    """An effect for each step along ``along``: the later mean above the earlier one, paired by run.

    Numbers are taken in their order, names (of layers, say) in the order of the table.

    >>> import pandas as pd
    >>> cells = pd.DataFrame({"seed": [0, 0, 1, 1], "layer": [1, 2, 1, 2], "cka": [0.1, 0.3, 0.2, 0.5]})
    >>> [f"{effect.name}: {effect.mean:g}" for effect in increasing(cells, "cka", along="layer")]
    ['layer 2 above layer 1: 0.25']
    """
    yield from _steps(table, column, along, runs, unit, "above")


def decreasing(
    table: pd.DataFrame, column: str, *, along: str, runs: str = "seed", unit: str = ""
) -> Iterator[Effect]:
    """An effect for each step along ``along``: the later mean below the earlier one, paired by run."""
    yield from _steps(table, column, along, runs, unit, "below")


def _steps(table: pd.DataFrame, column: str, along: str, runs: str, unit: str, side: str) -> Iterator[Effect]:
    missing = [name for name in (column, along, runs) if name not in table]
    if missing:
        raise ValueError(
            f"the table has no column {', '.join(missing)}; it has {', '.join(map(str, table))}."
        )
    means = table.groupby([runs, along], sort=False, observed=True)[column]
    wide = means.agg(lambda values: values.mean(skipna=False)).unstack(along)
    lacking = wide.index[wide.isna().any(axis=1)].tolist()
    if lacking:
        raise ValueError(f"{column} is missing at some {along} in the runs {lacking}: pairs need both.")
    places = table[along].drop_duplicates()
    if not isinstance(places.iloc[0], str):
        places = places.sort_values()  # names of layers stand in the order of the table
    for earlier, later in pairwise(places):
        name = f"{along} {later} {side} {along} {earlier}"
        yield _of_runs(name, wide[later] - wide[earlier], side, [0.0], None, unit)


def correlation(
    name: str,
    table: pd.DataFrame,
    x: str,
    y: str,
    *,
    less: tuple[str, str] | None = None,
    absolute: bool = False,
    unit: str | None = None,
    above: float | None = None,
    below: float | None = None,
    paper: float | None = None,
) -> Effect:
    """Pearson's correlation of two columns lies above (or below) a bound, 0 by default: a bootstrap interval.

    ``less`` names two other columns whose correlation is subtracted within each draw; ``absolute`` compares
    sizes without signs. Rows are drawn again with replacement, by a fixed seed; where several rows belong to
    one model, ``unit`` is the column that names it, and models are drawn. Draws in which a column has one
    value only have no correlation and are left out. Fewer than three models, or a column that never changes,
    tell nothing: 0, without an interval, which is open.

    >>> import pandas as pd
    >>> models = pd.DataFrame({"cka": range(20), "rank": [0.5 * v for v in range(20)]})
    >>> correlation("rank follows CKA", models, "cka", "rank", above=0.9).answer
    'yes'
    """
    if above is not None and below is not None:
        raise ValueError(f"the correlation {name!r} has one side: give above= or below=, and not both.")
    pairs = [(x, y), *([less] if less else [])]
    columns = list(dict.fromkeys(column for pair in pairs for column in pair))
    missing = [column for column in [*columns, *([unit] if unit else [])] if column not in table]
    if missing:
        raise ValueError(
            f"the table has no column {', '.join(missing)}; it has {', '.join(map(str, table))}."
        )
    values = table[columns].to_numpy(dtype=float)
    if not np.isfinite(values).all():
        raise ValueError(f"{name}: a correlation needs finite values, but some are NaN: leave them out.")
    owner = np.arange(len(table)) if unit is None else np.unique(table[unit], return_inverse=True)[1]
    models = int(owner.max()) + 1 if len(owner) else 0
    side = "below" if below is not None else "above"
    bound = [float(below if below is not None else above or 0.0)]
    if models < 3 or (np.ptp(values, axis=0) == 0).any():
        return Effect(name, [], side, bound, 0.0, None, "bootstrap", paper)
    rng = np.random.Generator(np.random.PCG64(0))
    # How often each model is in a draw; the first "draw" is the table itself.
    drawn = rng.multinomial(models, np.full(models, 1 / models), size=DRAWS)
    times = np.vstack([np.ones(models), drawn])[:, owner]
    centered = {column: values[:, k] - values[:, k].mean() for k, column in enumerate(columns)}
    found = [_weighted_correlation(times, centered[a], centered[b]) for a, b in pairs]
    found = [np.abs(r) for r in found] if absolute else found
    r = found[0] - found[1] if less else found[0]
    ends = np.nanquantile(r[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Effect(name, [float(r[0])], side, bound, float(r[0]), ends, "bootstrap", paper)


def _weighted_correlation(times: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pearson's correlation in each draw, from products with how often each row was drawn."""
    n, sa, sb = times.sum(axis=1), times @ a, times @ b
    aa, bb = times @ (a * a) - sa * sa / n, times @ (b * b) - sb * sb / n
    size = np.sqrt(np.clip(aa, 0, None) * np.clip(bb, 0, None))
    floor = 1e-12 * math.sqrt(float(a @ a) * float(b @ b))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(size > floor, (times @ (a * b) - sa * sb / n) / size, np.nan)


def student(values: Iterable[float], level: float = LEVEL) -> tuple[float, float]:
    """Student's interval for the mean of independent runs.

    >>> tuple(round(v, 2) for v in student([1.0, 2.0, 3.0]))
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
    """The verdict that follows from the effects and conditions of a claim.

    A condition that does not hold: OPEN. Every effect yes: REPRODUCED, an intersection-union test whose level
    does not depend on how many effects there are. Some yes: PARTLY. None yes and some no: NOT REPRODUCED.
    All open: OPEN.
    """
    effects = list(effects)
    answers = {effect.answer for effect in effects if not effect.condition}
    if not answers:
        raise ValueError("a claim needs at least one effect to have a verdict.")
    if any(effect.condition and effect.answer != "yes" for effect in effects):
        return "OPEN"
    if "yes" in answers:
        return "REPRODUCED" if answers == {"yes"} else "PARTLY"
    return "NOT REPRODUCED" if "no" in answers else "OPEN"


def _of_runs(
    name: str, values: Iterable[float], side: str, bound: list[float], paper: float | None, unit: str
) -> Effect:
    sample = _sample(name, values)
    ends = list(student(sample)) if len(sample) > 1 else None
    limits = [float(b) for b in bound]
    return Effect(name, sample.tolist(), side, limits, float(sample.mean()), ends, "runs", paper, unit)


def _sample(name: str, values: Any) -> np.ndarray:
    sample = np.asarray(values.tolist() if hasattr(values, "tolist") else list(values), dtype=float)
    if sample.ndim != 1 or len(sample) == 0:
        raise ValueError(
            f"{name}: an effect should have one number for each independent run, but its values have shape "
            f"{sample.shape}. Average over what is not a run first."
        )
    bad = np.flatnonzero(~np.isfinite(sample))
    if len(bad):
        raise ValueError(
            f"{name}: an effect should have finite values, but {len(bad)} of {len(sample)} are NaN or "
            f"infinite, the first in run {bad[0]}. If the quantity does not exist in that run, make another "
            "effect of how often it does (share)."
        )
    return sample
