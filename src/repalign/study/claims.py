"""Claims: what a paper says, a criterion fixed before the run, and the verdict that was measured."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repalign._files import write_json
from repalign.study import run, style

VERDICTS = ("REPRODUCED", "PARTLY", "NOT REPRODUCED", "UNTESTED")
FIELDS = {
    *("id", "paper", "criterion", "measured", "interval", "paper_value", "verdict", "exact"),
    *("profile", "seeds", "data", "fingerprint", "versions", "seconds", "page"),
}
_ID = re.compile(r"[a-z]+(\.[A-Za-z0-9_-]+)+")


class ClaimError(AssertionError):
    """An exact statement does not hold: that is a mistake in the code, not a result."""


class Table:
    """A table for a notebook: HTML for a reader, lines for a terminal."""

    def __init__(self, markup: str, text: str) -> None:
        self._markup, self._text = markup, text

    def _repr_html_(self) -> str:
        return self._markup

    def __repr__(self) -> str:
        return self._text


def claims(*declared: dict[str, Any]) -> Table:
    """Declare the claims of a page, before anything runs: ``id``, ``paper`` and ``criterion`` of each.

    ``exact=True`` marks a statement of mathematics: if it fails, so does the page, in every profile.
    """
    for entry in declared:
        wrong = entry.keys() - {"id", "paper", "criterion", "exact", "paper_value"}
        lacking = {"id", "paper", "criterion"} - entry.keys()
        if wrong or lacking:
            raise ValueError(
                f"a claim takes id, paper, criterion, exact and paper_value; "
                f"{entry.get('id', 'one without id')} has {sorted(wrong)} too many, lacks {sorted(lacking)}."
            )
        _check_id(entry["id"])
        if entry["id"] in run.current.declared:
            raise ValueError(f"the claim {entry['id']} is declared twice on this page.")
        run.current.declared[entry["id"]] = entry
    rows = "".join(
        f'<tr id="declared-{html.escape(c["id"])}"><td><code>{html.escape(c["id"])}</code></td>'
        f"<td>{html.escape(c['paper'])}</td><td>{html.escape(c['criterion'])}</td></tr>"
        for c in declared
    )
    head = "<tr><th>claim</th><th>the paper says</th><th>holds here if</th></tr>"
    text = "\n".join(f"{c['id']}: {c['paper']} | {c['criterion']}" for c in declared)
    return Table(f'<table class="ra-table ra-claims">{head}{rows}</table>', text)


def claim(
    id: str,
    *,
    measured: Any,
    holds: bool | Sequence[bool] | None,
    paper: str | None = None,
    criterion: str | None = None,
    interval: Sequence[float] | None = None,
    paper_value: Any = None,
    seeds: Sequence[int] = (),
    exact: bool = False,
) -> None:
    """Record what was measured for a claim, and show its verdict card.

    ``holds`` is one answer, or one per seed or panel: all true is REPRODUCED, none is NOT REPRODUCED,
    some is PARTLY. None, or the smoke profile, is UNTESTED. ``paper`` and ``criterion`` come from the
    page's declaration (:func:`claims`) unless given here.
    """
    declared = run.current.declared.get(id, {})
    paper = paper or declared.get("paper")
    criterion = criterion or declared.get("criterion")
    _check_id(id)
    if not paper or not criterion:
        raise ValueError(
            f"{id} has no criterion: declare it at the top of the page with study.claims(...), "
            "or pass paper= and criterion=."
        )
    exact = exact or bool(declared.get("exact"))
    answers = _answers(holds)
    if exact and answers is not None and not all(answers):
        raise ClaimError(f"{id} is exact and does not hold: {criterion}; measured {measured}.")
    profile = run.current.profile or "by hand"
    value = {
        "id": id,
        "paper": paper,
        "criterion": criterion,
        "measured": _plain(measured),
        "interval": None if interval is None else [float(v) for v in interval],
        "paper_value": _plain(paper_value if paper_value is not None else declared.get("paper_value")),
        "verdict": "UNTESTED" if profile == "smoke" else _verdict(answers),
        "exact": exact,
        "profile": profile,
        "seeds": [int(seed) for seed in seeds],
        "data": {name: used["source"] for name, used in run.current.data.items()},
        "fingerprint": run.current.fingerprint,
        "versions": run.versions(),
        "seconds": run.current.seconds,
        "from_store": dict(run.current.from_store),  # up to here: results read from it, and computed
        "page": run.current.page,
    }
    write_json(style.output_directory() / "claims" / f"{id}.json", value)
    run.current.measured[id] = value
    style.display_html(card(value), f"{id}: {value['verdict']}", {"claim": id})


def card(value: dict[str, Any]) -> str:
    """The verdict card of a claim, as HTML."""
    verdict = value["verdict"]
    rows = [("The paper", html.escape(value["paper"])), ("Criterion", html.escape(value["criterion"]))]
    rows.append(("Measured", html.escape(shown(value["measured"]))))
    if value["interval"] is not None:
        low, high = value["interval"]
        rows.append(("95% interval", f"{number(low)} to {number(high)}"))
    if value["paper_value"] is not None:
        rows.append(("Paper's value", html.escape(shown(value["paper_value"]))))
    runs = f"{len(value['seeds'])} seeds, " if len(value["seeds"]) > 1 else ""
    body = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows)
    return (
        f'<div class="ra-card {css_class(verdict)}" id="{html.escape(value["id"])}-{value["profile"]}">'
        f'<p><span class="ra-verdict">{verdict}</span> <code>{html.escape(value["id"])}</code> '
        f'<span class="ra-note">{runs}profile {value["profile"]}</span></p><dl>{body}</dl></div>'
    )


def read(directory: Path) -> list[dict[str, Any]]:
    """All claims kept in ``directory``, by id. A file that is not a claim is an error that names it."""
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            complete = isinstance(value, dict) and value.keys() >= FIELDS
        except ValueError:
            complete = False
        if not complete or value["verdict"] not in VERDICTS:
            raise ValueError(f"{path} is not a claim. Delete it and run its page again.")
        found.append(value)
    return found


def _check_id(id: str) -> None:
    if not _ID.fullmatch(id):
        raise ValueError(f"a claim's id should look like imani.fig7 or imani.fig6.depth, not {id!r}.")


def _answers(holds: bool | Sequence[bool] | None) -> list[bool] | None:
    if holds is None:
        return None
    answers = [bool(v) for v in np.atleast_1d(np.asarray(holds))]
    if not answers:
        raise ValueError("holds should have at least one answer; use None for a claim that was not tested.")
    return answers


def _verdict(answers: list[bool] | None) -> str:
    if answers is None:
        return "UNTESTED"
    return "REPRODUCED" if all(answers) else "PARTLY" if any(answers) else "NOT REPRODUCED"


def _plain(value: Any) -> Any:
    """``value`` as JSON can hold it: numbers, strings, lists, dicts; tensors and arrays become lists."""
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    number = float(value)
    return number if math.isfinite(number) else str(number)


def number(value: Any) -> str:
    """A float with four significant digits, 1000 and not 1e+03; anything else as it is.

    >>> number(1234.5678), number(1.5e-12), number(1e4), number(7)
    ('1235', '1.5e-12', '10000', '7')
    """
    if not isinstance(value, float):
        return str(value)
    return f"{float(f'{value:.4g}'):.10g}"


def shown(value: Any) -> str:
    """A measured value in words: numbers shortened, dicts and lists on one line.

    >>> shown({"layers": [0.51234, 2], "input": "mnist"})
    'layers: 0.5123, 2; input: mnist'
    """
    if isinstance(value, dict):
        return "; ".join(f"{k}: {shown(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(shown(v) for v in value)
    return number(value)


def css_class(verdict: str) -> str:
    """The style sheet's name for a verdict: it sets the colour."""
    return "ra-" + verdict.lower().replace(" ", "-")
