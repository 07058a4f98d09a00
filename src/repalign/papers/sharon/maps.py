"""Training seen whole: a map of epochs against epochs for each layer, with the errors beneath."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

# Epochs that a map can show; more only make files large.
POINTS = 200


def with_errors(
    maps: Mapping[str, ArrayLike],
    epochs: Sequence[int],
    errors: Sequence[Mapping[str, Any]],
    *,
    mark: float | None = None,
    limits: Mapping[str, tuple[float, float]] | None = None,
    columns: int = 3,
    size: float = 2.5,
) -> Figure:
    """A similarity of every pair of epochs for each layer, in colors of its own, and curves beneath.

    All axes of epochs are logarithmic, with epoch 0 before 1. ``errors`` has rows with epoch, train, test and
    the ``statistics`` of batch norm with which they were measured. ``limits`` are the ends of a layer's
    colors (default: its range), ``mark`` is an epoch to point out: the first of perfect fitting; NaN is none.
    The axis of errors has room for all test errors since the lowest, and may leave out the first.
    """
    shown = _shown(epochs)
    edges, layers = _edges([epochs[k] for k in shown]), list(maps)
    for layer, values in maps.items():
        if np.shape(values) != (len(epochs), len(epochs)):
            raise ValueError(f"{layer} should be {len(epochs)} × {len(epochs)}, but is {np.shape(values)}.")
    centers, marked = np.asarray(epochs, float)[shown], mark is not None and np.isfinite(mark)
    centers[0] = max(centers[0], edges[0] ** 0.5 * edges[1] ** 0.5)
    places: list[list[Any]] = [layers[k : k + columns] for k in range(0, len(layers), columns)]
    places[-1] += [".."] * (columns - len(places[-1]))
    figure = plt.figure(figsize=(size * columns * 1.3, size * (1.12 * len(places) + 0.8)))
    figure.set_layout_engine("constrained", rect=(0, 0, 0.95, 1))  # room for the numbers of the last colors
    heights = [1.0] * len(places) + [0.7]
    axes = figure.subplot_mosaic([*places, ["…"] * columns], height_ratios=heights, empty_sentinel="..")
    for layer, values in maps.items():
        low, high = (limits or {}).get(layer, (None, None))
        ax = axes[layer]
        square = np.asarray(values, float)[np.ix_(shown, shown)]
        drawn = ax.pcolormesh(edges, edges, square, vmin=low, vmax=high, rasterized=True)
        ax.set(xscale="log", yscale="log", box_aspect=1, title=layer)
        bar = figure.colorbar(drawn, cax=ax.inset_axes((1.04, 0, 0.05, 1)), ticks=MaxNLocator(4))
        bar.ax.ticklabel_format(useOffset=False)
        bar.ax.tick_params(labelsize="small")
        if marked:
            for line in (ax.axvline, ax.axhline):
                line(mark, color="white", lw=1.2, ls="--")
    for row in places:
        axes[row[0]].set_ylabel("epoch")
    ax, table = axes["…"], pd.DataFrame(list(errors))
    kinds = dict(list(table.groupby("statistics", sort=False)))
    for style, (kind, part) in zip(("--", "-")[-len(kinds) :], kinds.items(), strict=True):
        for k, name in enumerate(("test", "train")):
            label = f"{name}, {kind}" if len(kinds) > 1 else name
            ax.plot(centers, part[name].to_numpy()[shown], color=f"C{k}", ls=style, label=label)
    if marked:
        ax.axvline(mark, color="0.5", ls="--", lw=1.2)
    # The error of the untrained network would hide a second descent.
    test = kinds[list(kinds)[-1]]["test"].to_numpy()
    top = min(1.0, 1.8 * test[test.argmin() :].max())
    ax.set(xscale="log", xlabel="epoch", ylabel="error", xlim=(edges[0], edges[-1]), ylim=(0, top))
    title = "error, statistics of batch norm" if len(kinds) > 1 else None
    # Above the axes: inside, it would lie on curves.
    ax.legend(ncols=4, fontsize="small", title=title, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def shared_limits(*several: Mapping[str, ArrayLike]) -> dict[str, tuple[float, float]]:
    """Limits for figures that shall have the same colors for a layer: from its lowest value to 1."""
    return {
        layer: (min(float(np.asarray(maps[layer]).min()) for maps in several), 1.0) for layer in several[0]
    }


def layer_table(maps: Mapping[str, ArrayLike], epochs: Sequence[int]) -> pd.DataFrame:
    """The same maps as a table: a row for each pair of epochs, a column for each layer."""
    shown = _shown(epochs)
    pairs = pd.MultiIndex.from_product([[epochs[k] for k in shown]] * 2, names=["epoch", "other"])
    flat = {layer: np.asarray(values, float)[np.ix_(shown, shown)].ravel() for layer, values in maps.items()}
    return pd.DataFrame(flat, index=pairs).reset_index()


def _shown(epochs: Sequence[int]) -> np.ndarray:
    """Positions of the epochs to draw: all, or some that are evenly spread on a logarithmic axis."""
    if len(epochs) <= POINTS:
        return np.arange(len(epochs))
    wanted = np.geomspace(max(epochs[0], epochs[1] / 2), epochs[-1], POINTS)
    return np.unique(np.searchsorted(epochs, wanted).clip(0, len(epochs) - 1) * (wanted > epochs[1] / 2))


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
