"""The cores that the processes of a run share: a lock file for each.

Whoever computes on a core holds its lock. The system gives a lock back when its holder ends, however it
ends, so a killed process leaves no core behind.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

# Where the runner says which cores there are: "NUMBER:DIRECTORY".
VARIABLE = "REPALIGN_CORES"


def count() -> int:
    """How many cores this process may use: of the machine, or of the share that a container has."""
    from joblib import cpu_count

    return int(cpu_count())


@dataclass(frozen=True)
class Cores:
    """``number`` cores, whose locks are in ``directory``."""

    number: int
    directory: Path

    def __str__(self) -> str:
        return f"{self.number}:{self.directory}"

    def take(self) -> BaseFileLock | None:
        """A core that is free now, until its ``release()`` or the end of this process; else None."""
        for name in range(self.number):
            # Taken by one thread, it may be released by another.
            lock = FileLock(self.directory / str(name), thread_local=False)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            return lock
        return None


@contextmanager
def shared_out(number: int) -> Iterator[Cores]:
    """``number`` cores for the processes that find them in their environment under :data:`VARIABLE`."""
    # Not below the project: a network disk may not know locks.
    with tempfile.TemporaryDirectory(prefix="repalign-cores-", ignore_cleanup_errors=True) as directory:
        yield Cores(number, Path(directory))


def shared() -> Cores | None:
    """The cores that this process shares with others; None when no runner started it."""
    number, _, directory = os.environ.get(VARIABLE, "").partition(":")
    return Cores(int(number), Path(directory)) if directory else None
