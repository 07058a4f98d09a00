"""The ``repalign`` command."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import sys
import textwrap
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from repalign.machine import onednn
from repalign.press import claims as claims_
from repalign.press import guarded, project, records, scoreboard
from repalign.press.project import Source, UserError
from repalign.press.settings import PROFILES
from repalign.press.tables import number
from repalign.study import old_records

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
Jobs = Annotated[int, typer.Option(help="Cores to use at most, and notebooks at a time; 0 is all cores.")]
Limit = Annotated[float, typer.Option(help="Seconds for a page; 0 is what its profile allows.")]


@app.command()
def run(
    patterns: Patterns = None,
    profile: Profile = "laptop",
    jobs: Jobs = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a setting.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    force: Annotated[bool, typer.Option(help="Run also what has not changed.")] = False,
    fresh: Annotated[
        bool, typer.Option(help="For the record: on a clean tree, with cells of this commit alone.")
    ] = False,
    cluster: Annotated[str, typer.Option(metavar="ADDRESS", help="Run sweeps on this Dask cluster.")] = "",
    limit: Limit = 0.0,
) -> None:
    """Execute notebooks into build/PROFILE. What has not changed since its last run is not run again."""
    from repalign.press import cells

    root = project.project()
    _known(profile)
    _check_device(device)
    environment = {}
    if cluster:
        try:
            cells.check_cluster(cluster)
        except RuntimeError as error:
            raise UserError(str(error)) from None
        environment[cells.CLUSTER] = cluster
    change = dict(_assignment(text) for text in set_ or [])
    chosen = project.find(root, patterns)
    parameters = {"profile": profile, "device": device, "change": change}
    options = dict(fresh=fresh, force=force, limit=limit, environment=environment)
    failed = _executed(root, chosen, profile, parameters, jobs, **options)
    if failed:
        err.print(f"{failed} of {len(chosen)} notebooks failed.", style="red")
        raise typer.Exit(1)


def _executed(
    root: Path, pages: list[Source], profile: str, parameters: dict[str, Any], jobs: int, **options: Any
) -> int:
    """Execute ``pages`` with a progress board; how many failed."""
    from repalign.press.run import Runner, cores_for

    board = _Board(root, profile, len(pages))
    runner = Runner(root, cores_for(jobs), board.cell, board.done, **options)
    with board.progress:
        results = runner.run(pages, profile, parameters)
    return sum(result.status == "failed" for result in results)


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
            self._last[name] = _last_seconds(self._root / "build" / self._profile / name)
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


def _last_seconds(place: Path) -> float | None:
    """What the last run of a page took, if there was one."""
    try:
        return float(json.loads((place / records.RUN).read_text(encoding="utf-8"))["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@app.command()
def record(
    patterns: Patterns = None,
    profile: Profile = "desktop",
    judge: Annotated[
        bool, typer.Option("--judge", help="Judge the recorded tables again with the claims of today.")
    ] = False,
    retired: Annotated[
        list[str] | None, typer.Option(metavar="CLAIM", help="A recorded claim that has no row any more.")
    ] = None,
) -> None:
    """Keep the tables of finished runs under records/, with the provenance of every cell."""
    root = project.project()
    _known(profile)
    chosen = [page for page in project.find(root, patterns) if not page.first_edition]
    if not chosen:
        raise UserError("pages of the first edition keep the records they have: rewrite the page first.")
    if judge:
        chosen = [page for page in chosen if records.newest(root, page.name)]
        _read(root, chosen)
    refused = []
    for page in chosen:
        try:
            if judge:
                changed = records.judge(root, page.name, retired or [])
                said = f"{page.name}: {', '.join(changed) or 'no verdict changed'}"
            else:
                said = f"kept {records.keep(root, page.name, profile, retired or []).relative_to(root)}"
        except (records.RecordError, claims_.ClaimError) as error:
            refused.append(str(error))
            continue
        out.print(said, markup=False)
    if refused:
        raise UserError(" ".join(refused))


@app.command()
def verify(
    patterns: Patterns = None,
    budget: Annotated[str, typer.Option(help="Time for all pages, such as 90s, 10m or 2h.")] = "10m",
    jobs: Jobs = 0,
    limit: Limit = 0.0,
) -> None:
    """Would a page still give its numbers? Compute some recorded cells again and compare."""
    from repalign.press import provenance
    from repalign.press import verify as verify_

    root = project.project()
    pages = [page for page in project.find(root, patterns) if not page.first_edition]
    recorded = {page.name: found for page in pages if (found := records.newest(root, page.name))}
    if not recorded:
        raise UserError("none of these pages has a record of this edition yet.")
    for kept in recorded.values():
        for sweep in kept.sweeps():
            kept.sweep(sweep)  # a table that was edited or torn is refused before anything runs
    left, worst = _seconds(budget), ""
    # Those that were not verified for longest come first, so that a small budget reaches all in turn.
    order = sorted(recorded, key=lambda name: (recorded[name].verified(), name))
    turn = int(provenance.today().replace("-", ""))
    order = [*order[turn % len(order) :], *order[: turn % len(order)]] if os.environ.get("CI") else order
    for i, name in enumerate(order):
        if i and left <= 0:
            out.print(f"not reached within {budget}: {', '.join(order[i:])}")
            break
        share = left / (len(order) - i) / max(len(recorded[name].run["sweeps"]), 1)
        started = time.perf_counter()
        told = {verify_.BUDGET: f"{share:.1f}", verify_.TURN: str(turn)}
        (page,) = [page for page in pages if page.name == name]
        parameters = {"profile": recorded[name].run["profile"], "device": "auto", "change": {}}
        profile = str(recorded[name].run["profile"])
        options = dict(mode="verify", limit=limit, environment=told)
        failed = _executed(root, [page], profile, parameters, jobs, **options)
        left -= time.perf_counter() - started
        if failed:
            worst = name
            continue
        try:
            entry = verify_.summarize(recorded[name], root / "build" / "verify" / name, root)
        except verify_.DifferenceError as error:
            err.print(str(error), style="red", markup=False)
            worst = name
            continue
        verify_.note(recorded[name], entry)
        out.print(f"{name}: {recorded[name].verified()}")
    if worst:
        raise UserError("a record and the code do not agree: see above.")


@app.command()
def book(
    profile: Profile = "laptop",
    from_records: Annotated[
        bool, typer.Option("--records", help="From the records alone: nothing is trained.")
    ] = False,
    jobs: Jobs = 0,
) -> None:
    """Render _build/html from the finished runs at PROFILE, or from the records alone."""
    from repalign.press import render
    from repalign.study.rendering import first_edition

    root = project.project()
    _known(profile)
    pages = project.find(root)
    started = time.perf_counter()
    if from_records:
        _read(
            root, [page for page in pages if not page.first_edition and records.newest(root, page.name)], jobs
        )
    with err.status("rendering the book"):
        site = render.build(root, pages, render.READ if from_records else profile, first_edition)
    out.print(f"{site / 'index.html'} ({time.perf_counter() - started:.0f} s)")


def _read(root: Path, pages: list[Source], jobs: int = 0) -> None:
    """Execute ``pages`` with every table from its record."""
    if not pages:
        return
    parameters = {"profile": "desktop", "device": "auto", "change": {}}
    if _executed(root, pages, "desktop", parameters, jobs, mode="read"):
        raise UserError("a page does not agree with its own record: see above.")


@app.command()
def plan(patterns: Patterns = None, profile: Profile = "paper") -> None:
    """What a profile would cost, from recorded seconds and the work that pages say they have."""
    from repalign.press import plan as plan_

    root = project.project()
    _known(profile)
    table = Table(box=None)
    for name in ("page", "recorded core-hours", "times", "core-hours", "GPU-hours"):
        table.add_column(name, justify="left" if name == "page" else "right")
    seen: dict[str, plan_.Cost] = {}
    silent = []
    for page in project.find(root, patterns):
        record = records.newest(root, page.name)
        found = plan_.cost(record, profile) if record else None
        if record is None or found is None:
            silent.append(page.name)
            continue
        cells = (plan_.computing(record) / 3600, found.factor, found.seconds / 3600, found.gpu / 3600)
        table.add_row(page.name, *(number(cell, 2) for cell in cells))
        # Pages that look at the same networks have the same work: it is done once.
        seen[json.dumps(record.run["work"], sort_keys=True)] = found
    if seen:
        out.print(table)
        hours = [sum(getattr(one, what) for one in seen.values()) / 3600 for what in ("seconds", "gpu")]
        out.print(
            f"together {number(hours[0], 2)} core-hours like the record's, or {number(hours[1], 2)} hours of "
            f"a GPU that sustains {number(plan_.GPU / 1e12)} teraflops; what pages share is counted once"
        )
    if silent:
        out.print(escape(f"no record, or no word of their work: {', '.join(silent)}"))


@app.command()
def claims(
    patterns: Patterns = None,
    profile: Annotated[
        str, typer.Option(help="The last run at this profile instead of the records.", show_default=False)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="All fields, as JSON.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only ask whether pages, claims.toml and records agree.")
    ] = False,
) -> None:
    """The claims and their verdicts: the record's, else those of the last laptop run."""
    root = project.project()
    at = profile or "laptop"
    _known(at)
    chosen = project.find(root, patterns)
    if check:
        wrong = project.disagreements(root)
        for check_record in (records.problems, records.unwritten):
            wrong += [problem for page in chosen for problem in check_record(root, page.name)]
        if wrong:
            raise UserError("; ".join(wrong) + ".")
        count = sum(len(claims_.of_page(root, page.name)) for page in chosen)
        out.print(f"{count} claims on {len(chosen)} pages: pages, criteria and records agree")
        return
    found: list[dict[str, Any]] = []
    for page in chosen:
        found += _evidence(root, page, at, or_recorded=not profile)
    if as_json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return
    if not found:
        raise UserError(f"nothing measured yet at {at}: repalign run --profile {at}.")
    rows = [
        [claim["id"], claim["verdict"], claim["profile"], claim["stand_in"], scoreboard.in_words(claim)]
        for claim in found
    ]
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
    out.print(scoreboard.summary(found))


def _evidence(root: Path, page: Source, profile: str, *, or_recorded: bool) -> list[dict[str, Any]]:
    """What the record of a page says of its claims, else its last run at ``profile``."""
    live = root / "build" / profile / page.name
    if page.first_edition:
        rows = claims_.of_page(root, page.name)
        record = old_records.newest(root, page.name) if or_recorded else None
        last = record or old_records.live(root, page.name, profile)
        return list(last.evidence(rows, page.name, record is not None).values()) if last else []
    kept = records.newest(root, page.name) if or_recorded else None
    if kept:
        # The words are today's: only the verdict and what it follows from belong to the record.
        rows, judged = claims_.of_page(root, page.name), kept.run["claims"]
        return [{**judged[id], **claims_.texts(rows[id], judged[id], True)} for id in rows if id in judged]
    if not (live / records.RUN).is_file():
        return []
    return [one["live"] for one in records.read(live, page.name).run["claims"].values() if "live" in one]


@app.command()
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Parts of the benchmarks' names.")] = None,
) -> None:
    """Measure speed against alternatives and keep the ratios under records/bench."""
    from repalign.press import bench as bench_

    root = project.project()
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
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
    try:
        json.dumps(found, allow_nan=False)
    except TypeError:
        raise UserError(
            f"--set takes numbers, texts, lists and dicts, but {text!r} is a {type(found).__name__}."
        ) from None
    except ValueError:
        raise UserError(f"--set takes finite numbers, but {text!r} is none.") from None
    return name, found


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if not found:
        raise UserError(f"--budget takes a time such as 90s, 10m or 2h, but got {text!r}.")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


class _Stopped(BaseException):
    """The user, or a batch system, asked the command to end."""


def _stop(*_: Any) -> NoReturn:
    raise _Stopped


def main() -> NoReturn:
    """Run the command; what the user can fix is one line, not a traceback."""
    guarded.spare_a_grammar()
    onednn.prepare()  # for all that it computes, and for every process that it starts
    # By Ctrl-C or asked to end by a batch system: nothing keeps running and no half-written file stays.
    for sent in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sent, _stop)
    try:
        app()
    except _Stopped:
        err.print("stopped; what is finished is kept, and the rest runs when you start again.")
        sys.exit(130)
    except (UserError, records.RecordError, claims_.ClaimError) as error:
        err.print(f"repalign: {error}", style="red", markup=False)
        sys.exit(2)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        err.print(f"repalign: {error.strerror or error}{where}", style="red", markup=False)
        sys.exit(2)
    sys.exit(0)
