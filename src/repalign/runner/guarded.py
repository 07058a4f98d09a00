"""papermill, which ends with the runner: ``python -m repalign.runner.guarded``, words as papermill's.

Its standard input is a pipe that the runner alone holds open. When the runner ends, even by a signal that
nobody can catch, the system closes the pipe and this process exits; the kernel sees within a second that its
parent is gone, and so do the kernel's workers.
"""

from __future__ import annotations

import os
import sys
import threading


def _watch() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    from papermill.cli import papermill

    sys.exit(papermill())
