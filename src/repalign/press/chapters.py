"""The opening page of a chapter, ``notebooks/<paper>/index.md``: its verdicts and what is missing.

Question, argument and thread are written there by hand. Everything that a run decides is put in place of
markers: ``<!-- generated from the answers -->``, ``<!-- generated from the verdicts -->`` and
``<!-- generated from the settings -->``.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from repalign.press import scoreboard
from repalign.press.tables import shown

INDEX = "index.md"


def index(root: Path, paper: str) -> Path:
    """Where the opening page of a chapter is, if it has one."""
    return root / "notebooks" / paper / INDEX


def answers(evidence: scoreboard.Evidence, titles: Mapping[str, str], told: Mapping[str, str]) -> str:
    """Of every page its question and what was found on it; ``told`` names the claim that answers a page."""
    rows = []
    for page, id in told.items():
        one = evidence[page].get(id)
        if not one:
            continue
        found = one.get("record") or one["live"]
        said = html.escape(found["found"] or "What was found is still to be written.")
        title = f'<a href="{html.escape(page.partition("/")[2])}.html">{html.escape(titles[page])}</a>'
        rows.append(f"<tr><td>{scoreboard.badge(found)}</td><td>{title}<br>{said}</td></tr>")
    return f'<table class="ra-table ra-chapter">{"".join(rows)}</table>'


def verdicts(evidence: scoreboard.Evidence, titles: Mapping[str, str]) -> str:
    """Every claim of a chapter, page by page: its verdict, what the paper says, and what was found."""
    parts = [f"**{scoreboard.summary(scoreboard.best(evidence))}.**"]
    for page, found in evidence.items():
        topic = page.partition("/")[2]
        rows = "".join(_row(topic, id, one) for id, one in found.items())
        table = f'<table class="ra-table ra-chapter">{rows}</table>' if rows else "Not recorded yet."
        parts.append(f"### [{titles[page]}]({topic})\n\n{table}")
    return "\n\n".join(parts)


def _row(topic: str, id: str, one: Mapping[str, Mapping[str, Any]]) -> str:
    found = one.get("record") or one["live"]
    link = f'<a href="{html.escape(topic)}.html#claim-{html.escape(id)}">{html.escape(found["says"])}</a>'
    measured = f"<br><small>{html.escape(scoreboard.in_words(found))}</small>"
    return f"<tr><td>{scoreboard.badge(found)}</td><td>{link}{measured}</td></tr>"


def settings(
    evidence: scoreboard.Evidence, titles: Mapping[str, str], costs: Mapping[str, str] = MappingProxyType({})
) -> str:
    """What the recorded runs have instead of the paper's sizes, page by page, and what those would cost.

    In the words of the claims, where they have words for it; else the settings that differ.
    """
    rows = []
    for page, found in evidence.items():
        judged = scoreboard.best({page: found})
        words = dict.fromkeys(one["stand_in"] for one in judged if one["stand_in"])
        last = next(iter(judged), None)
        differ = [
            f"{name.replace('_', ' ')} {shown(here)} ({shown(paper)})"
            for name, (here, paper) in (last or {}).get("settings", {}).items()
            if here != paper
        ]
        said = html.escape(". ".join(words) or "; ".join(differ)) or "as in the paper"
        cost = html.escape(costs.get(page, ""))
        rows.append(f"<tr><th>{html.escape(titles[page])}</th><td>{said}</td><td>{cost}</td></tr>")
    head = (
        "<tr><th>page</th><th>here (in the paper, or our choice where it is silent)</th>"
        "<th>the paper's sizes would take</th></tr>"
    )
    return f'<table class="ra-table">{head}{"".join(rows)}</table>'
