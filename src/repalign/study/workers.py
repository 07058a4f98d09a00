"""Worker processes: as many as there are cores, or as the other pages of a run leave free.

A task is computed with one thread wherever it runs: a result must not depend on how many workers there were.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from filelock import BaseFileLock

from repalign.machine import cores, memory

_ONE_THREAD = dict.fromkeys(
    (
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS"),
        *("VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS"),
        "REPALIGN_JOBS",  # a sweep inside a task stays in its worker
    ),
    "1",
)
# Workers between two sweeps: starting one costs seconds, most of them for importing torch.
_idle: list[Any] = []


@dataclass(frozen=True)
class Lost:
    """In the place of a result: the worker died each time the task was tried."""

    reason: str


def compute(
    call: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], jobs: int, retries: int
) -> Iterator[tuple[int, Any]]:
    """``call(*task)`` for each of ``tasks``, at most ``jobs`` at a time: place and result, as they finish.

    With one job this process computes them all. Else each goes to a worker; but under a runner this
    process computes too, on the core of its page, and workers join in whenever a core is free.
    A task whose worker dies runs again, up to ``retries`` times with growing pauses; then its result
    is :class:`Lost`.
    """
    shared = cores.shared()
    here = jobs == 1 or shared is not None
    if jobs > 1:
        # In this thread: joblib's modules import one another in a circle, and half of one is all that a
        # second thread gets to see (two workers, or a worker and a task here that imports scikit-learn).
        import joblib.externals.loky  # noqa: F401

        # A worker that has grown ends itself after a task and is replaced: nobody need know.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
    crew = _Crew(call, tasks, retries)
    recruiting = threading.Thread(target=crew.recruit, args=(jobs - here, shared), daemon=True)
    recruiting.start()
    idle = False
    try:
        with _one_thread() if here else nullcontext():
            for _ in tasks:
                place = crew.next() if here and crew.answers.empty() else None
                if place is not None:
                    yield place, call(*tasks[place])
                    continue
                if here and not crew.waiting and not idle:
                    idle = True
                    crew.give_back()  # nothing left for this process: it has a core too many
                place, result = crew.answers.get()
                if place < 0:
                    raise result
                yield place, result
    finally:
        crew.dismiss()


class _Crew:
    """The tasks that wait, the workers that take them, and the cores these have beyond the page's own."""

    def __init__(self, call: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], retries: int) -> None:
        self.waiting = deque(range(len(tasks)))
        self.answers: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self._call, self._tasks, self._retries = call, tasks, retries
        self._held: deque[BaseFileLock] = deque()
        self._busy: set[Any] = set()
        self._over = threading.Event()

    def next(self) -> int | None:
        """The next task that nobody has begun."""
        try:
            return self.waiting.popleft()
        except IndexError:
            return None

    def give_back(self) -> None:
        """Let another process have one of our cores."""
        try:
            self._held.popleft().release()
        except IndexError:  # what is left is the page's own core
            return

    def recruit(self, most: int, shared: cores.Cores | None) -> None:
        """Up to ``most`` workers while tasks wait; of shared cores, one for each as it becomes free."""
        hired = 0
        while hired < most and self.waiting:
            if shared is not None:
                core = shared.take()
                if core is None:
                    self._over.wait(0.2)
                    continue
                self._held.append(core)
            hired += 1
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        """A worker from first to last. It is ready before it takes a task: a short sweep need not wait."""
        try:
            worker = _ready_worker() if self.waiting else None
            while (place := self.next()) is not None:
                worker, result = self._tried(worker, place)
                self.answers.put((place, result))
            if worker is not None:
                _idle.append(worker)
        except BaseException as error:  # such as a task that cannot be sent: for the one who asked
            self.answers.put((-1, error))
        finally:
            self.give_back()

    def _tried(self, worker: Any, place: int) -> tuple[Any, Any]:
        """The result of a task, and the worker that is there after it."""
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        for attempt in range(self._retries + 1):
            self._busy.add(worker)
            try:
                return worker, worker.submit(self._call, *self._tasks[place]).result()
            except TerminatedWorkerError as error:
                lost = f"a worker was lost {attempt + 1} times, most likely for lack of memory ({error})"
            finally:
                self._busy.discard(worker)
            if attempt < self._retries and self._over.wait(2**attempt):
                return None, Lost(lost)  # nobody waits for it any more
            worker = _ready_worker()
        return worker, Lost(lost)

    def dismiss(self) -> None:
        """The end, also after Ctrl-C: no task goes on, no core stays ours."""
        self.waiting.clear()
        self._over.set()
        for worker in list(self._busy):
            worker.shutdown(wait=True, kill_workers=True)
        while self._held:
            self.give_back()


def _ready_worker() -> Any:
    """A worker process that has imported what every task needs: one of the last sweep, or a new one."""
    from joblib.externals.loky import ProcessPoolExecutor
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    while _idle:
        try:
            worker = _idle.pop()
            worker.submit(_warm_up, "torchvision" in sys.modules).result()
            return worker
        except (IndexError, TerminatedWorkerError):  # another thread was quicker, or it died meanwhile
            continue
    # An executor of its own: a worker that dies takes no other along.
    worker = ProcessPoolExecutor(
        max_workers=1, timeout=300, env=_ONE_THREAD, initializer=_begin, initargs=(os.getpid(),)
    )
    worker.submit(_warm_up, "torchvision" in sys.modules).result()
    return worker


def _warm_up(with_torchvision: bool) -> None:
    """What a task may need before it can be read: a network of torchvision's brings along its classes."""
    import torch  # noqa: F401

    if with_torchvision:
        from repalign.machine import vision

        vision.torchvision()


def _begin(parent: int) -> None:
    """In a worker: end as soon as the process that asked for the work is gone, also in mid-task."""
    memory.keep()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def close() -> None:
    """End the workers that wait for another sweep."""
    while _idle:
        _idle.pop().shutdown(wait=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """This process with one thread for all of its libraries, as the workers have."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
