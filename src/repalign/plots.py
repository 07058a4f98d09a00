"""Drawings that pages and reports share: a tidy frame in, a figure out, laid out by seaborn.

Every frame has one row per measured value. What repeats (``unit``, by default the column ``seed``) becomes a
mean and a band of one standard error, aggregated once with pandas: seaborn's own bands take seconds on the
frames of a page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

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
) -> Figure:
    """Mean of ``y`` over ``unit`` against ``x``, with a band of one standard error, in panels.

    ``hue`` sets the color, ``style`` the dash, ``log`` names the logarithmic axes ("x", "y" or "xy"),
    ``order`` the values of a column in the order to draw them, ``labels`` what to write for a column's name.
    """
    by = _columns(frame, x=x, hue=hue, style=style, col=col, row=row)
    _columns(frame, y=y)
    drawn = averaged(frame, by, y, unit)
    order = order or {}
    color = _colors(drawn, hue, order)
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
    for (i, j, _), part in grid.facet_data():
        ax = grid.axes.flat[j] if row is None else grid.axes[i, j]
        keys = [c for c in (hue, style) if c is not None]
        lines: Any = part.groupby(keys, sort=False, observed=True) if keys else [((None,), part)]
        for key, line in lines:
            shade = color[key[0]] if color is not None else None
            low, high = line["mean"] - line["se"], line["mean"] + line["se"]
            ax.fill_between(line[x], low, high, color=shade, alpha=BAND, lw=0)
        ax.set(**{f"{axis}scale": "log" for axis in log})
    return _finish(grid, {x: x, "mean": y, **(labels or {})}, y)


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


def epoch_maps(
    maps: Mapping[str, ArrayLike],
    epochs: Sequence[int],
    *,
    mark: int | None = None,
    limits: tuple[float, float] | None = None,
    columns: int = 3,
    label: str = "CKA",
    size: float = 2.6,
) -> Figure:
    """A square map for each title: a similarity for every pair of epochs, both axes logarithmic.

    Epoch 0 is drawn before 1. ``mark`` is an epoch to point out on both axes, such as the one from which
    the training data are fitted perfectly. All maps share one color scale, ``limits`` or their range.
    """
    squares = {title: np.asarray(values, dtype=float) for title, values in maps.items()}
    for title, values in squares.items():
        if values.shape != (len(epochs), len(epochs)):
            raise ValueError(f"{title} should be {len(epochs)} × {len(epochs)}, but is {values.shape}.")
    edges = _edges(epochs)
    low, high = limits or (min(v.min() for v in squares.values()), max(v.max() for v in squares.values()))
    columns = min(columns, len(squares))
    rows = math.ceil(len(squares) / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(size * columns + 0.8, size * rows), squeeze=False, sharex=True, sharey=True
    )
    drawn = None
    for ax, (title, values) in zip(axes.flat, squares.items(), strict=False):
        drawn = ax.pcolormesh(edges, edges, values, norm=Normalize(low, high), rasterized=True)
        ax.set(xscale="log", yscale="log", aspect="equal")
        ax.set_title(title)
        if mark is not None:
            for line in (ax.axvline, ax.axhline):
                line(mark, color="white", lw=1.2, ls="--")
    for ax in list(axes.flat)[len(squares) :]:
        ax.set_axis_off()
    for ax in axes[-1]:
        ax.set_xlabel("epoch")
    for ax in axes[:, 0]:
        ax.set_ylabel("epoch")
    if drawn is not None:
        figure.colorbar(drawn, ax=axes, label=label, shrink=0.8)
    return figure


def scatter(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    hue: str | None = None,
    style: str | None = None,
    col: str | None = None,
    diagonal: bool = False,
    log: str = "",
    labels: Mapping[str, str] | None = None,
    size: tuple[float, float] = (4.8, 4.2),
) -> Figure:
    """One dot per row; with ``diagonal`` the line y = x on equal axes, so that a dot above it has y > x.

    ``col`` makes a panel of ``size`` for each of its values, with one legend for all.
    """
    _columns(frame, x=x, y=y, hue=hue, style=style, col=col)
    panels = [None] if col is None else list(frame[col].drop_duplicates())
    figure, axes = plt.subplots(1, len(panels), figsize=(size[0] * len(panels), size[1]), squeeze=False)
    palette, names = _colors(frame, hue, {}), labels or {}
    fixed: dict[str, Any] = {"palette": palette, "hue_order": None if palette is None else list(palette)}
    if style is not None:
        fixed["style_order"] = list(frame[style].drop_duplicates())
    for ax, value in zip(axes[0], panels, strict=True):
        part = frame if col is None else frame[frame[col] == value]
        sns.scatterplot(
            part, x=x, y=y, hue=hue, style=style, ax=ax, s=28, linewidth=0, alpha=0.85, **fixed,
            legend="auto" if ax is axes[0, -1] else False,
        )  # fmt: skip
        if diagonal:
            both = part[[x, y]].to_numpy(float)
            pad = 0.03 * (np.nanmax(both) - np.nanmin(both) or 1)
            ends = np.nanmin(both) - pad, np.nanmax(both) + pad
            ax.plot(ends, ends, color="0.5", lw=1, ls="--", zorder=0)
            ax.set(xlim=ends, ylim=ends, box_aspect=1)
        ax.set(**{f"{axis}scale": "log" for axis in log})
        ax.set(xlabel=names.get(x, x), ylabel=names.get(y, y), title="" if value is None else str(value))
    if ax.get_legend():
        sns.move_legend(ax, "upper left", bbox_to_anchor=(1, 1))
    return figure


def ranked(
    panels: Mapping[str, pd.DataFrame],
    *,
    ticks: Sequence[str] | None = None,
    label: str = "",
    legend: str = "",
    size: tuple[float, float] = (8.4, 2.0),
) -> Figure:
    """Models beside each other in the order of the rows: a panel for each frame, a line for each column.

    All frames have the same rows; ``ticks`` names them, ``label`` the vertical axis, ``legend`` the columns.
    A panel has the given ``size``. Frames with the same columns share one legend.
    """
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(size[0], size[1] * len(panels)), sharex=True, squeeze=False
    )
    for ax, (title, frame) in zip(axes[:, 0], panels.items(), strict=True):
        colors = _colors(pd.DataFrame({legend: list(frame.columns)}), legend, {}) or {}
        for column in frame:
            ax.plot(range(len(frame)), frame[column], ".-", color=colors[column], lw=1.2, label=str(column))
        ax.set(ylabel=label)
        ax.set_title(title)
    if len({tuple(frame.columns) for frame in panels.values()}) == 1:
        figure.legend(*ax.get_legend_handles_labels(), title=legend, loc="outside right upper")
    else:
        for ax in axes[:, 0]:
            ax.legend(title=legend, loc="upper left", bbox_to_anchor=(1, 1))
    if ticks is not None:
        ax.set_xticks(range(len(ticks)), ticks, rotation=90, fontsize=6.5)
    return figure


def spreads(
    panels: Mapping[str, tuple[pd.DataFrame, pd.DataFrame]],
    labels: Mapping[str, tuple[str, str]],
    *,
    legend: str = "",
    size: tuple[float, float] = (4.2, 3.7),
) -> Figure:
    """A dot for each column of two frames, at its mean over rows in the one (x) and in the other (y).

    Bars are standard deviations over rows, the dashed line is y = x. ``labels`` names both axes of a panel.
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(size[0] * len(panels), size[1]), squeeze=False)
    for ax, (title, (x, y)) in zip(axes[0], panels.items(), strict=True):
        colors = _colors(pd.DataFrame({legend: list(x.columns)}), legend, {}) or {}
        for column in x:
            a, b = x[column], y[column]
            bars: dict[str, Any] = dict(xerr=a.std(), yerr=b.std(), fmt="o", lw=1.2)
            ax.errorbar(a.mean(), b.mean(), **bars, color=colors[column], label=str(column))
        middle = float(x.to_numpy().mean())
        ax.axline((middle, middle), slope=1, color="0.5", lw=1, ls="--", zorder=0)
        ax.set(xlabel=labels[title][0], ylabel=labels[title][1])
        ax.set_title(title)
    axes[0, -1].legend(title=legend, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def matrix(
    frame: pd.DataFrame,
    *,
    paper: pd.DataFrame | None = None,
    format: str = ".2f",
    label: str = "",
    log: bool = False,
    size: tuple[float, float] | None = None,
) -> Figure:
    """A table whose cells are colored by their value and hold it in print, the paper's in brackets below."""
    text = frame.map(lambda v: "" if pd.isna(v) else f"{v:{format}}")
    if paper is not None:
        text = text + "\n(" + paper.map(lambda v: f"{v:{format}}") + ")"
    figure, ax = plt.subplots(figsize=size or (1.6 + 0.95 * frame.shape[1], 0.8 + 0.5 * frame.shape[0]))
    norm = LogNorm() if log else None
    sns.heatmap(
        frame,
        annot=text.to_numpy(),
        fmt="",
        norm=norm,
        cmap=plt.rcParams["image.cmap"],
        ax=ax,
        cbar_kws={"label": label},
        linewidths=0.5,
    )
    ax.tick_params(axis="y", rotation=0)
    return figure


def forest(effects: Mapping[str, Any], *, xlabel: str = "", width: float = 6.4) -> Figure:
    """Effects (see ``repalign.study``) under each other: a dot, its interval, the bound as a dashed line."""
    figure, ax = plt.subplots(figsize=(width, 0.8 + 0.32 * len(effects)))
    colors = {"yes": "C2", "no": "C1", "open": "C5"}
    for at, effect in enumerate(effects.values()):
        color = colors[effect.answer]
        if effect.interval is not None:
            ax.plot(effect.interval, [at, at], color=color, lw=2.2)
        ax.plot([effect.mean], [at], "o", color=color)
        if effect.paper is not None:
            ax.plot([effect.paper], [at], "D", mfc="none", color=color)
        for bound in effect.bound:
            ax.plot([bound, bound], [at - 0.4, at + 0.4], color="0.5", lw=1, ls="--")
    ax.set_yticks(range(len(effects)), list(effects))
    ax.invert_yaxis()
    ax.set(xlabel=xlabel)
    return figure


def strips(rows: Mapping[str, torch.Tensor], *, span: tuple[float, float] = (0.0, 1.0)) -> Figure:
    """Images side by side, a strip for each name: what a network sees.

    Each entry is (k, channels, height, width) with one channel or three; bytes, or numbers in ``span``, whose
    ends are black and white (for one channel white and black, as on paper).
    """
    drawn = []
    for name, images in rows.items():
        if images.ndim != 4 or images.shape[1] not in (1, 3):
            raise ValueError(
                f"images should be (k, 1 or 3, height, width), but {name or 'they'} have shape "
                f"{tuple(images.shape)}."
            )
        low, high = (0.0, 255.0) if images.dtype == torch.uint8 else span
        strip = torch.cat(list(((images.detach().cpu().float() - low) / (high - low)).clamp(0, 1)), 2)
        drawn.append((name, (strip[0] if len(strip) == 1 else strip.permute(1, 2, 0)).numpy()))
    shares = [picture.shape[0] / picture.shape[1] for _, picture in drawn]
    figure, axes = plt.subplots(
        len(drawn),
        1,
        figsize=(7.2, 7.0 * sum(shares) + 0.1 * len(drawn)),
        squeeze=False,
        height_ratios=shares,
    )
    for ax, (name, picture) in zip(axes.flat, drawn, strict=True):
        ax.imshow(picture, cmap="gray_r", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
        ax.set_ylabel(name, rotation=0, ha="right", va="center")
        ax.spines[:].set_visible(False)
    return figure


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


def _columns(frame: pd.DataFrame, **wanted: str | None) -> list[str]:
    names = [name for name in wanted.values() if name is not None]
    missing = [name for name in names if name not in frame]
    if missing:
        raise ValueError(
            f"the table has no column {', '.join(missing)}: it has {', '.join(map(str, frame.columns))}."
        )
    return list(dict.fromkeys(names))


def _colors(
    frame: pd.DataFrame, hue: str | None, order: Mapping[str, Sequence[Any]]
) -> dict[Any, Any] | None:
    """A color for each value: the book's few, or a ramp where there are more values."""
    if hue is None:
        return None
    values = list(order.get(hue, frame[hue].drop_duplicates()))
    own = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    ramp = own if len(values) <= len(own) else sns.color_palette("viridis", len(values))
    return dict(zip(values, ramp, strict=False))


def _finish(grid: sns.FacetGrid, labels: Mapping[str, str], y: str) -> Figure:
    """Titles without the column's name, axes named in words."""
    grid.set_titles(row_template="{row_name}", col_template="{col_name}")
    for ax in grid.axes.flat:
        ax.set_xlabel(labels.get(ax.get_xlabel(), ax.get_xlabel()))
        if ax.get_ylabel():
            ax.set_ylabel(labels.get(y, y))
    if grid.legend is not None:
        for text in [grid.legend.get_title(), *grid.legend.get_texts()]:
            text.set_text(labels.get(text.get_text(), text.get_text()))
    return grid.figure


def _last_above(line: Any, share: float) -> float:
    x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
    return float(x[y > share * y.max()].max(initial=0))


def _edges(epochs: Sequence[int]) -> np.ndarray:
    """Borders of cells around epochs on a logarithmic axis, with room for epoch 0 before 1."""
    at = np.asarray(epochs, float)
    if len(at) < 2 or (np.diff(at) <= 0).any() or at[0] < 0:
        raise ValueError(f"epochs should rise from 0 or more, at least two of them, but are {list(epochs)}.")
    if at[0] == 0:
        at = np.concatenate([[at[1] ** 2 / at[2] if len(at) > 2 else at[1] / 2], at[1:]])
        at[0] = min(at[0], at[1] / 1.5)
    middle = np.sqrt(at[1:] * at[:-1])
    return np.concatenate([[at[0] ** 2 / middle[0]], middle, [at[-1] ** 2 / middle[-1]]])
