"""The verdict card of a claim, with its effects drawn: a dot, its interval, the bound (a forest plot)."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from repalign.study.tables import number, shown

# The drawing of one effect, in its own units: wide enough to read on a phone.
WIDTH, HEIGHT, MARGIN = 240.0, 22.0, 10.0
# More effects than this are folded away under their count.
FOLD = 8


def card(value: Mapping[str, Any]) -> str:
    """A claim as HTML: what the paper says, the criterion, what was measured, and the verdict."""
    rows = [("The paper", html.escape(value["paper"])), ("Criterion", html.escape(value["criterion"]))]
    if value.get("revised"):
        rows.append(
            ("Revised", html.escape("; ".join(f"{r['date']}: {r['reason']}" for r in value["revised"])))
        )
    if value["stand_in"]:
        rows.append(("Stand-in", html.escape(value["stand_in"])))
    if value["measured"] not in (None, {}, []):
        rows.append(("Measured", html.escape(shown(value["measured"]))))
    if value["paper_value"] is not None:
        rows.append(("Paper's value", html.escape(shown(value["paper_value"]))))
    if value["size"]:
        rows.append(("Size", html.escape(_size(value["size"]))))
    runs = "".join(f"{words}, " for words in counted_runs(value))
    body = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows)
    verdict = value["verdict"]
    stand_in = ' <span class="ra-note">on a stand-in</span>' if value["stand_in"] else ""
    return (
        f'<div class="ra-card {css_class(verdict)}">'
        f'<p><span class="ra-verdict">{verdict}</span>{stand_in} <code>{html.escape(value["id"])}</code> '
        f'<span class="ra-note">{runs}profile {value["profile"]}</span></p>'
        f"{forest(value['effects'])}<dl>{body}</dl></div>"
    )


def counted_runs(value: Mapping[str, Any]) -> list[str]:
    """How many runs a claim rests on, in words; the values of an effect, where these are not one a run."""
    seeds = len(value["seeds"])
    if seeds < 2:
        return []
    numbers = {
        int(effect["values"][1]) if effect["kind"] == "share" else len(effect["values"])
        for effect in value["effects"]
        if effect["kind"] != "bootstrap"  # one number for all
    }
    if numbers <= {seeds}:
        return [f"{seeds} runs"]
    low, high = min(numbers), max(numbers)
    return [f"{low} values of an effect" if low == high else f"{low} to {high} values of an effect"]


def forest(effects: Sequence[Mapping[str, Any]]) -> str:
    """Effects under each other, those with one kind of bound on one scale; a long list is folded."""
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
    ends = f" <small>[{number(interval[0], 3)}, {number(interval[1], 3)}]</small>" if interval else ""
    paper = f"<br><small>paper {number(effect['paper'])}</small>" if effect["paper"] is not None else ""
    cells = [_drawing(effect, scale), f"{number(effect['mean'], 3)}{ends}{paper}", effect["answer"]]
    name = f"<th>{html.escape(effect['name'])}</th>" + "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr class="ra-answer-{effect["answer"]}">{name}</tr>'


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
    return "ra-" + verdict.lower().replace(" ", "-")
