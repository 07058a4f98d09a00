"""What drawings ask of a frame: its columns, means over what repeats, a color for each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns


def averaged(frame: pd.DataFrame, by: Sequence[str], y: str, unit: str) -> pd.DataFrame:
    """Mean, standard error ``se`` (0 for one unit) and number of ``runs`` of ``y``, for each of ``by``."""
    if unit in by:
        raise ValueError(f"{unit} is what the mean is taken over, so it cannot be drawn as well: {list(by)}.")
    cells = frame.groupby([*by, unit], sort=False, observed=True)[y] if unit in frame else None
    if cells is not None and (cells.size() > 1).any():
        twice = cells.size().idxmax()
        raise ValueError(
            f"there should be one {y} for each {', '.join([*by, unit])}, but there are {cells.size().max()} "
            f"for {twice}. Name the column that tells them apart as col, hue or style, or select first."
        )
    grouped = frame.groupby(list(by), sort=False, observed=True)[y]
    found = grouped.agg(mean="mean", se="sem", runs="count").reset_index()
    return found.fillna({"se": 0.0})


def columns_of(frame: pd.DataFrame, **wanted: str | None) -> list[str]:
    names = [name for name in wanted.values() if name is not None]
    missing = [name for name in names if name not in frame]
    if missing:
        raise ValueError(
            f"the table has no column {', '.join(missing)}: it has {', '.join(map(str, frame.columns))}."
        )
    return list(dict.fromkeys(names))


def colors_of(
    frame: pd.DataFrame, hue: str | None, order: Mapping[str, Sequence[Any]]
) -> dict[Any, Any] | None:
    """A color for each value: the book's few, or a ramp where there are more values."""
    if hue is None:
        return None
    values = list(order.get(hue, frame[hue].drop_duplicates()))
    own = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    ramp = own if len(values) <= len(own) else sns.color_palette("viridis", len(values))
    return dict(zip(values, ramp, strict=False))
