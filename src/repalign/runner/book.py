"""Render the book: executed pages, their records in a second tab, and a scoreboard, as static HTML."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from repalign._files import replace_directory
from repalign.runner import bench
from repalign.runner.pages import Page, UserError, disagreements
from repalign.runner.records import Kept, evidence, live, newest, summary
from repalign.study.claims import card, css_class
from repalign.study.style import framed, stylesheet


def build(root: Path, pages: list[Page], profile: str) -> Path:
    """Render ``_build/html`` from the runs at ``profile``; the old site stays until the new one is whole."""
    problems = disagreements(root)
    if problems:
        raise UserError("the book does not agree with itself: " + "; ".join(problems) + ".")
    missing = [page.name for page in pages if live(root, page.name, profile) is None]
    if missing:
        raise UserError(
            f"not run yet at {profile}: {', '.join(missing)}. First: repalign run --profile {profile}."
        )
    (root / "build").mkdir(exist_ok=True)
    stage = Path(tempfile.mkdtemp(dir=root / "build", prefix=".book-"))
    try:
        _stage(root, stage, pages, profile)
        _sphinx(stage)
        site = root / "_build" / "html"
        site.parent.mkdir(exist_ok=True)
        replace_directory(stage / "_build" / "html", site)
        return site
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _stage(root: Path, stage: Path, pages: list[Page], profile: str) -> None:
    """A copy of the book with executed notebooks in place of their sources, and generated pages filled in."""
    import nbformat

    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    repository = (config.get("repository") or {}).get("url") or ""
    if repository:
        config.setdefault("html", {}).update(use_repository_button=True, use_issues_button=True)
    (stage / "_config.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    shutil.copy2(root / "_toc.yml", stage)
    shutil.copytree(root / "book", stage / "book")
    (stage / "book" / "_static" / "repalign.css").write_text(stylesheet(), encoding="utf-8")
    _fill(stage / "book" / "scoreboard.md", "claims", lambda: _scoreboard(root, pages, profile))
    _fill(stage / "book" / "data.md", "table of sets", _data_sets)
    _fill(stage / "book" / "performance.md", "benchmarks", lambda: bench.page(root))
    for page in pages:
        executed = root / "build" / profile / f"{page.name}.ipynb"
        notebook = nbformat.reads(executed.read_text(encoding="utf-8"), as_version=4)
        _compose(notebook, newest(root, page.name))
        if repository:
            _link(notebook, page, repository, (config.get("repository") or {}).get("branch", "main"))
        target = stage / "notebooks" / f"{page.name}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(nbformat.writes(notebook), encoding="utf-8")


def _fill(page: Path, what: str, generated: Callable[[], str]) -> None:
    """Put generated text in place of a page's marker, if there is such a page."""
    if page.is_file():
        text, marker = page.read_text(encoding="utf-8"), f"<!-- generated from the {what} -->"
        if marker in text:
            page.write_text(text.replace(marker, generated()), encoding="utf-8")


def _data_sets() -> str:
    """Every data set: what it is, how many samples, its license, and its stand-in."""
    from repalign.data import SETS

    rows = ["| name | what | samples | license |", "|---|---|---|---|"]
    for name, row in SETS.items():
        counts = ", ".join(f"{n:,} {split}" if n else split for split, n in row.splits.items())
        notes = "; a subset is shipped" if row.shipped else f"; else `{row.stand_in}`" if row.stand_in else ""
        rows.append(f"| `{name}` | {row.title}{notes} | {counts} | {row.license} |")
    return "\n".join(rows)


def _compose(notebook: Any, record: Kept | None) -> None:
    """Join every figure and card with its recorded twin; drop what only JupyterLab needs."""
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if "injected-parameters" in tags:
            cell.metadata["tags"] = [*tags, "remove-cell"]  # the settings table says it better
        if cell.cell_type != "code":
            continue
        cell.outputs = _joined([o for o in cell.outputs if "style" not in _about(o)])
        for output in cell.outputs:
            about = _about(output)
            twin = _twin(about, record) if record else None
            if twin and record:
                when = f"record of {record.run['date']} ({record.run['profile']})"
                # A figure and a claim may have the same id; their buttons must not be one group.
                name = f"figure-{about['figure']}" if "figure" in about else f"claim-{about['claim']}"
                output.data["text/html"] = _tabs(name, output.data["text/html"], twin, when)


def _joined(outputs: list[Any]) -> list[Any]:
    """Lines printed one after the other as one block, however they arrived."""
    joined: list[Any] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output.output_type == "stream" == last.output_type and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def _about(output: Any) -> dict[str, Any]:
    return dict(output.get("metadata", {}).get("repalign", {}))


def _twin(about: dict[str, Any], record: Kept) -> str | None:
    if "figure" in about:
        svg = record.figure(about["figure"])
        return framed(svg, about["figure"], about["caption"], "record") if svg else None
    claim = record.claims.get(about.get("claim", ""))
    # The id would be on the page twice when the record has the profile of the run.
    return re.sub(r' id="[^"]*"', "", card(claim), count=1) if claim else None


def _tabs(name: str, first: str, second: str, label: str) -> str:
    group = re.sub(r"[^A-Za-z0-9]", "-", name)
    return (
        f'<div class="ra-tabs"><input type="radio" name="{group}" id="{group}-1" checked>'
        f'<label for="{group}-1">this run</label>'
        f'<input type="radio" name="{group}" id="{group}-2"><label for="{group}-2">{label}</label>'
        f'<div class="ra-panel">{first}</div><div class="ra-panel">{second}</div></div>'
    )


def _link(notebook: Any, page: Page, repository: str, branch: str) -> None:
    """Under the title: the source, and a place to run it."""
    url, path = repository.rstrip("/"), f"notebooks/{page.name}.py"
    links = [f"[source]({url}/blob/{branch}/{path})", f"[edit]({url}/edit/{branch}/{path})"]
    hosted = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)", url)
    if hosted:
        binder = f"https://mybinder.org/v2/gh/{hosted[1]}/{branch}?urlpath=lab/tree/{path}"
        links.append(f"[run on Binder]({binder})")
    notebook.cells[0].source += "\n\n" + " · ".join(links)


def _scoreboard(root: Path, pages: list[Page], profile: str) -> str:
    """Every claim with its verdict in this run and in the newest record, then what each page cost."""
    rows, costs, found = [], [], []
    for page in pages:
        run, record = live(root, page.name, profile), newest(root, page.name)
        best = evidence(root, page.name, profile)
        found += list(best.values())
        for id in page.claims:
            here = run.claims.get(id) if run else None
            there = record.claims.get(id) if record else None
            link = f'<a href="../notebooks/{page.name}.html#{id}-{profile}"><code>{id}</code></a>'
            says = html.escape(best[id]["paper"]) if id in best else ""
            rows.append(
                f"<tr><td>{link}</td><td>{says}</td><td>{_badge(there)}</td><td>{_badge(here)}</td></tr>"
            )
        for kind, one in (("this run", run), ("record", record)):
            if one:
                facts = [page.name, kind, one.profile, one.run["date"], f"{one.run['seconds']:.0f} s"]
                facts += [one.run["machine"], one.run["commit"]]
                costs.append("<tr>" + "".join(f"<td>{html.escape(str(f))}</td>" for f in facts) + "</tr>")
    head = "<tr><th>claim</th><th>the paper says</th><th>record</th><th>this run</th></tr>"
    cost_head = "<tr>" + "".join(
        f"<th>{h}</th>" for h in ("page", "", "profile", "date", "time", "machine", "commit")
    )
    return (
        f"**{summary(found)}**, by the newest record where there is one, else by this run ({profile}).\n\n"
        f'<table class="ra-table ra-scoreboard">{head}{"".join(rows)}</table>\n\n'
        f"## What the runs cost\n\n"
        f'<table class="ra-table ra-costs">{cost_head}</tr>{"".join(costs)}</table>\n'
    )


def _badge(claim: dict[str, Any] | None) -> str:
    if claim is None:
        return "–"
    verdict = claim["verdict"]
    return f'<span class="{css_class(verdict)}"><span class="ra-verdict">{verdict}</span></span>'


def _sphinx(stage: Path) -> None:
    """jupyter-book, strict: a warning is an error."""
    call = "from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", call, "build", str(stage), "-n", "-W", "--keep-going", "-q"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode or not (stage / "_build" / "html" / "index.html").is_file():
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        wrong = [line for line in said if "WARNING" in line or "ERROR" in line] or said[-5:]
        plain = re.sub(r"\x1b\[[0-9;]*m", "", "\n  ".join(wrong)).replace(f"{stage}{os.sep}", "")
        raise UserError(f"the book does not build:\n  {plain}")
