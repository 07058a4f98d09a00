"""Lines with bands: curves of any frame, alignment over thresholds, powers of modes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import MaxNLocator

from repalign.plots.frames import averaged, colors_of, columns_of

# Points that a curve needs on a page; more only make the file large.
POINTS = 150
BAND = 0.22


def curves(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    hue: str | None = None,
    style: str | None = None,
    col: str | None = None,
    row: str | None = None,
    unit: str = "seed",
    markers: bool = False,
    log: str = "",
    height: float = 3.1,
    aspect: float = 1.2,
    wrap: int | None = None,
    sharex: bool = False,
    sharey: bool = False,
    order: Mapping[str, Sequence[Any]] | None = None,
    labels: Mapping[str, str] | None = None,
    floor: str | None = None,
) -> Figure:
    """Mean of ``y`` over ``unit`` against ``x``, with a band of one standard error, in panels.

    ``hue`` sets the color, ``style`` the dash, ``log`` names the logarithmic axes ("x", "y" or "xy"),
    ``order`` the values of a column in the order to draw them, ``labels`` what to write for a column's name.
    ``floor`` is a column with what ``y`` would be by chance: its mean is a dashed gray line in every panel.
    """
    by = columns_of(frame, x=x, hue=hue, style=style, col=col, row=row)
    columns_of(frame, y=y, floor=floor)
    drawn = averaged(frame, by, y, unit)
    order = order or {}
    color = colors_of(drawn, hue, order)
    options: dict[str, Any] = {
        name: list(order[column])
        for name, column in (
            ("hue_order", hue),
            ("style_order", style),
            ("col_order", col),
            ("row_order", row),
        )
        if column is not None and column in order
    }
    # seaborn makes room for its legend itself.
    with mpl.rc_context({"figure.constrained_layout.use": False}):
        grid = sns.relplot(
            drawn, x=x, y="mean", hue=hue, style=style, col=col, row=row, kind="line", estimator=None,
            palette=color, markers=markers, height=height, aspect=aspect,
            col_wrap=wrap if row is None else None,
            facet_kws={"sharex": sharex, "sharey": sharey, "legend_out": True}, **options,
        )  # fmt: skip
    whole = pd.api.types.is_numeric_dtype(drawn[x]) and bool((drawn[x] % 1 == 0).all())
    for (i, j, _), part in grid.facet_data():
        ax = grid.axes.flat[j] if row is None else grid.axes[i, j]
        keys = [c for c in (hue, style) if c is not None]
        lines: Any = part.groupby(keys, sort=False, observed=True) if keys else [((None,), part)]
        for key, unsorted in lines:
            line = unsorted.sort_values(x)  # as seaborn draws it
            shade = color[key[0]] if color is not None else None
            low, high = line["mean"] - line["se"], line["mean"] + line["se"]
            ax.fill_between(line[x], low, high, color=shade, alpha=BAND, lw=0)
        if floor is not None:
            chance = _panel(frame, grid, i, j, row, col).groupby(x)[floor].mean()
            ax.plot(chance, color="0.5", ls="--", lw=1)
        ax.set(**{f"{axis}scale": "log" for axis in log})
        if "x" not in log and whole:  # layers and epochs: no tick at 2.5
            ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    return _finish(grid, {x: x, "mean": y, **(labels or {})}, y)


def _panel(
    frame: pd.DataFrame, grid: sns.FacetGrid, i: int, j: int, row: str | None, col: str | None
) -> pd.DataFrame:
    """The rows of ``frame`` that panel ``(i, j)`` shows."""
    if row is not None:
        frame = frame[frame[row] == grid.row_names[i]]
    if col is not None:
        frame = frame[frame[col] == grid.col_names[j]]
    return frame


def alignment(frame: pd.DataFrame, *, tau: str = "tau", y: str = "alignment", **options: Any) -> Figure:
    """Alignment curves over their thresholds, cut where the last of them has fallen to 1% of its start.

    A page's cells give each curve at the thresholds of :func:`thresholds`, so that runs can be averaged.
    """
    labels = {tau: "threshold $\\tau$", y: "alignment", **options.pop("labels", {})}
    figure = curves(frame, x=tau, y=y, labels=labels, **options)
    for ax in figure.axes:
        ends = [_last_above(line, 0.01) for line in ax.get_lines() if np.size(line.get_xdata())]
        if ends:
            ax.set(xlim=(0, 1.1 * max(ends)), ylim=(0, None))
    return figure


def thresholds(n: int, *, reach: float = 1.0, points: int = POINTS) -> torch.Tensor:
    """Common thresholds for alignment curves of n samples with rows of length one, where σ₁ ≤ √n.

    ``reach`` is the share of that range worth looking at.

    >>> thresholds(100, points=3)
    tensor([ 0.,  5., 10.], dtype=torch.float64)
    """
    return torch.linspace(0, reach * math.sqrt(n), points, dtype=torch.float64)


def modes(frame: pd.DataFrame, *, x: str = "index", y: str = "power", **options: Any) -> Figure:
    """A quantity of each mode against its rank, the first mode at 1: spectra, power and cumulative power."""
    if (frame[x] < 1).any():
        raise ValueError(f"modes are counted from 1 on a logarithmic axis, but {x} has {frame[x].min()}.")
    return curves(frame, x=x, y=y, log=options.pop("log", "x"), **options)


def spread(ranks: int, points: int = POINTS) -> np.ndarray:
    """About ``points`` ranks from 1 to ``ranks``, evenly spread on a logarithmic axis, each once.

    >>> spread(1000, 4)
    array([   1,   10,  100, 1000])
    """
    return np.unique(np.round(np.geomspace(1, ranks, points)).astype(int))


def _finish(grid: sns.FacetGrid, labels: Mapping[str, str], y: str) -> Figure:
    """Titles without the column's name, in two lines where one is too long, axes named in words."""
    names = {"row_template": "{row_name}", "col_template": "{col_name}"}
    grid.set_titles(**names)
    if any(map(_runs_out, grid.axes.flat)):
        grid.set_titles(template="{row_name}\n{col_name}", **names)
        grid.tight_layout()
    for ax in grid.axes.flat:
        ax.set_xlabel(labels.get(ax.get_xlabel(), ax.get_xlabel()))
        if ax.get_ylabel():
            ax.set_ylabel(labels.get(y, y))
    if grid.legend is not None:
        for text in [grid.legend.get_title(), *grid.legend.get_texts()]:
            text.set_text(labels.get(text.get_text(), text.get_text()))
    return grid.figure


def _runs_out(ax: Any) -> bool:
    """Is the title of a panel in rows and columns wider than the panel?"""
    title = ax.get_title(mpl.rcParams["axes.titlelocation"])
    if " | " not in title:
        return False
    font = FontProperties(size=mpl.rcParams["axes.titlesize"])
    wide = TextPath((0, 0), title, prop=font).get_extents().width
    return bool(wide > 72 * ax.figure.get_figwidth() * ax.get_position().width)


def _last_above(line: Any, share: float) -> float:
    x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
    return float(x[y > share * y.max()].max(initial=0))
