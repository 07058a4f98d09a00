"""Map a function over configurations: processes on this machine, or an existing Dask cluster.

Every finished cell is in the store at once, so a sweep that was killed goes on where it stopped.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import product
from typing import Any

from repalign.machine import cores, onednn
from repalign.study import run, send, store, workers

_Cell = tuple[
    int, str, Any
]  # index, what went wrong (empty if nothing), result or None when it is in the store


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


def grid(**lists: Iterable[Any]) -> list[dict[str, Any]]:
    """Every combination of the values of each argument; of a dict its values count.

    >>> grid(depth=(2, 3), seed=range(2))
    [{'depth': 2, 'seed': 0}, {'depth': 2, 'seed': 1}, {'depth': 3, 'seed': 0}, {'depth': 3, 'seed': 1}]
    """
    columns = [list(v.values()) if isinstance(v, Mapping) else list(v) for v in lists.values()]
    return [dict(zip(lists, values, strict=True)) for values in product(*columns)]


def sweep(
    fn: Callable[..., Any],
    configs: Sequence[dict[str, Any]],
    *,
    data: Any = None,
    jobs: int | None = None,
    dask: str | None = None,
    retries: int = 3,
    **common: Any,
) -> Any:
    """``[cached(fn, {**config, **common}, data=data) for config in configs]``, in parallel.

    When every cell returns rows (a list of dicts), the answer is one tidy table instead of a list: a pandas
    DataFrame with a line for each row, the columns of its configuration first (a data set shows as its
    name), then the row's own.

    A configuration may hold data sets: they are sent to each worker once. At most ``jobs`` processes on
    this machine (default: ``$REPALIGN_JOBS``, else one per core; under ``repalign run`` also no more than the
    other pages leave free), or the Dask cluster at the address ``dask`` (default: ``$REPALIGN_DASK``). A
    worker that is lost is replaced and its cell runs again, up to
    ``retries`` times with growing pauses. A cell that raises does not stop the others; at the end a
    :class:`SweepError` names every one that failed with its configuration.
    """
    onednn.prepare()  # the workers inherit it
    shown, configs = configs, [{**config, **common} for config in configs]
    keys = store.keys(fn, configs, data)
    todo = list({key: i for i, key in enumerate(keys) if not store.has(fn, key)}.values())
    dask = dask or os.environ.get("REPALIGN_DASK") or None
    jobs = jobs or int(os.environ.get("REPALIGN_JOBS", 0)) or cores.count()
    failed: list[tuple[dict[str, Any], str]] = []
    bar = _Bar(len(configs), len(configs) - len(todo))
    if todo:
        send.modules_by_name()
        checked = send.SameCode(fn, [configs[i] for i in todo])
        cells = [(i, checked, configs[i], keys[i], data) for i in todo]
        with nullcontext() if dask else send.data_by_file(store.directory()):
            done = _on_dask(cells, dask, retries) if dask else _here(cells, min(jobs, len(todo)), retries)
            for i, error, result in done:
                if error:
                    failed.append((configs[i], error))
                elif dask:  # the cluster may not see this machine's disk
                    store.write(fn, keys[i], result)
                bar.step()
    bar.end()
    if failed:
        raise SweepError(failed, len(configs))
    run.current.from_store["read"] += len(configs) - len(todo)
    run.current.from_store["computed"] += len(todo)
    # A damaged file is computed again here.
    results = [
        store.result(fn, config, data, key, count=False) for config, key in zip(configs, keys, strict=True)
    ]
    rows = bool(results) and all(isinstance(r, list) and all(isinstance(x, dict) for x in r) for r in results)
    return _tidy(shown, results) if rows else results


def _tidy(configs: Sequence[dict[str, Any]], results: list[list[dict[str, Any]]]) -> Any:
    """One table of all rows, each with its configuration."""
    import pandas as pd

    lines = []
    for config, rows in zip(configs, results, strict=True):
        left = {name: _label(value) for name, value in config.items()}
        for row in rows:
            twice = left.keys() & row.keys()
            if twice:
                raise ValueError(
                    f"both the configuration and the rows have {', '.join(sorted(twice))}: "
                    "give the rows' columns other names."
                )
            lines.append({**left, **row})
    return pd.DataFrame(lines) if lines else pd.DataFrame(columns=[*configs[0]])


def _label(value: Any) -> Any:
    """How a part of a configuration shows in a table: data sets, functions and classes by their names."""
    if isinstance(value, (tuple, list)):
        return tuple(_label(part) for part in value)
    is_data = isinstance(getattr(value, "fingerprint", None), str)
    name = getattr(value, "name", None) if is_data else getattr(value, "__name__", None)
    return value if name is None else name


def _compute(index: int, fn: Callable[..., Any], config: dict[str, Any], data: Any) -> _Cell:
    onednn.prepare()  # on a cluster, each machine for itself
    try:
        return index, "", fn(**config) if data is None else fn(data, **config)
    except Exception:
        return index, traceback.format_exc(), None


def _compute_and_keep(
    index: int, fn: Callable[..., Any], config: dict[str, Any], key: str, data: Any, directory: str
) -> _Cell:
    """In a worker: the result goes to the store before anything can happen to the parent."""
    os.environ["REPALIGN_CACHE"] = directory
    index, error, result = _compute(index, fn, config, data)
    if not error:
        try:
            store.write(fn, key, result)
        except Exception:
            error = traceback.format_exc()
    return index, error, None


def _here(cells: list[tuple[Any, ...]], jobs: int, retries: int) -> Iterator[_Cell]:
    """Processes of this machine, each with one core."""
    directory = str(store.directory().parent)
    for place, done in workers.compute(
        _compute_and_keep, [(*cell, directory) for cell in cells], jobs, retries
    ):
        if isinstance(done, workers.Lost):
            i, fn, _, key, _ = cells[place]
            # What a lost worker had finished is in the store, though its answer was lost.
            yield i, "" if store.has(fn, key) else done.reason, None
        else:
            yield done


def client(address: str) -> Any:
    """A client of the Dask cluster at ``address``, or an error that says what is missing."""
    try:
        from distributed import Client
    except ImportError:
        raise RuntimeError("a Dask cluster needs pip install 'repalign[dist]'.") from None
    try:
        return Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise RuntimeError(f"no Dask scheduler answers at {address} ({error}): is it running?") from None


def _on_dask(cells: list[tuple[Any, ...]], address: str, retries: int) -> Iterator[_Cell]:
    """An existing cluster. Dask itself moves the cells of a lost worker to another one."""
    with client(address) as cluster:
        from distributed import as_completed

        sent: dict[str, Any] = {}

        def scattered(value: Any) -> Any:
            """``value`` with each data set in it in the place of which the cluster has its own copy."""
            if isinstance(getattr(value, "fingerprint", None), str):
                if value.fingerprint not in sent:
                    sent[value.fingerprint] = cluster.scatter(value, broadcast=True)
                return sent[value.fingerprint]
            if type(value) in (list, tuple):
                return type(value)(scattered(part) for part in value)
            return {k: scattered(v) for k, v in value.items()} if type(value) is dict else value

        futures = {
            cluster.submit(_compute, i, fn, *scattered((config, data)), retries=retries, pure=False): i
            for i, fn, config, _, data in cells
        }
        for future in as_completed(futures):
            lost = future.exception()
            yield (futures[future], str(lost), None) if lost else future.result()


class _Bar:
    """Cells done and time left, on a terminal or in a live notebook; silent in an executed page."""

    def __init__(self, total: int, done: int) -> None:
        self._total, self._done, self._first = total, done, done
        self._started = time.perf_counter()
        self._on = "REPALIGN_OUT" not in os.environ and sys.stdout is not None
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
