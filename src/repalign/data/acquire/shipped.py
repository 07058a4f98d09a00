"""The subsets shipped inside the package, and how they were made (:func:`make`).

Photographs are stored as differences, each pixel from its neighbors and red and blue from green:
zip then needs a third fewer bytes, and two cumulative sums bring every byte back.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from repalign.data.acquire import cache
from repalign.data.acquire.cache import Entry
from repalign.data.acquire.formats import Array
from repalign.data.errors import UnavailableError
from repalign.data.sampling import sample
from repalign.data.sets import SETS, lookup

FOLDER = Path(__file__).parents[1] / "shipped"
PER_CLASS = {"train": 500, "test": 100}


def from_shipped(name: str, split: str) -> Entry:
    """The subset inside the package, or UnavailableError where there is none."""
    if not lookup(name).shipped or split not in PER_CLASS:
        raise UnavailableError("no subset is shipped with the package")
    return _read(name, split)


@functools.lru_cache(maxsize=4)
def _read(name: str, split: str) -> Entry:
    try:
        with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
            x, y = file[f"{split}_x"], file[f"{split}_y"].astype(np.int64)
    except Exception as error:  # zipfile and numpy raise half a dozen kinds for an altered file
        raise UnavailableError(f"the subset cannot be read: {error}") from error
    x = restore(x) if x.shape[1] == 3 else x
    classes, whole = lookup(name).classes, lookup(name).splits[split]
    source = f"the subset of {len(y):,} shipped with repalign (the whole split has {whole:,})"
    return Entry(x, y, classes, source, cache.content_hash(x, y, classes))


def differences(x: Array) -> Array:
    """uint8 color images (n, 3, h, w) as differences modulo 256; :func:`restore` undoes it."""
    d = x.copy()
    d[:, 0::2] -= d[:, 1:2]
    for axis in (2, 3):
        d = np.diff(d, axis=axis, prepend=np.uint8(0))
    return d


def restore(d: Array) -> Array:
    """The images of which ``d`` holds the differences."""
    x = d
    for axis in (3, 2):
        x = np.cumsum(x, axis=axis, dtype=np.uint8)
    x[:, 0::2] += x[:, 1:2]
    return x


def make() -> None:
    """Make the shipped files again from the whole sets."""
    from repalign.data.acquire.find import find  # it reads what this function makes

    for name in [name for name, row in SETS.items() if row.shipped]:
        classes = list(range(len(lookup(name).classes)))
        arrays = {}
        for split, each in PER_CLASS.items():
            whole = find(name, split, None, classes)
            rows = np.sort(sample(whole.y, each * len(classes), classes, seed=0))
            x = whole.x[rows]
            arrays[f"{split}_x"] = differences(x) if x.shape[1] == 3 else x
            arrays[f"{split}_y"] = whole.y[rows].astype(np.uint8)
        np.savez_compressed(FOLDER / f"{name}.npz", allow_pickle=False, **arrays)
        print(f"{name}: {(FOLDER / f'{name}.npz').stat().st_size:,} bytes")
