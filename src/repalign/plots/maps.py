"""Maps and pictures: epochs against epochs, matrices, strips of images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from numpy.typing import ArrayLike


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
