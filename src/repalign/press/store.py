"""Finished cells of a run, so that a killed sweep goes on where it stopped.

A cell's key is made of its function's source, its configuration, the fingerprint of its data, one digest of
the library's source, and the versions of Python, torch, numpy and scipy. Comments and docstrings do not
count. Editing the library forgets.
"""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from filelock import FileLock

from repalign._code import fingerprint, source
from repalign._files import cache_root, digest, write_text
from repalign.press import provenance

# A directory of its own for a run that is to be recorded: empty at first, found again after a kill.
VARIABLE = "REPALIGN_STORE"
# Which source of samples the data sets are drawn from; see repalign.data.
_SAMPLES = "REPALIGN_SAMPLES"


@dataclass(frozen=True)
class Cell:
    """The rows of one cell, and how they came about.

    rows        one dict of plain values for each
    provenance  commit, clean, date, seconds, processor, versions and the fingerprint of the data
    """

    rows: list[dict[str, Any]]
    provenance: dict[str, Any]


def directory() -> Path:
    """Where cells are kept: a part of the cache directory, or what ``--fresh`` has set."""
    return Path(os.environ.get(VARIABLE) or cache_root() / "cells")


def key(fn: Callable[..., Any], arguments: Mapping[str, Any], data: str) -> str:
    """Everything that the rows of a cell depend on, as a short fingerprint."""
    if not isinstance(fn, FunctionType):
        raise TypeError(f"a sweep maps a plain function, not a {type(fn).__name__}: define one with def.")
    versions = {name: version for name, version in provenance.versions().items() if name != "repalign"}
    about = [source.imported(), data, os.environ.get(_SAMPLES, ""), versions]
    configuration = fingerprint(dict(sorted(arguments.items())), f"the configuration of {fn.__name__}")
    return digest(fingerprint(fn, fn.__name__), fingerprint(about), configuration)


def read(fn: Callable[..., Any], mark: str) -> Cell | None:
    """The cell under ``mark``, or None; a file that cannot be read is computed again, with a warning."""
    path = _path(fn, mark)
    if not path.exists():
        return None
    try:
        if not path.is_file():  # a pipe would be waited for
            raise ValueError("it is no file")
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["key"] != mark:
            raise ValueError("it belongs to another key")
        cell = Cell(plain(kept["rows"], "the cell"), dict(kept["provenance"]))
        if kept["content"] != _content(cell):
            raise ValueError("its content is not what was written")
        return cell
    except FileNotFoundError:  # cleared away just now
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        warnings.warn(
            f"the stored cell {path.name} is unreadable ({error}): computing it again", stacklevel=3
        )
        return None


def write(fn: Callable[..., Any], mark: str, cell: Cell) -> None:
    """Keep ``cell`` under ``mark``, whole or not at all."""
    kept = {"key": mark, "content": _content(cell), "rows": cell.rows, "provenance": cell.provenance}
    write_text(_path(fn, mark), json.dumps(kept))


def lock(fn: Callable[..., Any], mark: str) -> FileLock:
    """What a process holds while it computes the cell, so that pages that share it compute it once."""
    return FileLock(_path(fn, mark).with_suffix(".lock"), thread_local=False)


def _content(cell: Cell) -> str:
    """A digest of what a file says: one wrong bit would still be a number."""
    return digest(json.dumps([cell.rows, cell.provenance]))


def plain(rows: Any, name: str) -> list[dict[str, Any]]:
    """What a cell returned, as rows of plain values, or an error that says what to return."""
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # a frame
        rows = rows.to_dict("records")
    if isinstance(rows, Mapping):
        rows = [rows]
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise TypeError(
            f"{name} should return rows: a dict, a list of dicts or a frame, not {type(rows).__name__}."
        )
    return [{str(column): _plain(value, name, column) for column, value in row.items()} for row in rows]


def _plain(value: Any, name: str, column: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a number of numpy or torch
        return _plain(value.item(), name, column)
    raise TypeError(
        f"{name} returned a {type(value).__name__} in the column {column!r}: a row holds numbers, strings "
        "and booleans. Give each value of an array a row of its own."
    )


def same(ours: Any, theirs: Any) -> float:
    """How far two values of a row are apart, relative to their size: 0 for equal, inf for another kind.

    >>> same(1.0, 1.0 + 1e-9) < 1e-8, same("a", "b"), same(float("nan"), float("nan"))
    (True, inf, 0.0)
    """
    if isinstance(ours, (int, float)) and isinstance(theirs, (int, float)):
        if math.isnan(ours) and math.isnan(theirs):
            return 0.0
        if ours == theirs:
            return 0.0
        apart = abs(ours - theirs) / max(abs(ours), abs(theirs))
        return apart if math.isfinite(apart) else math.inf
    return 0.0 if ours == theirs else math.inf


def _path(fn: Callable[..., Any], mark: str) -> Path:
    return directory() / f"{re.sub(r'[^A-Za-z0-9_]', '_', fn.__name__)}-{mark}.json"
