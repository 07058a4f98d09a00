"""Keep what was expensive to compute, under a key that names everything it depends on."""

from __future__ import annotations

import inspect
import re
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

from repalign._code import fingerprint
from repalign._files import cache_root, digest
from repalign.study import pack, run

R = TypeVar("R")


def cached(fn: Callable[..., R], config: dict[str, Any], *, data: Any = None) -> R:
    """``fn(**config)``, or what it returned last time.

    The key is made of what ``fn`` runs (its code, defaults, and the functions, classes and values that it
    uses), of ``config`` (anything that has a fingerprint: numbers, strings, arrays, tensors, functions,
    networks, data sets), and of the versions of torch, numpy and scipy: change one and it runs again. A
    comment or a docstring is no change. When ``data`` is given it is passed on as ``fn(data, **config)``.
    Results are numbers, strings, arrays, tensors (they come back on the CPU), and tuples, NamedTuples,
    lists, sets and dicts of them.
    """
    (mark,) = keys(fn, [config], data)
    return result(fn, config, data, mark)


def result(fn: Callable[..., R], config: dict[str, Any], data: Any, key: str, *, count: bool = True) -> R:
    """What is kept under ``key``, else computed and kept; ``count`` what was read, too, for the page."""
    path = _path(fn, key)
    try:
        found = pack.read(path, key)
        run.current.from_store["read"] += count
        return found
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        warnings.warn(
            f"the stored result {path.name} is unreadable ({error}): computing it again", stacklevel=3
        )
    value = fn(**config) if data is None else fn(data, **config)
    run.current.from_store["computed"] += 1
    write(fn, key, value)
    return pack.read(path, key)  # not what was computed: the first run gets the same as all later ones


def keys(fn: Callable[..., Any], configs: Sequence[dict[str, Any]], data: Any = None) -> list[str]:
    """For each configuration everything that the result depends on, as a short fingerprint."""
    if not isinstance(fn, FunctionType):
        raise TypeError(
            f"only plain functions can be cached, but got {type(fn).__name__}: define one with def."
        )
    versions = {name: version for name, version in run.versions().items() if name != "repalign"}
    common = fingerprint((fn, versions, pack.FORMAT), f"what {fn.__name__} uses"), fingerprint(data, "data")
    # The order of arguments counts only for a function that may loop over them.
    loops = bool(fn.__code__.co_flags & inspect.CO_VARKEYWORDS)
    found = []
    for config in configs:
        if not isinstance(config, dict) or not all(isinstance(name, str) for name in config):
            raise TypeError(f"a configuration is a dict of arguments by name, but got {config!r:.80}.")
        ordered = config if loops else dict(sorted(config.items()))
        found.append(digest(*common, fingerprint(ordered, "the configuration")))
    run.note(data, *(config for config in configs))
    return found


def has(fn: Callable[..., Any], key: str) -> bool:
    """Is there a result under this key?"""
    return _path(fn, key).is_file()


def write(fn: Callable[..., Any], key: str, value: Any) -> None:
    """Keep ``value`` under ``key``."""
    pack.write(_path(fn, key), key, value)


def directory() -> Path:
    """Where results are kept: a part of the cache directory."""
    return cache_root() / "store"


def _path(fn: Callable[..., Any], key: str) -> Path:
    return directory() / f"{re.sub(r'[^A-Za-z0-9_]', '_', fn.__name__)}-{key}.npz"
