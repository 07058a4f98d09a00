"""Matrices in color, strips of images."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure


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
