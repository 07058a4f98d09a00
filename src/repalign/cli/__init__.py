"""The ``repalign`` command."""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
import textwrap
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from repalign.machine import cores, onednn
from repalign.runner import pages as pages_
from repalign.runner import records
from repalign.runner import stale as stale_
from repalign.runner.pages import UserError
from repalign.study.settings import PROFILES

app = typer.Typer(
    help="How representations align with their task: run the notebooks, keep records, render the book.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)
WIDE = 140  # columns that a table of claims needs

Patterns = Annotated[
    list[str] | None, typer.Argument(metavar="[PATTERN]...", help="Part of a page's name, or a glob.")
]
Profile = Annotated[str, typer.Option(help=f"One of {', '.join(PROFILES)}.")]


@app.command()
def run(
    patterns: Patterns = None,
    profile: Profile = "laptop",
    jobs: Annotated[
        int, typer.Option(help="Cores to use at most, and notebooks at a time; 0 is all cores.")
    ] = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a setting.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    force: Annotated[bool, typer.Option(help="Run also what has not changed.")] = False,
    dask: Annotated[str, typer.Option(metavar="ADDRESS", help="Run sweeps on this Dask cluster.")] = "",
    whole_pages: Annotated[bool, typer.Option(help="With --dask: send whole notebooks instead.")] = False,
) -> None:
    """Execute notebooks into build/PROFILE. What has not changed since its last run is not run again."""
    from repalign.runner.execute import Executor, job

    root = pages_.project()
    _known(profile)
    _check_device(device)
    if jobs < 0:
        raise UserError(f"--jobs should be 0 or more, but is {jobs}.")
    if whole_pages and not dask:
        raise UserError("--whole-pages needs the address of a cluster: --dask tcp://HOST:PORT.")
    change = dict(_assignment(text) for text in set_ or [])
    chosen = pages_.find(root, patterns)
    pages_.check_criteria(root, chosen)
    work = [job(root, page, pages_.parameters_for(page, profile, device, change)) for page in chosen]
    board = _Board(root, profile, len(work))
    # Asked to end by a batch system: as with Ctrl-C, no kernel keeps running and no half-written file stays.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _cluster(dask, whole_pages) as cluster, board.progress:
            at_once = jobs or (len(work) if cluster else cores.count())
            results = Executor(root, at_once, board.cell, board.done, cluster).run(work, force=force)
    except KeyboardInterrupt:
        err.print("stopped; finished pages are kept, and the rest runs when you start again.")
        raise typer.Exit(130) from None
    failed = [result for result in results if result.status == "failed"]
    if failed:
        err.print(f"{len(failed)} of {len(results)} notebooks failed.", style="red")
        raise typer.Exit(1)


def _cluster(address: str, whole_pages: bool) -> Any:
    """A client for whole pages; for sweeps, the address is left where the pages' kernels find it."""
    if not address:
        return nullcontext()
    from repalign.study.sweep import client

    try:
        connected = client(address)
    except RuntimeError as error:
        raise UserError(str(error)) from None
    if whole_pages:
        return connected
    connected.close()
    os.environ["REPALIGN_DASK"] = address
    return nullcontext()


class _Board:
    """Progress of a run: a bar of cells per notebook on a terminal, a line for each that has ended."""

    def __init__(self, root: Path, profile: str, total: int) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(20),
            MofNCompleteColumn(),
            TextColumn("cells"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=err,
            transient=True,
            disable=not err.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._root, self._profile, self._total, self._ended = root, profile, total, 0
        self._started: dict[str, float] = {}
        self._last: dict[str, float | None] = {}

    def cell(self, name: str, done: int, total: int) -> None:
        if name not in self._tasks:
            self._tasks[name] = self.progress.add_task(name, total=total, left="")
            self._started[name] = time.perf_counter()
            self._last[name] = records.seconds(self._root, name, self._profile)
        self.progress.update(
            self._tasks[name], completed=done, total=total, left=self._left(name, done / max(total, 1))
        )

    def _left(self, name: str, share: float) -> str:
        """What the last run took less what has passed; without a last run, by the share of cells done."""
        passed = time.perf_counter() - self._started[name]
        last = self._last[name]
        if last is None and not share:
            return ""
        whole = last if last is not None else passed / share
        return f"about {max(whole - passed, 1):.0f} s left"

    def done(self, result: Any) -> None:
        self._ended += 1
        if result.page in self._tasks:
            self.progress.remove_task(self._tasks.pop(result.page))
        count = f"[{self._ended}/{self._total}]".replace("[", r"\[")
        if result.status == "failed":
            err.print(f"{count} [red]failed[/red]    {result.page} after {result.seconds:.0f} s")
            err.print(f"  {result.problem}", markup=False)
            if result.kept:
                err.print(f"  half-executed notebook: {result.kept}", markup=False)
        elif result.status == "unchanged":
            err.print(f"{count} unchanged {result.page}")
        else:
            err.print(f"{count} [green]ran[/green]       {result.page} in {result.seconds:.0f} s")


@app.command()
def record(
    patterns: Patterns = None,
    profile: Profile = "desktop",
    stale: Annotated[
        bool,
        typer.Option(
            "--stale", help="List pages that have outgrown their records or have none; keep nothing."
        ),
    ] = False,
) -> None:
    """Keep the claims and figures of finished runs under records/, and update the README's table."""
    root = pages_.project()
    _known(profile)
    if stale:
        chosen = pages_.find(root, patterns)
        old = stale_.stale(root, chosen)
        for name, changed in old.items():
            out.print(f"{name}: {', '.join(changed)} changed since")
        missing = [page.name for page in chosen if records.newest(root, page.name) is None]
        for name in missing:
            out.print(f"{name}: has no record")
        todo = " ".join([*old, *missing])
        out.print(f"to run again: repalign run {todo} --profile {profile}" if todo else "none is stale")
        return
    for page in pages_.find(root, patterns):
        place = records.record(root, page, profile)
        out.print(f"kept {place.relative_to(root)}")
    records.write_readme(root, pages_.find(root))


@app.command()
def book(profile: Profile = "laptop") -> None:
    """Render _build/html from the finished runs at PROFILE. Nothing is executed."""
    from repalign.runner.book import build

    root = pages_.project()
    _known(profile)
    started = time.perf_counter()
    with err.status("rendering the book"):
        site = build(root, pages_.find(root), profile)
    out.print(f"{site / 'index.html'} ({time.perf_counter() - started:.0f} s)")


@app.command()
def claims(
    patterns: Patterns = None,
    profile: Annotated[
        str, typer.Option(help="The last run at this profile instead of the records.", show_default=False)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="All fields, as JSON.")] = False,
) -> None:
    """The claims and their verdicts: the newest record's, else those of the last laptop run."""
    root = pages_.project()
    at = profile or "laptop"
    _known(at)
    chosen = pages_.find(root, patterns)
    found: list[dict[str, Any]] = []
    for page in chosen:
        found += records.evidence(root, page.name, at, or_recorded=not profile).values()
    if as_json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return
    if not found:
        raise UserError(f"nothing measured yet at {at}: repalign run --profile {at}.")
    old, rows = stale_.stale(root, chosen), []
    for claim in found:
        mark = " (stale)" if claim["page"] in old and claim["recorded"] else ""
        row = [claim["id"], claim["verdict"], claim["profile"] + mark, claim["stand_in"]]
        rows.append([*row, records.in_words(claim)])
    if out.width < WIDE:  # a table would break every word
        for *first, stand_in, measured in rows:
            out.print(escape("  ".join(first)))
            for line in filter(None, (stand_in and f"on a stand-in: {stand_in}", measured)):
                out.print(escape(textwrap.indent(textwrap.fill(line, out.width - 4), " " * 4)))
    else:
        table = Table(box=None)
        for name in ("claim", "verdict", "profile"):
            table.add_column(name, no_wrap=True)
        for name in ("stand-in", "measured"):
            table.add_column(name)
        for row in rows:
            table.add_row(*map(escape, row))
        out.print(table)
    out.print(records.summary(found))


@app.command()
def criteria(
    lock: Annotated[
        bool, typer.Option("--lock", help="Add the claims that are new; none is changed.")
    ] = False,
) -> None:
    """Compare the criteria on the pages with those fixed in records/criteria.json."""
    from repalign.study import criteria as criteria_

    root = pages_.project()
    declared = pages_.criteria_of(pages_.find(root))
    try:
        if lock:
            for id in criteria_.lock(root, declared):
                out.print(f"locked {id}")
        wrong = criteria_.problems(root, declared)
    except ValueError as error:
        raise UserError(str(error)) from None
    if wrong:
        raise UserError("; ".join(wrong) + ".")
    out.print(f"{len(declared)} criteria, as they were fixed")


@app.command()
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Parts of the benchmarks' names.")] = None,
) -> None:
    """Measure speed against alternatives and keep the ratios under records/bench."""
    from repalign.runner import bench as bench_

    root = pages_.project()
    out.print(f"kept {bench_.run(root, names or []).relative_to(root)}")


@app.command(
    add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def data(context: typer.Context) -> None:
    """Data sets: list, get, verify, path, remove."""
    from repalign.cli.data import app as data_app  # imports torch: only when it is needed

    data_app(context.args, prog_name="repalign data")


def _known(profile: str) -> None:
    if profile not in PROFILES:
        raise UserError(f"unknown profile {profile!r}: choose one of {', '.join(PROFILES)}.")


def _check_device(name: str) -> None:
    if name not in ("auto", "cpu"):  # torch is slow to import, and these two always work
        from repalign.machine.devices import device

        try:
            device(name)
        except ValueError as error:
            raise UserError(str(error)) from None


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UserError(f"--set takes NAME=VALUE, but got {text!r}.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def main() -> NoReturn:
    """Run the command; what the user can fix is one line, not a traceback."""
    onednn.prepare()  # for all that it computes, and for every process that it starts
    try:
        app()
    except UserError as error:
        err.print(f"repalign: {error}", style="red", markup=False)
        sys.exit(2)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        err.print(f"repalign: {error.strerror or error}{where}", style="red", markup=False)
        sys.exit(2)
    sys.exit(0)
