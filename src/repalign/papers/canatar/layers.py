"""Canatar & Pehlevan: what layers resemble, input, target or other layers, and how models rank by it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from repalign import kernels
from repalign.features import extract
from repalign.plots.frames import colors_of


def layer_cka(
    model: nn.Module,
    x: Tensor,
    others: Mapping[str, Tensor],
    layers: str | Sequence[str] | None = None,
    *,
    batch_size: int = 256,
) -> list[dict[str, Any]]:
    """CKA of each layer on ``x`` with each of ``others``, plain and debiased: a row for each layer.

    ``others`` are tensors with a row for each sample: the input itself, one-hot targets, another network's
    layer. ``layers`` as for :func:`extract`; they are counted from 1. A layer that is the same for all
    samples, or not finite, resembles nothing: NaN.

    >>> from repalign import models
    >>> x = torch.linspace(-1, 1, 60).reshape(20, 3) ** 3
    >>> net = models.build("mlp", inputs=3, outputs=2, width=(8, 5))
    >>> [sorted(row) for row in layer_cka(net, x, {"input": x})]
    [['input', 'input, debiased', 'layer'], ['input', 'input, debiased', 'layer']]
    """
    found = extract(model, x, layers, batch_size)
    rows: list[dict[str, Any]] = [{"layer": k} for k in range(1, len(found) + 1)]
    alive = [k for k, phi in enumerate(found.values()) if 0 < float((phi - phi[0]).abs().sum()) < math.inf]
    own = [list(found.values())[k] for k in alive]
    fixed = [torch.as_tensor(other).detach().cpu().flatten(1).float() for other in others.values()]
    for debiased, end in ((False, ""), (True, ", debiased")):
        for row in rows:
            row.update({f"{name}{end}": math.nan for name in others})
        grid = kernels.cka_grid(own, fixed, debiased=debiased).tolist() if alive else []
        for k, values in zip(alive, grid, strict=True):
            rows[k].update({f"{name}{end}": value for name, value in zip(others, values, strict=True)})
    return rows


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
        colors = colors_of(pd.DataFrame({legend: list(frame.columns)}), legend, {}) or {}
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
        colors = colors_of(pd.DataFrame({legend: list(x.columns)}), legend, {}) or {}
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
