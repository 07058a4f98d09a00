"""Keep what was expensive to compute: cells of the first edition return more than rows."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

from repalign._code import fingerprint, source
from repalign._files import cache_root, digest
from repalign.press import provenance
from repalign.study import pack, run

R = TypeVar("R")


def cached(fn: Callable[..., R], config: dict[str, Any], *, data: Any = None) -> R:
    """``fn(**config)``, or what it returned last time; with ``data``, ``fn(data, **config)``."""
    (mark,) = keys(fn, [config], data)
    found = read(fn, mark)
    if found is None:
        write(fn, mark, fn(**config) if data is None else fn(data, **config))
        found = read(fn, mark)  # not what was computed: the first run gets the same as all later ones
    assert found is not None
    return found[0]


def keys(fn: Callable[..., Any], configs: Sequence[dict[str, Any]], data: Any = None) -> list[str]:
    """For each configuration everything that the result depends on, as a short fingerprint."""
    if not isinstance(fn, FunctionType):
        raise TypeError(f"only plain functions can be cached, but got {type(fn).__name__}: use def.")
    versions = {name: version for name, version in provenance.versions().items() if name != "repalign"}
    about = (fn, versions, pack.FORMAT, source.imported(), os.environ.get("REPALIGN_SAMPLES", ""))
    common = fingerprint(about, f"what {fn.__name__} uses"), fingerprint(data, "data")
    # The order of arguments counts only for a function that may loop over them.
    loops = bool(fn.__code__.co_flags & inspect.CO_VARKEYWORDS)
    found = []
    for config in configs:
        if not isinstance(config, dict) or not all(isinstance(name, str) for name in config):
            raise TypeError(f"a configuration is a dict of arguments by name, but got {config!r:.80}.")
        ordered = config if loops else dict(sorted(config.items()))
        found.append(digest(*common, fingerprint(ordered, "the configuration")))
    run.note(data, *configs)
    return found


def read(fn: Callable[..., Any], key: str) -> tuple[Any] | None:
    """What is kept under ``key``, or None; a file that cannot be read is computed again, with a warning."""
    path = _path(fn, key)
    if not path.exists():
        return None
    try:
        if not path.is_file():  # a pipe would be waited for
            raise ValueError("it is no file")
        return (pack.read(path, key),)
    except FileNotFoundError:  # cleared away just now
        return None
    except Exception as error:  # zipfile, numpy and json raise a dozen kinds
        warnings.warn(
            f"the stored result {path.name} is unreadable ({error}): computing it again", stacklevel=3
        )
        return None


def write(fn: Callable[..., Any], key: str, value: Any) -> None:
    """Keep ``value`` under ``key``."""
    pack.write(_path(fn, key), key, value)


def _path(fn: Callable[..., Any], key: str) -> Path:
    return cache_root() / "store" / f"{re.sub(r'[^A-Za-z0-9_]', '_', fn.__name__)}-{key}.npz"
