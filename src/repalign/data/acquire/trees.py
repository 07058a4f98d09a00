"""Images as files, a directory per class: ImageNet, Tiny ImageNet, Office-31, the user's own.

The tree is listed, samples are chosen, and only those are decoded, by several threads.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from repalign.data.acquire.formats import Array
from repalign.data.errors import DataError, UnavailableError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SHARES = {"test": 0.2, "val": 0.1}  # of each class; the rest is for training


class Tree(NamedTuple):
    """Files of a split with their labels; ``mark`` changes when files come or go."""

    files: list[Path]
    y: Array
    classes: tuple[str, ...]
    place: Path
    mark: str
    note: str = ""  # how the split was made, where the directories do not say


def index(place: Path, split: str) -> Tree:
    """List ``place/split/<class>/*``.

    An ``images`` directory inside a class (Tiny ImageNet) or above the classes (Office-31) is passed
    through; Tiny ImageNet's ``val_annotations.txt`` is followed.
    """
    top = place / split
    if not top.is_dir():
        raise UnavailableError(f"{place} has no directory {split}")
    if (top / "val_annotations.txt").is_file():
        return _annotated(place, top)
    return _classes(top)


def index_own(place: Path, split: str) -> Tree:
    """The user's own images: ``place/split/<class>/*``, or ``place/<class>/*``, which is then split here.

    Without directories for the splits, each class is ordered by the sha256 of its files' names: the first
    fifth is the test split, the next tenth the validation split, the rest is for training. No seed moves
    an image from one split to another, so samples of two splits never share an image, whatever their
    seeds. The split "all" is everything.
    """
    # A class may be called "train" too; a split holds directories, a class holds images.
    there = [s for s in ("train", *SHARES) if (place / s).is_dir() and not _images(place / s)]
    if split in there:
        return index(place, split)
    if there:
        raise UnavailableError(f"{place} has {' and '.join(there)}, but no directory {split}")
    tree = _classes(place)
    if split == "all":
        return tree
    counts = np.bincount(tree.y, minlength=len(tree.classes))
    if counts.min() < 3:
        raise UnavailableError(
            f"{place} has no directories train and test, and a class needs at least 3 images to be split, "
            f"but {tree.classes[int(counts.argmin())]} has {counts.min()}: add images, make the "
            'directories, or load split="all"'
        )
    rows = np.sort(np.concatenate([_part(tree, c, split) for c in range(len(counts))]))
    mark = hashlib.sha256(f"{tree.mark}{split}".encode()).hexdigest()
    note = "; split here by file name: of each class 70% train, 10% val, 20% test"
    return tree._replace(files=[tree.files[i] for i in rows], y=tree.y[rows], mark=mark, note=note)


def _part(tree: Tree, label: int, split: str) -> Array:
    """The rows of one class that belong to a split."""
    rows = np.flatnonzero(tree.y == label)
    names = [hashlib.sha256(f"{tree.classes[label]}/{tree.files[i].name}".encode()).digest() for i in rows]
    rows = rows[sorted(range(len(rows)), key=names.__getitem__)]
    test, val = (max(1, round(share * len(rows))) for share in SHARES.values())
    return {"test": rows[:test], "val": rows[test : test + val], "train": rows[test + val :]}[split]


def _classes(top: Path) -> Tree:
    """A directory per class below ``top``."""
    if (top / "images").is_dir() and not _images(top / "images"):
        top = top / "images"
    classes = sorted(
        entry.name for entry in os.scandir(top) if entry.is_dir() and not entry.name.startswith(".")
    )
    files, y, marks = [], [], []
    for label, name in enumerate(classes):
        folder = top / name / "images" if (top / name / "images").is_dir() else top / name
        here = _images(folder)
        files += here
        y += [label] * len(here)
        marks.append((name, len(here), folder.stat().st_mtime_ns))
    if not files:
        raise UnavailableError(f"{top} has no directories of images, one per class")
    mark = hashlib.sha256(repr(marks).encode()).hexdigest()
    return Tree(files, np.array(y, np.int64), tuple(classes), top, mark)


def _annotated(place: Path, top: Path) -> Tree:
    """Tiny ImageNet's validation images: one directory, and a table of file and class."""
    text = (top / "val_annotations.txt").read_text("utf-8")
    rows = [line.split("\t")[:2] for line in text.splitlines() if line]
    train = place / "train"
    names = sorted(e.name for e in os.scandir(train) if e.is_dir()) if train.is_dir() else []
    classes = tuple(names or sorted({label for _, label in rows}))
    known = {name: i for i, name in enumerate(classes)}
    if unknown := {label for _, label in rows} - set(known):
        raise UnavailableError(
            f"{top / 'val_annotations.txt'} names the class {min(unknown)}, which train lacks"
        )
    y = np.array([known[label] for _, label in rows], np.int64)
    files = [top / "images" / name for name, _ in rows]
    return Tree(files, y, classes, top, hashlib.sha256(text.encode()).hexdigest())


def _images(folder: Path) -> list[Path]:
    return sorted(folder / e.name for e in os.scandir(folder) if e.name.lower().endswith(ENDINGS))


def decode(files: list[Path], size: int) -> Array:
    """Images as uint8 (n, 3, size, size): the shorter side is scaled to ``size``, the middle is kept."""
    out = np.empty((len(files), 3, size, size), np.uint8)

    def one(i: int) -> None:
        try:
            with Image.open(files[i]) as image:
                image.draft("RGB", (size, size))  # a JPEG is decoded near the size wanted
                square = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BILINEAR)
        except (OSError, SyntaxError) as error:
            raise DataError(
                f"{files[i]} cannot be read as an image ({error}): replace or remove it."
            ) from error
        out[i] = np.asarray(square).transpose(2, 0, 1)

    # Pillow decodes outside the interpreter's lock.
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(one, range(len(files))))
    return out
