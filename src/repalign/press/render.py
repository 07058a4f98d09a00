"""Render the book as static HTML: executed pages, records in front of this run, one switch for each page."""

from __future__ import annotations

import gzip
import html
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import yaml

from repalign._files import replace_directory
from repalign.press import bench, cards, chapters, guarded, plan, project, records, scoreboard, scratch, style
from repalign.press.project import Source, UserError

READ = "read"  # in place of a profile: every table from its record
# What a drawing that does not stand in a page is drawn in; the style sheet puts it on a light plate.
_INK = "#1f2328"
# Bytes of a table above which it is offered compressed.
_LARGE = 300_000


@dataclass
class Shown:
    """A page as the book shows it.

    evidence  by claim, what the record and what this run say of it: {"record": …, "live": …}
    costs     rows for the table of runs: what, profile, date, seconds, machine, commit
    labels    what the switch calls the record and this run; one of them where there is no other
    answer    the claim that answers the page's question, if there is one
    """

    notebook: Any
    evidence: dict[str, dict[str, dict[str, Any]]]
    costs: list[tuple[str, ...]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    answer: str = ""


class FirstEdition(Protocol):
    """How pages of the first edition are shown: the one thing that the press asks of them."""

    def __call__(self, root: Path, page: Source, profile: str, files: Files) -> Shown: ...


@dataclass(frozen=True)
class Files:
    """Where a page's drawings and tables go in the book, and how the page points there."""

    place: Path
    address: str

    def put(self, name: str, content: str | bytes) -> str:
        """Keep a file, and return its address."""
        self.place.mkdir(parents=True, exist_ok=True)
        raw = content.encode() if isinstance(content, str) else content
        (self.place / name).write_bytes(raw)
        return f"{self.address}/{name}"


def build(root: Path, pages: list[Source], profile: str, first_edition: FirstEdition) -> Path:
    """Render ``_build/html``; the old site stays until the new one is whole.

    ``profile`` names the runs that stand beside the records; ``read`` shows the records alone.
    """
    wrong = project.disagreements(root)
    wrong += [problem for page in pages for problem in records.problems(root, page.name)]
    if wrong:
        raise UserError("the book does not agree with itself: " + "; ".join(wrong) + ".")
    with scratch.directory(root) as stage:
        _stage(root, stage / "book", pages, profile, first_edition)
        _sphinx(stage / "book")
        built = stage / "book" / "_build" / "html"
        _downloads(built, pages)
        for debugging in built.rglob("*.map"):
            debugging.unlink()
        site = root / "_build" / "html"
        site.parent.mkdir(exist_ok=True)
        replace_directory(built, site)
        return site


def _stage(root: Path, stage: Path, pages: list[Source], profile: str, first_edition: FirstEdition) -> None:
    """A copy of the book with executed notebooks in place of their sources, and generated pages filled in."""
    import nbformat

    stage.mkdir()
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    repository = (config.get("repository") or {}).get("url") or ""
    if repository:
        config.setdefault("html", {}).update(use_repository_button=True, use_issues_button=True)
    (stage / "_config.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    shutil.copy2(root / "_toc.yml", stage)
    shutil.copytree(root / "book", stage / "book")
    (stage / "book" / "_static" / "repalign.css").write_text(style.stylesheet(), encoding="utf-8")
    shown = {}
    for page in pages:
        files = Files(stage / "book" / "_static" / "pages" / page.name, f"../../_static/pages/{page.name}")
        make = first_edition if page.first_edition else second_edition
        shown[page.name] = make(root, page, profile, files)
        notebook = shown[page.name].notebook
        _fit(notebook, shown[page.name].labels)
        if repository:
            _link(notebook, page, repository, (config.get("repository") or {}).get("branch", "main"))
        target = stage / "notebooks" / f"{page.name}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(nbformat.writes(notebook), encoding="utf-8")
    _chapters(root, stage, pages, shown)
    board = scoreboard.page(
        {name: one.evidence for name, one in shown.items()}, _costs(shown), _label(profile)
    )
    _fill(stage / "book" / "scoreboard.md", "claims", lambda: board)
    _fill(stage / "book" / "data.md", "table of sets", _data_sets)
    _fill(stage / "book" / "performance.md", "benchmarks", lambda: bench.page(root))


def _chapters(root: Path, stage: Path, pages: list[Source], shown: dict[str, Shown]) -> None:
    """The opening pages of chapters that have one, filled in."""
    for paper in project.papers(pages):
        source = chapters.index(root, paper)
        if not source.is_file():
            continue
        evidence = {page.name: shown[page.name].evidence for page in pages if page.paper == paper}
        titles = {page.name: page.title for page in pages}
        target = stage / "notebooks" / paper / chapters.INDEX
        shutil.copyfile(source, target)
        told = {page: shown[page].answer for page in evidence if shown[page].answer}
        _fill(target, "answers", partial(chapters.answers, evidence, titles, told))
        _fill(target, "verdicts", partial(chapters.verdicts, evidence, titles))
        costs = {page: _paper_cost(root, page) for page in evidence}
        _fill(target, "settings", partial(chapters.settings, evidence, titles, costs))


def _paper_cost(root: Path, page: str) -> str:
    """What the paper's sizes would cost; nothing where no record or no page can tell."""
    record = records.newest(root, page)
    found = plan.cost(record, "paper") if record else None
    return plan.in_words(found) if found else ""


def _costs(shown: dict[str, Shown]) -> list[tuple[str, ...]]:
    return [(name, *row) for name, one in shown.items() for row in one.costs]


def _label(profile: str) -> str:
    """What the book calls the runs at ``profile``; nothing where it shows records alone."""
    return "" if profile == READ else f"this run ({profile})"


def second_edition(root: Path, page: Source, profile: str, files: Files) -> Shown:
    """A page whose figures and verdicts are functions of its tables."""
    place = root / "build" / profile / page.name
    record = records.newest(root, page.name)
    if not (place / records.RUN).is_file():
        if profile == READ and record is None:
            return Shown(_without_record(page), {})
        raise UserError(f"{page.name} is not run yet: repalign run {page.name} --profile {profile}.")
    run = records.read(place, page.name)
    if not place.with_suffix(".ipynb").is_file():
        raise UserError(f"{page.name} has lost its executed notebook: repalign run {page.name} --force.")
    notebook = executed(place, page.name)
    if record:
        told = {id: one["record"] for id, one in run.run["claims"].items() if "record" in one}
        wrong = records.differing(record, told)
        if wrong:
            raise UserError(
                f"{page.name}: {'; '.join(wrong)}. If a claim's function was changed on purpose: "
                f"repalign record {page.name} --judge."
            )
    kinds = sorted({kind for one in run.run["claims"].values() for kind in one}, reverse=True)
    labels = {"record": record.label() if record else "", "live": _label(profile)}
    labels = {kind: labels[kind] for kind in kinds}
    tables = _tables(place, files)
    for output in outputs(notebook):
        about = about_output(output)
        if "figure" in about:
            id, caption, both = about["figure"], about["caption"], len(about["kinds"]) > 1
            drawn = []
            for kind in about["kinds"]:
                links = {name: tables[name, kind] for name in about["tables"] if (name, kind) in tables}
                beside = both and kind == "live"
                drawn.append(
                    (kind, figure(place, id, caption, kind, files, links, beside=beside), labels[kind])
                )
            output.data["text/html"] = panels(f"figure-{id}", drawn, len(labels) > 1)
    _open(notebook, place, run.run, kinds[0] if kinds else "")
    costs = []
    if record:
        costs.append(_cost("record", record.run, f"{plan.computing(record):.0f} s", record.verified()))
    if profile != READ:
        costs.append(_cost("this run", run.run, f"{run.run['seconds']:.0f} s", ""))
    answer = str((run.run.get("opening") or {}).get("answer", ""))
    return Shown(notebook, run.run["claims"], costs, labels, answer)


def executed(place: Path, page: str) -> Any:
    """The executed notebook beside the results at ``place``."""
    import nbformat

    try:
        return nbformat.reads(place.with_suffix(".ipynb").read_text(encoding="utf-8"), as_version=4)
    except Exception as error:  # whatever a torn file makes of the parser
        raise UserError(
            f"the executed notebook of {page} cannot be read ({type(error).__name__}): "
            f"repalign run {page} --force."
        ) from None


def _open(notebook: Any, place: Path, run: dict[str, Any], kind: str) -> None:
    """Under the question of a page, what was found and the figure that shows it."""
    import nbformat

    opening = run.get("opening") or {}
    parts = []
    if opening.get("answer"):
        evidence = run["claims"][opening["answer"]]
        parts.append(cards.answer(evidence.get("record") or evidence["live"]))
    if opening.get("figure"):
        id = opening["figure"]
        svg = (place / "figures" / f"{id}.{kind}.svg").read_text(encoding="utf-8")
        parts.append(style.framed(svg, id, "", f"opening-{kind}"))
    if not parts:
        return
    markup = f'<div class="ra-opening">{"".join(parts)}</div>'
    output = nbformat.v4.new_output("display_data", data={"text/html": markup})
    # Without a source the cell would be taken for an empty one and left out.
    source = "# What was found."
    cell = nbformat.v4.new_code_cell(source, outputs=[output], metadata={"tags": ["remove-input"]})
    notebook.cells.insert(1, cell)


def _cost(what: str, run: dict[str, Any], seconds: str, recomputed: str) -> tuple[str, ...]:
    return what, run["profile"], run["date"], seconds, run["machine"], run["commit"], recomputed


def _without_record(page: Source) -> Any:
    """A page that has been neither recorded nor run: its text and code, and a word that this is so."""
    notebook = unexecuted(page)
    _under_title(
        notebook,
        "```{note}\nThis page has no record yet, and this copy of the book was built from records alone: "
        "its figures appear after a run.\n```",
    )
    return notebook


def _under_title(notebook: Any, text: str) -> None:
    """Put ``text`` behind the first cell that is text; a page may begin with code."""
    import nbformat

    kinds = [cell.cell_type for cell in notebook.cells]
    notebook.cells.insert(kinds.index("markdown") + 1, nbformat.v4.new_markdown_cell(text))


def unexecuted(page: Source) -> Any:
    """The source of a page as a notebook without outputs."""
    import jupytext

    return jupytext.reads(page.text, fmt="py:percent")


def outputs(notebook: Any) -> list[Any]:
    """The outputs of all code cells, without what only JupyterLab needs."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if "style" not in about_output(one)]
            found += cell.outputs
    return found


def about_output(output: Any) -> dict[str, Any]:
    """How a page has labelled an output: a figure, a claim, a table."""
    return dict(output.get("metadata", {}).get("repalign", {}))


def _tables(place: Path, files: Files) -> dict[tuple[str, str], str]:
    """The tables that figures were drawn from, to download: their addresses by sweep, record or this run."""
    found = {}
    for table in sorted((place / "tables").glob("*.csv")):
        name, _, kind = table.stem.rpartition(".")
        raw = table.read_bytes()
        large = len(raw) > _LARGE
        content = gzip.compress(raw, mtime=0) if large else raw  # pandas and R read both
        found[name, kind] = files.put(f"{table.name}.gz" if large else table.name, content)
    return found


def figure(
    place: Path, id: str, caption: str, kind: str, files: Files, tables: dict[str, str], *, beside: bool
) -> str:
    """A drawing with its caption, and the drawing and the tables behind it to download."""
    svg = (place / "figures" / f"{id}.{kind}.svg").read_text(encoding="utf-8")
    links = {"SVG": files.put(f"{id}.{kind}.svg", svg.replace("currentColor", _INK))}
    for name, address in tables.items():
        links["CSV" if len(tables) == 1 else f"CSV of {name.replace('_', ' ')}"] = address
    return drawing(svg, id, caption, kind, files, links, beside=beside)


def drawing(
    svg: str, id: str, caption: str, kind: str, files: Files, links: dict[str, str], *, beside: bool
) -> str:
    """A drawing in the page, with what there is to download; with ``beside`` in a file of its own.

    The record's drawings are in the page, this run's beside them: no page grows too large.
    """
    offered = " ".join(
        f'<a class="ra-note" href="{address}" download>{name}</a>' for name, address in links.items()
    )
    if beside:
        address = files.put(f"{id}.{kind}.svg", svg.replace("currentColor", _INK))
        text = html.escape(caption, quote=True)
        markup = (
            f'<figure class="ra-figure" data-figure="{html.escape(id)}">'
            f'<img loading="lazy" src="{address}" alt="{text}"><figcaption>{text}</figcaption></figure>'
        )
    else:
        markup = style.framed(svg, id, caption, kind)
    return markup.replace("</figcaption>", f" {offered}</figcaption>") if offered else markup


def panels(name: str, shown: list[tuple[str, str, str]], both: bool) -> str:
    """What the record and this run show in one place, as (kind, markup, label); the page's switch chooses."""
    kinds = [kind for kind, _, _ in shown]
    parts = []
    for kind, markup, label in shown:
        # The only one there is stays, whatever the switch says, and says whose it is.
        alone = len(set(kinds)) == 1
        classes = "ra-panel" if alone else f"ra-panel ra-of-{kind}"
        note = f'<p class="ra-note">{html.escape(label)} only</p>' if alone and both else ""
        parts.append(f'<div class="{classes}">{note}{markup}</div>')
    return f'<div id="{html.escape(name)}">{"".join(parts)}</div>'


def _fit(notebook: Any, labels: dict[str, str]) -> None:
    """Whose numbers the page shows, under its title; the injected cell goes, the settings say it better."""

    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if "injected-parameters" in tags:
            cell.metadata["tags"] = [*tags, "remove-cell"]
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
    if labels:
        _under_title(notebook, _whose(labels))
    notebook.nbformat_minor = 5
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"


def _whose(labels: dict[str, str]) -> str:
    """Radio buttons that choose, without a script, whose numbers the page shows; a line if there is one."""
    if len(labels) == 1:
        (label,) = labels.values()
        return f'<p class="ra-note">Figures and verdicts: {html.escape(label)}.</p>'
    buttons = "".join(
        f'<input type="radio" name="ra-of" id="ra-of-{kind}"{" checked" if kind == "record" else ""}>'
        f'<label for="ra-of-{kind}">{html.escape(label)}</label>'
        for kind, label in labels.items()
    )
    return f'<div class="ra-switch" role="radiogroup" aria-label="Whose numbers">{buttons}</div>'


def _joined(found: list[Any]) -> list[Any]:
    """Lines printed one after the other as one block, however they arrived."""
    joined: list[Any] = []
    for output in found:
        last = joined[-1] if joined else None
        if last and output.output_type == "stream" == last.output_type and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


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


def _link(notebook: Any, page: Source, repository: str, branch: str) -> None:
    """Under the title: the source, and a place to run it."""
    url, path = repository.rstrip("/"), f"notebooks/{page.name}.py"
    links = [f"[source]({url}/blob/{branch}/{path})", f"[edit]({url}/edit/{branch}/{path})"]
    hosted = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)", url)
    if hosted:
        binder = f"https://mybinder.org/v2/gh/{hosted[1]}/{branch}?urlpath=lab/tree/{path}"
        links.append(f"[run on Binder]({binder})")
    _under_title(notebook, " · ".join(links))


def _downloads(built: Path, pages: list[Source]) -> None:
    """What the download button gives: a notebook to run, without the outputs that the page shows."""
    import nbformat

    for page in pages:
        target = built / "_sources" / "notebooks" / f"{page.name}.ipynb"
        if target.is_file():
            notebook = unexecuted(page)
            notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
            target.write_text(nbformat.writes(notebook), encoding="utf-8")


def _sphinx(stage: Path) -> None:
    """jupyter-book, strict: a warning is an error. It ends with this process."""
    command = guarded.command(
        "repalign.press.jupyter_book", "build", str(stage), "-n", "-W", "--keep-going", "-q"
    )
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        assert process.stdout is not None
        try:
            # Not communicate(): it would close the pipe that tells the child that we live.
            said = [line for line in process.stdout if line.strip()]
        except BaseException:
            process.kill()
            raise
    if process.returncode or not (stage / "_build" / "html" / "index.html").is_file():
        wrong = [line for line in said if "WARNING" in line or "ERROR" in line] or said[-5:]
        plain = re.sub(r"\x1b\[[0-9;]*m", "", "  ".join(wrong)).replace(f"{stage}{os.sep}", "")
        raise UserError(f"the book does not build:\n  {plain}")
