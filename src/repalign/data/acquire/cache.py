"""Where data sets are kept between runs: one directory per split, plain arrays and a line about them.

    <root>/mnist/train/x.npy     uint8 (n, c, h, w), memory-mapped when read
                       y.npy     int64 (n,)
                       about.json   where it came from, its classes, the sha256 of its content

A directory appears by a rename when it is complete, so a process that dies half-way leaves only a
directory whose name begins with a dot, which the next writer removes. Writers hold a lock; readers need none.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from repalign._files import cache_root, replace_directory
from repalign.data.errors import DataError

# Entries whose bytes were compared with their digest, with the stamp that their files had then.
_checked: dict[Path, tuple[object, ...]] = {}
# Raise it when the arrays of a set change their meaning: older entries are then fetched again.
FORMAT = 1


class Entry(NamedTuple):
    """A split as it is stored: images or rows, labels, and what is known about them."""

    x: NDArray[Any]
    y: NDArray[Any]
    classes: tuple[str, ...]
    source: str
    content: str


def root() -> Path:
    """The data sets' part of the cache directory."""
    return cache_root() / "data"


@contextmanager
def lock(name: str) -> Iterator[None]:
    """Only one process at a time obtains the set called ``name``; the lock ends with the process."""
    with explain_disk():
        root().mkdir(parents=True, exist_ok=True)
        with FileLock(root() / f".{name}.lock"):
            yield


def content_hash(x: NDArray[Any], y: NDArray[Any], classes: tuple[str, ...]) -> str:
    """sha256 of what the arrays say, whichever source they came from."""
    digest = hashlib.sha256()
    for array in (x, y):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    digest.update("\n".join(classes).encode())
    return digest.hexdigest()


def read(key: str, *, check: bool = True) -> Entry | None:
    """The entry ``name/split``, memory-mapped; None when it is absent, damaged or of another format.

    With ``check`` all its bytes are compared with their sha256, once in a process: again only after a file
    has changed.
    """
    folder = root() / key
    try:
        stamp = _stamp(folder)
        about = json.loads((folder / "about.json").read_text("utf-8"))
        if about["format"] != FORMAT:
            return None
        # A file cut short cannot be mapped at its full shape: numpy raises ValueError.
        x, y = (np.load(folder / f"{part}.npy", mmap_mode="r", allow_pickle=False) for part in "xy")
        entry = Entry(x, y, tuple(map(str, about["classes"])), str(about["source"]), str(about["content"]))
        if len(x) != len(y) or list(x.shape) != about["shape"]:
            return None
    except Exception:  # besides an absent one: json, tokenize and numpy raise half a dozen kinds
        return None
    if check and _checked.get(folder) != stamp:
        if content_hash(entry.x, entry.y, entry.classes) != entry.content:
            return None
        _checked[folder] = stamp
    return entry


def _stamp(folder: Path) -> tuple[object, ...]:
    """What changes when one of the files of an entry does."""
    stats = [os.stat(folder / name) for name in ("x.npy", "y.npy", "about.json")]
    if not all(stat.S_ISREG(one.st_mode) for one in stats):
        raise OSError(errno.EINVAL, "not a file", str(folder))
    return tuple((one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for one in stats)


def write(key: str, x: NDArray[Any], y: NDArray[Any], classes: tuple[str, ...], source: str) -> Entry:
    """Store an entry, complete or not at all. Call it with the lock of the set held."""
    final = root() / key
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(final.parent)
    about = {
        "format": FORMAT,
        "source": source,
        "classes": list(classes),
        "shape": list(x.shape),
        "content": content_hash(x, y, classes),
    }
    folder = Path(tempfile.mkdtemp(dir=final.parent, prefix=".tmp-"))
    try:
        with explain_disk():
            np.save(folder / "x.npy", x)
            np.save(folder / "y.npy", y)
            (folder / "about.json").write_text(json.dumps(about, indent=1), "utf-8")
            replace_directory(folder, final)  # what is there may be damaged, or of another format
    finally:
        _remove_leftovers(final.parent)
    entry = read(key)
    if entry is None:
        raise DataError(f"{final} was written but cannot be read back: check the disk.")
    return entry


def _remove_leftovers(folder: Path) -> None:
    """Delete what a process that died left behind."""
    for left_behind in folder.glob(".*-*"):
        shutil.rmtree(left_behind, ignore_errors=True)


def need_space(size: int) -> None:
    """Raise DataError when the disk has less than ``size`` bytes free."""
    root().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root()).free
    if free < size:
        raise DataError(
            f"{root()} has {free / 1e6:.0f} MB free, but {size / 1e6:.0f} MB are needed. "
            "Free some space, or set REPALIGN_CACHE to a directory on another disk."
        )


@contextmanager
def explain_disk() -> Iterator[None]:
    """Turn the system's "no space left" and "permission denied" in the cache into what to do about it."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        ours = str(error.filename or "").startswith(str(root()))
        if not full and not (ours and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)):
            raise
        what = "is full" if full else "cannot be written"
        raise DataError(
            f"the disk of {root()} {what}; nothing that was there has changed. "
            "Free some space, or set REPALIGN_CACHE to a directory on another disk."
        ) from error
