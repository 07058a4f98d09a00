"""The card of a claim: the statement, its verdict, what we found, the effects drawn, the rest folded."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from repalign.press import tables
from repalign.press.tables import number, shown

# The drawing of one effect, in its own units: wide enough to read on a phone.
WIDTH, HEIGHT, MARGIN = 240.0, 22.0, 10.0
# More effects than this are folded away under their count.
FOLD = 8
# What a verdict without a claim that could be tested says.
_WORDS = {
    "NOT TRIED": "Nothing that runs here could stand in for the paper's experiment.",
    "UNTESTED": "This run was too small to say.",
}


def card(found: Mapping[str, Any]) -> str:
    """What a table says of a claim, as HTML; every text in it is escaped."""
    verdict = found["verdict"]
    where = f' <span class="ra-note">({html.escape(found["where"])})</span>' if found.get("where") else ""
    ours = '<span class="ra-note">Our own question. </span>' if found["kind"] == "ours" else ""
    notes = [*([f"on a stand-in: {found['stand_in']}"] if found["stand_in"] else []), *counted_runs(found)]
    parts = [
        f'<p class="ra-says">{ours}{html.escape(found["says"])}{where}</p>',
        f'<p><span class="ra-verdict">{html.escape(verdict)}</span> '
        f'<span class="ra-note">{html.escape("; ".join(notes))}</span></p>',
    ]
    said = found["found"] or _WORDS.get(verdict, "")
    if said:
        parts.append(f'<p class="ra-found">{html.escape(said)}</p>')
    parts += [_unmet(found), forest(found["effects"]), _folded(found)]
    return f'<div class="ra-card {css_class(verdict)}">{"".join(parts)}</div>'


def answer(found: Mapping[str, Any]) -> str:
    """The verdict on a claim and what was found, for the first screen of a page."""
    verdict = str(found["verdict"])
    said = found["found"] or _WORDS.get(verdict) or "What was found is still to be written."
    stand_in = found["stand_in"]
    note = f'<span class="ra-note">On a stand-in: {html.escape(stand_in)}.</span>' if stand_in else ""
    badge = f'<span class="ra-verdict">{html.escape(verdict)}</span>'
    body = f"<p>{badge} {html.escape(said)} {note}</p>"
    return f'<div class="ra-answer {css_class(verdict)}">{body}</div>'


def _unmet(found: Mapping[str, Any]) -> str:
    """The conditions that do not hold: why nothing can be said."""
    unmet = [one for one in found["conditions"] if one["answer"] != "yes"]
    if not unmet:
        return ""
    named = "; ".join(f"{one['name']}: {_amount(one)}, needed {_needed(one)}" for one in unmet)
    return f'<p class="ra-unmet">Not testable here. {html.escape(named)}.</p>'


def _folded(found: Mapping[str, Any]) -> str:
    """Criterion, conditions, sizes and provenance, for those who want to know how."""
    rows: list[tuple[str, str]] = [("Criterion", found["criterion"])]
    for entry in found["revised"]:
        rows.append((f"Revised {entry['date']}", f"{entry['reason']}; it was: {entry['was']}"))
    rows.append(("Fixed on", str(found["fixed"])))
    for one in found["conditions"]:
        rows.append(("Condition", f"{one['name']}: {_amount(one)}, needed {_needed(one)}, {one['answer']}"))
    if found.get("measured") not in (None, "", {}, []):
        rows.append(("Measured", shown(found["measured"])))
    if found.get("paper_value") is not None:
        rows.append(("Paper's value", shown(found["paper_value"])))
    if found["settings"]:
        rows.append(("Size", _size(found["settings"])))
    rows += [("Made by", found["made"])] if found.get("made") else []
    rows += [("Recomputed", found["verified"])] if found.get("verified") else []
    for line in found.get("history", []):
        rows.append(("Earlier", line))
    rows.append(("Claim", found["id"]))
    body = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in rows)
    summary = "<summary>Criterion and how it was measured</summary>"
    return f'<details class="ra-fold">{summary}<dl>{body}</dl></details>'


def _amount(effect: Mapping[str, Any]) -> str:
    ends = effect["interval"]
    interval = f" {tables.interval(*ends)}" if ends else ""
    unit = f" {effect['unit']}" if effect.get("unit") else ""
    return f"{number(effect['mean'], 3)}{interval}{unit}"


def _needed(effect: Mapping[str, Any]) -> str:
    return f"{effect['side']} {shown(effect['bound'])}"


def counted_runs(found: Mapping[str, Any]) -> list[str]:
    """How many values an effect rests on, in words."""
    numbers = {
        int(effect["values"][1]) if effect["kind"] == "share" else len(effect["values"])
        for effect in found["effects"]
        if effect["kind"] not in ("bootstrap", "exact")  # one number for all
    }
    if not numbers or max(numbers) < 2:
        return []
    low, high = min(numbers), max(numbers)
    if low == high:
        return [f"{low} runs" if found.get("runs") in (None, low) else f"{low} values of an effect"]
    return [f"{low} to {high} values of an effect"]


def forest(effects: Sequence[Mapping[str, Any]]) -> str:
    """Effects under each other, those with one kind of bound on one scale; a long list is folded."""
    exact = [effect for effect in effects if effect["kind"] == "exact"]
    if exact:
        return _deviations(exact)
    if not effects:
        return ""
    scales: dict[Any, tuple[float, float]] = {}
    for effect in effects:
        low, high = _reach(effect)
        was = scales.get(_scale(effect), (low, high))
        scales[_scale(effect)] = min(was[0], low), max(was[1], high)
    rows = "".join(_row(effect, scales[_scale(effect)]) for effect in effects)
    head = "<tr><th>effect</th><th>95% interval and bound</th><th>mean</th><th></th></tr>"
    table = f'<table class="ra-effects">{head}{rows}</table>'
    if len(effects) <= FOLD:
        return table
    answers = [effect["answer"] for effect in effects]
    counted = ", ".join(f"{answers.count(a)} {a}" for a in ("yes", "open", "no") if a in answers)
    return f"<details><summary>{len(effects)} effects: {counted}</summary>{table}</details>"


def _deviations(effects: Sequence[Mapping[str, Any]]) -> str:
    """Exact statements: the largest deviation of each, and what was allowed."""
    rows = "".join(
        f"<tr><th>{html.escape(effect['name'])}</th><td>{number(float(effect['mean']), 2)}</td>"
        f"<td>{number(float(effect['bound'][0]), 2)}</td></tr>"
        for effect in effects
    )
    head = "<tr><th>statement</th><th>largest deviation</th><th>allowed</th></tr>"
    return f'<table class="ra-deviations">{head}{rows}</table>'


def _scale(effect: Mapping[str, Any]) -> tuple[Any, ...]:
    return effect["kind"], *effect["bound"]


def _reach(effect: Mapping[str, Any]) -> tuple[float, float]:
    if effect["kind"] == "share":
        return 0.0, 1.0
    seen = [effect["mean"], *effect["bound"], *effect["values"], *(effect["interval"] or [])]
    if effect["paper"] is not None:
        seen.append(effect["paper"])
    return min(seen), max(seen)


def _row(effect: Mapping[str, Any], scale: tuple[float, float]) -> str:
    interval = effect["interval"]
    ends = f" <small>{tables.interval(*interval)}</small>" if interval else ""
    paper = f"<br><small>paper {number(effect['paper'])}</small>" if effect["paper"] is not None else ""
    unit = f" {html.escape(effect['unit'])}" if effect.get("unit") else ""
    answer = html.escape(effect["answer"])
    cells = [_drawing(effect, scale), f"{number(effect['mean'], 3)}{unit}{ends}{paper}", answer]
    name = f"<th>{html.escape(effect['name'])}</th>" + "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr class="ra-answer-{answer}">{name}</tr>'


def _drawing(effect: Mapping[str, Any], scale: tuple[float, float]) -> str:
    low, high = scale
    span = high - low or 1.0

    def x(value: float) -> str:
        return f"{MARGIN + (value - low) / span * (WIDTH - 2 * MARGIN):.1f}"

    middle = HEIGHT / 2
    parts = [_claimed(effect, x)]
    parts += [
        f'<line class="ra-bound" x1="{x(b)}" x2="{x(b)}" y1="0" y2="{HEIGHT}"/>' for b in effect["bound"]
    ]
    if effect["kind"] == "runs":
        ticks = "".join(f"M{x(v)} {middle - 3}v6" for v in effect["values"])
        parts.append(f'<path class="ra-runs" d="{ticks}"/>')
    if effect["interval"]:
        a, b = effect["interval"]
        parts.append(f'<line class="ra-interval" x1="{x(a)}" x2="{x(b)}" y1="{middle}" y2="{middle}"/>')
    parts.append(f'<circle class="ra-mean" cx="{x(effect["mean"])}" cy="{middle}" r="4"/>')
    if effect["paper"] is not None:
        at = x(effect["paper"])
        parts.append(f'<path class="ra-paper" d="M{at} {middle - 6}l6 6l-6 6l-6 -6z"/>')
    label = f"{number(effect['mean'])}, claimed {effect['side']} {shown(effect['bound'])}: {effect['answer']}"
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{html.escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _claimed(effect: Mapping[str, Any], x: Any) -> str:
    """The side on which the paper says it lies, shaded."""
    bound = effect["bound"]
    start = "0" if effect["side"] == "below" else x(bound[0])
    end = f"{WIDTH:.1f}" if effect["side"] == "above" else x(bound[-1])
    return (
        f'<rect class="ra-side" x="{start}" width="{float(end) - float(start):.1f}" y="0" height="{HEIGHT}"/>'
    )


def _size(size: Mapping[str, Sequence[Any]]) -> str:
    """This run's settings beside those of the profile ``paper``, where what a paper leaves open is ours."""
    same = [name for name, (here, paper) in size.items() if here == paper]
    differ = [
        f"{name} {shown(h) or 'none'}" + ("" if p is None else f" (profile paper: {shown(p) or 'none'})")
        for name, (h, p) in size.items()
        if h != p
    ]
    return "; ".join([*differ, *([f"as in profile paper: {', '.join(same)}"] if same else [])])


def css_class(verdict: str) -> str:
    """The style sheet's name for a verdict: it sets the color."""
    return "ra-" + re.sub("[^a-z]+", "-", verdict.lower())
