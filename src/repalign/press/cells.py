"""Compute the cells of a sweep: in this process, in processes of this machine, or on a Dask cluster.

A cell is a function with its arguments. It is computed with one thread and torch's usual dtype wherever it
runs, so that its result does not depend on how many workers there were. joblib does the work.
"""

from __future__ import annotations

import copyreg
import importlib
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from repalign._code import source
from repalign.machine import cores, memory, onednn
from repalign.press import provenance

CLUSTER = "REPALIGN_CLUSTER"
JOBS = "REPALIGN_JOBS"
# Smaller arrays travel with their cell; larger ones are mapped from one file by all workers.
MAPPED = "1M"
PATIENCE = 10.0  # seconds for a scheduler to answer
_LOST = "its worker was lost twice, most likely for lack of memory"


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: its value, or the traceback of what went wrong; how long it took, and where."""

    value: Any
    error: str
    seconds: float
    processor: str


def jobs() -> int:
    """How many cells may be computed at once: ``$REPALIGN_JOBS``, else one for each core."""
    return int(os.environ.get(JOBS) or 0) or cores.count()


def _all(place: int) -> bool:
    return True


def compute(
    call: Callable[..., Any],
    arguments: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
    at_once: int,
    take: Callable[[int], bool] = _all,
) -> Iterator[tuple[int, Outcome]]:
    """``call(*args, **kwargs)`` for each of ``arguments``: place and outcome of each, as they finish.

    ``take`` is asked for each place when its turn has come; where it says no, there is no outcome.
    """
    onednn.prepare()  # the workers inherit it
    cluster = os.environ.get(CLUSTER, "")
    if at_once <= 1 and not cluster:
        with _alone():
            for place, (args, kwargs) in enumerate(arguments):
                if take(place):
                    yield place, _attempt(call, args, kwargs)
        return
    expected = source.imported(), provenance.versions()
    sent: dict[int, Any] = {}
    packed = [(_packed(args, sent), _packed(kwargs, sent)) for args, kwargs in arguments]
    left = dict(enumerate(packed))
    taken: dict[int, bool] = {}

    def turn(place: int) -> bool:
        if place not in taken:
            taken[place] = take(place)
        return taken[place]

    lost = _lost()
    while left:
        try:
            for place, outcome in _parallel(call, left, at_once, cluster, expected, turn):
                del left[place]
                yield place, outcome
        except lost:
            # A worker that dies takes joblib's whole pool along, and nobody knows which cell it had. Those
            # that were under way are tried again one at a time: the one that is to blame is named.
            under_way = [place for place in left if taken.get(place)]
            if not under_way:
                raise
            for place in under_way:
                alone = {place: left.pop(place)}
                try:
                    yield from _parallel(call, alone, at_once, cluster, expected, turn)
                except lost as error:
                    yield place, Outcome(None, f"{_LOST} ({_first_line(error)})", 0.0, "")
        left = {place: packed for place, packed in left.items() if taken.get(place, True)}


def _parallel(
    call: Callable[..., Any],
    left: dict[int, Any],
    at_once: int,
    cluster: str,
    expected: Any,
    turn: Callable[[int], bool],
) -> Iterator[tuple[int, Outcome]]:
    """The cells in ``left`` in other processes; raises one of :func:`_lost` when a process dies."""
    import joblib

    warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
    _send_modules_by_name()
    # joblib asks for the next task when a worker is free: only then is a cell's turn.
    tasks = (
        joblib.delayed(_in_worker)(place, call, args, kwargs, expected)
        for place, (args, kwargs) in list(left.items())
        if turn(place)
    )
    shared: dict[str, Any] = dict(return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs")
    with _client(cluster) if cluster else nullcontext() as client:
        if cluster:
            backend = joblib.parallel_config(_on_cluster(client))
        else:
            backend = joblib.parallel_config(
                "loky", inner_max_num_threads=1, initializer=_begin, initargs=(os.getpid(),)
            )
        with backend:
            # "c": a cell may write into its own copy of what is mapped.
            pool = joblib.Parallel(
                n_jobs=-1 if cluster else max(2, at_once), mmap_mode="c", max_nbytes=MAPPED, **shared
            )
            yield from pool(tasks)


def _on_cluster(client: Any) -> Any:
    """joblib's backend for the cluster of ``client``."""
    from joblib._dask import DaskDistributedBackend

    class Cluster(DaskDistributedBackend):  # type: ignore[misc, no-any-unimported, unused-ignore]
        def effective_n_jobs(self, n_jobs: int) -> int:
            """Where there is one, joblib would not ask the cluster, and compute in this process."""
            return max(2, int(super().effective_n_jobs(n_jobs)))

    return Cluster(client=client)


def _send_modules_by_name() -> None:
    """Let modules of a class of their own be pickled as plain ones are: by name.

    A function of a notebook that names ``torch`` and any attribute ``classes`` takes along ``torch.classes``,
    which is such a module.
    """
    for module in list(sys.modules.values()):
        kind = type(module)
        if issubclass(kind, ModuleType) and kind is not ModuleType:
            copyreg.pickle(kind, _by_name)


def _by_name(module: ModuleType) -> tuple[Callable[[str], Any], tuple[str]]:
    return importlib.import_module, (module.__name__,)


def _lost() -> tuple[type[BaseException], ...]:
    """What is raised when a worker has died, by joblib or by a Dask cluster."""
    from joblib.externals.loky.process_executor import BrokenProcessPool, TerminatedWorkerError

    killed = getattr(sys.modules.get("distributed"), "KilledWorker", BrokenProcessPool)
    return TerminatedWorkerError, BrokenProcessPool, killed


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _client(address: str) -> Any:
    """A client of the Dask cluster at ``address``, or an error that says what is missing."""
    try:
        from distributed import Client
    except ImportError:
        raise RuntimeError("a Dask cluster needs pip install 'repalign[dist]'.") from None
    try:
        return Client(address, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        raise RuntimeError(f"no Dask scheduler answers at {address} ({error}): is it running?") from None


def check_cluster(address: str) -> None:
    """An error, in words, when no scheduler answers there."""
    _client(address).close()


def _in_worker(
    place: int, call: Callable[..., Any], args: Any, kwargs: Any, expected: Any
) -> tuple[int, Outcome]:
    onednn.prepare()  # on a cluster, each machine for itself
    if (source.imported(), provenance.versions()) != expected:
        said = (
            "this worker has other code than the page that started it: the package was edited meanwhile "
            "(restart the kernel), or other versions are installed on the worker's machine."
        )
        return place, Outcome(None, said, 0.0, provenance.processor())
    with _alone():
        return place, _attempt(call, _unpacked(args), _unpacked(kwargs))


def _attempt(call: Callable[..., Any], args: Any, kwargs: Any) -> Outcome:
    started = time.perf_counter()
    try:
        value, error = call(*args, **kwargs), ""
    except (Exception, SystemExit):
        value, error = None, traceback.format_exc()
    return Outcome(value, error, round(time.perf_counter() - started, 3), provenance.processor())


def _begin(parent: int) -> None:
    """In a worker: end as soon as the process that asked for the work is gone, even within a cell."""
    from repalign.machine import vision  # imports torch, which the command need not wait for

    memory.keep()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    vision.torchvision()  # half-imported modules are all that a second thread would see


@contextmanager
def _alone() -> Iterator[None]:
    """This process with one thread, torch's usual dtype, and no cells of cells."""
    import torch
    from threadpoolctl import threadpool_limits

    threads, dtype, told = torch.get_num_threads(), torch.get_default_dtype(), os.environ.get(JOBS)
    precision = torch.get_float32_matmul_precision()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        os.environ[JOBS] = "1"
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)
            torch.set_float32_matmul_precision(precision)
            if told is None:
                os.environ.pop(JOBS, None)  # another thread of a Dask worker may have been here
            else:
                os.environ[JOBS] = told


@dataclass(frozen=True)
class _Sent:
    """A data set on its way: tensors as arrays, which joblib writes to one file for all workers."""

    blank: Any
    arrays: dict[str, np.ndarray]
    devices: dict[str, str]


def _packed(value: Any, sent: dict[int, Any]) -> Any:
    """``value`` with each data set in it replaced by arrays; ``sent`` has what was replaced before."""
    import torch

    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_packed(part, sent) for part in value)
    if type(value) is list:
        return [_packed(part, sent) for part in value]
    if type(value) is dict:
        return {key: _packed(part, sent) for key, part in value.items()}
    if not is_data(value):
        return value
    if id(value) not in sent:
        tensors = {f.name: getattr(value, f.name) for f in fields(value)}
        tensors = {name: t for name, t in tensors.items() if isinstance(t, torch.Tensor)}
        arrays = {name: t.cpu().numpy() for name, t in tensors.items()}
        devices = {name: str(t.device) for name, t in tensors.items()}
        blank = replace(value, **{name: torch.empty(0) for name in tensors})
        sent[id(value)] = _Sent(blank, arrays, devices)
    return sent[id(value)]


def _unpacked(value: Any) -> Any:
    import torch

    if type(value) is tuple:
        return tuple(_unpacked(part) for part in value)
    if type(value) is list:
        return [_unpacked(part) for part in value]
    if type(value) is dict:
        return {key: _unpacked(part) for key, part in value.items()}
    if not isinstance(value, _Sent):
        return value
    tensors = {}
    for name, array in value.arrays.items():
        own = np.require(array, requirements="W")  # what comes over a network is read-only
        tensors[name] = torch.from_numpy(own).to(value.devices[name])
    return replace(value.blank, **tensors)


def is_data(value: Any) -> bool:
    """Is it a data set: a dataclass of tensors with a fingerprint of its content?"""
    return (
        is_dataclass(value)
        and not isinstance(value, type)
        and isinstance(getattr(value, "fingerprint", None), str)
        and hasattr(value, "source")
        and hasattr(value, "x")
    )
