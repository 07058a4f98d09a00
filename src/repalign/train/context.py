"""What surrounds a run: the modes of the model's modules, and randomness that follows from the seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from repalign._files import digest


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode, and no gradients; every module then goes back to the mode in which it was."""
    with _kept_modes(model), torch.no_grad():
        model.eval()
        yield


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """The modes in which a model trains; every module then goes back to the mode in which it came.

    Parts in eval mode inside a model in train mode were put there by somebody, and stay: a frozen batch
    norm must not move. A model that is in eval mode itself just comes from being used: all of it trains.
    """
    with _kept_modes(model):
        if not model.training:
            model.train()
        yield


@contextmanager
def _kept_modes(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def in_training(model: nn.Module) -> list[str]:
    """The modules that :func:`training` puts, or leaves, in train mode."""
    return [name for name, part in model.named_modules() if part.training or not model.training]


def device_of(model: nn.Module) -> torch.device:
    """Where the model's parameters are; a model without any computes on the CPU."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def mixed(seed: int, *place: int | str) -> int:
    """A seed for one place in a run: neighboring seeds and epochs must not share their streams."""
    return int(digest("/".join(map(str, (seed, *place)))), 16) % 2**63


@contextmanager
def own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's global randomness starts from ``seed``, and goes on afterwards as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
