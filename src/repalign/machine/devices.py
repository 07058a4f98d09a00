"""Which device to compute on."""

from __future__ import annotations

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
