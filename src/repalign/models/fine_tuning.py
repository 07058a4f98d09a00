"""Trained networks, made ready to learn another task."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import replace
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repalign.models.initialization import Seed, initialize, own_randomness
from repalign.models.weights import Preprocess, Pretrained

M = TypeVar("M", bound=nn.Module)


class Look(nn.Module):
    """Images in [0, 1] brought to the size and scale that a network expects."""

    def __init__(self, preprocess: Preprocess) -> None:
        super().__init__()
        self.preprocess = preprocess

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n 3 s s"]:
        return self.preprocess(x)


def with_head(net: Pretrained, outputs: int, *, size: int | None = None, seed: Seed = 0) -> nn.Sequential:
    """A copy of ``net`` that takes images in [0, 1] and ends in a fresh dense layer of ``outputs`` units.

    It has three parts: ``look`` brings images to ``size`` pixels (the network's own by default) and to its
    scale, ``trunk`` computes the last hidden layer, and ``head`` is new. It comes in evaluation mode.

    >>> from repalign.models import first_available
    >>> model = with_head(first_available("random"), 5)
    >>> model(torch.rand(2, 3, 40, 40)).shape
    torch.Size([2, 5])
    """
    look = Look(net.preprocess if size is None else replace(net.preprocess, size=size))
    trunk = copy.deepcopy(net.module).eval()
    if net.complete:
        old = [name for name, part in trunk.named_modules() if isinstance(part, nn.Linear)][-1]
        trunk.set_submodule(old, nn.Identity())
    like = next(trunk.parameters())
    with torch.no_grad(), own_randomness():
        width = trunk(look(torch.zeros(1, 3, 8, 8).to(like))).shape[1]
        head = nn.Linear(width, outputs).to(like)
    initialize(head, "he", seed=seed, width=width)
    return nn.Sequential(OrderedDict(look=look, trunk=trunk, head=head)).eval()


def replace_head(model: M, outputs: int, *, init: str = "he", init_scale: float = 1.0, seed: Seed = 0) -> M:
    """The same network with a fresh last dense layer of ``outputs`` units (A.4).

    >>> from repalign.models import MLP
    >>> replace_head(MLP(5, 3), 7).head.out_features
    7
    """
    model = copy.deepcopy(model)
    heads = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    if not heads:
        raise ValueError(f"{type(model).__name__} has no dense layer to replace.")
    name, old = heads[-1]
    with own_randomness():
        head = nn.Linear(old.in_features, outputs, bias=old.bias is not None).to(old.weight)
    initialize(head, init, scale=init_scale, seed=seed, width=old.in_features)
    if name == "":
        raise ValueError("the network is a single dense layer: build a new one instead.")
    model.set_submodule(name, head)
    return model
