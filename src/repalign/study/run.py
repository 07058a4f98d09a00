"""The run of one page of the first edition: its settings, its data, its figures and its stamp."""

from __future__ import annotations

import html
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repalign._files import project_root, write_json, write_text
from repalign.machine import onednn
from repalign.press import claims, provenance, style
from repalign.press.claims import Claim

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from repalign.data import Dataset


@dataclass
class Run:
    """What the claims of a page have in common. There is one run per process: a notebook's kernel."""

    page: str = ""
    profile: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    changed: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    declared: dict[str, Claim] = field(default_factory=dict)
    measured: dict[str, dict[str, Any]] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return round(time.perf_counter() - self.started, 2)

    def size(self, names: Sequence[str] | None = None) -> dict[str, list[Any]]:
        """Settings of this run, each with the paper's: those in ``names``, or all."""
        unknown = sorted(set(names or ()) - set(self.settings))
        if unknown:
            raise ValueError(
                f"no setting {', '.join(unknown)} on this page; there are {', '.join(self.settings)}."
            )
        wanted = self.settings if names is None else names
        return {name: [self.settings[name], self.paper[name]] for name in wanted}


current = Run()


def begin(page: str) -> None:
    """Start the page called ``page`` ("paper/NN_topic"): a fresh run, and the book's plot style."""
    global current
    onednn.prepare()  # in JupyterLab this is the first that a page does
    told = os.environ.get("REPALIGN_BOOK")
    root = Path(told) if told else project_root(Path.cwd())
    current = Run(page=page, declared=claims.of_page(root, page) if root else {})
    style.use()
    style.display_html(f"<style>{style.stylesheet()}</style>", "", {"style": True})


def output_directory() -> Path:
    """Where this run's claims and figures go: what the runner says, else ``build/by-hand`` of the project."""
    said = os.environ.get("REPALIGN_OUT")
    return Path(said) if said else (project_root(Path.cwd()) or Path.cwd()) / "build" / "by-hand"


def show(figure: Figure, id: str, caption: str, *, table: pd.DataFrame | None = None) -> None:
    """Show ``figure`` with its caption, and keep it as ``figures/<id>.svg`` of this run.

    ``table`` is what was drawn, a row for each value: readers can download it as ``figures/<id>.csv``.
    """
    svg = style.drawn(figure, id, caption)
    figures = output_directory() / "figures"
    write_text(figures / f"{id}.svg", svg)
    if table is not None:
        write_text(figures / f"{id}.csv", style.csv(table))
    markup = style.framed(svg, id, caption)
    style.display_html(markup, f"{id}: {caption}", {"figure": id, "caption": caption})


def note(*values: Any) -> None:
    """Note the data sets among ``values``, also inside of tuples, lists and dicts: the page rests on them."""
    loading = sys.modules.get("repalign.data.loading")
    for value in values:
        if isinstance(value, (tuple, list)):
            note(*value)
        elif isinstance(value, dict):
            note(*value.values())
        elif loading is not None and isinstance(value, loading.Dataset):
            _note(value, current.data)


def described(datasets: Iterable[Dataset]) -> dict[str, dict[str, Any]]:
    """Some data sets as the page notes them, for a claim that rests on these alone."""
    found: dict[str, dict[str, Any]] = {}
    for dataset in datasets:
        _note(dataset, found)
    return found


def _note(dataset: Dataset, into: dict[str, dict[str, Any]]) -> None:
    name = f"{dataset.name}/{dataset.split}"
    kept = into.setdefault(name, {"source": dataset.source, "samples": []})
    if dataset.fingerprint not in kept["samples"]:
        kept["samples"].append(dataset.fingerprint)
        if dataset.source not in kept["source"]:
            kept["source"] += f" and {dataset.source}"


def uses(dataset: Dataset) -> None:
    """Note that this page rests on ``dataset``, and show what it is and where it came from."""
    note(dataset)
    shape = " × ".join(str(size) for size in dataset.x.shape)
    names = html.escape(", ".join(dataset.classes)) if dataset.classes else "real-valued"
    style.display_html(
        f'<p class="ra-data"><b>{html.escape(dataset.name)}</b> ({dataset.split}): {shape}; '
        f"labels: {names}. <br>Source: {html.escape(dataset.source)}.</p>",
        f"{dataset.name} ({dataset.split}): {shape}. Source: {dataset.source}.",
    )


def stamp() -> None:
    """The last cell of a page: how this run was made. Fails when a declared claim was not measured."""
    missing = sorted(set(current.declared) - set(current.measured))
    if missing:
        raise RuntimeError(
            f"these claims were declared but never measured: {', '.join(missing)}. "
            "Measure each with study.claim(id, effects={...})."
        )
    used = provenance.versions()
    facts = {
        "page": current.page,
        "profile": current.profile,
        "settings": current.settings,
        "changed": current.changed,
        "seconds": current.seconds,
        "machine": provenance.machine(),
        "versions": used,
        "data": current.data,
        "claims": sorted(current.measured),
    }
    write_json(output_directory() / "run.json", facts)
    line = (
        f"{current.page} · profile {current.profile} · {current.seconds:.0f} s · {facts['machine']} · "
        f"python {used['python']}, torch {used['torch']}, numpy {used['numpy']}, repalign {used['repalign']}"
    )
    style.display_html(f'<p class="ra-stamp">{html.escape(line)}</p>', line)
