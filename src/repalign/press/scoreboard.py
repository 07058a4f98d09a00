"""The scoreboard: verdicts counted, every claim with its evidence, and what the runs cost."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from repalign.press import tables
from repalign.press.cards import counted_runs, css_class
from repalign.press.tables import number, shown

# What is counted apart: evidence on the paper's own data and kind of network, on a stand-in, our questions.
KINDS = (
    *("exact", "shown", "reproduced", "reproduced on a stand-in", "confirmed of our own", "partly", "open"),
    *("not reproduced", "not tried", "untested"),
)
Evidence = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]  # page, claim, record or live


def kind(found: Mapping[str, Any]) -> str:
    """Under which of KINDS a claim is counted."""
    verdict = str(found["verdict"]).lower()
    if verdict != "reproduced":
        return verdict
    if found["kind"] == "ours":
        return "confirmed of our own"
    return "reproduced on a stand-in" if found["stand_in"] else verdict


def counts(found: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many claims there are of each kind, in the order of KINDS."""
    counted = Counter(kind(one) for one in found)
    return {name: counted[name] for name in KINDS}


def summary(found: Iterable[Mapping[str, Any]]) -> str:
    """Verdicts counted in a few words, for a heading."""
    return ", ".join(f"{n} {name}" for name, n in counts(found).items() if n) or "no claim measured yet"


def best(evidence: Evidence) -> list[Mapping[str, Any]]:
    """For each claim the record's verdict where there is one, else this run's."""
    return [one.get("record") or one["live"] for found in evidence.values() for one in found.values()]


def in_words(found: Mapping[str, Any], most: int = 3) -> str:
    """What was measured, in a line: what we found, else effects, those without a yes first."""
    if found["found"]:
        return str(found["found"])
    effects = found["effects"]
    if not effects:
        measured = found.get("measured")
        return shown(measured) if measured not in (None, "", {}, []) else ""
    if all(effect["kind"] == "exact" for effect in effects):
        largest = max(float(effect["mean"]) for effect in effects)
        return f"{len(effects)} statements hold to rounding, the largest deviation is {number(largest, 2)}"
    chosen = sorted(effects, key=lambda e: (("no", "open", "yes").index(e["answer"]), e["paper"] is None))
    parts = [_one_effect(effect) for effect in chosen[:most]]
    yes = sum(effect["answer"] == "yes" for effect in effects)
    rest = [f"{yes} of {len(effects)} effects yes"] if len(effects) > len(parts) else []
    return "; ".join([*rest, *parts])


def _one_effect(effect: Mapping[str, Any]) -> str:
    if effect["kind"] == "exact":
        return f"{effect['name']}: {number(effect['mean'], 2)}"
    ends = effect["interval"]
    interval = f" {tables.interval(*ends)}" if ends else ""
    paper = f" (paper {number(effect['paper'], 3)})" if effect["paper"] is not None else ""
    text = f"{effect['name']}: {number(effect['mean'], 3)}{interval}{paper}"
    if effect["answer"] == "yes":
        return text
    # A bound of zero is the usual one, and the interval shows its sign.
    bound = f", claimed {effect['side']} {shown(effect['bound'])}" if any(effect["bound"]) else ""
    return f"{text}{bound}, {effect['answer']}"


def page(evidence: Evidence, costs: list[tuple[str, ...]], beside: str) -> str:
    """The body of the scoreboard, for the book's page of that name.

    ``beside`` names the runs that stand beside the records; it is empty where there are records alone.
    """
    rows = []
    heads = ["claim, and what the paper says", "verdict", "measured", *filter(None, [beside])]
    for name, found in evidence.items():
        link = f'<a href="../notebooks/{html.escape(name)}.html">{html.escape(name)}</a>'
        rows.append(f'<tr class="ra-page"><th colspan="{len(heads)}">{link}</th></tr>')
        rows += [_row(name, id, one, bool(beside)) for id, one in found.items()]
    head = _cells("th", map(html.escape, heads))
    cost_rows = "".join(f"<tr>{_cells('td', map(html.escape, row))}</tr>" for row in costs)
    cost_head = _cells("th", ("page", "", "profile", "date", "computing", "machine", "commit", "recomputed"))
    judged = "by the record where there is one" + (f", else by {html.escape(beside)}" if beside else "")
    return (
        f"**{summary(best(evidence))}**, {judged}.\n\n"
        f"{_counted(evidence)}\n\n## Claim by claim\n\n"
        f'<table class="ra-table ra-scoreboard"><tr>{head}</tr>{"".join(rows)}</table>\n\n'
        "## What the runs cost\n\nRecords of the first edition name the commit and the day that drew them; "
        "the cells behind them may be older. *Computing* is the time of the cells on one core each; of a "
        "record of the first edition, the time of its last drawing.\n\n"
        f'<table class="ra-table ra-costs"><tr>{cost_head}</tr>{cost_rows}</table>\n'
    )


def _cells(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{text}</{tag}>" for text in texts)


def _counted(evidence: Evidence) -> str:
    """How many claims of each kind there are, paper by paper."""
    papers: dict[str, list[Mapping[str, Any]]] = {}
    for name, found in evidence.items():
        papers.setdefault(name.split("/")[0], []).extend(best({name: found}))
    table = {paper: counts(found) for paper, found in papers.items()}
    used = [name for name in KINDS if any(row[name] for row in table.values())]
    rows = "".join(
        f"<tr><th>{paper}</th>{_cells('td', (str(row[name] or '') for name in used))}</tr>"
        for paper, row in table.items()
    )
    return f'<table class="ra-table ra-counts"><tr>{_cells("th", ("", *used))}</tr>{rows}</table>'


def _row(page: str, id: str, one: Mapping[str, Mapping[str, Any]], beside: bool) -> str:
    """A line: the record's evidence for a claim, else this run's, and this run's verdict beside it."""
    found = one.get("record") or one["live"]
    here = one.get("live") if "record" in one else None
    breaking = html.escape(id).replace(".", ".<wbr>")  # where a long id may break
    link = f'<a href="../notebooks/{page}.html#claim-{html.escape(id)}"><code>{breaking}</code></a>'
    notes = [*counted_runs(found), found["profile"]]
    if found["stand_in"]:
        notes.insert(0, f"stand-in: {found['stand_in']}")
    if found["verified"]:
        notes.append(f"recomputed {found['verified'].partition(',')[0]}")
    verdict = f'{badge(found)}<br><small class="ra-note">{html.escape("; ".join(notes))}</small>'
    says = f"{link}<br>{html.escape(found['says'])}"
    measured = f"<small>{html.escape(in_words(found))}</small>"
    cells = [says, verdict, measured]
    if beside:
        cells.append(badge(here) if here else "")
    return f"<tr>{_cells('td', cells)}</tr>"


def badge(found: Mapping[str, Any]) -> str:
    """A verdict in its color."""
    verdict = found["verdict"]
    return f'<span class="{css_class(verdict)}"><span class="ra-verdict">{html.escape(verdict)}</span></span>'
