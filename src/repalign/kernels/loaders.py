"""Representations that are in memory, in files, or made by functions: loaded one at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repalign._arrays import at_least_single, check, numbers


def sources(reps: Any, name: str) -> list[Loader]:
    """One function per representation that returns it as a checked (n, d) tensor."""
    if isinstance(reps, Tensor):
        reps = check(reps, name, "E n d")
    if not isinstance(reps, (Tensor, Sequence)) or isinstance(reps, (str, os.PathLike)):
        raise TypeError(
            f"{name} should be a tensor (E, n, d) or a sequence of representations, paths or functions, but "
            f"is {type(reps).__name__}. Of a dict give list(reps.values()); an iterator can be read once "
            "only: make it a list."
        )
    if len(reps) == 0:
        raise ValueError(f"{name} should hold at least one representation, but is empty.")
    checked = isinstance(reps, Tensor)
    return [Loader(rep, f"{name}[{i}]", checked) for i, rep in enumerate(reps)]


class Loader:
    """A representation in memory, in a file, or made by a function: called, it is there."""

    def __init__(self, rep: Any, name: str, checked: bool = False) -> None:
        self.rep, self.name, self.checked = rep, name, checked
        self.ahead: Tensor | None = None

    def __call__(self) -> Tensor:
        ready, self.ahead = self.ahead, None
        return self._load() if ready is None else ready

    def peek(self) -> Tensor:
        """The representation, which stays loaded until the next call."""
        self.ahead = self()
        return self.ahead

    def width(self) -> int | None:
        """The number of features, where it is known without loading them: not of a function."""
        rep = self.rep if self.ahead is None else self.ahead
        if isinstance(rep, (str, os.PathLike)):
            rep = _read(Path(rep), shape_only=True)
        shape: tuple[int, ...] = getattr(rep, "shape", ())
        return int(shape[1]) if len(shape) == 2 else None

    def _load(self) -> Tensor:
        rep = self.rep
        if self.checked:
            return at_least_single(rep.detach())
        if callable(rep) and not isinstance(rep, Tensor):
            rep = rep()
        if isinstance(rep, (str, os.PathLike)):
            rep = _read(Path(rep))
        return numbers(rep, self.name, "n d").detach()


def _read(path: Path, *, shape_only: bool = False) -> Any:
    """What the file holds; for the shape alone its numbers are mapped, not read."""
    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r" if shape_only else None)
    if not shape_only:
        return torch.load(path, weights_only=True)
    try:
        return torch.load(path, weights_only=True, mmap=True, map_location="meta")
    except RuntimeError:
        return None  # an old format, which cannot be mapped
