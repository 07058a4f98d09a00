"""Directories that last as long as the command that made them, and what killed commands left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from filelock import FileLock

from repalign._files import cache_root

_ALIVE = "alive.lock"
_PREFIX = ".scratch-"
# What is renamed into its place within seconds; older ones were left by a kill.
_SHORT_LIVED = (".record-*", ".old-*", ".*.part", ".new-*")
_HOUR = 3600.0


@contextmanager
def directory(root: Path) -> Iterator[Path]:
    """A directory below ``build/`` of ``root`` for as long as the block lasts.

    A lock says that its owner lives; directories of owners that were killed are removed on the way.
    """
    build = root / "build"
    build.mkdir(exist_ok=True)
    sweep(root)
    fresh = Path(tempfile.mkdtemp(dir=build, prefix=".new-"))
    alive = FileLock(fresh / _ALIVE)
    alive.acquire()
    # Under its name only now: another command must not take it for one that was left.
    place = fresh.rename(build / fresh.name.replace(".new-", _PREFIX))
    try:
        yield place
    finally:
        alive.release()
        shutil.rmtree(place, ignore_errors=True)


def sweep(root: Path) -> None:
    """Remove what killed commands left in the book and among stored cells, and nothing that is in use."""
    for left in (root / "build").glob(f"{_PREFIX}*"):
        with suppress(OSError), FileLock(left / _ALIVE, blocking=False):
            shutil.rmtree(left, ignore_errors=True)
    books = [root / name for name in ("build", "records", "_build")]
    stores = [cache_root() / name for name in ("cells", "fresh", "store")]
    for folder in (*books, *stores):
        for left in _short_lived(folder):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _HOUR:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()


def _short_lived(folder: Path) -> Iterator[Path]:
    """What below ``folder`` has such a name. Others may write and remove there meanwhile."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if any(fnmatch(name, pattern) for pattern in _SHORT_LIVED):
                yield Path(place, name)
        folders[:] = [name for name in folders if not name.startswith(_PREFIX)]
