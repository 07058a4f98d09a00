"""The figures of the chapter: each takes the table of networks, and draws what a page shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repalign.papers.canatar import tables

# One meaning, one look, throughout the chapter: what is resembled and the time have colors, images dashes,
# kinds of networks marks.
COLORS = {"target": "C0", "input": "C2", "accuracy": "C5", "start": "C5", "early": "C4", "end": "C3"}
DASHES = {"training": "-", "test": "--"}
MARKS = {tables.WORST: "v", tables.POOR: "s", tables.BEST: "^"}
# Layers go from light to dark.
_SHADES = plt.get_cmap("viridis_r")
FIRST, LAST = 1, 10


def shade(layer: int) -> tuple[float, float, float, float]:
    """The color of a layer: the deeper, the darker, within what is seen on a light and on a dark page."""
    return _SHADES(0.14 + 0.62 * (layer - FIRST) / (LAST - FIRST))


def every_layer(networks: pd.DataFrame) -> Figure:
    """Figure 1: three panels of CKA, a column for each configuration, and what the configurations are."""
    panels = {
        "target CKA, training images": ("target", "training"),
        "target CKA, test images": ("target", "test"),
        "input CKA, training images": ("input", "training"),
    }
    figure, axes = plt.subplots(
        4, 1, figsize=(7.4, 8.2), sharex=True, gridspec_kw={"height_ratios": [3, 3, 3, 0.8]}
    )
    for ax, (title, (value, images)) in zip(axes, panels.items(), strict=False):
        found = tables.layers(networks, value, images=images)
        floors = tables.layers(networks, f"{value}_floor", images=images)
        for layer in found:
            ax.plot(found[layer].to_numpy(), ".-", color=shade(layer), lw=1.1, label=str(layer))
        ax.fill_between(
            range(len(floors)), floors.min(axis=1), floors.max(axis=1), color="0.5", alpha=0.25, lw=0
        )
        ax.set_title(title)
        ax.set_ylim(0, None)
    axes[0].legend(title="layer", ncols=2, loc="upper left", bbox_to_anchor=(1, 1))
    _factors(axes[3], found.index.to_frame(index=False))
    return figure


def _factors(ax: Axes, configurations: pd.DataFrame) -> None:
    """Filled squares: what is in a configuration."""
    names = {"skip": "skip connections", "augment": "augmentation", "momentum": "momentum"}
    for row, name in enumerate(names):
        there = np.flatnonzero(configurations[name].to_numpy(dtype=bool))
        ax.plot(there, np.full(len(there), row), "s", color="0.4", ms=4)
    ax.set_yticks(range(len(names)), list(names.values()), fontsize="small")
    ax.set(ylim=(len(names) - 0.5, -0.5), xticks=[], xlabel="configurations, by test accuracy")
    ax.tick_params(length=0)


def training_and_test(networks: pd.DataFrame) -> Figure:
    """Figure 2: means and standard deviations over configurations, a dot for each layer."""
    training, test = (tables.layers(networks, "target", images=images) for images in ("training", "test"))
    inputs = tables.layers(networks, "input")
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.6))
    pairs = [
        (training, test, "target CKA, training", "target CKA, test"),
        (inputs, training, "input CKA, training", "target CKA, training"),
    ]
    for ax, (across, up, xlabel, ylabel) in zip(axes, pairs, strict=True):
        for layer in across:
            ax.errorbar(
                across[layer].mean(),
                up[layer].mean(),
                xerr=across[layer].std(),
                yerr=up[layer].std(),
                fmt="o",
                lw=1.2,
                color=shade(layer),
                label=str(layer),
            )
        middle = float(across.to_numpy().mean())
        ax.axline((middle, middle), slope=1, color="0.5", lw=1, ls="--", zorder=0)
        ax.set(xlabel=xlabel, ylabel=ylabel)
    axes[1].legend(title="layer", loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def means_and_maps(networks: pd.DataFrame) -> Figure:
    """Target CKA over depth, by what the features are."""
    figure, ax = plt.subplots(figsize=(5.4, 3.2))
    looks = {"means of filters": ("means", "C0"), "whole maps": ("maps", "C1")}
    for label, (features, color) in looks.items():
        _over_depth(ax, tables.layers(networks, "target", features=features), color, label)
    ax.set(ylabel="target CKA", ylim=(0, None))
    ax.legend()
    return figure


def _over_depth(ax: Axes, found: pd.DataFrame, color: str, label: str) -> None:
    """Mean over configurations for each layer, with a band of one standard deviation."""
    mean, spread = found.mean(), found.std()
    ax.plot(mean, ".-", color=color, label=label)
    ax.fill_between(found.columns, mean - spread, mean + spread, color=color, alpha=0.2, lw=0)
    ax.set(xlabel="layer", xticks=list(found.columns))


def ours_and_printed(found: pd.DataFrame, printed: pd.DataFrame) -> Figure:
    """Table I as a scatter: the paper's correlation across, ours up."""
    figure, ax = plt.subplots(figsize=(5.2, 4.6))
    for column, mark in zip(printed, "os^D", strict=True):
        free = printed.index[printed[column] < 1]
        style = dict(color=mpl.rcParams["text.color"], alpha=0.75, ms=5, label=column)
        ax.plot(printed.loc[free, column], found.loc[free, column], mark, **style)
    ax.axline((0, 0), slope=1, color="0.5", lw=1, ls="--", zorder=0)
    ax.axhline(0, color="0.8", lw=0.8, zorder=0)
    ax.axvline(0, color="0.8", lw=0.8, zorder=0)
    ax.set(
        xlabel="correlation in the paper", ylabel="correlation here", xlim=(-1.05, 1.05), ylim=(-1.05, 1.05)
    )
    ax.legend(title="with", loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def accuracy_and_average(table: pd.DataFrame) -> Figure:
    """Figure 6: accuracy of configurations in their order, and average CKA with the target."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(6.6, 4.6), sharex=True)
    panels: Mapping[Axes, tuple[str, dict[str, str]]] = {
        above: ("accuracy", {"training": "fitted", "test": "tested"}),
        below: ("target", {"training": "average_training", "test": "average_test"}),
    }
    for ax, (color, lines) in panels.items():
        for images, column in lines.items():
            look: dict[str, Any] = dict(color=COLORS[color], ls=DASHES[images], label=f"{images} images")
            ax.plot(table[column].to_numpy(), marker=".", lw=1.1, **look)
        ax.legend()
    above.set(ylabel="accuracy", ylim=(0, 1.03))
    below.set(ylabel="average target CKA", xlabel="configurations, by test accuracy", ylim=(0, None))
    return figure


def loss_and_accuracy(table: pd.DataFrame) -> Figure:
    """Test accuracy against the final training loss, on images as the network saw them, and as they are."""
    figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.4), sharey=True)
    columns = {"loss_augmented": "augmented as in training", "loss_without_augmentation": "as they are"}
    for ax, (column, title) in zip(axes, columns.items(), strict=True):
        for augmented, part in table.groupby("augment"):
            ink = mpl.rcParams["text.color"]
            filled, label = (ink, "augmented") if augmented else ("none", "not augmented")
            ax.plot(part[column], part["tested"], "o", ms=5, color=ink, mfc=filled, label=label)
        ax.set(xscale="log", xlabel="training loss", title=title)
    axes[0].set(ylabel="test accuracy")
    axes[1].legend(title="configuration", loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def lens(rows: pd.DataFrame, role: str) -> Figure:
    """Figures 3 to 5: eigenvalues and cumulative power of layers 9 and 10 at three times."""
    figure, axes = plt.subplots(2, 2, figsize=(7.4, 5.4), sharex="col")
    modes = rows[(rows["kind"] == "mode") & (rows["role"] == role)]
    for (layer, time), part in modes.groupby(["layer", "time"]):
        column = int(layer) - 9
        mean = part.groupby("mode")[["eigenvalue", "power"]].mean()
        positive = part["eigenvalue"].where(part["eigenvalue"] > 0)  # rounding may leave a zero
        mean["eigenvalue"] = np.exp(np.log(positive).groupby(part["mode"]).mean())
        style = dict(color=COLORS[str(time)], label=str(time))
        axes[0, column].loglog(mean["eigenvalue"], **style)
        axes[1, column].semilogx(mean["power"], **style)
    for column in (0, 1):
        axes[0, column].set_title(f"layer {9 + column}")
        axes[1, column].set(xlabel="mode", ylim=(0, 1.03))
        for ax in axes[:, column]:
            ax.axvline(10, color="0.5", ls=":", lw=1)
    axes[0, 0].set(ylabel="eigenvalue")
    axes[1, 0].set(ylabel="cumulative power")
    handles, labels = axes[0, 1].get_legend_handles_labels()
    order = [labels.index(name) for name in ("start", "early", "end") if name in labels]
    axes[0, 1].legend(
        [handles[i] for i in order], [labels[i] for i in order], loc="upper left", bbox_to_anchor=(1, 1)
    )
    return figure


def through_time(three: pd.DataFrame) -> Figure:
    """Gap and effective rank of layers 9 and 10 of the three networks at three times: means over groups."""
    figure, axes = plt.subplots(2, 2, figsize=(7.4, 5.4), sharex=True, sharey="row")
    times = ["start", "early", "end"]
    rows = {"gap": "gap (decades)", "rank": "effective rank"}
    for row, (value, label) in zip(axes, rows.items(), strict=True):
        found = [tables.spectra(three, value, time=time) for time in times]
        mean = pd.DataFrame([one.mean() for one in found], times)
        error = pd.DataFrame([one.std() / len(one) ** 0.5 for one in found], times)
        for role, mark in MARKS.items():
            for layer, ax in zip((9, 10), row, strict=True):
                line, bars = mean[role, layer], error[role, layer]
                look = dict(color=mpl.rcParams["text.color"], lw=1.1, marker=mark, label=role)
                ax.errorbar(times, line, yerr=bars, **look)
        row[0].set_ylabel(label)
    for ax in axes[1]:
        ax.axhline(9, color="0.5", ls=":", lw=1)
        ax.set_yscale("log")
        ax.set_yticks([5, 10, 20, 40], ["5", "10", "20", "40"])
        ax.minorticks_off()
    for layer, ax in zip((9, 10), axes[0], strict=True):
        ax.set_title(f"layer {layer}")
    axes[0, 1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def through_training(networks: pd.DataFrame) -> Figure:
    """Target CKA over depth, on training and on test images, at three times."""
    figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.2), sharey=True)
    for ax, images in zip(axes, ("training", "test"), strict=True):
        for time in ("start", "early", "end"):
            found = tables.layers(networks, "target", images=images, time=time)
            _over_depth(ax, found, COLORS[time], time)
        ax.set(title=f"{images} images", ylim=(0, None))
    axes[0].set_ylabel("target CKA")
    axes[1].legend(loc="upper left")
    return figure


def probes(networks: pd.DataFrame) -> Figure:
    """Measured against predicted error of regression on every layer of every network."""
    rows = tables.probe_errors(networks)
    figure, ax = plt.subplots(figsize=(5.2, 4.4))
    for layer, part in rows.groupby("layer"):
        label = str(int(layer))
        ax.plot(part["predicted"], part["measured"], "o", ms=3, color=shade(int(layer)), label=label)
    both = rows[["measured", "predicted"]].to_numpy()
    ends = [both.min(), both.max()]
    ax.plot(ends, ends, color="0.5", lw=1, ls="--", zorder=0)
    ax.set(xlabel="predicted error", ylabel="measured error")
    ax.legend(title="layer", ncols=2, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
