"""Networks whose trained weights come from package registries, where torchvision's own do not fit.

VGG16 and AlexNet without their dense layers, MobileNetV2 without its classifier, and EfficientNet-Lite0,
which torchvision lacks. Each takes (n, 3, h, w) and returns (n, d).
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from repalign.machine.vision import torchvision

VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)  # 0: halve the size


def vgg16_convolutions() -> nn.Sequential:
    """The 13 convolutions of VGG16 as torchvision numbers them, then the mean over positions: 512."""
    layers: list[nn.Module] = []
    channels = 3
    for width in VGG16:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        channels = width
    return _with_mean(layers)


def alexnet_convolutions() -> nn.Sequential:
    """The 5 convolutions of AlexNet as torchvision numbers them, then the mean over positions: 256."""
    return _with_mean(
        [
            *(nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2)),
        ]
    )


def _with_mean(layers: list[nn.Module]) -> nn.Sequential:
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    parts = [
        ("features", nn.Sequential(*layers)),
        ("pool", nn.AdaptiveAvgPool2d(1)),
        ("flatten", nn.Flatten()),
    ]
    return nn.Sequential(OrderedDict(parts))


def mobilenet_v2_features() -> nn.Module:
    """torchvision's MobileNetV2 up to the mean over positions: 1280."""
    model: nn.Module = torchvision().models.mobilenet_v2(weights=None)
    model.classifier = nn.Identity()
    return model


class SameConv2d(nn.Conv2d):
    """A convolution padded so that a stride divides the size, as TensorFlow pads: more at the end."""

    def forward(self, input: Tensor) -> Tensor:
        (k, _), (s, _) = self.kernel_size, self.stride
        h, w = (max((-(-size // s) - 1) * s + k - size, 0) for size in input.shape[-2:])
        return super().forward(nn.functional.pad(input, (w // 2, w - w // 2, h // 2, h - h // 2)))


class Block(nn.Module):
    """Widen, convolve each channel on its own, narrow; added to the input where the shape allows."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, widen: int) -> None:
        super().__init__()
        wide = channels * widen
        expand = _unit(channels, wide, 1) if widen > 1 else []
        narrow = [nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out, eps=1e-3, momentum=0.01)]
        self.layers = nn.Sequential(*expand, *_unit(wide, wide, kernel, stride, groups=wide), *narrow)
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


def _unit(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = SameConv2d(channels, out, kernel, stride=stride, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(out, eps=1e-3, momentum=0.01), nn.ReLU6()]


# Blocks of a stage, kernel, stride of its first block, widening, channels out.
LITE0 = (
    *((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80)),
    *((3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320)),
)


class EfficientNetLite0(nn.Module):
    """EfficientNet-B0 without squeeze-and-excitation, with ReLU6; 4,652,008 parameters."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_unit(3, 32, 3, 2))
        blocks, channels = [], 32
        for count, kernel, stride, widen, out in LITE0:
            for i in range(count):
                blocks.append(Block(channels, out, kernel, stride if i == 0 else 1, widen))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(*_unit(channels, 1280, 1))
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.head(self.blocks(self.stem(x)))))


def assign_in_order(model: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    """Load weights whose names differ from ours but whose order is that of the layers; shapes must agree."""
    ours = model.state_dict()
    pairs = list(zip(ours.items(), state.items(), strict=False))
    wrong = [
        f"{b} {tuple(w.shape)} for {a} {tuple(v.shape)}" for (a, v), (b, w) in pairs if v.shape != w.shape
    ]
    if wrong or len(ours) != len(state):
        what = wrong[0] if wrong else f"{len(state)} tensors for {len(ours)}"
        raise ValueError(f"the weights do not fit {type(model).__name__}: {what}.")
    model.load_state_dict(
        {
            name: value.to(torch.float32) if value.is_floating_point() else value
            for (name, _), (_, value) in pairs
        }
    )
    return model
