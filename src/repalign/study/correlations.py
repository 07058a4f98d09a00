"""Correlations over models as effects: the interval comes from drawing models again.

>>> import pandas as pd
>>> models = pd.DataFrame({"cka": range(20), "rank": [0.5 * v for v in range(20)], "skip": [0, 1] * 10})
>>> correlation(models, "cka", "rank", above=0.9).answer
'yes'
>>> correlation(models, "cka", "rank", less=("skip", "rank")).answer     # a difference of two correlations
'yes'
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from repalign.study.effects import LEVEL, Effect

if TYPE_CHECKING:
    import pandas as pd


def correlation(
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
    draws: int = 10_000,
) -> Effect:
    """Pearson's correlation of two columns lies above (or below) a bound, 0 by default: a bootstrap interval.

    ``less`` names two other columns whose correlation is subtracted within each draw; ``absolute`` compares
    sizes without signs. Rows are drawn again with replacement, by a fixed seed; where several rows belong to
    one model, ``unit`` is the column that names it, and models are drawn. Draws in which a column has one
    value only have no correlation and are left out. Fewer than three models, or a column that never changes,
    tell nothing: 0, without an interval, which is open.
    """
    if above is not None and below is not None:
        raise ValueError("a correlation has one side: give above= or below=, not both.")
    pairs = [(x, y), *([less] if less else [])]
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    missing = [name for name in [*names, *([unit] if unit else [])] if name not in table]
    if missing:
        raise ValueError(
            f"the table has no column {', '.join(missing)}: it has {', '.join(map(str, table))}."
        )
    values = table[names].to_numpy(dtype=float)
    if not np.isfinite(values).all():
        raise ValueError("a correlation needs finite values, but some are NaN or infinite: leave them out.")
    owner = np.arange(len(table)) if unit is None else np.unique(table[unit], return_inverse=True)[1]
    n = int(owner.max()) + 1 if len(owner) else 0
    side = "below" if below is not None else "above"
    bound = [float(below if below is not None else above or 0.0)]
    if n < 3 or (np.ptp(values, axis=0) == 0).any():
        return Effect([], side, bound, 0.0, None, "bootstrap", paper)
    rng = np.random.Generator(np.random.PCG64(0))
    # How often each model is in a draw; the first "draw" is the table itself.
    times = np.vstack([np.ones(n), rng.multinomial(n, np.full(n, 1 / n), size=draws)])[:, owner]
    columns = {name: values[:, k] - values[:, k].mean() for k, name in enumerate(names)}
    found = [_weighted(times, columns[a], columns[b]) for a, b in pairs]
    found = [np.abs(r) for r in found] if absolute else found
    r = found[0] - found[1] if less else found[0]
    low, high = np.nanquantile(r[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Effect([float(r[0])], side, bound, float(r[0]), [float(low), float(high)], "bootstrap", paper)


def _weighted(times: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pearson's correlation in each draw, from products with how often each row was drawn."""
    n, sa, sb = times.sum(axis=1), times @ a, times @ b
    aa, bb = times @ (a * a) - sa * sa / n, times @ (b * b) - sb * sb / n
    size = np.sqrt(np.clip(aa, 0, None) * np.clip(bb, 0, None))
    floor = 1e-12 * math.sqrt(float(a @ a) * float(b @ b))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(size > floor, (times @ (a * b) - sa * sb / n) / size, np.nan)
