"""Every network of the five papers, by name or by its constructor.

>>> from repalign import models
>>> net = models.build("mlp", inputs=784, outputs=10, depth=3, width=128, seed=0)
>>> models.probed_layers(net)
('act1', 'act2', 'act3')
>>> sorted(models.NAMES)[:4]
['imagenet_vgg16', 'imagenet_vgg19', 'mlp', 'preact_resnet18']
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from repalign.models.cnn import VGG, SimpleCNN
from repalign.models.fine_tuning import replace_head, with_head
from repalign.models.from_torchvision import imagenet, vit_b_16, vit_small
from repalign.models.initialization import initialize
from repalign.models.mlp import MLP
from repalign.models.rbf import RBFNetwork
from repalign.models.resnet import preact_resnet18, resnet18_v2, wide_resnet
from repalign.models.resnet11 import ResNet11
from repalign.models.t2t import T2TViT
from repalign.models.weights import Preprocess, Pretrained, first_available, pretrained, stand_in

NAMES: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,  # all five
    "rbf": RBFNetwork,  # Imani §3
    "simple_cnn": SimpleCNN,  # Maennel A.2, E.2, E.3
    "vgg16": partial(VGG, "vgg16"),  # Maennel A.2: no layers of 4096
    "vgg19": partial(VGG, "vgg19"),  # Lou, on CIFAR
    "resnet18_v2": resnet18_v2,  # Maennel A.2: group normalization
    "wide_resnet": wide_resnet,  # Maennel A.7: 5×5 first convolution
    "resnet11": ResNet11,  # Canatar IV
    "preact_resnet18": preact_resnet18,  # Sharon F
    "resnet18": partial(imagenet, "resnet18"),  # Imani §7, Lou
    "resnet50": partial(imagenet, "resnet50"),  # Imani §7, Sharon
    "resnet101": partial(imagenet, "resnet101"),  # Imani §7
    "imagenet_vgg16": partial(imagenet, "vgg16"),  # Imani §7
    "imagenet_vgg19": partial(imagenet, "vgg19"),
    "t2t_vit": T2TViT,  # Imani §7
    "vit_b_16": vit_b_16,  # Sharon F
    "vit_small": vit_small,  # the same idea at the size of a laptop
}


def build(name: str, **options: Any) -> nn.Module:
    """The network called ``name``; ``options`` are those of its constructor, by keyword.

    >>> build("preact_resnet18", k=8).head.in_features
    64
    """
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"unknown network {name!r}.{hint} Choose one of {', '.join(NAMES)}.")
    allowed = inspect.signature(NAMES[name]).parameters
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise TypeError(f"{name} has no option {', '.join(unknown)}: it takes {', '.join(allowed)}.")
    return NAMES[name](**options)


def probed_layers(model: nn.Module) -> tuple[str, ...]:
    """The layers worth probing, first to last, as names for ``model.get_submodule``.

    Networks of this package say so themselves in ``model.probed``; set it on your own.

    >>> probed_layers(SimpleCNN(convs=2))
    ('relu0', 'relu1', 'dense_relu')
    """
    probed = getattr(model, "probed", None)
    if probed is None:
        children = ", ".join(name for name, _ in model.named_children())
        raise ValueError(
            f"{type(model).__name__} does not say which layers to probe: name them, or set model.probed "
            f"to a tuple of module names. Its top modules are {children or 'none'}."
        )
    return tuple(probed)


__all__ = [
    "MLP",
    "NAMES",
    "VGG",
    "Preprocess",
    "Pretrained",
    "RBFNetwork",
    "ResNet11",
    "SimpleCNN",
    "T2TViT",
    "build",
    "first_available",
    "imagenet",
    "initialize",
    "preact_resnet18",
    "pretrained",
    "probed_layers",
    "replace_head",
    "resnet18_v2",
    "stand_in",
    "vit_b_16",
    "vit_small",
    "wide_resnet",
    "with_head",
]
