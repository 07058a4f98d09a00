"""First weights from a seed: the same on every platform, whatever the state of torch's own generator.

torch's own normal numbers depend on the CPU's vector instructions. Here a uniform number in float64,
which is exact everywhere, goes through the inverse of the normal distribution and is then rounded.

>>> normal((2, 2), generator(0))
tensor([[ 1.8816,  0.5470],
        [-0.1020,  1.4101]])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

Seed = int | torch.Generator
INITS = ("he", "lecun", "width", "orthogonal", "torch")


def generator(seed: Seed) -> torch.Generator:
    """A CPU generator from a seed; a generator is passed on, to draw several things in a row."""
    if isinstance(seed, torch.Generator):
        if seed.device.type != "cpu":
            raise ValueError(f"the generator should be on the CPU, but is on {seed.device}: pass a seed.")
        return seed
    return torch.Generator(device="cpu").manual_seed(seed)


def uniform(shape: tuple[int, ...], g: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers between −1 and 1; in float64 neither end is ever drawn, so that erfinv stays finite."""
    u = torch.rand(shape, generator=g, dtype=torch.float64, device="cpu")
    return (2 * u - 1 + 2.0**-53).to(dtype)


def normal(shape: tuple[int, ...], g: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers."""
    return (torch.erfinv(uniform(shape, g, torch.float64)) * math.sqrt(2)).to(dtype)


def orthogonal(rows: int, columns: int, g: torch.Generator) -> Tensor:
    """A uniformly random matrix with orthonormal rows or, when there are more rows, columns."""
    a = normal((max(rows, columns), min(rows, columns)), g, torch.float64)
    q, r = torch.linalg.qr(a)
    q = q * r.diagonal().sign()  # makes the factorization unique and the matrix uniform
    return (q if rows >= columns else q.mT).float()


def initialize(
    model: nn.Module, init: str = "he", *, scale: float = 1.0, seed: Seed = 0, width: int | None = None
) -> nn.Module:
    """Fill every dense and convolutional layer of ``model``, in place, in the order of its modules.

    he          N(0, 2 / fan-in)            biases zero
    lecun       N(0, 1 / fan-in)            biases zero
    width       N(0, 1 / ``width``)         biases zero; Canatar & Pehlevan V, the same in every layer
    orthogonal  uniform, rows or columns orthonormal, biases zero
    torch       uniform within ±1/√fan-in, biases too: what torch does by itself

    ``scale`` multiplies all of these numbers. Normalization layers and PReLU start as torch starts
    them, which needs no random numbers. On the meta device there is nothing to fill.

    >>> net = initialize(nn.Linear(3, 2), "lecun", seed=1)
    >>> net.bias.tolist()
    [0.0, 0.0]
    """
    if init not in INITS:
        raise ValueError(f"unknown init {init!r}: choose one of {', '.join(INITS)}.")
    if init == "width" and not width:
        raise ValueError("init 'width' draws from N(0, 1/width): pass the width.")
    g = generator(seed)
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)) and not module.weight.is_meta:
            _fill(module, init, scale, g, width)
    return model


@torch.no_grad()
def _fill(
    module: nn.Linear | nn.Conv2d, init: str, scale: float, g: torch.Generator, width: int | None
) -> None:
    shape = tuple(module.weight.shape)
    fan_in = math.prod(shape[1:])
    draws: dict[str, Callable[[], Tensor]] = {
        "he": lambda: normal(shape, g) * math.sqrt(2 / fan_in),
        "lecun": lambda: normal(shape, g) / math.sqrt(fan_in),
        "width": lambda: normal(shape, g) / math.sqrt(width or 1),
        "orthogonal": lambda: orthogonal(shape[0], fan_in, g).reshape(shape),
        "torch": lambda: uniform(shape, g) / math.sqrt(fan_in),
    }
    module.weight.copy_(draws[init]() * scale)
    if module.bias is not None:
        bias = uniform((shape[0],), g) / math.sqrt(fan_in) if init == "torch" else torch.zeros(shape[0])
        module.bias.copy_(bias * scale)


@contextmanager
def own_randomness() -> Iterator[None]:
    """Whatever is drawn inside leaves torch's own generator as it was."""
    with torch.random.fork_rng(devices=[]):
        yield


class Seeded(TorchDispatchMode):
    """Inside, a network that draws its own weights draws them from this seed, the same on every platform.

    >>> with Seeded(0):
    ...     same = torch.empty(2, 2).normal_()
    >>> torch.equal(same, normal((2, 2), generator(0)))
    True
    """

    def __init__(self, seed: Seed) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = generator(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        draw = {torch.ops.aten.normal_.default: normal, torch.ops.aten.uniform_.default: uniform}.get(func)
        if draw is None or args[0].is_meta:
            return func(*args, **(kwargs or {}))
        tensor: Tensor = args[0]
        given = tuple(args[1:])
        # normal_(mean, deviation), uniform_(low, high): uniform numbers here lie between −1 and 1.
        first, second = given + (0.0, 1.0)[len(given) :]
        if draw is uniform:
            first, second = (first + second) / 2, (second - first) / 2
        return tensor.copy_(draw(tuple(tensor.shape), self.generator, torch.float64) * second + first)
