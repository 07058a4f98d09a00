"""Images as a convolution sees them, window by window, and step by step less real (Maennel et al., E.2).

>>> import torch
>>> images = torch.rand(50, 3, 9, 9)
>>> bool((mosaic(images, "real", stride=3) == images).all())
True
>>> mosaic(images, "shuffled", stride=1).shape           # 7 × 7 windows, side by side
torch.Size([50, 3, 21, 21])
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import fold, unfold

from repalign.covariance import patch_covariance

VERSIONS = ("Gaussian", "per position", "shuffled", "real")


def middle(images: UInt8[Tensor, "n c h w"], side: int) -> Float[Tensor, "n c side side"]:
    """The middle ``side`` × ``side`` pixels of images of bytes, brought to [−1, 1].

    >>> middle(torch.tensor([[[[0, 0, 0], [0, 255, 0], [0, 0, 0]]]], dtype=torch.uint8), 1)
    tensor([[[[1.]]]])
    """
    h, w = images.shape[-2:]
    if images.dtype != torch.uint8 or not 1 <= side <= min(h, w):
        raise ValueError(
            f"side should be from 1 to {min(h, w)} and images bytes, but they are {side} and {images.dtype}."
        )
    top, left = (h - side) // 2, (w - side) // 2
    return images[..., top : top + side, left : left + side] / 127.5 - 1


def mosaic(
    images: Float[Tensor, "n c h h"], version: str, *, stride: int = 3, size: int = 3, seed: int = 0
) -> Float[Tensor, "n c k k"]:
    """The windows that a ``size`` × ``size`` convolution of this stride stops at, side by side in new images.

    A convolution whose stride is its size computes on the result what one of this stride computes on the
    images. Windows that overlap get a place each, so that here they can be independent:

    Gaussian      normal with mean 0 and the covariance of all patches of the images
    per position  normal with mean 0 and the covariance of the patches at the window's own position
    shuffled      real windows, at each position permuted among the images
    real          as they are
    """
    if version not in VERSIONS:
        raise ValueError(f"unknown version {version!r}: choose one of {', '.join(VERSIONS)}.")
    if images.ndim != 4 or images.shape[2] != images.shape[3] or not images.is_floating_point():
        raise ValueError(
            f"images should be square, of shape (n, c, h, h), and not bytes, but are {images.dtype} of shape "
            f"{tuple(images.shape)}."
        )
    h = images.shape[-1]
    if not 1 <= size <= h or stride < 1:
        raise ValueError(
            f"size should be from 1 to {h} and stride at least 1, but they are {size} and {stride}."
        )
    rng, side = np.random.default_rng(seed), (h - size) // stride + 1
    seen = unfold(images, size, stride=stride).permute(2, 0, 1)  # windows, n, c·size²
    if version == "shuffled":
        order = torch.from_numpy(rng.random(seen.shape[:2]).argsort(1)).to(seen.device)
        seen = seen.gather(1, order[..., None].expand_as(seen))
    elif version != "real":
        if version == "Gaussian":
            cov = patch_covariance(images, size).double()
        else:
            own = seen.double() - seen.double().mean(dim=1, keepdim=True)
            cov = own.mT @ own / len(images)
        values, vectors = torch.linalg.eigh(cov)
        root = vectors * values.clamp(min=0).sqrt()[..., None, :]
        noise = torch.from_numpy(rng.standard_normal(tuple(seen.shape), dtype=np.float32))
        seen = noise.to(seen) @ root.mT.to(seen)
    return fold(seen.permute(1, 2, 0), size * side, size, stride=size)
