"""Convolutional networks without skips: Simple CNN and VGG (Maennel et al., A.2; Lou et al., VGG19)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from repalign.models.initialization import Seed, initialize, own_randomness

# Filters of each resolution relative to the first, and convolutions there (Simonyan & Zisserman, table 1).
VGG_WIDTHS = (1, 2, 4, 8, 8)
VGG_CONVS = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}


class SimpleCNN(nn.Sequential):
    """conv0, relu0, ..., flatten, dense, dense_relu, head: Maennel et al.'s Simple CNN.

    ``convs``, ``filters`` and ``units`` are their num_conv_layers, num_filters and num_units. They do
    not say how borders are treated: ``padding="same"`` keeps the image's size, ``"valid"`` uses whole
    patches only. ``stride=3, padding="valid"`` is the network of their E.2; ``pool=True`` puts E.3's
    3×3 max-pooling of stride 2 before the dense layer. ``init_scale`` multiplies the standard deviation
    of He's normal weights; they do not say whether theirs does, or the variance.

    >>> net = SimpleCNN((3, 32, 32), 10, convs=1, filters=16, units=64)
    >>> net.probed
    ('relu0', 'dense_relu')
    """

    def __init__(
        self,
        image: Sequence[int] = (3, 32, 32),
        outputs: int = 10,
        *,
        convs: int = 3,
        filters: int = 16,
        units: int = 64,
        kernel: int = 3,
        stride: int = 1,
        padding: str = "same",
        pool: bool = False,
        init: str = "he",
        init_scale: float = 1.0,
        seed: Seed = 0,
    ) -> None:
        if padding not in ("same", "valid"):
            raise ValueError(f"padding should be same or valid, but is {padding!r}.")
        channels, height, width = check_image(image)
        border = kernel // 2 if padding == "same" else 0
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        with own_randomness():
            for i in range(convs):
                layers[f"conv{i}"] = nn.Conv2d(channels, filters, kernel, stride, border)
                layers[f"relu{i}"] = nn.ReLU()
                channels = filters
                height, width = ((side + 2 * border - kernel) // stride + 1 for side in (height, width))
            if pool:
                layers["pool"] = nn.MaxPool2d(3, stride=2)
                height, width = ((side - 3) // 2 + 1 for side in (height, width))
            if min(height, width) < 1:
                raise ValueError(f"nothing is left of an image of shape {tuple(image)} after {convs} layers.")
            layers["flatten"] = nn.Flatten()
            layers["dense"] = nn.Linear(channels * height * width, units)
            layers["dense_relu"] = nn.ReLU()
            layers["head"] = nn.Linear(units, outputs)
        super().__init__(layers)
        self.probed = (*(f"relu{i}" for i in range(convs)), "dense_relu")
        initialize(self, init, scale=init_scale, seed=seed)


class VGG(nn.Sequential):
    """VGG16 or VGG19 with one dense layer, the head: conv0, relu0, ..., pool0, ..., flatten, head.

    This is Maennel et al.'s form: the two layers of 4096 units removed, biases, no normalization.
    ``width`` is the number of filters in the first convolution; later ones have 2, 4 and 8 times as many.
    ``batch_norm`` puts one after every convolution. For ImageNet's own VGG see
    :func:`repalign.models.imagenet`.

    >>> net = VGG("vgg16", outputs=10, seed=0)
    >>> sum(isinstance(m, nn.Conv2d) for m in net), net.probed[:2], net.probed[-1]
    (13, ('relu0', 'relu1'), 'relu12')
    """

    def __init__(
        self,
        name: str = "vgg16",
        image: Sequence[int] = (3, 32, 32),
        outputs: int = 10,
        *,
        width: int = 64,
        batch_norm: bool = False,
        init: str = "he",
        init_scale: float = 1.0,
        seed: Seed = 0,
    ) -> None:
        if name not in VGG_CONVS:
            raise ValueError(f"unknown VGG {name!r}: choose one of {', '.join(VGG_CONVS)}.")
        if width < 1:
            raise ValueError(f"width should be at least 1, but is {width}.")
        channels, height, breadth = check_image(image)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        i = 0
        with own_randomness():
            for stage, (convs, times) in enumerate(zip(VGG_CONVS[name], VGG_WIDTHS, strict=True)):
                filters = width * times
                for _ in range(convs):
                    layers[f"conv{i}"] = nn.Conv2d(channels, filters, 3, padding=1)
                    if batch_norm:
                        layers[f"norm{i}"] = nn.BatchNorm2d(filters)
                    layers[f"relu{i}"] = nn.ReLU()
                    channels, i = filters, i + 1
                # SAME padding: the last row and column of an odd side are pooled by themselves.
                layers[f"pool{stage}"] = nn.MaxPool2d(2, ceil_mode=True)
                height, breadth = (height + 1) // 2, (breadth + 1) // 2
            layers["flatten"] = nn.Flatten()
            layers["head"] = nn.Linear(channels * height * breadth, outputs)
        super().__init__(layers)
        self.probed = tuple(name for name in layers if name.startswith("relu"))
        initialize(self, init, scale=init_scale, seed=seed)


def check_image(image: Sequence[int]) -> tuple[int, int, int]:
    """The (channels, height, width) of an image, or an error."""
    if len(image) != 3 or min(image) < 1:
        raise ValueError(f"image should be (channels, height, width), but is {tuple(image)}.")
    return image[0], image[1], image[2]
