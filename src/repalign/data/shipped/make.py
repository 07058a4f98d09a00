"""How the shipped subsets were made: ``python -m repalign.data.shipped.make``, with the full sets at hand."""

from __future__ import annotations

import numpy as np

from repalign.data import cache
from repalign.data.loading import find, sample
from repalign.data.sets import SETS
from repalign.data.sources import SHIPPED

PER_CLASS = {"train": 500, "test": 100}


def main() -> None:
    for name, entry in SETS.items():
        if not entry.shipped:
            continue
        arrays = {}
        classes = range(len(entry.classes))
        for split, each in PER_CLASS.items():
            whole = find(name, split, None, list(classes))
            rows = np.sort(sample(whole.y, each * len(classes), list(classes), seed=0))
            arrays[f"{split}_x"] = whole.x[rows]
            arrays[f"{split}_y"] = whole.y[rows].astype(np.uint8)
        np.savez_compressed(SHIPPED / f"{name}.npz", **arrays)
        print(name, (SHIPPED / f"{name}.npz").stat().st_size, "bytes, from", cache.root())


if __name__ == "__main__":
    main()
