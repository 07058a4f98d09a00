"""Lou et al.: networks of many depths side by side, a column of layers each, and where a quantity peaks."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from repalign.plots.frames import columns_of

MARGIN = 1.15  # a factor beside the smallest and the largest depth


def layer_maps(
    frame: pd.DataFrame,
    *,
    y: str,
    peak: str,
    row: str,
    col: str,
    slope: float,
    lines: Sequence[str] = (),
    size: tuple[float, float] = (3.5, 3.0),
) -> Figure:
    """Depth against layer on logarithmic axes, colored by ``y`` as a share of its maximum over layers.

    ``frame`` has rows of two kinds: with a ``layer`` and ``y``, averaged over all that repeats, and with the
    layer ``peak`` of a run. Peaks are drawn as crosses at their geometric mean, with the line that fits them
    best and the line of the given ``slope`` that does; ``lines`` are columns beside ``peak``, drawn dotted.
    """
    columns_of(frame, depth="depth", layer="layer", y=y, peak=peak, row=row, col=col)
    rows, cols = (list(frame[name].drop_duplicates()) for name in (row, col))
    shape = (size[0] * len(cols) + 1.2, size[1] * len(rows))
    figure, axes = plt.subplots(len(rows), len(cols), figsize=shape, squeeze=False, sharex=True, sharey=True)
    depths = sorted(frame["depth"].unique())
    # Limits of our own: one depth alone, as in a short run, has no range to make any from.
    axes[0, 0].set(xscale="log", yscale="log", xlim=(depths[0] / MARGIN, depths[-1] * MARGIN))
    for ax, (kind, title) in zip(axes.flat, [(r, c) for r in rows for c in cols], strict=True):
        part = frame[(frame[row] == kind) & (frame[col] == title)]
        color = part.groupby(["depth", "layer"])[y].mean()
        at = (color / color.groupby("depth").transform("max")).reset_index()
        dots = ax.scatter(at["depth"], at["layer"], c=at[y], marker="s", s=14, vmin=0, vmax=1)
        log = np.log(part[["depth", peak, *lines]].astype(float)).dropna()
        mean = log.groupby("depth").mean()
        x = mean.index.to_numpy()
        drawn = {f"slope {slope:g}": (slope * x + (log[peak] - slope * log["depth"]).mean(), "--", "0.5")}
        if len(x) > 1:
            drawn["best fit"] = (np.polyval(np.polyfit(log["depth"], log[peak], 1), x), "-", "C1")
        drawn |= {name: (mean[name].to_numpy(), ":", f"C{2 + i}") for i, name in enumerate(lines)}
        drawn["peak"] = (mean[peak].to_numpy(), "x", "C1")
        for label, (height, form, shade) in drawn.items():
            ax.plot(np.exp(x), np.exp(height), form, color=shade, label=label, markersize=8)
        ax.set(title=f"{title}, {kind}")
        ax.set_xticks(depths, [str(d) for d in depths])
        ax.minorticks_off()
    levels = [level for level in (1, 3, 10, 30, 100) if level <= max(depths)]
    axes[0, 0].set_yticks(levels, [str(level) for level in levels])
    plt.setp(axes[-1], xlabel="depth")
    plt.setp(axes[:, 0], ylabel="layer")
    figure.colorbar(dots, ax=axes, label=f"{y} / maximum", shrink=0.6)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=5)
    return figure
