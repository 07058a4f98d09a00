"""Representations that are in memory, in files, or made by functions: loaded one at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repalign._arrays import check


def sources(reps: Any, name: str) -> list[Loader]:
    """One function per representation that returns it as a checked (n, d) tensor."""
    if isinstance(reps, Tensor):
        reps = check(reps, name, "E n d")
    if not isinstance(reps, (Tensor, Sequence)) or isinstance(reps, (str, os.PathLike)):
        raise TypeError(
            f"{name} should be a tensor (E, n, d) or a sequence of representations, paths or functions, but "
            f"is {type(reps).__name__}. An iterator can be read once only: make it a list."
        )
    if len(reps) == 0:
        raise ValueError(f"{name} should hold at least one representation, but is empty.")
    checked = isinstance(reps, Tensor)
    return [Loader(rep, f"{name}[{i}]", checked) for i, rep in enumerate(reps)]


class Loader:
    """A representation in memory, in a file, or made by a function: called, it is there."""

    def __init__(self, rep: Any, name: str, checked: bool = False) -> None:
        self.rep, self.name, self.checked = rep, name, checked

    def __call__(self) -> Tensor:
        rep = self.rep
        if self.checked:
            return rep.detach()
        if callable(rep) and not isinstance(rep, Tensor):
            rep = rep()
        if isinstance(rep, (str, os.PathLike)):
            path = Path(rep)
            rep = np.load(path) if path.suffix == ".npy" else torch.load(path, weights_only=True)
        return check(rep, self.name, "n d").detach()
