"""Which device to compute on, and how randomness is seeded."""

from __future__ import annotations

import random

import numpy as np
import torch

DEVICES = ("auto", "cpu", "cuda", "mps")


def device(name: str = "auto") -> torch.device:
    """The device called ``name``; ``auto`` takes CUDA, then Apple's MPS, then the CPU.

    >>> device("cpu")
    device(type='cpu')
    """
    kind, _, index = name.partition(":")
    if kind not in DEVICES or (index and not (kind == "cuda" and index.isdigit())):
        raise ValueError(f"unknown device {name!r}: choose one of {', '.join(DEVICES)}, or cuda:N.")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu"
        return torch.device(kind)
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, but torch finds no CUDA GPU: use auto or cpu.")
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        have = torch.cuda.device_count()
        raise ValueError(f"device {name!r} was asked for, but there are {have} GPUs, counted from 0.")
    if kind == "mps" and not _has_mps():
        raise ValueError("device 'mps' was asked for, but torch finds no Apple GPU: use auto or cpu.")
    return torch.device(name)


def _has_mps() -> bool:
    return bool(torch.backends.mps.is_available())


def seed_everything(seed: int) -> torch.Generator:
    """Seed Python, numpy and torch (all devices); also return a CPU generator with that seed.

    Code of this package takes generators or seeds as arguments; this is for libraries that do not.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"a seed should be a whole number from 0 to 2**32 - 1, but is {seed}.")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)
