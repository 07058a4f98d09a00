"""How the book shows a page of the first edition: its executed notebook, the record's drawings in front."""

from __future__ import annotations

import ast
import html
import io
import re
import zipfile
from pathlib import Path
from typing import Any

from repalign.press import cards, claims, render
from repalign.press.project import Source, UserError
from repalign.press.render import Files, Shown
from repalign.press.tables import TABLE
from repalign.study import old_records
from repalign.study.old_records import Old


def first_edition(root: Path, page: Source, profile: str, files: Files) -> Shown:
    """The page with its newest record in front of the run at ``profile``; with ``read``, the record alone."""

    record = old_records.newest(root, page.name)
    live = None if profile == render.READ else old_records.live(root, page.name, profile)
    if profile != render.READ and live is None:
        raise UserError(f"{page.name} is not run yet: repalign run {page.name} --profile {profile}.")
    rows = claims.of_page(root, page.name)
    of_record = record.evidence(rows, page.name, True) if record else {}
    of_live = live.evidence(rows, page.name, False) if live else {}
    evidence = {
        id: {kind: one[id] for kind, one in (("record", of_record), ("live", of_live)) if id in one}
        for id in rows
        if id in of_record or id in of_live
    }
    labels = {"record": f"record of {record.run['date']} ({record.profile})"} if record else {}
    labels |= {"live": f"this run ({live.profile})"} if live else {}
    if live is None:
        notebook = _from_source(page, record)
    else:
        notebook = render.executed(root / "build" / profile / page.name, page.name)
    shown = _Drawn(page, record, live, evidence, labels, files)
    shown.compose(notebook)
    costs = [_cost(kind, one) for kind, one in (("record", record), ("this run", live)) if one]
    return Shown(notebook, evidence, costs, labels)


def _cost(what: str, one: Old) -> tuple[str, ...]:
    run = one.run
    drawn = "drawn " if what == "record" else ""
    return (
        what,
        one.profile,
        str(run.get("date", "")),
        f"{float(run['seconds']):.0f} s",
        str(run["machine"]),
        drawn + str(run.get("commit", "")),
        "",
    )


class _Drawn:
    """The outputs of one page, each with what the record has in its place."""

    def __init__(
        self,
        page: Source,
        record: Old | None,
        live: Old | None,
        evidence: dict[str, dict[str, dict[str, Any]]],
        labels: dict[str, str],
        files: Files,
    ) -> None:
        self._page, self._evidence, self._labels, self._files = page, evidence, labels, files
        self._kept: dict[str, Old] = {k: v for k, v in (("record", record), ("live", live)) if v}

    def compose(self, notebook: Any) -> None:
        found = render.outputs(notebook)
        for output in found:
            about = render.about_output(output)
            if "figure" in about:
                output.data["text/html"] = self._figure(about["figure"])
            elif "claim" in about:
                output.data["text/html"] = self._claim(about["claim"])
        self._tables([one for one in found if one.get("data", {}).get("text/html", "").startswith(TABLE)])
        self._offer(notebook)

    def _figure(self, id: str) -> str:
        drawn = {kind: svg for kind, kept in self._kept.items() if (svg := kept.figure(id))}
        shown = []
        for kind, svg in drawn.items():
            caption, beside = self._kept[kind].caption(id), kind == "live" and len(drawn) > 1
            markup = render.drawing(svg, id, caption, kind, self._files, {}, beside=beside)
            shown.append((kind, markup, self._labels[kind]))
        return render.panels(f"figure-{id}", shown, len(self._labels) > 1)

    def _claim(self, id: str) -> str:
        shown = [
            (kind, cards.card(one), self._labels[kind]) for kind, one in self._evidence.get(id, {}).items()
        ]
        return render.panels(f"claim-{id}", shown, len(self._labels) > 1)

    def _tables(self, found: list[Any]) -> None:
        """Tables of the page, by their place: the record's where it kept as many, else this run's by name."""
        record = self._kept.get("record")
        then = record.tables() if record else []
        none = '<p class="ra-note">The record kept no table here; this run has one.</p>'
        for k, output in enumerate(found):
            shown = []
            if record:  # never this run's table beside the record's figure
                kept = then[k] if len(then) == len(found) else none
                shown.append(("record", kept, self._labels["record"]))
            if "live" in self._kept:
                shown.append(("live", output.data["text/html"], self._labels["live"]))
            if len(shown) == 2 and shown[0][1] == shown[1][1]:
                continue  # the same in both: a statement that no run changes
            output.data["text/html"] = render.panels(f"table-{k}", shown, len(self._labels) > 1)

    def _offer(self, notebook: Any) -> None:
        """The tables behind the record's figures, in one archive."""
        record = self._kept.get("record")
        tables = [path for id in record.figures() if (path := record.csv(id))] if record else []
        if not tables:
            return
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in tables:
                archive.writestr(zipfile.ZipInfo(path.name), path.read_bytes(), zipfile.ZIP_DEFLATED)
        address = self._files.put("tables.zip", packed.getvalue())
        link = f'<a href="{address}" download>the tables behind the recorded figures (CSV, zipped)</a>'
        notebook.cells[-1:-1] = [_markdown(f'<p class="ra-note">To download: {link}</p>')]


def _from_source(page: Source, record: Old | None) -> Any:
    """The page without a run: the record's figures and cards behind the cells that name them."""
    import nbformat

    notebook = render.unexecuted(page)
    figures = record.figures() if record else []
    ids = list(record.claims) if record else []
    taken: set[tuple[str, str]] = set()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for literal in (True, False):
        for cell in cells:
            for what, names in (("show", figures), ("claim", ids)):
                for id in _named(cell.source, what, names, literal):
                    if (what, id) not in taken:
                        taken.add((what, id))
                        cell.outputs.append(_output(what, id))
    left = [("show", id) for id in figures if ("show", id) not in taken]
    left += [("claim", id) for id in ids if ("claim", id) not in taken]
    if left:
        rest = nbformat.v4.new_code_cell("", outputs=[_output(*one) for one in left])
        rest.metadata["tags"] = ["remove-input"]
        notebook.cells[-1:-1] = [_markdown("## Recorded beside these"), rest]
    return notebook


def _named(source: str, what: str, names: list[str], literal: bool) -> list[str]:
    """Which of ``names`` the calls of study.show or study.claim in a cell have as their id.

    With ``literal`` those that are written out, else those that a name made of parts may stand for.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    found = []
    for node in ast.walk(tree):
        if not (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == what
        ):
            continue
        position = 1 if what == "show" else 0
        if len(node.args) <= position:
            continue
        id = node.args[position]
        if literal and isinstance(id, ast.Constant):
            found += [name for name in names if name == id.value]
        if not literal and not isinstance(id, ast.Constant):
            parts = id.values if isinstance(id, ast.JoinedStr) else [id]
            pattern = "".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else ".+" for p in parts)
            found += [name for name in names if re.fullmatch(pattern, name)]
    return found


def _output(what: str, id: str) -> Any:
    import nbformat

    about = {"figure": id, "caption": ""} if what == "show" else {"claim": id}
    data = {"text/html": "", "text/plain": html.escape(id)}
    return nbformat.v4.new_output("display_data", data=data, metadata={"repalign": about})


def _markdown(text: str) -> Any:
    import nbformat

    return nbformat.v4.new_markdown_cell(text)
