"""Map a function over configurations: every finished cell is kept at once, the answer is one tidy table."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from repalign.press import cells, provenance, store

if TYPE_CHECKING:
    import pandas as pd

OUT = "REPALIGN_OUT"
CELL = "cell"  # the column that says to which cell a row belongs


class SweepError(RuntimeError):
    """Some cells failed. The others are finished and in the store."""

    def __init__(self, failed: list[tuple[dict[str, Any], str]], total: int) -> None:
        self.failed = failed
        shown = "\n".join(f"  {config}: {_last_line(error)}" for config, error in failed[:10])
        more = f"\n  and {len(failed) - 10} more" if len(failed) > 10 else ""
        super().__init__(
            f"{len(failed)} of {total} cells failed; the others are kept, and only these run again:\n"
            f"{shown}{more}\nThe first one in full:\n{failed[0][1]}"
        )


@dataclass(frozen=True)
class Result:
    """A finished sweep.

    table  a row for each row that a cell returned: its cell, its configuration, its values
    cells  a row for each cell: its configuration, and the provenance of its computation
    """

    table: pd.DataFrame
    cells: pd.DataFrame


def grid(**lists: Iterable[Any]) -> list[dict[str, Any]]:
    """Every combination of the values of each argument; of a dict its values count.

    >>> grid(depth=(2, 3), seed=range(2))
    [{'depth': 2, 'seed': 0}, {'depth': 2, 'seed': 1}, {'depth': 3, 'seed': 0}, {'depth': 3, 'seed': 1}]
    """
    columns = [list(v.values()) if isinstance(v, Mapping) else list(v) for v in lists.values()]
    return [dict(zip(lists, values, strict=True)) for values in product(*columns)]


def run(
    fn: Callable[..., Any],
    configs: Sequence[Mapping[str, Any]],
    data: Any,
    common: Mapping[str, Any],
    at_once: int | None = None,
) -> Result:
    """``fn(data, **config, **common)`` for each of ``configs``, as one table; finished cells are kept.

    ``data`` is handed to every cell as its first argument: one data set or several, or a function without
    arguments that loads them. A cell that raises does not stop the others; at the end a :class:`SweepError`
    names every one that failed with its configuration. Cells that another page computes at the same time
    are left to it, and read when it has finished them.
    """
    given = [dict(config) for config in configs]
    shared = sorted(set(common) & {name for config in given for name in config})
    if shared:
        raise TypeError(f"{', '.join(shared)} is given for each cell and for all: which one counts?")
    data = data() if callable(data) else data
    mark = fingerprint_of(data)
    keys = [store.key(fn, {**config, **common}, mark) for config in given]
    found = {name: store.read(fn, name) for name in dict.fromkeys(keys)}
    todo = [name for name, cell in found.items() if cell is None]
    bar = _Bar(len(found), len(found) - len(todo))
    first = () if data is None else (data,)
    where = [keys.index(name) for name in todo]
    arguments = [((fn, *first), {**given[place], **common}) for place in where]
    about = {
        **provenance.origin(),
        "date": provenance.today(),
        "versions": provenance.versions(),
        "data": mark,
    }
    failed: dict[int, str] = {}
    with _Turns(fn, todo, found) as turns:
        while turns.left:
            at_most = min(at_once or cells.jobs(), len(turns.left))
            for place, outcome in cells.compute(_rows, arguments, at_most, turns.take):
                if outcome.error:
                    failed[where[place]] = outcome.error
                else:
                    made = {**about, "seconds": outcome.seconds, "processor": outcome.processor}
                    cell = store.Cell(outcome.value, made)
                    store.write(fn, todo[place], cell)
                    found[todo[place]] = cell
                turns.done(place)
                bar.step()
            turns.wait()
    bar.end()
    if failed:
        # In the order of the configurations, whichever ended first.
        raise SweepError([(given[place], failed[place]) for place in sorted(failed)], len(given))
    finished = [kept for name in keys if (kept := found[name]) is not None]
    return Result(_table(given, finished), _cells(given, finished))


class _Turns:
    """Which cells are ours: those that no other process computes at this moment.

    A cell's lock is held from its turn until it is in the store. Locks end with their process, whatever
    ends it.
    """

    def __init__(self, fn: Callable[..., Any], names: list[str], found: dict[str, store.Cell | None]) -> None:
        self._fn, self._names, self._found = fn, names, found
        self._held: dict[int, FileLock] = {}
        self.left = set(range(len(names)))

    def __enter__(self) -> _Turns:
        return self

    def __exit__(self, *_: object) -> None:
        for place in list(self._held):
            self._release(place)

    def take(self, place: int) -> bool:
        """Is it for us to compute the cell at ``place`` now?"""
        return place in self.left and self._acquire(place, wait=False)

    def done(self, place: int) -> None:
        """The cell at ``place`` is in the store, or has failed."""
        self.left.discard(place)
        self._release(place)

    def wait(self) -> None:
        """Wait for a cell that another process has; it is ours to compute if that process failed."""
        for place in sorted(self.left):
            if self._acquire(place, wait=True):
                return

    def _acquire(self, place: int, *, wait: bool) -> bool:
        """Hold the lock of a cell; False where another process has it, or has finished the cell."""
        if place in self._held:
            return True
        lock = store.lock(self._fn, self._names[place])
        try:
            lock.acquire(blocking=wait)
        except Timeout:
            return False
        self._held[place] = lock
        cell = store.read(self._fn, self._names[place])
        if cell is not None:
            self._found[self._names[place]] = cell
            self.done(place)
        return cell is None

    def _release(self, place: int) -> None:
        lock = self._held.pop(place)
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _rows(fn: Callable[..., Any], /, *data: Any, **config: Any) -> list[dict[str, Any]]:
    """What a cell returns, as plain rows; what is none fails where it was made, and stops no other cell."""
    return store.plain(fn(*data, **config), fn.__name__)


def fingerprint_of(data: Any) -> str:
    """One fingerprint for all data sets in ``data``; nothing for none."""
    if data is None:
        return ""
    parts = (
        data.values() if isinstance(data, Mapping) else data if isinstance(data, (tuple, list)) else [data]
    )
    marks = [getattr(part, "fingerprint", None) for part in parts]
    if not all(isinstance(mark, str) for mark in marks):
        raise TypeError(
            "data should be a data set, several of them, or a function that loads them; what else a cell "
            "needs belongs in its configuration."
        )
    return " ".join(map(str, marks))


def label(value: Any) -> Any:
    """How a part of a configuration shows in a table: data, networks and functions by their names."""
    if isinstance(value, (tuple, list)):
        return " × ".join(str(label(part)) for part in value)
    marked = isinstance(getattr(value, "fingerprint", None), str)
    name = getattr(value, "name", None) if marked else getattr(value, "__name__", None)
    return value if name is None else name


def _table(configs: Sequence[dict[str, Any]], finished: Sequence[store.Cell]) -> pd.DataFrame:
    import pandas as pd

    lines = []
    for number, (config, cell) in enumerate(zip(configs, finished, strict=True)):
        left = {name: label(value) for name, value in config.items()}
        for row in cell.rows:
            twice = (left.keys() | {CELL}) & row.keys()
            if twice:
                raise ValueError(
                    f"both the configuration and the rows have {', '.join(sorted(twice))}: "
                    "give the rows' columns other names."
                )
            lines.append({CELL: number, **left, **row})
    return pd.DataFrame(lines) if lines else pd.DataFrame(columns=[CELL, *configs[0]])


def _cells(configs: Sequence[dict[str, Any]], finished: Sequence[store.Cell]) -> pd.DataFrame:
    import pandas as pd

    lines = []
    for number, (config, cell) in enumerate(zip(configs, finished, strict=True)):
        shown = "; ".join(f"{name}={label(value)}" for name, value in config.items())
        made = cell.provenance
        versions = " ".join(f"{name} {version}" for name, version in made["versions"].items())
        lines.append({CELL: number, "configuration": shown, **made, "versions": versions})
    return pd.DataFrame(lines)


class _Bar:
    """Cells done and time left, on a terminal or in a live notebook; silent in an executed page."""

    def __init__(self, total: int, done: int) -> None:
        self._total, self._done, self._first = total, done, done
        self._started = time.perf_counter()
        self._on = OUT not in os.environ and sys.stdout is not None
        if done and self._on:
            print(f"{done} of {total} cells are in the store")

    def step(self) -> None:
        self._done += 1
        if self._on:
            each = (time.perf_counter() - self._started) / (self._done - self._first)
            left = each * (self._total - self._done)
            print(f"\r{self._done}/{self._total} cells, about {left:.0f} s left   ", end="", flush=True)

    def end(self) -> None:
        if self._on and self._done > self._first:
            print(f"\r{self._done}/{self._total} cells in {time.perf_counter() - self._started:.0f} s      ")


def _last_line(error: str) -> str:
    return error.strip().splitlines()[-1]
