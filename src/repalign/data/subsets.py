"""Samples of a data set that is loaded already."""

from __future__ import annotations

import torch

from repalign.data.loading import Dataset, _take
from repalign.data.sampling import Classes, choose_classes, relabel, sample


def subset(dataset: Dataset, n: int | None = None, classes: Classes = None, seed: int = 0) -> Dataset:
    """``n`` samples of ``dataset``, as many of each class, chosen and shuffled by ``seed``, as ``load`` does.

    >>> from repalign import data
    >>> digits = data.load("mnist", n=100)
    >>> subset(digits, 6, ("7", "1")).y.bincount().tolist()
    [3, 3]
    """
    y = dataset.y.cpu().numpy()
    chosen = choose_classes(dataset.name, dataset.classes, {}, classes)
    _take(dataset.name, dataset.split, y, n, chosen, shrink=False)
    rows = sample(y, n, chosen, seed)
    at = torch.from_numpy(rows).to(dataset.x.device)
    labels = torch.from_numpy(relabel(y[rows], chosen) if chosen else y[rows]).to(dataset.y.device)
    names = tuple(dataset.classes[c] for c in chosen)
    return Dataset(dataset.x[at], labels, names, dataset.name, dataset.split, dataset.source)
