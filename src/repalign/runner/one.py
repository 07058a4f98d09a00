"""Execute one page with papermill in a directory of its own: here, or on a worker of a cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from repalign._files import write_json
from repalign.machine import memory, onednn
from repalign.machine.cores import VARIABLE, Cores

NOTEBOOK = "page.ipynb"
RESULTS = "results"
# Two kernels that start at the same moment may pick the same free port, and one of them dies at once.
NO_ANSWER = "the kernel died before it answered, most likely for a port that another one took: run again"


def start(
    source: str, parameters: dict[str, Any], scratch: Path, threads: int, shared: Cores | None = None
) -> subprocess.Popen[str]:
    """Start papermill on ``source`` (py:percent text); it writes NOTEBOOK and RESULTS in ``scratch``.

    The page computes with ``threads`` threads; its sweeps use the free ones of the ``shared`` cores, or as
    many cores as it has threads. All of it ends with this process, however this one ends.
    """
    import jupytext

    notebook = jupytext.reads(source, fmt="py:percent")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    jupytext.write(notebook, scratch / "source.ipynb")
    write_json(scratch / "parameters.json", parameters)
    environment = {
        # Several pages at once would otherwise fight for the cores, and so would their sweeps.
        "OMP_NUM_THREADS": str(threads),
        **({VARIABLE: str(shared)} if shared else {"REPALIGN_JOBS": str(threads)}),
        **memory.environment(),
        **onednn.environment(),
        # The same samples whatever this machine has downloaded before: evidence is drawn from whole sets.
        "REPALIGN_SAMPLES": "whole" if parameters.get("profile") in ("desktop", "paper") else "shipped",
        **os.environ,
        "REPALIGN_OUT": str(scratch / RESULTS),
        "JUPYTER_PREFER_ENV_PATH": "1",  # this environment's kernel, not one of the same name elsewhere
    }
    command = [sys.executable, "-m", "repalign.runner.guarded"]
    command += [str(scratch / "source.ipynb"), str(scratch / NOTEBOOK)]
    command += ["-f", str(scratch / "parameters.json"), "--cwd", str(scratch)]
    command += ["--progress-bar", "--no-log-output"]
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,  # it ends when this is closed: by us, or by the system when we are killed
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches us alone, and we end the pages in order
    )


def follow(process: subprocess.Popen[str], scratch: Path, report: Callable[[int, int], None]) -> str:
    """Report cells done and all cells as they run; at the end, what went wrong, or nothing."""
    assert process.stdin is not None
    assert process.stderr is not None
    said: list[str] = []
    with process.stdin, process.stderr:
        for line in process.stderr:  # text mode also splits at the carriage returns of a progress bar
            bar = re.search(r"Executing:.*?(\d+)/(\d+)", line)
            if bar:
                report(int(bar.group(1)), int(bar.group(2)))
            elif line.strip():
                said = [*said[-40:], line.rstrip()]
        code = process.wait()
    return _problem(scratch / NOTEBOOK, "\n".join(said)) if code else ""


def on_worker(source: str, parameters: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """On a cluster's worker: what went wrong, and every file that the page left, by its path."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        threads = int(os.environ.get("OMP_NUM_THREADS", 0)) or os.cpu_count() or 1
        problem = follow(start(source, parameters, scratch, threads), scratch, lambda done, total: None)
        made = [scratch / NOTEBOOK, *(scratch / RESULTS).rglob("*")]
        files = {p.relative_to(scratch).as_posix(): p.read_bytes() for p in made if p.is_file()}
        return problem, files


def _problem(executed: Path, said: str) -> str:
    """One line: the cell that failed and its error; else the last thing papermill said."""
    if "No space left on device" in said:
        return "the disk is full: free some space and run again; finished pages are kept"
    if "NoSuchKernel" in said:
        return "the python3 kernel is missing: pip install 'repalign[book]', or use make"
    try:
        cells = json.loads(executed.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        cells = []
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    # Count as the source does: papermill's injected cell is not in it.
    own = [c for c in code if "injected-parameters" not in c["metadata"].get("tags", [])]
    for number, cell in enumerate(own, start=1):
        for output in cell["outputs"]:
            if output["output_type"] == "error":
                text = "".join(cell["source"]).strip()
                first = next((line for line in text.splitlines() if not line.startswith("#")), text)
                return f"cell {number} ({first[:60]}): {output['ename']}: {output['evalue']}"
    last = said.splitlines()[-1] if said else "papermill said nothing; was it killed?"
    if "Kernel died before replying" in last:
        return NO_ANSWER
    if "Kernel died" in last:
        return "the kernel died, most likely for lack of memory: use fewer --jobs or a smaller profile"
    return last
