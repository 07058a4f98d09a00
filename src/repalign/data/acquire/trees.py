"""Images as files, a directory per class: ImageNet, Tiny ImageNet, Office-31, the user's own.

The tree is listed, samples are chosen, and only those are decoded, by several threads.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageOps
from PIL.TiffImagePlugin import TiffImageFile

from repalign.data.acquire.formats import Array, readable
from repalign.data.errors import DataError, UnavailableError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
# Told apart by content, not by ending. Pillow knows more, and runs another program for some of them.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
# A file of 0.3 MB may unpack to any size. Above this Pillow warns.
PIXELS = 89_000_000
# How an image whose EXIF says that the camera was turned is turned back.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SHARES = {"test": 0.2, "val": 0.1}  # of each class; the rest is for training


class Tree(NamedTuple):
    """Files of a split with their labels."""

    files: list[Path]
    y: Array
    classes: tuple[str, ...]
    place: Path
    note: str = ""  # how the split was made, where the directories do not say

    def of(self, rows: Array) -> Tree:
        """These files alone."""
        return self._replace(files=[self.files[i] for i in rows], y=self.y[rows])

    @property
    def mark(self) -> str:
        """A digest of names, classes, sizes and times: a file that is overwritten changes it."""
        h = hashlib.sha256()
        for path, label in zip(self.files, self.y.tolist(), strict=True):
            h.update(f"{self.classes[label]}/{path.name}:{_stamp(path)}\n".encode())
        return h.hexdigest()


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        stat = os.stat(path)
    except OSError:
        return ()
    # The time of the last change too: whoever copies over a file may set the other one back.
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


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
    note = "; split here by file name: of each class 70% train, 10% val, 20% test"
    return tree.of(rows)._replace(note=note)


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
    classes = _directories(top)
    files: list[Path] = []
    y: list[int] = []
    for label, name in enumerate(classes):
        here = _of_class(top / name)
        files += here
        y += [label] * len(here)
    if not files:
        raise UnavailableError(f"{top} has no directories of images, one per class")
    return Tree(files, np.array(y, np.int64), tuple(classes), top)


def _of_class(folder: Path) -> list[Path]:
    """The images of a class. None is left out without a word, and no class is without any."""
    here = _images(folder)
    if not here and (folder / "images").is_dir():
        folder = folder / "images"
        here = _images(folder)
    for name in _directories(folder):
        if _has_images(folder / name):
            raise UnavailableError(
                f"{folder} holds the directory {name} with images, or a link to one, but the images of a "
                "class should lie side by side: move them up, or make each directory a class"
            )
    if not here:
        raise UnavailableError(
            f"{folder} has no images: remove it, or add some; a class is a directory of files that end with "
            f"{', '.join(ENDINGS)}"
        )
    return here


def _has_images(folder: Path) -> bool:
    """Whether there are images anywhere below a directory; a link, which may lead in a circle, counts."""
    if folder.is_symlink():
        return True
    return any(name.lower().endswith(ENDINGS) for _, _, names in os.walk(folder) for name in names)


def _annotated(place: Path, top: Path) -> Tree:
    """Tiny ImageNet's validation images: one directory, and a table of file and class."""
    table = top / "val_annotations.txt"
    try:
        rows = [line.split("\t")[:2] for line in table.read_text("utf-8").splitlines() if line]
        named = [(name, label) for name, label in rows]
    except ValueError as error:
        raise UnavailableError(f"{table} is not a table of files and classes: {error}") from error
    if outside := [name for name, _ in named if "/" in name or "\0" in name]:
        raise UnavailableError(f"{table} names {outside[0]!r}, which is no file of {top / 'images'}")
    names = _directories(place / "train") if (place / "train").is_dir() else []
    classes = tuple(names or sorted({label for _, label in named}))
    known = {name: i for i, name in enumerate(classes)}
    if unknown := {label for _, label in named} - set(known):
        raise UnavailableError(f"{table} names the class {min(unknown)}, which train lacks")
    y = np.array([known[label] for _, label in named], np.int64)
    return Tree([top / "images" / name for name, _ in named], y, classes, top)


def _images(folder: Path) -> list[Path]:
    """The image files in a directory, in the order of their names."""
    found = []
    for entry in _entries(folder):
        if not entry.name.lower().endswith(ENDINGS):
            continue
        path = readable(folder / entry.name)
        if _is(entry.is_file):
            found.append(path)
        elif not _is(entry.is_dir):
            raise UnavailableError(f"{path} is no file, but a pipe, a device or a broken link: remove it")
    return sorted(found)


def _directories(folder: Path) -> list[str]:
    """The directories in a directory, by name."""
    found = []
    for entry in _entries(folder):
        if _is(entry.is_dir):
            found.append(readable(folder / entry.name).name)
        elif entry.is_symlink() and not _is(entry.is_file):
            raise UnavailableError(f"{readable(folder / entry.name)} is a link that leads nowhere: remove it")
    return sorted(found)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a directory, but for what is hidden: systems leave previews and notes there."""
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def _is(kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError:  # a link to itself is nothing
        return False


def decode(files: list[Path], size: int) -> Array:
    """Images as uint8 (n, 3, size, size): the shorter side is scaled to ``size``, the middle is kept."""
    out = np.empty((len(files), 3, size, size), np.uint8)

    def one(i: int) -> None:
        out[i] = _decoded(files[i], size)

    # Pillow decodes outside the interpreter's lock.
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(one, range(len(files))))
    return out


def _decoded(path: Path, size: int) -> Array:
    try:
        if not path.is_file():
            raise FileNotFoundError("no such file")
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > PIXELS:
                raise ValueError(f"it has more than {PIXELS:,} pixels: make it smaller")
            image.draft("RGB", (size, size))  # a JPEG is decoded near the size wanted
            square = ImageOps.fit(_of_bytes(image), (size, size), Image.Resampling.BILINEAR)
            turn = _turn(image)
            if turn is not None:
                square = square.transpose(turn)
    except Exception as error:  # Pillow's readers raise a dozen kinds for a garbled file
        raise DataError(
            f"{path} cannot be read as an image ({_one_line(error)}): replace or remove it."
        ) from error
    return np.asarray(square).transpose(2, 0, 1)


def _of_bytes(image: Image.Image) -> Image.Image:
    """The image as red, green and blue of 8 bits each. Pillow would cut off what is above 255."""
    sixteen = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    if isinstance(image, TiffImageFile) and image.tag_v2.get(ExifTags.Base.BitsPerSample) == (12,):
        raise ValueError("it has 12 bits a pixel: save it with 8 or 16")
    if sixteen:
        levels = np.asarray(image).astype(np.float32) * (255 / 65535)
        image = Image.fromarray(levels.round().astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(
            "its pixels are numbers of 32 bits, and no file says which one is white: save it with 8 or 16"
        )
    return image.convert("RGB")


def _turn(image: Image.Image) -> Image.Transpose | None:
    """How a loaded image is turned upright; EXIF that cannot be read says nothing."""
    try:
        return TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
