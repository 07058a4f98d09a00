"""The residual network of Canatar & Pehlevan IV: eleven convolutions, ten probed layers."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from repalign.models.initialization import Seed, initialize, own_randomness


class Residual(nn.Module):
    """x + second(first(x)), or without the x: ``skip=False``."""

    def __init__(self, filters: int, skip: bool) -> None:
        super().__init__()
        self.first = conv(filters, filters)
        self.second = conv(filters, filters)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(self.first(x))
        return x + h if self.skip else h


class Scale(nn.Module):
    """Its input times a fixed number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x

    def extra_repr(self) -> str:
        return str(self.factor)


def conv(channels: int, filters: int) -> nn.Sequential:
    """A 3×3 convolution, batch normalization, ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters), nn.ReLU()
    )


class ResNet11(nn.Sequential):
    """Three residual blocks, max-pooling after each, between convolutions that change the width.

    Filters are 64 · 128 (128 128) · 256 (256 256) · 512 (512 512) · 256, residual blocks in brackets.
    The paper gives eleven convolutions, the pooling, batch normalization, and 512 and 256 features in
    its layers 9 and 10; the other widths and the 3×3 filters are ours, the doubling that leads there.
    Counting convolutions from zero, layers 1 to 10 are probed, each behind its ReLU: the second one of a
    block behind the sum, the last one behind the pooling, where it has its 256 numbers. The head is
    f(x) = Wψ(x), without bias; ``output_scale`` multiplies its outputs, by 0.2 in the recipe for
    CIFAR-10 on which the paper builds.

    >>> net = ResNet11(skips=False)
    >>> len(net.probed), net.probed[:3], net.probed[-2:]
    (10, ('conv1', 'block1.first', 'block1'), ('block3', 'flatten'))
    """

    def __init__(
        self,
        outputs: int = 10,
        *,
        skips: bool = True,
        width: int = 64,
        channels: int = 3,
        output_scale: float = 1.0,
        init: str = "torch",
        seed: Seed = 0,
    ) -> None:
        if output_scale <= 0:
            raise ValueError(f"output_scale should be above 0, but is {output_scale}.")
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        with own_randomness():
            layers["conv0"] = conv(channels, width)
            for i in (1, 2, 3):
                layers[f"conv{i}"] = conv(width * 2 ** (i - 1), width * 2**i)
                layers[f"block{i}"] = Residual(width * 2**i, skips)
                layers[f"pool{i}"] = nn.MaxPool2d(2)
            layers["conv4"] = conv(width * 8, width * 4)
            layers["pool4"] = nn.AdaptiveMaxPool2d(1)
            layers["flatten"] = nn.Flatten()
            layers["head"] = nn.Linear(width * 4, outputs, bias=False)
            if output_scale != 1:
                layers["scale"] = Scale(output_scale)
        super().__init__(layers)
        probed = [name for i in (1, 2, 3) for name in (f"conv{i}", f"block{i}.first", f"block{i}")]
        self.probed = (*probed, "flatten")
        self.channels_last = True  # faster on a CPU: see train.prefers_channels_last
        initialize(self, init, seed=seed)
