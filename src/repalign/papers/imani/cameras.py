"""Three simulated cameras: domains with the same classes, in place of Office-31's (Imani et al., §7.3)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate

CAMERAS = ("amazon", "webcam", "dslr")


def camera(x: Float[Tensor, "n c h w"], domain: str, *, seed: int) -> Float[Tensor, "n c h w"]:
    """Images in [0, 1] as the camera of a domain of Office-31 would show them.

    Gray images (c = 1) show one object on black, color images (c = 3) are photographs that fill their frame.
    ``"amazon"`` leaves catalog pictures as they are; ``"webcam"`` makes them coarse, pale and noisy; on
    ``"dslr"`` objects, or whole photographs, are smaller, moved about, and in front of an uneven background.

    >>> camera(torch.zeros(2, 1, 28, 28), "webcam", seed=0).mean().round(decimals=1)
    tensor(0.2000)
    """
    if domain not in CAMERAS:
        raise ValueError(f"there are the cameras {', '.join(CAMERAS)}, but {domain!r} was asked for.")
    if x.ndim != 4 or x.shape[1] not in (1, 3) or not x.is_floating_point():
        raise ValueError(f"images should be floats (n, 1 or 3, h, w), but are {x.dtype} {tuple(x.shape)}.")
    g = torch.Generator().manual_seed(seed)
    n, channels, height, width = x.shape
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
        corners = torch.rand(n, channels, 3, 3, generator=g).to(x)
        room = interpolate(corners, (height, width), mode="bilinear")
        # An object on black hides the room where it is bright, a photograph wherever it is.
        hides = x if channels == 1 else torch.ones_like(x)
        x = grid_sample(x, grid, align_corners=False)
        x = x + 0.5 * (1 - grid_sample(hides, grid, align_corners=False)) * room
    return x.clamp(0, 1)
