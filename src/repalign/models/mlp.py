"""The fully connected network of every paper."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import nn

from repalign.models.initialization import Seed, initialize, own_randomness

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "prelu": nn.PReLU,
    "leaky_relu": nn.LeakyReLU,
    "linear": nn.Identity,
}


class MLP(nn.Sequential):
    """``depth`` hidden layers of ``width`` units: flatten, fc1, act1, ..., head.

    ``depth`` counts hidden layers, as Imani et al. and Canatar & Pehlevan do; there are ``depth`` + 1
    weight matrices, which is what Lou et al. call L. ``width`` may be one number per hidden layer, in
    place of ``depth``. Images are flattened. The layers worth probing are the hidden activations.

    >>> net = MLP(784, 10, depth=3, width=128, activation="tanh", seed=0)
    >>> net.probed
    ('act1', 'act2', 'act3')
    >>> sum(p.numel() for p in net.parameters())
    134794
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        depth: int | None = None,
        width: int | Sequence[int] = 128,
        activation: str = "relu",
        bias: bool = True,
        init: str = "he",
        init_scale: float = 1.0,
        seed: Seed = 0,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(f"unknown activation {activation!r}: choose one of {', '.join(ACTIVATIONS)}.")
        widths = _widths(depth, width)
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        fan_in = inputs
        with own_randomness():
            for i, fan_out in enumerate(widths, start=1):
                layers[f"fc{i}"] = nn.Linear(fan_in, fan_out, bias=bias)
                layers[f"act{i}"] = ACTIVATIONS[activation]()
                fan_in = fan_out
            layers["head"] = nn.Linear(fan_in, outputs, bias=bias)
        super().__init__(layers)
        self.probed = tuple(name for name in layers if name.startswith("act"))
        initialize(self, init, scale=init_scale, seed=seed, width=max(widths))


def _widths(depth: int | None, width: int | Sequence[int]) -> list[int]:
    widths = [width] * (3 if depth is None else depth) if isinstance(width, int) else list(width)
    if depth is not None and depth != len(widths):
        raise ValueError(f"width names {len(widths)} hidden layers, but depth is {depth}: leave depth out.")
    if not widths or min(widths) < 1:
        raise ValueError(f"an MLP needs at least one hidden layer of at least one unit, but got {widths}.")
    return widths
