"""Render the book: pages with their records in front of this run, and a scoreboard, as static HTML."""

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
from repalign.runner.records import (
    KINDS,
    Kept,
    counts,
    evidence,
    in_words,
    live,
    newest,
    summary,
    tables_of,
)
from repalign.runner.stale import stale
from repalign.study.card import card, counted_runs, css_class
from repalign.study.style import caption_of, framed, stylesheet
from repalign.study.tables import TABLE


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
        record, run = newest(root, page.name), live(root, page.name, profile)
        assert run is not None  # build has seen to it
        _compose(notebook, run, record, stage / "book" / "_static" / "tables" / page.name)
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


def _compose(notebook: Any, run: Kept, record: Kept | None, tables: Path) -> None:
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
            if "figure" in about:
                output.data["text/html"] = _figure(about["figure"], run, record, tables)
            elif "claim" in about:
                output.data["text/html"] = _claim(about["claim"], run, record)
    if record:
        here, kept = tables_of(notebook), record.tables
        then = kept if len(kept) == len(here) else [None] * len(here)
        for k, (output, old) in enumerate(zip(here, then, strict=True)):
            output.data["text/html"] = _table(k, output.data["text/html"], old, run, record)


def _table(k: int, now: str, then: str | None, run: Kept, record: Kept) -> str:
    """The record's k-th table in front of this run's; where it has none, this run's says what it is."""
    if then == now:
        return now
    if then is not None:
        return _tabs(f"table-{k}", [(_when("record", record), then), (_when("live", run), now)])
    label = _note(_when("live", run))
    if "<caption>" in now:
        return now.replace("</caption>", f" {label}</caption>", 1)
    return now.replace(TABLE, f"{TABLE}<caption>{label}</caption>", 1)


def _note(text: str) -> str:
    return f'<span class="ra-note">{html.escape(text)}</span>'


def _figure(id: str, run: Kept, record: Kept | None, tables: Path) -> str:
    """A figure of the record in front of this run's, each with its own caption and table."""
    drawn = []
    for kind, kept in (("record", record), ("live", run)):
        svg = kept.figure(id) if kept else None
        if kept and svg:
            link, table = "", kept.table(id)
            if table:
                tables.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(table, tables / f"{id}.{kind}.csv")
                place = f"../../_static/tables/{tables.parent.name}/{tables.name}/{id}.{kind}.csv"
                link = f' <a class="ra-note" href="{place}" download="{id}.csv">table (CSV)</a>'
            markup = framed(svg, id, caption_of(svg), kind).replace("</figcaption>", f"{link}</figcaption>")
            drawn.append((_when(kind, kept), markup))
    if record and len(drawn) == 1:  # the record has no such figure
        when, markup = drawn[0]
        drawn = [(when, markup.replace("</figcaption>", f" {_note(when)}</figcaption>"))]
    # A figure and a claim may have the same id; their buttons must not be one group.
    return _tabs(f"figure-{id}", drawn)


def _claim(id: str, run: Kept, record: Kept | None) -> str:
    cards = [
        (_when(kind, kept), card(kept.claims[id]))
        for kind, kept in (("record", record), ("live", run))
        if kept and id in kept.claims
    ]
    return f'<div id="claim-{html.escape(id)}">{_tabs(f"claim-{id}", cards)}</div>'


def _when(kind: str, kept: Kept) -> str:
    return (
        f"record of {kept.run['date']} ({kept.profile})" if kind == "record" else f"this run ({kept.profile})"
    )


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


def _tabs(name: str, panels: list[tuple[str, str]]) -> str:
    """Panels under their labels, the first one open; a single one needs no label."""
    if len(panels) == 1:
        return panels[0][1]
    group = re.sub(r"[^A-Za-z0-9]", "-", name)
    buttons = "".join(
        f'<input type="radio" name="{group}" id="{group}-{i}"{" checked" if i == 1 else ""}>'
        f'<label for="{group}-{i}">{html.escape(label)}</label>'
        for i, (label, _) in enumerate(panels, start=1)
    )
    shown = "".join(f'<div class="ra-panel">{markup}</div>' for _, markup in panels)
    return f'<div class="ra-tabs">{buttons}{shown}</div>'


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
    """Verdicts counted by paper, every claim with its evidence, then what each page cost."""
    best = {page.name: evidence(root, page.name, profile) for page in pages}
    old = stale(root, pages)
    rows, costs = [], []
    for page in pages:
        run, record = live(root, page.name, profile), newest(root, page.name)
        mark = f"; stale: {', '.join(old[page.name])} changed since" if page.name in old else ""
        rows.append(f'<tr class="ra-page"><th colspan="4">{html.escape(page.name)}{mark}</th></tr>')
        for id in page.claims:
            claim = best[page.name].get(id)
            here = run.claims.get(id) if run and record else None
            rows.append(_score(page.name, id, claim, here, page.name in old))
        for kind, one in (("record", record), ("this run", run)):
            if one:
                facts = [page.name, kind, one.profile, one.run["date"], _time(one.run)]
                facts += [one.run["machine"], one.run["commit"]]
                costs.append("<tr>" + "".join(f"<td>{html.escape(str(f))}</td>" for f in facts) + "</tr>")
    names = ("claim, and what the paper says", "verdict", "measured", "this run")
    head = "<tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>"
    cost_head = "<tr>" + "".join(
        f"<th>{h}</th>" for h in ("page", "", "profile", "date", "time", "machine", "commit")
    )
    found = [claim for claims in best.values() for claim in claims.values()]
    return (
        f"**{summary(found)}**, by the newest record where there is one, else by this run ({profile}). "
        "A record is *stale* when its page's code, settings or criteria have changed since.\n\n"
        f"{_counted(best)}\n\n## Claim by claim\n\n"
        f'<table class="ra-table ra-scoreboard">{head}{"".join(rows)}</table>\n\n'
        f"## What the runs cost\n\n"
        f'<table class="ra-table ra-costs">{cost_head}</tr>{"".join(costs)}</table>\n'
    )


def _time(run: dict[str, Any]) -> str:
    """What a run took, and how much of it was there already."""
    store = run.get("from_store", {"read": 0, "computed": 0})
    found = f" ({store['read']} of {sum(store.values())} results stored before)" if store["read"] else ""
    return f"{run['seconds']:.0f} s{found}"


def _counted(best: dict[str, dict[str, dict[str, Any]]]) -> str:
    """How many claims of each kind there are, paper by paper."""
    papers: dict[str, list[dict[str, Any]]] = {}
    for page, claims in best.items():
        papers.setdefault(page.split("/")[0], []).extend(claims.values())
    table = {paper: counts(claims) for paper, claims in papers.items()}
    used = [kind for kind in KINDS if any(row[kind] for row in table.values())]
    head = "".join(f"<th>{name}</th>" for name in ("", *used))
    rows = "".join(
        f"<tr><th>{paper}</th>" + "".join(f"<td>{row[kind] or ''}</td>" for kind in used) + "</tr>"
        for paper, row in table.items()
    )
    return f'<table class="ra-table ra-counts"><tr>{head}</tr>{rows}</table>'


def _score(page: str, id: str, claim: dict[str, Any] | None, here: dict[str, Any] | None, old: bool) -> str:
    """A line of the scoreboard: the best evidence for a claim, and this run's verdict beside a record's."""
    shown = id.replace(".", ".<wbr>")  # where a long id may break
    link = f'<a href="../notebooks/{page}.html#claim-{id}"><code>{shown}</code></a>'
    if claim is None:
        return f"<tr><td>{link}</td><td>–</td><td></td><td></td></tr>"
    notes = [*counted_runs(claim), claim["profile"], *(["stale"] if old else [])]
    if claim["stand_in"]:
        notes.insert(0, f"stand-in: {claim['stand_in']}")
    verdict = f'{_badge(claim)}<br><small class="ra-note">{html.escape("; ".join(notes))}</small>'
    says = f"{link}<br>{html.escape(claim['paper'])}"
    cells = [says, verdict, f"<small>{html.escape(in_words(claim))}</small>", _badge(here) if here else ""]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _badge(claim: dict[str, Any]) -> str:
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
