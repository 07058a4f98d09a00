"""Features of images as Imani et al. (§7.2) compare them: designed by people, or a trained network's.

>>> import torch
>>> images = torch.rand(6, 3, 32, 32)
>>> designed("RBF", images)(images[:2]).shape
torch.Size([2, 6])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repalign.models import Pretrained
from repalign.papers.imani.handmade import hog, rbf, sift_bag_of_words, sift_vocabulary

DESIGNED = ("pixels", "HOG", "SIFT", "RBF")


def designed(
    kind: str, x: Float[Tensor, "n c h w"], *, words: int = 2048, seed: int = 0
) -> Callable[[Float[Tensor, "m c h w"]], Float[Tensor, "m d"]]:
    """A function from images to the features of this ``kind``, fitted to the training images ``x``.

    ``"pixels"`` and ``"HOG"`` need no fit; ``"SIFT"`` counts the ``words`` of a vocabulary of x;
    ``"RBF"`` has a center at every image of x, and works in float64.
    """
    if kind not in DESIGNED:
        raise ValueError(f"kind should be one of {', '.join(DESIGNED)}, but is {kind!r}.")
    if kind == "pixels":
        return partial(torch.flatten, start_dim=1)
    if kind == "HOG":
        return hog
    if kind == "SIFT":
        return partial(sift_bag_of_words, vocabulary=sift_vocabulary(x, words, seed=seed))
    return lambda images: rbf(images.double(), x.double())


def last_hidden(
    net: Pretrained,
    x: Float[Tensor, "n c h w"],
    *,
    size: int | None = None,
    device: str | torch.device = "cpu",
    batch_size: int = 100,
) -> Float[Tensor, "n d"]:
    """What reaches the last linear layer of a network, for images in [0, 1]: the features to transfer.

    Images are brought to ``size`` pixels, the network's own by default. Of a network without its classifier
    it is the output. The network runs in eval mode on ``device``; rows come back where ``x`` is.
    """
    linear = [part for part in net.module.modules() if isinstance(part, nn.Linear)]
    head = linear[-1] if net.complete else None
    return torch.cat([rows.flatten(1) for rows in _reaching(head, net, x, size, device, batch_size)])


def last_map(
    net: Pretrained,
    x: Float[Tensor, "n c h w"],
    *,
    size: int | None = None,
    device: str | torch.device = "cpu",
    batch_size: int = 100,
) -> Float[Tensor, "n k a b"]:
    """The last map of a convolutional network, before its mean over positions; see :func:`last_hidden`.

    Flattened it has a feature for every channel and position, where their mean has one for every channel.
    """
    pools = [part for part in net.module.modules() if isinstance(part, nn.AdaptiveAvgPool2d)]
    if not pools:
        raise ValueError(f"{net.name} has no AdaptiveAvgPool2d whose input could be its last map.")
    return torch.cat(list(_reaching(pools[-1], net, x, size, device, batch_size)))


def last_layer(
    net: Pretrained,
    x: Float[Tensor, "n c h w"],
    *,
    size: int | None = None,
    device: str | torch.device = "cpu",
) -> Float[Tensor, "n d"]:
    """The features to transfer, a row for each image: the last hidden layer.

    Of a VGG16 without its dense layers they are the last map, flattened.
    """
    bare = net.name == "vgg16" and not net.complete
    last = last_map if bare else last_hidden
    return last(net, x, size=size, device=device).flatten(1)


def _reaching(
    part: nn.Module | None,
    net: Pretrained,
    x: Tensor,
    size: int | None,
    device: str | torch.device,
    batch_size: int,
) -> Iterator[Tensor]:
    """What reaches ``part`` of a network, batch by batch, on the device of ``x``; the output without one."""
    prepare = net.preprocess if size is None else replace(net.preprocess, size=size)
    module = net.module.to(device).eval()
    seen: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])

    hook = None if part is None else part.register_forward_pre_hook(keep)
    try:
        for images in x.split(batch_size):
            with torch.no_grad():
                output = module(prepare(images).to(device))
            yield (output if part is None else seen.pop()).to(x.device)
    finally:
        if hook is not None:
            hook.remove()
