"""Effects of quantities that some runs do not have, such as the epoch from which they fit their data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pandas as pd

from repalign.study.effects import Effect, above, share


def above_where_known(values: Mapping[str, pd.Series], bound: float = 0.0) -> dict[str, Effect]:
    """For each name the effect :func:`above` of the runs that have a value; NaN is none.

    Where some runs have none, the share of those that do is one more effect. Where fewer than two do, it is
    the only one. It says yes where most runs have a value, and never no: a run without a value does not speak
    against a claim.

    >>> found = above_where_known({"all": pd.Series([1.0, 1.2]), "some": pd.Series([1.0, float("nan")])})
    >>> {name: effect.answer for name, effect in found.items()}
    {'all': 'open', 'runs that have: some': 'open'}
    """
    found: dict[str, Effect] = {}
    for name, runs in values.items():
        known = runs.dropna()
        if len(known) > 1:
            found[name] = above(known, bound)
        if len(known) < len(runs) or len(runs) < 2:
            have = share(len(known), len(runs))
            have = dataclasses.replace(have, interval=None) if have.answer == "no" else have
            found[f"runs that have: {name}"] = have
    return found
