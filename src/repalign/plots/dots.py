"""A dot for each thing: scatters, and effects with their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from repalign.plots.frames import colors_of, columns_of


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
    columns_of(frame, x=x, y=y, hue=hue, style=style, col=col)
    panels = [None] if col is None else list(frame[col].drop_duplicates())
    figure, axes = plt.subplots(1, len(panels), figsize=(size[0] * len(panels), size[1]), squeeze=False)
    palette, names = colors_of(frame, hue, {}), labels or {}
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
    if diagonal:  # square axes in a figure that is not square
        figure.set_size_inches(figure.get_figwidth() + 0.6, figure.get_figheight())
        figure.set_layout_engine("compressed")
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
