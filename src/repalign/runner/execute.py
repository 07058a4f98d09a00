"""Execute pages with papermill, several at a time; a page appears whole or not at all."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock

from repalign._code import on_disk
from repalign._files import digest, replace_directory, write_json
from repalign.machine import cores
from repalign.runner import one, records, stale
from repalign.runner.pages import Page, UserError
from repalign.study.run import found_now, versions
from repalign.study.style import stylesheet


@dataclass(frozen=True)
class Result:
    """How the run of a page ended: ``status`` is ran, unchanged or failed."""

    page: str
    status: str
    seconds: float = 0.0
    problem: str = ""
    kept: Path | None = None


@dataclass(frozen=True)
class Job:
    """A page to execute, with what papermill injects and where the results go.

    ``key`` names everything but the data that the outcome depends on; the data are asked when there are some.
    """

    page: Page
    parameters: dict[str, Any]
    notebook: Path
    results: Path
    source: str
    key: str


def job(root: Path, page: Page, parameters: dict[str, Any]) -> Job:
    """The job of ``page``: results under ``build/<profile>/<paper>/``."""
    place = root / "build" / parameters["profile"] / page.name
    # Read once: what is executed is what the key names, also when somebody edits the file meanwhile.
    source = page.source.read_text(encoding="utf-8")
    return Job(page, parameters, place.with_suffix(".ipynb"), place, source, _key(source, parameters))


def _key(source: str, parameters: dict[str, Any]) -> str:
    return digest(source, json.dumps((parameters, versions(), _code(source)), sort_keys=True))


def _code(source: str) -> str:
    """Fingerprint of the code that a page reaches, as its kernel would import it now."""
    package = on_disk()
    try:
        found = package.digest([*package.page(source), "repalign.runner.one:start"])
    except (SyntaxError, ValueError):  # in the page or the package: it will say so when it runs
        found = digest(*(raw for _, raw in sorted(package.files.items())))
    return found + digest(stylesheet())


def unchanged(job: Job) -> bool:
    """Has this very page run already, on the data that would be found now?"""
    try:
        run = json.loads((job.results / "run.json").read_text(encoding="utf-8"))
        if run["key"] != job.key or not job.notebook.is_file():
            return False
        found = {name: used["found"] for name, used in run["data"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return all(found_now(name) == mark for name, mark in found.items())


Progress = Callable[[str, int, int], None]
_ALIVE = "alive.lock"
_STARTS = 3  # of a kernel that does not answer
_Start = Callable[[str, dict[str, Any], Path], subprocess.Popen[str]]


class Executor:
    """Runs jobs in subprocesses of their own, so that one can crash or be stopped without the others."""

    def __init__(
        self,
        root: Path,
        jobs: int,
        progress: Progress,
        done: Callable[[Result], None],
        cluster: Any = None,
    ) -> None:
        """``cluster`` is a Dask client: whole pages then run on its workers."""
        for module in ("papermill", "jupytext", "ipykernel"):
            if find_spec(module) is None:
                raise UserError(f"{module} is not installed here: pip install 'repalign[book]', or use make.")
        self._root, self._jobs, self._progress, self._done = root, jobs, progress, done
        self._cluster = cluster
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, work: list[Job], *, force: bool = False) -> list[Result]:
        """Run ``work``; a result for each, in its order. Ctrl-C stops the kernels and keeps what is done.

        What took longest last time starts first, and what has never run before that, so that no long page
        is left alone at the end. Each page has a core; the sweeps of the last ones take those that are free.
        """
        build = self._root / "build"
        try:
            build.mkdir(exist_ok=True)
            scratch, alive = _scratch(build)
        except OSError as error:
            raise UserError(
                f"cannot write in {build}: {error.strerror}. Free some space, or change its permissions."
            ) from None
        try:
            results = {}
            for job in work:
                if not force and unchanged(job):
                    results[job.page.name] = Result(job.page.name, "unchanged")
                    self._done(results[job.page.name])
            todo = [job for job in work if job.page.name not in results]
            results |= self._all(sorted(todo, key=self._expected, reverse=True), scratch)
            return [results[job.page.name] for job in work]
        finally:
            alive.release()
            shutil.rmtree(scratch, ignore_errors=True)

    def _expected(self, job: Job) -> float:
        """The seconds that a page took last, at this profile or in its newest record; no end if never run."""
        seconds = records.seconds(self._root, job.page.name, job.parameters["profile"], or_recorded=True)
        return math.inf if seconds is None else seconds

    def _all(self, todo: list[Job], scratch: Path) -> dict[str, Result]:
        """Run ``todo`` in this order; results by page."""
        at_once = max(1, min(self._jobs, len(todo)))
        pool = ThreadPoolExecutor(at_once)
        results = {}
        with cores.shared_out(self._jobs) as shared:
            # A page's core is ours until there are fewer pages than cores: then a sweep may have it.
            held = [core for _ in todo[:at_once] if (core := shared.take())]
            start = partial(one.start, threads=self._jobs // at_once, shared=shared)
            pending = {pool.submit(self._one, job, scratch / str(i), start) for i, job in enumerate(todo)}
            try:
                while pending:
                    finished, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                    for result in (future.result() for future in finished):
                        results[result.page] = result
                        self._done(result)
                    while len(held) > len(pending):
                        held.pop().release()
                return results
            finally:
                # Also after Ctrl-C: nothing goes on in the background.
                self._stop()
                pool.shutdown(wait=True, cancel_futures=True)

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)

    def _one(self, job: Job, scratch: Path, start: _Start) -> Result:
        name = job.page.name
        started = time.perf_counter()
        try:
            scratch.mkdir()
            problem, executed = self._execute(job, scratch, start), scratch / one.NOTEBOOK
            seconds = time.perf_counter() - started
            if problem:
                kept = self._root / "build" / "failed" / job.parameters["profile"] / f"{name}.ipynb"
                if executed.is_file():
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    shutil.move(executed, kept)
                return Result(name, "failed", seconds, problem, kept if kept.is_file() else None)
            self._publish(job, scratch / one.RESULTS, executed, seconds)
        except OSError as error:
            return Result(name, "failed", time.perf_counter() - started, _plain_oserror(error))
        return Result(name, "ran", seconds)

    def _execute(self, job: Job, scratch: Path, start: _Start) -> str:
        """Execute in ``scratch``; what went wrong, or nothing."""
        if self._cluster is not None:
            return self._on_cluster(job.source, job.parameters, scratch)
        for _ in range(_STARTS):
            problem = self._once(job, scratch, start)
            if problem != one.NO_ANSWER:
                break
        return problem

    def _once(self, job: Job, scratch: Path, start: _Start) -> str:
        with self._lock:
            if self._stopped:
                return "stopped before it began"
            process = start(job.source, job.parameters, scratch)
            self._running.add(process)
        try:
            return one.follow(
                process, scratch, lambda done, total: self._progress(job.page.name, done, total)
            )
        finally:
            with self._lock:
                self._running.discard(process)

    def _on_cluster(self, source: str, parameters: dict[str, Any], scratch: Path) -> str:
        """The same on a worker, whose files come back with the answer: no shared disk is needed."""
        future = self._cluster.submit(one.on_worker, source, parameters, pure=False, retries=2)
        while not future.done():
            if self._stopped:
                future.cancel()
                return "stopped"
            time.sleep(0.2)
        problem, files = future.result()
        for name, content in files.items():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / name).write_bytes(content)
        return str(problem)

    def _publish(self, job: Job, results: Path, executed: Path, seconds: float) -> None:
        """Put the page, then its results, in their places.

        ``run.json`` is what makes a page count as run: killed in between, there is none.
        """
        run = json.loads((results / "run.json").read_text(encoding="utf-8"))
        run |= {"key": job.key, "seconds": round(seconds, 1), "date": time.strftime("%Y-%m-%d")}
        if _key(job.source, job.parameters) != job.key:
            run["key"] = "the package was edited while the page ran"
        run["commit"] = commit(self._root)
        run["device"] = job.parameters["device"]
        run["made_by"] = stale.made_by(job.source, job.parameters["profile"])
        run["changed"] |= job.page.changed(job.parameters)
        write_json(results / "run.json", run)
        job.results.parent.mkdir(parents=True, exist_ok=True)
        (job.results / "run.json").unlink(missing_ok=True)
        os.replace(executed, job.notebook)
        replace_directory(results, job.results)


def _scratch(build: Path) -> tuple[Path, BaseFileLock]:
    """A directory for this run, with a lock for as long as it lasts; what killed runs left is removed."""
    for left in build.glob(".run-*"):
        with suppress(OSError), FileLock(left / _ALIVE, blocking=False):
            shutil.rmtree(left, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(dir=build, prefix=".new-"))
    alive = FileLock(fresh / _ALIVE)
    alive.acquire()
    # Under its name only now: another run must not take it for one that was left.
    return fresh.rename(build / fresh.name.replace(".new-", ".run-")), alive


def commit(root: Path) -> str:
    """The commit that ``root`` is at, with a + if files differ from it; "unknown" without git."""
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True
        )
        clean = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src", "notebooks"], check=False)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if clean.returncode else "")


def _plain_oserror(error: OSError) -> str:
    return f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
