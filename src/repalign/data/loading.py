"""``load``: find a set, choose samples by an explicit seed, return tensors that know their origin."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from numpy.typing import NDArray
from torch import Tensor

from repalign._code import fingerprint
from repalign.data import synthetic
from repalign.data.acquire import find, trees
from repalign.data.acquire.fetch import Progress, quiet
from repalign.data.acquire.find import Folder
from repalign.data.acquire.shipped import from_shipped
from repalign.data.errors import DataError, UnavailableError
from repalign.data.row import Set
from repalign.data.sampling import Classes, choose_classes, gather, relabel, sample
from repalign.data.sets import lookup


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples as tensors, with what a caption and a cache key need.

    x            float32 (n, c, h, w) in [0, 1] for images, (n, d) for rows of features
    y            int64 (n,), indices into ``classes``; float32 where targets are numbers
    classes      their names, in the order asked for; for peaks the functions, a column of y each
    name, split  what was loaded; the name is that of the stand-in where one took its place
    source       where the bytes came from, one line for people
    """

    x: Shaped[Tensor, " n *features"]
    y: Shaped[Tensor, " n *targets"]
    classes: tuple[str, ...]
    name: str
    split: str
    source: str

    @property
    def fingerprint(self) -> str:
        """A hash of samples, labels, dtypes and names: equal for equal ones, whichever their source."""
        # torch counts changes in place, but not those of inference tensors: they are looked at every time.
        counted = not (self.x.is_inference() or self.y.is_inference())
        state = [self.x._version, self.y._version] if counted else None
        kept = self.__dict__.get("_fingerprint")
        if kept is None or state is None or kept[0] != state:
            mark = fingerprint((self.x, self.y, self.classes, self.name, self.split))[:16]
            kept = self.__dict__["_fingerprint"] = state, mark
        return kept[1]

    def with_labels(
        self, y: Shaped[Tensor, " n *targets"], how: str, *, classes: Sequence[str] | None = None
    ) -> Dataset:
        """The same samples with other labels; ``how`` they were made, in a few words, joins ``source``.

        Class numbers keep the names of the classes unless ``classes`` gives others; targets that are not
        class numbers have none.

        >>> digits = load("mnist", n=20)
        >>> digits.with_labels(digits.y.flip(0), "reversed").source.endswith("; labels reversed")
        True
        """
        if len(y) != len(self.x):
            raise ValueError(f"there should be a label for each of {len(self.x)} samples, but are {len(y)}.")
        if not how.strip():
            raise ValueError("how should say in a few words where the labels come from.")
        numbers = y.dtype == torch.int64 and y.ndim == 1
        names = tuple(self.classes if classes is None else classes) if numbers else ()
        if numbers and len(y) and not 0 <= int(y.min()) <= int(y.max()) < max(len(names), 1):
            raise ValueError(
                f"class numbers should be from 0 to {len(names) - 1}, but go from {int(y.min())} to "
                f"{int(y.max())}: pass the names of all classes as classes."
            )
        return dataclasses.replace(self, y=y, classes=names, source=f"{self.source}; labels {how.strip()}")

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        shape = "×".join(str(length) for length in self.x.shape)
        classes = f", {len(self.classes)} classes" if self.classes else ""
        return f"{self.name} {self.split}: {shape}{classes}; {self.source}"


def load(
    name: str,
    split: str = "train",
    n: int | None = None,
    classes: Classes = None,
    seed: int = 0,
    *,
    shrink: bool = False,
    dtype: torch.dtype = torch.float32,
    size: int | None = None,
    folder: Folder = None,
    progress: Progress = quiet,
) -> Dataset:
    """Load ``n`` samples of a data set, as many of each class, chosen and shuffled by ``seed``.

    Without ``n`` the whole split comes in its own order. ``classes`` chooses by name or index, or is
    the name of a group ("natural", "artificial"). With ``shrink`` there may be fewer samples
    than ``n`` when no source has more, and ``source`` says so. ``dtype=torch.uint8`` keeps images as 0..255;
    ``size`` is the side in pixels to which image files are brought: the shorter side is scaled, the middle
    is kept.

    Asked in this order: ``REPALIGN_DATA``, the cache, the shipped subset where it is large enough,
    the home of the set, the package registries. With ``folder`` only that directory is asked. With
    ``REPALIGN_SAMPLES`` set to "shipped" or "whole" the subset comes before the cache, or after all others,
    so that samples do not depend on what was downloaded before.

    >>> d = load("mnist", n=100, classes=("0", "1"))
    >>> d.x.shape, d.y.bincount().tolist()
    (torch.Size([100, 1, 28, 28]), [50, 50])
    """
    row = lookup(name)
    if split not in row.splits:
        raise ValueError(f"{name} has the splits {', '.join(row.splits)}, but {split!r} was asked for.")
    most = row.splits[split]
    if n is not None and (n < 1 or (most and n > most and not shrink)):
        raise ValueError(f"n should be from 1 to {most or 'any'} for {name} {split}, but is {n}.")
    if size is not None and (row.kind != "tree" or size < 1):
        raise ValueError(f"size is for sets of image files and at least 1; {name} is loaded as it is stored.")
    if dtype not in (torch.float32, torch.float64, torch.float16, torch.uint8):
        raise ValueError(
            f"dtype should be a float of 16, 32 or 64 bits, or uint8 for images, but is {dtype}."
        )
    if row.kind == "drawn":
        return _draw(name, split, n, classes, seed, dtype)
    if row.kind == "tree":
        tree = find.find_tree(name, split, folder=folder, progress=progress)
        return _decode(name, split, n, classes, seed, tree, size or row.size, shrink, dtype)
    chosen = choose_classes(name, row.classes, row.groups, classes) if row.classes else []
    try:
        stored = find.find(name, split, n, chosen, shrink=shrink, folder=folder, progress=progress)
    except DataError:
        if not row.stand_in:
            raise
        other = load(row.stand_in, split, n, classes, seed, shrink=shrink, dtype=dtype, progress=progress)
        return dataclasses.replace(
            other, source=f"{other.source}, in place of {name}, which is not available"
        )
    if not row.classes:
        chosen = choose_classes(name, stored.classes, row.groups, classes)
    taken, note = _take(name, split, stored.y, n, chosen, shrink)
    rows = sample(stored.y, taken, chosen, seed)
    y = relabel(stored.y[rows], chosen) if chosen else np.array(stored.y[rows], np.float32)
    names = tuple(stored.classes[c] for c in chosen)
    x = gather(stored.x, rows, dtype)
    return Dataset(x, torch.from_numpy(y), names, name, split, stored.source + note)


def _take(
    name: str, split: str, y: NDArray[Any], n: int | None, chosen: Sequence[int], shrink: bool
) -> tuple[int | None, str]:
    """How many samples to take, and a note when they are fewer than asked for."""
    have = int(np.isin(y, chosen).sum()) if chosen else len(y)
    if n is None or n <= have:
        return n, ""
    if not shrink:
        what = " of these classes" if chosen else ""
        raise ValueError(
            f"{name} {split} has {have} samples{what} here, but n is {n}. Lower n, or shrink=True."
        )
    return have, f"; {n:,} samples were asked for, {have:,} are available"


def _draw(name: str, split: str, n: int | None, classes: Classes, seed: int, dtype: torch.dtype) -> Dataset:
    """A synthetic set."""
    if name == "gaussian" and classes is not None:
        raise ValueError("the labels of gaussian are random: leave classes out.")
    known = lookup(name).classes
    names = [known[i] for i in choose_classes(name, known, {}, classes)]
    read, source = synthetic.draw(name, split, n, names, seed)
    x, y = gather(read.x, np.arange(len(read.x)), dtype), torch.from_numpy(read.y)
    y = y.to(dtype) if y.is_floating_point() else y
    return Dataset(x, y, read.classes, name, split, source)


def _decode(
    name: str,
    split: str,
    n: int | None,
    classes: Classes,
    seed: int,
    tree: trees.Tree,
    size: int,
    shrink: bool,
    dtype: torch.dtype,
) -> Dataset:
    """Samples of a tree of image files."""
    row = lookup(name)
    chosen = choose_classes(name, tree.classes, _whole(row, tree.classes), classes)
    taken, note = _take(name, split, tree.y, n, chosen, shrink)
    rows = sample(tree.y, taken, chosen, seed)
    needed = len(rows) * 3 * size * size * (1 + dtype.itemsize)
    if needed > (memory := _memory()):
        raise ValueError(
            f"{len(rows)} images of {size}×{size} need {needed / 1e9:.0f} GB, but this machine has "
            f"{memory / 1e9:.0f}. Ask for fewer with n, or for a smaller size."
        )
    x = trees.decode([tree.files[i] for i in rows], size)
    y, names = relabel(tree.y[rows], chosen), tuple(tree.classes[c] for c in chosen)
    source = f"the image files in {tree.place}, brought to {size}×{size}{tree.note}{note}"
    x_ = gather(x, np.arange(len(x)), dtype)
    return Dataset(x_, torch.from_numpy(y), names, name, split, source)


def _whole(row: Set, classes: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Groups go by the index of a class, so they need every class to be there."""
    return row.groups if not row.groups or len(classes) == 1000 else {}


def _memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # Windows does not say
        return float("inf")


def source_fingerprint(name: str, split: str = "train") -> str:
    """What ``load`` would read now, without the network: it changes when that source changes.

    >>> source_fingerprint("peaks")
    'drawn'
    """
    row = lookup(name)
    if row.kind == "drawn":
        return "drawn"
    if row.generate:
        return f"generated:{find.recipe(name)}"
    steps: dict[str, Callable[[], str]] = {
        "folder": lambda: find.from_folder(name, split).content,
        "cache": lambda: find.from_cache(name, split).content,
        "shipped": lambda: from_shipped(name, split).content,
    }
    if row.kind == "tree":
        steps = {
            "folder": lambda: find.tree_in_folder(name, split).mark,
            "cache": lambda: find.tree_in_cache(name, split).mark,
        }
    for title, source in steps.items():
        try:
            return f"{title}:{source()[:16]}"
        except UnavailableError:
            continue
    return f"{row.stand_in}:{source_fingerprint(row.stand_in, split)}" if row.stand_in else "absent"
