"""Training on images as the networks of ImageNet see them: in memory, or in files read batch by batch."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from repalign.data import Dataset, ImageFiles
from repalign.models.weights import IMAGENET_SCALE, Preprocess
from repalign.train.history import History
from repalign.train.loop import fit
from repalign.train.recipes import crop_and_flip
from repalign.train.targets import accuracy


def image_view(
    x: UInt8[Tensor, "n 3 h w"], side: int, random: torch.Generator | None = None
) -> Float[Tensor, "n 3 s s"]:
    """Bytes as inputs of ``side`` pixels with ImageNet's mean and deviation; with ``random``, augmented.

    Images of 32 pixels are shifted by up to 4 of them. Larger inputs are a window of the image, brought to
    8/7 of ``side``, 256 for 224: the middle, or with ``random`` any. Half of the random ones are mirrored.

    >>> image_view(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), 224).shape
    torch.Size([2, 3, 224, 224])
    """
    whole = 32 if side == 32 else side * 8 // 7
    seen = Preprocess(whole, *IMAGENET_SCALE)(x.float() / 255)
    edge = (whole - side) // 2
    if random is not None:
        seen = crop_and_flip(seen, random, pad=edge or 4)
    return seen[..., edge : edge + side, edge : edge + side]


def fit_images(model: nn.Module, images: Dataset | ImageFiles, *, side: int, **options: Any) -> History:
    """Train ``model`` on augmented views of ``images`` (bytes); ``options`` are those of :func:`fit`.

    The rows of a batch are read when it is their turn, so that files need the memory of one batch.
    """

    def read(rows: Tensor, random: torch.Generator) -> Tensor:
        return image_view(_rows(images, rows.cpu()).to(rows.device), side, random)

    if getattr(model, "channels_last", False):  # fit decides by the images, and sees row numbers only
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return fit(model, torch.arange(len(images)), images.y, augment=read, **options)


def image_accuracy(model: nn.Module, images: Dataset | ImageFiles, *, side: int, batch: int = 500) -> float:
    """Share of ``images`` (bytes) that ``model`` classifies correctly, read batch by batch."""
    right = 0.0
    for rows in torch.arange(len(images)).split(batch):
        seen = image_view(_rows(images, rows), side)
        right += accuracy(model, seen, images.y[rows]) * len(rows)
    return right / len(images)


def _rows(images: Dataset | ImageFiles, rows: Tensor) -> Tensor:
    x = images[rows] if isinstance(images, ImageFiles) else images.x[rows.to(images.x.device)]
    if x.dtype != torch.uint8:
        raise TypeError(f"images should be bytes, but are {x.dtype}: load them with dtype=torch.uint8.")
    return x
