"""Selections and drawings of the table that :func:`tangent_evolution` gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from repalign.papers.canatar.networks import CLASSES, TARGET_RANK
from repalign.papers.canatar.tangent_kernel import (
    GRADIENT,
    OPERATOR,
    PENULTIMATE,
    TANGENT_PAIRS,
    TERM_PAIRS,
)
from repalign.plots.frames import averaged

# One color for each meaning, one dash for each set of images, throughout the page.
COLORS = {"accuracy": "C5", **dict(zip(TANGENT_PAIRS, ("C0", "C1", "C2"), strict=True))}
STAGES = {"start": "C5", "middle": "C4", "end": "C3"}
DASHES = {"training": "-", "test": "--"}
BAND = 0.2


def tangent_ends(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each run: how it ended, and accuracy and live units at its last look."""
    last = runs[runs["epoch"] == runs.groupby("cell")["epoch"].transform("max")]
    found = last.drop_duplicates("cell").set_index("cell")[["rate", "seed", "ended", "epoch"]]
    accuracy = last[last["what"] == "accuracy"].pivot(index="cell", columns="images", values="value")
    units = last[(last["what"] == "live units") & (last["images"] == "training")]
    live = units.groupby("cell")["value"].mean().rename("live")
    return found.join(accuracy).join(live).reset_index(drop=True)


def tangent_stages(runs: pd.DataFrame, what: str, of: str) -> Iterator[tuple[str, float, pd.DataFrame]]:
    """Images, rate, and a frame with a row for each run that trained: its value at start, middle and end."""
    kept = runs[(runs["ended"] == "trained") & (runs["what"] == what) & (runs["of"] == of)]
    if kept.empty:
        raise ValueError(
            f"no network has a {what} of {of} at the end ({_said(runs)}): lower the learning rates."
        )
    for (images, rate), part in kept[kept["stage"] != ""].groupby(["images", "rate"], sort=False):
        yield images, rate, part.pivot(index="seed", columns="stage", values="value")


def tangent_changes(
    runs: pd.DataFrame, what: str, of: str, first: str = "start", last: str = "end"
) -> Iterator[tuple[str, pd.Series]]:
    """By how much a value changed from one time to another: a name and a number for each network."""
    for images, rate, values in tangent_stages(runs, what, of):
        yield f"{of}, {images}, rate {rate:g}: {last} − {first}", values[last] - values[first]


def _said(runs: pd.DataFrame) -> str:
    """How many runs ended how, in words."""
    counts = runs.drop_duplicates("cell")["ended"].value_counts()
    return ", ".join(f"{count} ended {how}" for how, count in counts.items())


def tangent_fates(*sweeps: pd.DataFrame) -> pd.DataFrame:
    """A row for each rate: how many networks there were, how they ended, and how well they predict."""
    found = pd.concat([tangent_ends(runs) for runs in sweeps])
    rows = {}
    for rate, part in found.groupby("rate", sort=False):
        rows[f"rate {rate:g}"] = {
            "networks": len(part),
            "epochs": int(part["epoch"].max()),
            "alive at the end": int((part["ended"] == "trained").sum()),
            "units that live": part["live"].mean(),
            "training accuracy": part["training"].mean(),
            "test accuracy": part["test"].mean(),
        }
    return pd.DataFrame(rows).T


def tangent_start_and_end(runs: pd.DataFrame) -> pd.DataFrame:
    """CKA and KTA of every pair at the start and at the end: means over the networks that trained."""
    pairs = [*TANGENT_PAIRS, OPERATOR]
    parts = {of: _start_and_end(runs, {what: (what, of) for what in ("CKA", "KTA")}) for of in pairs}
    return pd.concat(parts, names=["kernels"])


def octaves_from_nine(ranks: pd.DataFrame) -> pd.DataFrame:
    """How far ranks lie above that of the centered labels: 1 is twice as high, -1 half."""
    return np.log2(ranks / TARGET_RANK)


def rank_and_power(runs: pd.DataFrame) -> pd.DataFrame:
    """Effective rank of the centered NTK, and power of the labels in its first ten modes."""
    return _start_and_end(runs, {"effective rank": ("rank", "NTK"), "C(10)": ("power", "NTK")})


def two_terms(runs: pd.DataFrame) -> pd.DataFrame:
    """What the two terms of the NTK look like at the end: means over the networks that trained."""
    rows: dict[tuple[str, str], dict[str, float]] = {}
    shown = {"last layer": (PENULTIMATE, TERM_PAIRS[0]), "rest": (GRADIENT, TERM_PAIRS[1])}
    for name, (term, pair) in shown.items():
        for what, of in {"CKA": pair, "rank": term, "power": term}.items():
            for images, rate, values in tangent_stages(runs, what, of):
                rows.setdefault((images, f"{rate:g}"), {})[f"{name}: {what}"] = values["end"].mean()
    return pd.DataFrame(rows).T.rename_axis(["images", "rate"])


def penultimate_shares(runs: pd.DataFrame) -> pd.DataFrame:
    """What the penultimate kernel is of the NTK, by two measures."""
    return _start_and_end(runs, {what: (what, PENULTIMATE) for what in ("share", "share of trace")})


def _start_and_end(runs: pd.DataFrame, columns: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """Values at the start and at the end, by images and rate: means over the networks that trained."""
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for name, (what, of) in columns.items():
        for images, rate, values in tangent_stages(runs, what, of):
            row = rows.setdefault((images, f"{rate:g}"), {})
            row |= {f"{name}, {stage}": values[stage].mean() for stage in ("start", "end")}
    return pd.DataFrame(rows).T.rename_axis(["images", "rate"])


def alignments_through_training(runs: pd.DataFrame) -> Figure:
    """Figure 7: accuracy on the left, alignments on the right, a row of panels for each rate."""
    rates = list(dict.fromkeys(runs["rate"]))
    size = (7.4, 2.6 * len(rates) + 0.8)
    figure, axes = plt.subplots(len(rates), 2, figsize=size, sharex=True, sharey=True, squeeze=False)
    for (left, right), rate in zip(axes, rates, strict=True):
        of_rate = runs[runs["rate"] == rate]
        _lines(left, of_rate[of_rate["what"] == "accuracy"], {"network": COLORS["accuracy"]})
        _lines(right, of_rate[of_rate["what"] == "CKA"], {pair: COLORS[pair] for pair in TANGENT_PAIRS})
        left.set(ylabel=f"rate {rate:g}", ylim=(0, 1.03), xscale="symlog")
    axes[0, 0].set_title("accuracy")
    axes[0, 1].set_title("CKA")
    for ax in axes[-1]:
        ax.set_xlabel("epoch")
    _legend(figure, {pair: COLORS[pair] for pair in TANGENT_PAIRS})
    return figure


def tangent_spectra(runs: pd.DataFrame) -> Figure:
    """Figure 8: eigenvalues of the NTK above, cumulative power below, a column of panels for each rate."""
    rates = list(dict.fromkeys(runs["rate"]))
    size = (3.5 * len(rates) + 0.4, 6.0)
    figure, axes = plt.subplots(2, len(rates), figsize=size, sharex=True, sharey="row", squeeze=False)
    for row, what in zip(axes, ("eigenvalue", "cumulative power"), strict=True):
        for ax, rate in zip(row, rates, strict=True):
            part = runs[(runs["what"] == what) & (runs["rate"] == rate)]
            _lines(ax, part, STAGES, x="mode", hue="stage")
            ax.axvline(CLASSES, color="C5", lw=1, ls=":")
            ax.set(xscale="log")
            ax.set_title(f"rate {rate:g}")
        row[0].set_ylabel(what)
    axes[0, 0].set_yscale("log")
    for ax in axes[-1]:
        ax.set_xlabel("mode")
    _legend(figure, STAGES)
    return figure


def tangent_shares(runs: pd.DataFrame) -> Figure:
    """The share of each layer in the NTK at three times, a panel for each rate."""
    kept = runs[(runs["what"] == "share") & (runs["stage"] != "")]
    rates = list(dict.fromkeys(runs["rate"]))
    size = (3.5 * len(rates) + 0.4, 3.6)
    figure, axes = plt.subplots(1, len(rates), figsize=size, sharey=True, squeeze=False)
    for ax, rate in zip(axes[0], rates, strict=True):
        part = kept[kept["rate"] == rate]
        _lines(ax, part.rename(columns={"of": "layer"}), STAGES, x="layer", hue="stage")
        ax.axhline(0.5, color="C5", lw=1, ls=":")
        ax.set(ylim=(0, 1))
        ax.set_title(f"rate {rate:g}")
        ax.tick_params(axis="x", rotation=40)
    axes[0, 0].set_ylabel("share in the NTK")
    _legend(figure, STAGES)
    return figure


def _lines(
    ax: Axes, frame: pd.DataFrame, colors: dict[str, str], *, x: str = "epoch", hue: str = "of"
) -> None:
    """Mean over runs with a band of one standard error; a value that does not exist is a gap."""
    kept = frame[frame[hue].isin(list(colors))]
    mean = averaged(kept, [x, hue, "images"], "value", "seed").dropna(subset="mean")
    for (of, images), line in mean.groupby([hue, "images"], sort=False):
        ax.plot(line[x], line["mean"], color=colors[str(of)], ls=DASHES[str(images)])
        low, high = line["mean"] - line["se"], line["mean"] + line["se"]
        ax.fill_between(line[x], low, high, color=colors[str(of)], alpha=BAND, lw=0)


def _legend(figure: Figure, colors: dict[str, Any]) -> None:
    """Colors and dashes under the panels."""
    keys = {name: Line2D([], [], color=color) for name, color in colors.items()}
    ink = mpl.rcParams["text.color"]
    keys |= {f"{images} images": Line2D([], [], color=ink, ls=dash) for images, dash in DASHES.items()}
    figure.legend(list(keys.values()), list(keys), loc="outside lower center", ncols=3)
