"""Benchmarks: run the scripts in ``benchmarks/``, keep their numbers as a record, show them in the book.

A script takes a path and writes there ``{"machine": {...}, "rows": [...], "curves": [...]}``. A row says
what was done (``work``), against whom (``against``), the seconds of both (``ours``, ``theirs``; null if
the other did not run, and ``why``) and the ``aim``, a ratio; ``memory`` is the same for peak memory, and
``times_bound`` is ours as a multiple of the time that its matrix products alone would take. A curve has
``work``, ``against`` (the size that varies), ``sizes``, ``seconds`` and the fitted ``exponent``.
"""

from __future__ import annotations

import html
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from repalign._files import write_json
from repalign.press import style
from repalign.press.project import UserError
from repalign.press.provenance import ask, machine, versions


def run(root: Path, names: list[str]) -> Path:
    """Run the benchmarks whose file names contain one of ``names`` (all when empty); returns the record.

    A new run replaces only what it measured; the rest of the day's record stays. Ratios that have fallen by
    more than a tenth since the record before are named. Processes are plain ones, as a user's own would be:
    what the project sets for its kernels is a row of its own.
    """
    scripts = sorted((root / "benchmarks").glob("bench_*.py"))
    chosen = [s for s in scripts if not names or any(name in s.stem for name in names)]
    if not chosen:
        raise UserError(
            f"no benchmark matches {', '.join(names)}. There are: {', '.join(s.stem for s in scripts)}."
        )
    before = newest(root)
    place = root / "records" / "bench" / f"{time.strftime('%Y-%m-%d', time.gmtime())}.json"
    kept = _read(place)["benchmarks"] if place.is_file() else {}
    for script in chosen:
        print(f"== {script.stem}", flush=True)
        with tempfile.TemporaryDirectory() as directory:
            target = Path(directory) / "report.json"
            command = [sys.executable, str(script), str(target)]
            done = subprocess.run(command, cwd=root, check=False)
            if done.returncode or not target.is_file():
                raise UserError(f"{script.name} failed; the numbers of the others are kept in {place}.")
            report = json.loads(target.read_text(encoding="utf-8"))
        # A day's record may hold parts measured at different commits: each says its own.
        kept[script.stem] = {**report, "commit": _commit(root)}
        about = {"machine": machine(), "versions": versions()}
        write_json(place, {"date": place.stem, **about, "benchmarks": kept})
        for line in fallen(before, script.stem, report["rows"]):
            print(line, flush=True)
    return place


def _commit(root: Path) -> str:
    origin = ask(root)
    return str(origin["commit"]) + ("" if origin["clean"] else "+")


def fallen(before: dict[str, Any] | None, name: str, rows: list[dict[str, Any]]) -> list[str]:
    """What to say of ratios that were higher, by more than a tenth, in the record ``before``."""
    then = before["benchmarks"].get(name, {}).get("rows", []) if before else []
    ratios = {(row["work"], row["against"]): row["theirs"] / row["ours"] for row in then if row.get("theirs")}
    said = []
    for row in rows:
        was = ratios.get((row["work"], row["against"]))
        now = row["theirs"] / row["ours"] if row.get("theirs") else 0.0
        if was is not None and now < 0.9 * was:
            said.append(f"fell: {row['work']}, against {row['against']}: {_short(was)}× to {_short(now)}×")
    return said


def _read(place: Path) -> dict[str, Any]:
    """A day's record, or an error that names the file."""
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
        if all(isinstance(report["rows"], list) for report in found["benchmarks"].values()):
            return dict(found)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise UserError(
        f"the benchmarks' record {place.name} cannot be read: take it back from git, or delete it and run "
        "repalign bench."
    )


def newest(root: Path) -> dict[str, Any] | None:
    """The newest record of the benchmarks, with older reports of those that it does not hold."""
    found = sorted((root / "records" / "bench").glob("*.json"))
    records = [_read(path) for path in found]
    reports = {name: report for record in records for name, report in record["benchmarks"].items()}
    return {**records[-1], "benchmarks": reports} if records else None


def page(root: Path) -> str:
    """The newest record for the book: the ratios as a figure, how the cost grows, then tables."""
    record = newest(root)
    if record is None:
        return "No benchmark has been recorded yet: `repalign bench`.\n"
    reports = dict(sorted(record["benchmarks"].items()))
    text = f"Last measured on {_said(record['date'])}: {_said(record['machine'])}.\n\n"
    text += _ratios([row for report in reports.values() for row in report["rows"]])
    text += _curves([curve for report in reports.values() for curve in report.get("curves", [])])
    for name, report in reports.items():
        if report["rows"]:
            title = _said(name.removeprefix("bench_").replace("_", " ").capitalize())
            text += f"\n## {title}\n\nAt commit {_said(report['commit'])}.\n\n{_table(report['rows'])}\n"
    return text


def _said(value: Any) -> str:
    """A text of a record as the page may hold it."""
    return html.escape(str(value))


def _table(rows: list[dict[str, Any]]) -> str:
    """Rows under the work they have in common."""
    columns = ("against", "ours", "theirs", "ratio", "aim", "× bound")
    text = "<tr>" + "".join(f"<th>{column}</th>" for column in columns) + "</tr>"
    for work, group in itertools.groupby(rows, key=lambda row: row["work"]):
        text += f'<tr><th colspan="{len(columns)}">{_said(work)}</th></tr>' + "".join(map(_row, group))
    return f'<table class="ra-table ra-costs">{text}</table>'


def _row(row: dict[str, Any]) -> str:
    theirs, memory, bound = row.get("theirs"), row.get("memory"), row.get("times_bound")
    ratio = f"{_short(theirs / row['ours'])}×" if theirs else _said(row.get("why", "not installed"))
    aim = f"{row['aim']:g}×" if row.get("aim") else "–"
    if memory:
        share = memory["theirs"] / memory["ours"]
        ratio += f", memory 1/{share:.0f}" if share >= 1.5 else f", memory {1 / share:.1f}×"
        aim += f", memory 1/{memory['aim']:g}" if memory.get("aim") else ""
    cells = [_said(row["against"]), _seconds(row["ours"]), _seconds(theirs), ratio, aim]
    cells.append(f"{bound:.2g}" if bound else "–")
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{_short(value)} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    style.use()
    return plt


def _ratios(rows: list[dict[str, Any]]) -> str:
    """Every ratio on a logarithmic axis, a tick at its aim; works one below the other."""
    from matplotlib.transforms import blended_transform_factory

    rows = [row for row in rows if row.get("theirs")]
    if not rows:
        return ""
    labels: list[tuple[str, dict[str, Any] | None]] = []
    for work, group in itertools.groupby(rows, key=lambda row: row["work"]):
        labels += [(work, None), *((row["against"], row) for row in group)]
    fig, ax = _pyplot().subplots(figsize=(7.6, 0.21 * len(labels) + 0.7))
    for y, (label, row) in enumerate(labels):
        if row is None:
            heading = ax.text(0.01, y, label.replace("`", ""), size=8, weight="bold", va="center")
            # From the left edge of the figure, so that long ones have room.
            heading.set_transform(blended_transform_factory(fig.transFigure, ax.transData))
            heading.set_in_layout(False)
            continue
        ratio, aim = row["theirs"] / row["ours"], row.get("aim")
        ax.plot([1, ratio], [y, y], color=style.PALETTE[0], lw=1)
        ax.plot(ratio, y, "o", color=style.PALETTE[0], ms=5)
        if aim:
            ax.plot(aim, y, "|", color=style.PALETTE[1], ms=9, mew=2)
    ax.set(xscale="log", xlabel="times faster", xlim=(0.9, None), ylim=(len(labels) - 0.4, -0.8))
    ax.set_yticks(range(len(labels)), [label if row else "" for label, row in labels], size=8)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    caption = (
        "How many times faster than each alternative, on a logarithmic axis. Blue dots: measured; orange "
        "ticks: what we set out to reach."
    )
    return style.framed(style.drawn(fig, "ratios", caption), "ratios", caption) + "\n"


def _curves(curves: list[dict[str, Any]]) -> str:
    """Cost against size on logarithmic axes, a panel for each size that varies."""
    if not curves:
        return ""
    kinds = sorted({curve["against"] for curve in curves})
    rows = math.ceil(len(kinds) / 2)
    fig, axes = _pyplot().subplots(rows, 2, figsize=(7.6, 3.1 * rows), squeeze=False)
    for ax, kind in zip(axes.flat, kinds, strict=False):
        shown = [curve for curve in curves if curve["against"] == kind]
        for curve in shown:
            label = f"{curve['work']}: {curve['exponent']:.2f}"
            ax.loglog(curve["sizes"], curve["seconds"], "o-", ms=4, label=label)
        low, high = ax.get_ylim()
        # Room above the curves for their names.
        ax.set_ylim(low, high * (high / low) ** (0.11 * (len(shown) + 1)))
        ax.set(xlabel=kind, ylabel="seconds")
        if high > 10 * low:  # else ticks of whole powers alone may be none
            ax.minorticks_off()
        ax.legend(loc="upper left", fontsize="x-small")
    for ax in axes.flat[len(kinds) :]:
        ax.axis("off")
    caption = (
        "Seconds against size (n: samples, d: features), both axes logarithmic. The number behind a name is "
        "the slope of its upper half: 1 is linear, 2 quadratic."
    )
    figure = style.framed(style.drawn(fig, "scaling", caption), "scaling", caption)
    return f"\n## How the cost grows\n\n{figure}\n"
