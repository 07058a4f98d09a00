"""Pre-activation residual networks: Maennel's ResNet18-v2 and wide ResNet, Sharon's ResNet18 of width k."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn.functional import relu

from repalign.models.initialization import Seed, initialize, own_randomness

Norm = Callable[[int], nn.Module]


class PreActBlock(nn.Module):
    """x + conv2(relu(norm2(conv1(relu(norm1(x)))))); a 1×1 convolution on the skip where shapes change."""

    def __init__(self, channels: int, filters: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.norm1 = norm(channels)
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False)
        self.norm2 = norm(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        changes = stride != 1 or channels != filters
        self.skip = nn.Conv2d(channels, filters, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        h = relu(self.norm1(x))
        skip = x if self.skip is None else self.skip(h)
        return skip + self.conv2(relu(self.norm2(self.conv1(h))))


class PreActResNet(nn.Sequential):
    """stem, (pool,) stage1, stage2, ..., (norm, relu,) average, flatten, head.

    ``widths`` are the filters of the stages, ``blocks`` the number of blocks in each; every stage but
    the first halves the image. ``stem`` is (filters, kernel, stride) of the first convolution.
    """

    def __init__(
        self,
        outputs: int,
        *,
        widths: Sequence[int],
        blocks: int,
        stem: tuple[int, int, int],
        channels: int = 3,
        stem_pool: bool = False,
        norm: Norm = nn.BatchNorm2d,
        last_norm: bool = True,
    ) -> None:
        super().__init__()
        filters, kernel, stride = stem
        with own_randomness():
            self.stem = nn.Conv2d(channels, filters, kernel, stride, kernel // 2, bias=False)
            if stem_pool:
                self.pool = nn.MaxPool2d(3, 2, 1)
            for i, width in enumerate(widths, start=1):
                stage = nn.Sequential()
                for block in range(blocks):
                    step = 2 if i > 1 and block == 0 else 1
                    stage.append(PreActBlock(filters, width, step, norm))
                    filters = width
                self.add_module(f"stage{i}", stage)
            if last_norm:
                self.norm = norm(filters)
                self.relu = nn.ReLU()
            self.average = nn.AdaptiveAvgPool2d(1)
            self.flatten = nn.Flatten()
            self.head = nn.Linear(filters, outputs)
        # Measured on a CPU: 10–30% faster with batch norm, slower with group norm.
        self.channels_last = norm is nn.BatchNorm2d
        self.probed: tuple[str, ...] = ("stem", *(f"stage{i}" for i in range(1, len(widths) + 1)), "head")


def resnet18_v2(
    outputs: int = 10,
    *,
    width: int = 64,
    channels: int = 3,
    groups: int = 32,
    init: str = "he",
    init_scale: float = 1.0,
    seed: Seed = 0,
) -> PreActResNet:
    """ResNet18-v2 with group in place of batch normalization (Maennel et al., A.2).

    They use one architecture for ImageNet and CIFAR10, so the first convolution is 7×7 with stride 2
    and a max-pooling follows, also for small images. ``width`` is the number of filters in the first stage;
    later ones have 2, 4 and 8 times as many. ``groups`` has to divide it.

    >>> resnet18_v2(10).probed
    ('stem', 'stage1', 'stage2', 'stage3', 'stage4', 'head')
    """
    if width < 1 or groups < 1 or width % groups:
        raise ValueError(f"groups should divide width, but they are {groups} and {width}.")
    model = PreActResNet(
        outputs,
        widths=(width, 2 * width, 4 * width, 8 * width),
        blocks=2,
        stem=(width, 7, 2),
        channels=channels,
        stem_pool=True,
        norm=lambda filters: nn.GroupNorm(groups, filters),
    )
    initialize(model, init, scale=init_scale, seed=seed)
    return model


def preact_resnet18(
    outputs: int = 10, *, k: int = 64, channels: int = 3, init: str = "torch", seed: Seed = 0
) -> PreActResNet:
    """Pre-activation ResNet18 with stages of k, 2k, 4k, 8k filters (Sharon & Dar, appendix F).

    A 3×3 first convolution and no normalization after the last block, as in the study of double
    descent that they follow. Their six layers are the first convolution, the four stages, the head.

    >>> preact_resnet18(k=8).head
    Linear(in_features=64, out_features=10, bias=True)
    """
    widths = (k, 2 * k, 4 * k, 8 * k)
    model = PreActResNet(outputs, widths=widths, blocks=2, stem=(k, 3, 1), channels=channels, last_norm=False)
    initialize(model, init, seed=seed)
    return model


def wide_resnet(
    outputs: int = 10,
    *,
    blocks: int = 4,
    width: int = 4,
    kernel: int = 5,
    channels: int = 3,
    init: str = "he",
    init_scale: float = 1.0,
    seed: Seed = 0,
) -> PreActResNet:
    """Wide ResNet: three groups of 4 blocks, width factor 4, a 5×5 first convolution (Maennel et al., A.7).

    The width factor also widens the first convolution: their D.1 counts 64 filters in it.

    >>> wide_resnet().stem.weight.shape
    torch.Size([64, 3, 5, 5])
    """
    model = PreActResNet(
        outputs,
        widths=(16 * width, 32 * width, 64 * width),
        blocks=blocks,
        stem=(16 * width, kernel, 1),
        channels=channels,
    )
    initialize(model, init, scale=init_scale, seed=seed)
    return model
