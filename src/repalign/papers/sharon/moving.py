"""Images that move while a network trains: for digits, whose mirror images are other signs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad as padded

from repalign.train.recipes import crop_and_flip


def shifted(x: Tensor, generator: torch.Generator, *, pad: int = 2, fill: float = 0.0) -> Tensor:
    """Shift every image by up to ``pad`` pixels, each its own way; ``fill`` moves in.

    >>> moved = shifted(torch.ones(2, 1, 5, 5), torch.Generator().manual_seed(0), pad=1)
    >>> moved.shape, [int(image.sum()) for image in moved]
    (torch.Size([2, 1, 5, 5]), [16, 16])
    """
    height, width = x.shape[-2:]
    # Drawn on the CPU, so that every device sees the same augmentation.
    moves = torch.randint(2 * pad + 1, (len(x), 2), generator=generator).tolist()
    wide = zip(padded(x, 4 * [pad], value=fill), moves, strict=True)
    return torch.stack([image[:, i : i + height, j : j + width] for image, (i, j) in wide])


def usual(channels: int, pad: int) -> Callable[[Tensor, torch.Generator], Tensor]:
    """The augmentation for images from -1 to 1: in color shifted and mirrored, in gray only shifted.

    What moves in is black, -1.

    >>> usual(1, 1)(torch.ones(2, 1, 5, 5), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 1, 5, 5])
    """
    return partial(_in_color, pad=pad) if channels == 3 else partial(shifted, fill=-1.0, pad=pad)


def _in_color(x: Tensor, generator: torch.Generator, pad: int) -> Tensor:
    return crop_and_flip(x + 1, generator, pad=pad) - 1
