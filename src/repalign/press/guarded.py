"""A module that ends with its starter: ``python -m repalign.press.guarded MODULE WORD...``.

Standard input is a pipe that the starter alone holds open. When the starter ends, even by a signal that
nobody can catch, the system closes the pipe; this process then ends all that it has started (a kernel, its
workers) and itself.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from contextlib import suppress

MODULE = "repalign.press.guarded"


def command(module: str, *words: str) -> list[str]:
    """The command line that runs ``module`` guarded; its standard input should be a pipe."""
    return [sys.executable, "-m", MODULE, module, *words]


def end(process: int) -> None:
    """End a process and all that it has started, whatever they are busy with."""
    import psutil

    with suppress(psutil.Error):
        family = psutil.Process(process).children(recursive=True)
        # First itself, so that it starts nothing more.
        for member in (psutil.Process(process), *family):
            with suppress(psutil.Error):
                member.kill()


def _end_children() -> None:
    """End all that this process has started; twice, for what was being started meanwhile."""
    import psutil

    for _ in range(2):
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                child.kill()


def _watch() -> None:
    while os.read(0, 1024):
        pass
    try:
        _end_children()
    finally:
        os._exit(1)


def spare_a_grammar() -> None:
    """Let jsonschema do without its grammar of web addresses: a second of every start, for notebooks none."""
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]


if __name__ == "__main__":
    spare_a_grammar()
    threading.Thread(target=_watch, daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
