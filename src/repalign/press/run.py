"""Execute pages with papermill, several at a time, long ones first; a page appears whole or not at all."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from repalign._code import source as source_
from repalign._files import cache_root, digest, replace_directory, write_json
from repalign.machine import cores, memory, onednn
from repalign.press import cells, guarded, provenance, records, scratch, store
from repalign.press import sweep as sweep_
from repalign.press.page import ALONE, MODE
from repalign.press.project import Source, UserError

NOTEBOOK, RESULTS = "page.ipynb", "results"
FINISHED = "finished.json"  # beside the results of a page: what it depended on, and what it left
# A page that takes longer, or says more, has gone wrong.
LIMITS = {"smoke": 600.0, "laptop": 1800.0, "desktop": 6 * 3600.0, "paper": math.inf}
MOST_OUTPUT = 30_000_000  # bytes of an executed page
_STARTS = 3  # of a kernel that does not answer: two that start at once may pick the same port
_FULL = "the disk is full: free some space and run again; finished pages are kept"
_NO_ANSWER = "the kernel died before it answered, most likely for a port that another one took: run again"
_WATCHED = 0.5  # seconds between two looks at a page that runs
_LONGEST = 400  # letters of a page's own error that are shown
# Of the user's environment: threads are ours to share, and the others run code or change it.
_NOT_PASSED_ON = (
    *("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
    *("PYTHONSTARTUP", "PYTHONOPTIMIZE", "PYTHONWARNINGS"),
)
# Directories that the user may name from where the command was given; a page runs elsewhere.
_DIRECTORIES = ("REPALIGN_DATA", "REPALIGN_CACHE", store.VARIABLE)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Result:
    """How the run of a page ended: ``status`` is ran, unchanged or failed."""

    page: str
    status: str
    seconds: float = 0.0
    problem: str = ""
    kept: Path | None = None


@dataclass
class Runner:
    """Runs pages in processes of their own, so that one can crash or be stopped without the others.

    mode   run, read or verify: see :mod:`repalign.press.page`
    fresh  cells are taken from a store of this commit alone, which is empty the first time
    limit  seconds for a page; 0 for what the profile allows
    """

    root: Path
    jobs: int
    progress: Progress
    done: Callable[[Result], None]
    mode: str = "run"
    fresh: bool = False
    force: bool = False
    limit: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for module in ("papermill", "jupytext", "ipykernel", "pyarrow"):
            if find_spec(module) is None:
                raise UserError(f"{module} is not installed here: pip install 'repalign[book]', or use make.")
        if not self.limit >= 0:
            raise UserError(f"--limit should be 0 or more seconds, but is {self.limit:g}.")
        _writable(cache_root())
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self._origin = provenance.ask(self.root)
        if self.fresh and not provenance.is_commit(self._origin["commit"]):
            raise UserError(
                f"a run for the record names the commit of the book and of the package, but here it is "
                f"{self._origin['commit']!r}: run it in a clone of the book, with the package of that clone."
            )
        if self.fresh and not self._origin["clean"]:
            raise UserError(
                "a run for the record starts on a clean tree: commit what differs in src/ and notebooks/ "
                "(untracked files count), then run again with --fresh."
            )

    def run(self, pages: list[Source], profile: str, parameters: dict[str, Any]) -> list[Result]:
        """Run ``pages``; a result for each, in their order. Ctrl-C keeps the pages that are done."""
        results: dict[str, Result] = {}
        try:
            with scratch.directory(self.root) as place:
                for page in pages:
                    if not self.force and self._unchanged(page, profile, parameters):
                        results[page.name] = Result(page.name, "unchanged")
                        self.done(results[page.name])
                todo = [page for page in pages if page.name not in results]
                todo.sort(key=lambda page: self._expected(page, profile), reverse=True)
                results |= self._all(todo, profile, parameters, place)
        except OSError as error:
            raise UserError(f"cannot write below {self.root / 'build'}: {_said_by_system(error)}") from None
        return [results[page.name] for page in pages]

    def place(self, page: Source, profile: str) -> Path:
        """Where the results of a page go; its executed notebook lies beside it."""
        return self.root / "build" / (profile if self.mode == "run" else self.mode) / page.name

    def _all(
        self, todo: list[Source], profile: str, parameters: dict[str, Any], place: Path
    ) -> dict[str, Result]:
        at_once = max(1, min(self.jobs, len(todo)))
        results = {}
        with ThreadPoolExecutor(at_once) as pool:
            waiting = {
                pool.submit(self._one, page, profile, parameters, place / str(i), self.jobs // at_once): page
                for i, page in enumerate(todo)
            }
            try:
                for ended in as_completed(waiting):
                    result = ended.result()
                    results[result.page] = result
                    self.done(result)
            except BaseException:
                self._stop()  # also after Ctrl-C: nothing goes on in the background
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return results

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                guarded.end(process.pid)

    def _one(
        self, page: Source, profile: str, parameters: dict[str, Any], place: Path, threads: int
    ) -> Result:
        started = time.perf_counter()
        try:
            key = self._key(page, parameters)
            problem = self._convert(page, parameters, place)
            for _ in range(_STARTS if not problem else 0):
                problem = self._execute(page, profile, place, threads)
                if problem != _NO_ANSWER:
                    break
            problem = problem or _told_by(place, self.mode)
            seconds = time.perf_counter() - started
            if problem:
                return Result(page.name, "failed", seconds, problem, self._kept(page, profile, place))
            self._publish(page, profile, parameters, place, key, seconds)
        except Exception as error:  # whatever it is, the other pages go on
            said = _said_by_system(error) if isinstance(error, OSError) else _in_a_line(error)
            return Result(page.name, "failed", time.perf_counter() - started, said)
        return Result(page.name, "ran", seconds)

    def _convert(self, page: Source, parameters: dict[str, Any], place: Path) -> str:
        """The source as a notebook for papermill; what is wrong with it, or nothing."""
        import jupytext

        place.mkdir()
        try:
            notebook = jupytext.reads(page.text, fmt="py:percent")
        except Exception as error:  # whatever a broken file makes of the parser
            return f"the source cannot be read as a notebook: {_in_a_line(error)}"
        tagged = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
        if len(tagged) != 1:
            return f"there should be one cell tagged parameters, but there are {len(tagged)}"
        notebook.metadata["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        jupytext.write(notebook, place / "source.ipynb")
        write_json(place / "parameters.json", parameters)
        return ""

    def _execute(self, page: Source, profile: str, place: Path, threads: int) -> str:
        """Execute in ``place``; what went wrong, or nothing."""
        words = [str(place / "source.ipynb"), str(place / NOTEBOOK), "-f", str(place / "parameters.json")]
        words += ["--cwd", str(place), "--progress-bar", "--no-log-output"]
        with self._lock:
            if self._stopped:
                return "stopped before it began"
            process = subprocess.Popen(
                guarded.command("papermill", *words),
                env=self._environment(page, profile, place, threads),
                # It ends when this is closed: by us, or by the system when we are killed.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C reaches us alone, and we end the pages in order
            )
            self._running.add(process)
        ended = threading.Event()
        wrong: list[str] = []
        limit = self.limit or LIMITS[profile]
        watch = threading.Thread(
            target=_watch, args=(process.pid, place / NOTEBOOK, limit, ended, wrong), daemon=True
        )
        watch.start()
        try:
            said = self._follow(process, page.name)
        finally:
            ended.set()
            watch.join()
            with self._lock:
                self._running.discard(process)
        if wrong:
            return wrong[0]
        return _problem(place / NOTEBOOK, said) if process.returncode else ""

    def _follow(self, process: subprocess.Popen[str], name: str) -> str:
        """Report cells done and all cells as they run; the last lines of what papermill said."""
        assert process.stdin is not None
        assert process.stderr is not None
        said: list[str] = []
        with process.stdin, process.stderr:
            for line in process.stderr:  # text mode also splits at the carriage returns of a progress bar
                bar = re.search(r"Executing:.*?(\d+)/(\d+)", line)
                if bar:
                    self.progress(name, int(bar.group(1)), int(bar.group(2)))
                elif line.strip():
                    said = [*said[-40:], line.rstrip()[-_LONGEST:]]
            process.wait()
        return "\n".join(said)

    def _environment(self, page: Source, profile: str, place: Path, threads: int) -> dict[str, str]:
        """What a page's kernel finds: nothing of the user's that decides numbers."""
        given = memory.environment()  # the user's own values, where there are any, win
        given |= {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
        for name in _DIRECTORIES:
            if given.get(name):
                given[name] = str(Path(given[name]).resolve())
        if given.get("PYTHONPATH"):
            parts = given["PYTHONPATH"].split(os.pathsep)
            given["PYTHONPATH"] = os.pathsep.join(str(Path(part).resolve()) for part in parts)
        given |= {
            **onednn.environment(),
            # Several pages at once would otherwise fight for the cores, and so would their sweeps.
            "OMP_NUM_THREADS": str(threads),
            cells.JOBS: os.environ.get(cells.JOBS) or str(threads),
            # The same samples whatever this machine has downloaded before: evidence is drawn from whole sets.
            "REPALIGN_SAMPLES": "whole" if profile in records.RECORDED else "shipped",
            sweep_.OUT: str(place / RESULTS),
            MODE: self.mode,
            provenance.VARIABLE: json.dumps(self._origin),
            "REPALIGN_BOOK": str(self.root),
            "IPYTHONDIR": str(place / "ipython"),  # startup files would run in the page
            "JOBLIB_TEMP_FOLDER": str(place / "mapped"),  # goes with the page, however that ends
            "JUPYTER_PREFER_ENV_PATH": "1",  # this environment's kernel, not one of the same name elsewhere
            **self.environment,
        }
        if self.fresh:
            # One store for a paper, so that pages share the cells that they have in common.
            name = f"{self._origin['commit']}-{page.paper}"
            given[store.VARIABLE] = str(cache_root().resolve() / "fresh" / name)
            given[ALONE] = "1"
        return given

    def _kept(self, page: Source, profile: str, place: Path) -> Path | None:
        """A half-executed page is kept, so that one can see where it failed."""
        kept = self.root / "build" / "failed" / profile / f"{page.name}.ipynb"
        executed = place / NOTEBOOK
        if self._stopped or not executed.is_file() or executed.stat().st_size > MOST_OUTPUT:
            return None
        try:
            json.loads(executed.read_bytes())
        except ValueError:
            return None  # papermill was ended while it wrote
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(executed, kept)
        return kept

    def _publish(
        self, page: Source, profile: str, parameters: dict[str, Any], place: Path, key: str, seconds: float
    ) -> None:
        """Put the page, then its results, in their places.

        ``finished.json`` is what makes a page count as run: killed in between, there is none.
        """
        results = place / RESULTS
        target = self.place(page, profile)
        target.parent.mkdir(parents=True, exist_ok=True)
        if (results / records.RUN).is_file():
            run = json.loads((results / records.RUN).read_text(encoding="utf-8"))
            run["seconds"] = round(seconds, 1)
            edited = self._key(Source(page.name, page.path), parameters) != key
            run["edited"] = edited or not self._as_committed(page)
            for name in ("commit", "clean"):
                run.setdefault(name, self._origin[name])
            run.setdefault("date", provenance.today())
            write_json(results / records.RUN, run)
        executed = place / NOTEBOOK
        left = {str(file.relative_to(results)): _digest(file) for file in _files(results)}
        finished = {"key": key, "fresh": self.fresh, "notebook": _digest(executed), "left": left}
        write_json(results / FINISHED, finished)
        (target / FINISHED).unlink(missing_ok=True)
        os.replace(executed, target.with_suffix(".ipynb"))
        replace_directory(results, target)

    def _as_committed(self, page: Source) -> bool:
        """Are page and package still what they were when the runner started?"""
        if source_.on_disk() != self._origin["code"]:
            return False
        if not self._origin["clean"]:
            return True  # and no evidence anyway
        file = page.path.relative_to(self.root)
        try:
            provenance.git(self.root, "diff", "--quiet", self._origin["commit"], "--", "src", str(file))
        except (OSError, subprocess.SubprocessError):
            return False
        return True

    def _key(self, page: Source, parameters: dict[str, Any]) -> str:
        """Everything that an executed page depends on: its source, its claims, its record, the package."""
        rows = self.root / "notebooks" / page.paper / "claims.toml"
        record = records.place_of(self.root, page.name)
        about = (rows, record / records.RUN, record / records.VERIFIED)
        files = [file.read_bytes() if file.is_file() else b"" for file in about]
        package = Path(guarded.__file__).parents[1]
        shown = sorted(f for part in ("press", "study", "plots") for f in (package / part).glob("*.*"))
        given = (self.mode, parameters, provenance.versions(), os.environ.get("REPALIGN_DATA", ""))
        text = json.dumps(given, sort_keys=True)
        return digest(page.text, text, source_.on_disk(), *files, *(f.read_bytes() for f in shown))

    def _unchanged(self, page: Source, profile: str, parameters: dict[str, Any]) -> bool:
        """Has this very page run already, and is all there that it left?"""
        target = self.place(page, profile)
        if self.mode == "verify":
            return False
        try:
            finished = json.loads((target / FINISHED).read_text(encoding="utf-8"))
            if finished["key"] != self._key(page, parameters) or self.fresh > finished["fresh"]:
                return False
            if _digest(target.with_suffix(".ipynb")) != finished["notebook"]:
                return False
            return all(_digest(target / name) == mark for name, mark in finished["left"].items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError):
            return False

    def _expected(self, page: Source, profile: str) -> float:
        """The seconds that a page took last, at this profile or at any; no end if it never ran."""
        known = sorted((self.root / "build").glob(f"*/{page.name}"))
        # In a fresh clone the records tell; a directory for each day is the first edition's.
        known += sorted(self.root.glob(f"records/{page.name}/**/"))
        for place in (self.place(page, profile), *known):
            with suppress(OSError, ValueError, KeyError, TypeError):
                return float(json.loads((place / records.RUN).read_text(encoding="utf-8"))["seconds"])
        return math.inf


def _files(place: Path) -> list[Path]:
    return sorted(file for file in place.rglob("*") if file.is_file())


def _digest(file: Path) -> str:
    return digest(file.read_bytes())


def _watch(process: int, executed: Path, limit: float, ended: threading.Event, wrong: list[str]) -> None:
    """End a page that takes too long or says too much, with all that it has started; says why in ``wrong``.

    papermill writes the page every half minute, so that even one that never ends is seen to be too large.
    """
    stops = time.monotonic() + limit
    while not ended.wait(_WATCHED):
        if time.monotonic() > stops:
            wrong.append(f"it took longer than {limit:g} s: use --limit for more time, or a smaller profile")
        elif executed.is_file() and executed.stat().st_size > MOST_OUTPUT:
            wrong.append(_too_large(executed))
        if wrong:
            guarded.end(process)
            return


def _too_large(executed: Path) -> str:
    size = executed.stat().st_size
    return f"its output has {size / 1e6:.0f} MB: print less; a page may have {MOST_OUTPUT / 1e6:.0f} MB"


def _writable(cache: Path) -> None:
    """An error when the directory of finished cells cannot be written to: no page would get far."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        allowed = os.access(cache, os.W_OK)
    except OSError:
        allowed = False
    if not allowed:
        raise UserError(f"cannot write to the cache {cache}: set REPALIGN_CACHE to a directory of your own.")


def _said_by_system(error: OSError) -> str:
    """What the system refused, and what helps."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _FULL
    where = f": {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{where}. Look at the permissions there; finished pages are kept"


def _in_a_line(error: Exception) -> str:
    """An error as one line of a sane length."""
    said = " ".join(str(error).split())
    named = said if isinstance(error, UserError) else f"{type(error).__name__}: {said}"
    return _shortened(named)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def _told_by(place: Path, mode: str) -> str:
    """What an executed page says of itself: did every cell run, is it of a sane size?"""
    executed = place / NOTEBOOK
    if executed.stat().st_size > MOST_OUTPUT:
        return _too_large(executed)
    cells = json.loads(executed.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
    if any(cell.get("execution_count") is None for cell in code):
        return "it ended before its last cell: does a cell call exit()?"
    names = {output.get("ename") for cell in code for output in cell["outputs"]}
    if "SystemExit" in names:
        return "a cell called exit()"
    left = place / RESULTS
    if not left.is_dir() or (mode != "verify" and not (left / records.RUN).is_file()):
        return "it left no results: the last cell is page.end()"
    return ""


def _problem(executed: Path, said: str) -> str:
    """One line: the cell that failed and its error; else the last thing papermill said."""
    if "No space left on device" in said:
        return _FULL
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
                # Of an error of many lines the first two: the kept notebook has all.
                lines = [line.strip() for line in str(output["evalue"]).splitlines() if line.strip()]
                said = _shortened(" ".join(lines[:2]))
                return f"cell {number} ({first[:60]}): {output['ename']}: {said}"
    last = said.splitlines()[-1] if said else "papermill said nothing; was it killed?"
    if "Kernel died before replying" in last:
        return _NO_ANSWER
    if "Kernel died" in last:
        return (
            "the kernel died: for lack of memory (use fewer --jobs or a smaller profile), or killed by the "
            "page itself"
        )
    return last


def cores_for(jobs: int) -> int:
    """How many cores ``--jobs`` means: 0 is all."""
    if jobs < 0:
        raise UserError(f"--jobs should be 0 or more, but is {jobs}.")
    return jobs or cores.count()
