"""Map a function over configurations: processes on this machine, or an existing Dask cluster.

Every finished cell is in the store at once, so a sweep that was killed goes on where it stopped.
"""

from __future__ import annotations

import copyreg
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from repalign.machine import cores
from repalign.study import store, workers

R = TypeVar("R")
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


def sweep(
    fn: Callable[..., R],
    configs: Sequence[dict[str, Any]],
    *,
    data: Any = None,
    jobs: int | None = None,
    dask: str | None = None,
    retries: int = 3,
) -> list[R]:
    """``[cached(fn, config, data=data) for config in configs]``, in parallel.

    At most ``jobs`` processes on this machine (default: ``$REPALIGN_JOBS``, else one per core; under
    ``repalign run`` also no more than the other pages leave free), or the Dask cluster at the address
    ``dask`` (default: ``$REPALIGN_DASK``). A worker that is lost is replaced and
    its cell runs again, up to ``retries`` times with growing pauses. A cell that raises does not stop
    the others; at the end a :class:`SweepError` names every one that failed with its configuration.
    """
    keys = [store.key(fn, config, data) for config in configs]
    todo = [i for i, key in enumerate(keys) if not store.has(fn, key)]
    dask = dask or os.environ.get("REPALIGN_DASK") or None
    jobs = jobs or int(os.environ.get("REPALIGN_JOBS", 0)) or cores.count()
    failed: list[tuple[dict[str, Any], str]] = []
    bar = _Bar(len(configs), len(configs) - len(todo))
    if todo:
        _send_modules_by_name()
        cells = [(i, fn, configs[i], keys[i], data) for i in todo]
        run = _on_dask(cells, dask, retries) if dask else _here(cells, min(jobs, len(todo)), retries)
        for i, error, result in run:
            if error:
                failed.append((configs[i], error))
            elif dask:  # the cluster may not see this machine's disk
                store.write(fn, keys[i], result)
            bar.step()
    bar.end()
    if failed:
        raise SweepError(failed, len(configs))
    # Two equal configurations are one cell; a damaged file is computed again here.
    return [store.cached(fn, config, data=data) for config in configs]


def _compute(index: int, fn: Callable[..., Any], config: dict[str, Any], data: Any) -> _Cell:
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


def _send_modules_by_name() -> None:
    """Let a cell of a notebook have an attribute ``classes`` or ``ops`` beside torch.

    cloudpickle then takes torch.classes or torch.ops for a part of torch that the cell uses and sends it
    along. Both are objects in the place of a module, which it cannot pickle.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.") and isinstance(module, ModuleType) and type(module) is not ModuleType:
            copyreg.pickle(type(module), _name_of)


def _name_of(module: ModuleType) -> tuple[Callable[[str], ModuleType], tuple[str]]:
    return import_module, (module.__name__,)


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

        used = {id(cell[4]): cell[4] for cell in cells if cell[4] is not None}
        sent = {key: cluster.scatter(data, broadcast=True) for key, data in used.items()}
        futures = {
            cluster.submit(_compute, i, fn, config, sent.get(id(data)), retries=retries, pure=False): i
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
