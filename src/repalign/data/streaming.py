"""Images that stay on disk until they are asked for: for sets too large for memory, such as ImageNet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from repalign._code import fingerprint
from repalign.data.acquire import find, trees
from repalign.data.acquire.fetch import Progress, quiet
from repalign.data.acquire.find import Folder
from repalign.data.loading import _take, _whole
from repalign.data.sampling import Classes, choose_classes, relabel, sample
from repalign.data.sets import lookup


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files with their labels; ``files[rows]`` decodes those rows and no others.

    A network is trained on row numbers, and images are read where they would be augmented::

        files = data.image_files("imagenet", classes="natural", size=256)
        fit(model, torch.arange(len(files)), files.y, augment=lambda rows, random: files[rows] / 255)

    y            int64 (n,), indices into ``classes``
    size         the side in pixels to which each image is brought
    fingerprint  changes when other files are chosen, or one of them is overwritten
    """

    paths: Sequence[Path]
    y: Int64[Tensor, " n"]
    classes: tuple[str, ...]
    name: str
    split: str
    size: int
    source: str
    fingerprint: str

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"{self.name} {self.split}: {len(self)} files, {len(self.classes)} classes; {self.source}"

    def __getitem__(self, rows: Int64[Tensor, " m"]) -> UInt8[Tensor, "m 3 size size"]:
        chosen = [self.paths[i] for i in rows.tolist()]
        return torch.from_numpy(trees.decode(chosen, self.size)).to(rows.device)


def image_files(
    name: str,
    split: str = "train",
    n: int | None = None,
    classes: Classes = None,
    seed: int = 0,
    *,
    size: int | None = None,
    folder: Folder = None,
    progress: Progress = quiet,
) -> ImageFiles:
    """What :func:`repalign.data.load` would load of a set of image files, without decoding it yet."""
    row = lookup(name)
    if row.kind != "tree":
        raise ValueError(f"{name} is not a set of image files: use load.")
    tree = find.find_tree(name, split, folder=folder, progress=progress)
    chosen = choose_classes(name, tree.classes, _whole(row, tree.classes), classes)
    _take(name, split, tree.y, n, chosen, shrink=False)
    rows = sample(tree.y, n, chosen, seed)
    taken = tree.of(rows)
    side = size or row.size
    return ImageFiles(
        paths=taken.files,
        y=torch.from_numpy(relabel(tree.y[rows], chosen)),
        classes=tuple(tree.classes[c] for c in chosen),
        name=name,
        split=split,
        size=side,
        source=f"the image files in {tree.place}, brought to {side}×{side}{tree.note}",
        fingerprint=fingerprint((taken.mark, rows, chosen, name, split, side))[:16],
    )
