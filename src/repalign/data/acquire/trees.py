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


class Tree(NamedTuple):
    """Files of a split with their labels; ``mark`` changes when files come or go."""

    files: list[Path]
    y: Array
    classes: tuple[str, ...]
    place: Path
    mark: str


def index(place: Path, split: str, *, bare: bool = False) -> Tree:
    """List ``place/split/<class>/*``; with ``bare`` also ``place/<class>/*`` where there are no splits.

    An ``images`` directory inside a class (Tiny ImageNet) or above the classes (Office-31) is passed
    through; Tiny ImageNet's ``val_annotations.txt`` is followed.
    """
    top = place / split if (place / split).is_dir() else place
    if top == place and not bare:
        raise UnavailableError(f"{place} has no directory {split}")
    if (top / "val_annotations.txt").is_file():
        return _annotated(place, top)
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
