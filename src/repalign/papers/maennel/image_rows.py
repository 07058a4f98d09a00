"""A first layer that looks images up by their numbers: for sets that are too large to hold as one tensor."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from repalign.data import Dataset, ImageFiles


class ImageRows(nn.Module):
    """Numbers of images in, these images from −1 to 1 out, of ``side`` pixels.

    Images of several sets are numbered through, in the order of ``sets``. A network behind it is trained on
    ``torch.arange(n)``: of files only a batch is in memory at a time. Bytes go from −1 to 1, other images
    are taken as from 0 to 1. Those of at least twice the side are averaged over blocks; of what is then
    larger, the middle is cut out. Copies of a network share the images, which are no weights.

    >>> from repalign import data
    >>> digits = data.load("mnist", n=20, shrink=True, dtype=torch.uint8)
    >>> ImageRows([digits], side=14)(torch.tensor([3, 0])).shape
    torch.Size([2, 1, 14, 14])
    """

    def __init__(self, sets: list[Dataset] | list[ImageFiles], *, side: int, device: Any = "cpu") -> None:
        super().__init__()
        self.side = side
        self.images: Tensor | ImageFiles
        files = [one for one in sets if isinstance(one, ImageFiles)]
        if files:
            if len(files) < len(sets) or len({one.size for one in files}) > 1:
                raise ValueError("sets should all be files brought to one size, or all be in memory.")
            paths = [path for one in files for path in one.paths]
            self.images = dataclasses.replace(files[0], paths=paths, y=torch.cat([one.y for one in files]))
        else:
            self.images = torch.cat([one.x for one in sets]).to(device)  # type: ignore[union-attr]

    def __deepcopy__(self, memo: dict[int, Any]) -> ImageRows:
        return self

    def forward(self, rows: Int64[Tensor, " n"]) -> Float[Tensor, "n c s s"]:
        x = self.images[rows]
        x = x.float() / 127.5 - 1 if x.dtype == torch.uint8 else 2 * x - 1
        block = max(1, x.shape[-1] // self.side)
        x = avg_pool2d(x, block) if block > 1 else x
        edge = (x.shape[-1] - self.side) // 2
        if edge < 0:
            raise ValueError(
                f"images of {x.shape[-1]} pixels cannot be seen at {self.side}: choose a smaller side."
            )
        return x[..., edge : edge + self.side, edge : edge + self.side]
