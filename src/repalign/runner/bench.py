"""Benchmarks: run the scripts in ``benchmarks/``, keep their numbers as a record, show them in the book.

A script takes a path and writes there ``{"machine": {...}, "rows": [...], "curves": [...]}``. A row says
what was done (``work``), against whom (``against``), the seconds of both (``ours``, ``theirs``; null if
the other did not run, and ``why``) and the ``aim``, a ratio; ``memory`` is the same for peak memory, and
``times_bound`` is ours as a multiple of the time that its matrix products alone would take. A curve has
``work``, ``against`` (the size that varies), ``sizes``, ``seconds`` and the fitted ``exponent``.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from repalign._files import write_json
from repalign.runner.execute import commit
from repalign.runner.pages import UserError
from repalign.study.run import machine, versions


def run(root: Path, names: list[str]) -> Path:
    """Run the benchmarks whose file names contain one of ``names`` (all when empty); returns the record.

    A new run replaces only what it measured; the rest of the day's record stays.
    """
    scripts = sorted((root / "benchmarks").glob("bench_*.py"))
    chosen = [s for s in scripts if not names or any(name in s.stem for name in names)]
    if not chosen:
        raise UserError(
            f"no benchmark matches {', '.join(names)}. There are: {', '.join(s.stem for s in scripts)}."
        )
    place = root / "records" / "bench" / f"{time.strftime('%Y-%m-%d')}.json"
    kept = json.loads(place.read_text(encoding="utf-8"))["benchmarks"] if place.is_file() else {}
    for script in chosen:
        print(f"== {script.stem}", flush=True)
        with tempfile.TemporaryDirectory() as directory:
            target = Path(directory) / "report.json"
            done = subprocess.run([sys.executable, str(script), str(target)], cwd=root, check=False)
            if done.returncode or not target.is_file():
                raise UserError(f"{script.name} failed; the numbers of the others are kept in {place}.")
            kept[script.stem] = json.loads(target.read_text(encoding="utf-8"))
        about = {"machine": machine(), "versions": versions(), "commit": commit(root)}
        write_json(place, {"date": place.stem, **about, "benchmarks": kept})
    return place


def newest(root: Path) -> dict[str, Any] | None:
    """The newest record of the benchmarks."""
    found = sorted((root / "records" / "bench").glob("*.json"))
    return json.loads(found[-1].read_text(encoding="utf-8")) if found else None


def page(root: Path) -> str:
    """The book's tables of ratios, and the curves of cost, from the newest record."""
    record = newest(root)
    if record is None:
        return "No benchmark has been recorded yet: `repalign bench`.\n"
    text = f"Measured on {record['date']}: {record['machine']}, at commit {record['commit']}.\n"
    columns = ("work", "against", "ours", "theirs", "ratio", "aim", "× bound")
    head = "<tr>" + "".join(f"<th>{column}</th>" for column in columns) + "</tr>"
    for name, report in record["benchmarks"].items():
        if not report["rows"]:
            continue
        rows = "".join(map(_row, report["rows"]))
        text += f"\n## {name.removeprefix('bench_').replace('_', ' ').capitalize()}\n\n"
        text += f'<table class="ra-table">{head}{rows}</table>\n'
    return text + _curves([c for r in record["benchmarks"].values() for c in r.get("curves", [])])


def _row(row: dict[str, Any]) -> str:
    theirs, memory, bound = row.get("theirs"), row.get("memory"), row.get("times_bound")
    ratio = f"{theirs / row['ours']:.3g}×" if theirs else row.get("why", "not installed")
    aim = f"{row['aim']:g}×" if row.get("aim") else "–"
    if memory:
        ratio += f", memory 1/{memory['theirs'] / memory['ours']:.0f}"
        aim += f", memory 1/{memory['aim']:g}" if memory.get("aim") else ""
    cells = [row["work"], row["against"], _seconds(row["ours"]), _seconds(theirs), ratio, aim]
    cells.append(f"{bound:.2g}" if bound else "–")
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _curves(curves: list[dict[str, Any]]) -> str:
    """Cost against size on logarithmic axes, a panel for each size that varies."""
    if not curves:
        return ""
    import io

    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    from repalign.study import style

    style.use()
    kinds = sorted({curve["against"] for curve in curves})
    columns = min(2, len(kinds))
    rows = math.ceil(len(kinds) / columns)
    fig, axes = plt.subplots(rows, columns, figsize=(7.6, 2.9 * rows), squeeze=False)
    for ax, kind in zip(axes.flat, kinds, strict=False):
        for curve in (c for c in curves if c["against"] == kind):
            label = f"{curve['work']}: {curve['exponent']:.2f}"
            ax.loglog(curve["sizes"], curve["seconds"], "o-", ms=4, label=label)
        ax.set(xlabel=kind, ylabel="seconds")
        ax.legend(fontsize="x-small", title="exponent", title_fontsize="x-small")
    for ax in axes.flat[len(kinds) :]:
        ax.axis("off")
    buffer = io.StringIO()
    fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(fig)
    caption = "Cost against size on logarithmic axes, with the slope of the larger half."
    svg = style.framed(style.tidy_svg(buffer.getvalue(), caption), "scaling", caption)
    return f"\n## How the cost grows\n\n{svg}\n"
