"""Networks that torchvision has: ResNets and VGGs of ImageNet, ViT-B/16, and a small ViT of its parts."""

from __future__ import annotations

from typing import Any

from torch import nn

from repalign.machine.vision import torchvision
from repalign.models.initialization import Seed, Seeded

IMAGENET = ("resnet18", "resnet50", "resnet101", "vgg16", "vgg19")


def imagenet(
    name: str,
    outputs: int = 1000,
    *,
    weights: str | None = None,
    small_images: bool = False,
    seed: Seed = 0,
) -> nn.Module:
    """One of torchvision's convolutional networks, by its name there.

    ``weights="IMAGENET1K_V1"`` loads the trained ones, which torchvision downloads once. ``small_images``
    is the usual form for 32×32: a 3×3 first convolution of stride 1, no max-pooling after it
    (residual networks).

    >>> imagenet("resnet18", 10, small_images=True).conv1.kernel_size
    (3, 3)
    """
    if name not in IMAGENET:
        raise ValueError(f"unknown network {name!r}: choose one of {', '.join(IMAGENET)}.")
    if weights is not None and (outputs != 1000 or small_images):
        raise ValueError(
            "trained weights belong to 1000 outputs and the original first layer: "
            "load them as they are, then use transfer.replace_head."
        )
    if small_images and not name.startswith("resnet"):
        raise ValueError(f"small_images is for residual networks, not {name}: see models.VGG.")
    with Seeded(seed):
        model: Any = torchvision().models.get_model(name, weights=weights, num_classes=outputs)
        if small_images:
            model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
            if not model.conv1.weight.is_meta:
                nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
            model.maxpool = nn.Identity()
    if name.startswith("resnet"):
        # avgpool is the last hidden layer: what Imani et al. transfer.
        model.probed = ("maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool")
    else:
        pools = [f"features.{i}" for i, m in enumerate(model.features) if isinstance(m, nn.MaxPool2d)]
        model.probed = (*pools, "classifier.1", "classifier.4")
    return model


def vit_b_16(outputs: int = 1000, *, image_size: int = 224, seed: Seed = 0) -> nn.Module:
    """ViT-B/16 as torchvision has it (Sharon & Dar, appendix F): patches of 16, 12 blocks of width 768.

    torchvision starts the head at zero: before the first step every output is zero.

    >>> import torch
    >>> with torch.device("meta"):
    ...     net = vit_b_16(10)
    >>> net.probed[0], len(net.probed)
    ('encoder.layers.encoder_layer_0', 12)
    """
    return _vit(16, image_size, 12, 12, 768, 3072, outputs, seed)


def vit_small(
    outputs: int = 10,
    *,
    image_size: int = 32,
    patch: int = 4,
    depth: int = 6,
    width: int = 192,
    heads: int = 3,
    seed: Seed = 0,
) -> nn.Module:
    """The same transformer made small: one that two cores can train on 32×32 images.

    >>> vit_small(depth=2, width=48).probed
    ('encoder.layers.encoder_layer_0', 'encoder.layers.encoder_layer_1')
    """
    return _vit(patch, image_size, depth, heads, width, 4 * width, outputs, seed)


def _vit(
    patch: int, image_size: int, depth: int, heads: int, width: int, hidden: int, outputs: int, seed: Seed
) -> nn.Module:
    if image_size % patch or width % heads:
        raise ValueError(
            f"a ViT cuts {image_size} pixels into patches of {patch} and a width of {width} into {heads} "
            "heads: both should divide without rest."
        )
    vision_transformer = torchvision().models.vision_transformer.VisionTransformer
    with Seeded(seed):
        model: Any = vision_transformer(
            image_size=image_size,
            patch_size=patch,
            num_layers=depth,
            num_heads=heads,
            hidden_dim=width,
            mlp_dim=hidden,
            num_classes=outputs,
        )
    model.probed = tuple(f"encoder.layers.encoder_layer_{i}" for i in range(depth))
    return model
