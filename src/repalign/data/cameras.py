"""Three simulated cameras: domains with the same classes, in place of Office-31's (Imani et al., §7.3)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate

CAMERAS = ("amazon", "webcam", "dslr")


def camera(x: Float[Tensor, "n 1 h w"], domain: str, *, seed: int) -> Float[Tensor, "n 1 h w"]:
    """Gray images in [0, 1], one object on black, as the camera of a domain of Office-31 would show them.

    ``"amazon"`` leaves catalog pictures as they are; ``"webcam"`` makes them coarse, pale and noisy; on
    ``"dslr"`` objects are smaller, moved about, and in front of an uneven background.

    >>> camera(torch.zeros(2, 1, 28, 28), "webcam", seed=0).mean().round(decimals=1)
    tensor(0.2000)
    """
    if domain not in CAMERAS:
        raise ValueError(f"there are the cameras {', '.join(CAMERAS)}, but {domain!r} was asked for.")
    if x.ndim != 4 or x.shape[1] != 1 or not x.is_floating_point():
        raise ValueError(f"images should be floats (n, 1, h, w), but are {x.dtype} {tuple(x.shape)}.")
    g = torch.Generator().manual_seed(seed)
    n, _, height, width = x.shape
    if domain == "webcam":
        coarse = interpolate(x, (height // 2, width // 2), mode="area")
        pale = 0.2 + 0.6 * interpolate(coarse, (height, width), mode="bilinear")
        x = pale + 0.1 * torch.randn(x.shape, generator=g).to(x)
    elif domain == "dslr":
        size = 1.2 + 0.3 * torch.rand(n, generator=g)
        place = torch.zeros(n, 2, 3)
        place[:, 0, 0] = place[:, 1, 1] = size
        place[:, :, 2] = 0.4 * torch.rand(n, 2, generator=g) - 0.2
        grid = affine_grid(place.to(x), list(x.shape), align_corners=False)
        room = interpolate(torch.rand(n, 1, 3, 3, generator=g).to(x), (height, width), mode="bilinear")
        x = grid_sample(x, grid, align_corners=False)
        x = x + 0.5 * (1 - x) * room
    return x.clamp(0, 1)
