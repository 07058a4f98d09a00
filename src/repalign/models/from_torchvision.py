"""Networks that torchvision has: ResNets and VGGs of ImageNet, ViT-B/16, and a small ViT of its parts.

They start at their initialization here; :func:`repalign.models.pretrained` has them trained.
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from repalign.machine.vision import torchvision
from repalign.models.initialization import Seed, Seeded

IMAGENET = ("resnet18", "resnet50", "resnet101", "vgg16", "vgg19")
M = TypeVar("M", bound=nn.Module)


def imagenet(
    name: str,
    outputs: int = 1000,
    *,
    small_images: bool = False,
    channels: int = 3,
    seed: Seed = 0,
) -> nn.Module:
    """One of torchvision's convolutional networks, by its name there.

    ``small_images`` is the usual form for 32×32, of residual networks: a 3×3 first convolution of
    stride 1 for images with ``channels``, no max-pooling after it.

    >>> imagenet("resnet18", 10, small_images=True).conv1.kernel_size
    (3, 3)
    """
    if name not in IMAGENET:
        raise ValueError(f"unknown network {name!r}: choose one of {', '.join(IMAGENET)}.")
    if small_images and not name.startswith("resnet"):
        raise ValueError(f"small_images is for residual networks, not {name}: see models.VGG.")
    if channels != 3 and not small_images:
        raise ValueError(f"images of ImageNet have 3 channels, not {channels}: use small_images, or others.")
    with Seeded(seed):
        model: Any = torchvision().models.get_model(name, weights=None, num_classes=outputs)
        if small_images:
            model.conv1 = nn.Conv2d(channels, 64, 3, 1, 1, bias=False)
            if not model.conv1.weight.is_meta:
                nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
            model.maxpool = nn.Identity()
    return name_probed(name, model)


def name_probed(name: str, model: M) -> M:
    """Set ``model.probed``, the layers worth probing, on one of torchvision's networks."""
    if name.startswith("resnet"):
        # avgpool is the last hidden layer: what Imani et al. transfer.
        model.probed = ("maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool")  # type: ignore[assignment]
        # Faster on a CPU: see train.prefers_channels_last.
        model.channels_last = True  # type: ignore[assignment]
    elif name.startswith("vgg"):
        features: Any = model.features
        pools = [f"features.{i}" for i, m in enumerate(features) if isinstance(m, nn.MaxPool2d)]
        model.probed = (*pools, "classifier.1", "classifier.4")  # type: ignore[assignment]
    elif name.startswith("vit"):
        blocks: Any = model.encoder
        model.probed = tuple(f"encoder.layers.{block}" for block, _ in blocks.layers.named_children())  # type: ignore[assignment]
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
    return _vit(3, 16, image_size, 12, 12, 768, outputs, seed)


def vit_small(
    outputs: int = 10,
    *,
    image_size: int = 32,
    channels: int = 3,
    patch: int = 4,
    depth: int = 6,
    width: int = 192,
    heads: int = 3,
    seed: Seed = 0,
) -> nn.Module:
    """The same transformer made small: one that two cores can train on images of 28 or 32 pixels.

    >>> vit_small(depth=2, width=48).probed
    ('encoder.layers.encoder_layer_0', 'encoder.layers.encoder_layer_1')
    """
    return _vit(channels, patch, image_size, depth, heads, width, outputs, seed)


def _vit(
    channels: int, patch: int, image_size: int, depth: int, heads: int, width: int, outputs: int, seed: Seed
) -> nn.Module:
    if image_size % patch or width % heads:
        raise ValueError(
            f"a ViT cuts {image_size} pixels into patches of {patch} and a width of {width} into {heads} "
            "heads: both should divide without remainder."
        )
    vision_transformer = torchvision().models.vision_transformer.VisionTransformer
    with Seeded(seed):
        model: Any = vision_transformer(
            image_size=image_size,
            patch_size=patch,
            num_layers=depth,
            num_heads=heads,
            hidden_dim=width,
            mlp_dim=4 * width,
            num_classes=outputs,
        )
        if channels != 3:
            model.conv_proj = nn.Conv2d(channels, width, patch, patch)
            if not model.conv_proj.weight.is_meta:  # as torchvision starts it
                nn.init.trunc_normal_(model.conv_proj.weight, std=(channels * patch**2) ** -0.5)
                nn.init.zeros_(model.conv_proj.bias)
    return name_probed("vit", model)
