"""A module that ends with its starter: ``python -m repalign.press.guarded MODULE WORD...``.

Standard input is a pipe that the starter alone holds open. When the starter ends, even by a signal that
nobody can catch, the system closes the pipe and this process exits; what it started in turn (a kernel, its
workers) sees within a second that its parent is gone.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading

MODULE = "repalign.press.guarded"


def command(module: str, *words: str) -> list[str]:
    """The command line that runs ``module`` guarded; its standard input should be a pipe."""
    return [sys.executable, "-m", MODULE, module, *words]


def _watch() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
