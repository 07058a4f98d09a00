"""The run of one page: when it began, what it was set to, which data it read; and its stamp."""

from __future__ import annotations

import html
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from repalign._code import library_version
from repalign._files import digest, write_json
from repalign.machine import onednn
from repalign.study import style

if TYPE_CHECKING:
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
    from_store: dict[str, int] = field(default_factory=lambda: {"read": 0, "computed": 0})
    declared: dict[str, dict[str, Any]] = field(default_factory=dict)
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
    current = Run(page=page)
    style.use()
    style.display_html(f"<style>{style.stylesheet()}</style>", "", {"style": True})


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


def fingerprint(data: dict[str, dict[str, Any]]) -> str:
    """One fingerprint for all samples in ``data``."""
    return digest(*(f"{k}={mark}" for k, v in sorted(data.items()) for mark in v["samples"]))


def _note(dataset: Dataset, into: dict[str, dict[str, Any]]) -> None:
    name = f"{dataset.name}/{dataset.split}"
    if name not in into:
        # What load would find now: a later run asks again, and runs anew when the answer changes.
        into[name] = {"source": dataset.source, "samples": [], "found": found_now(name)}
    kept = into[name]
    if dataset.fingerprint not in kept["samples"]:
        kept["samples"].append(dataset.fingerprint)
        if dataset.source not in kept["source"]:
            kept["source"] += f" and {dataset.source}"


def found_now(name: str) -> str:
    """What loading ``name`` ("mnist/train") would read now; the same for ever for a set of one's own."""
    from repalign.data import SETS, source_fingerprint  # torch, which a reader of claims need not load

    known, split = name.split("/", 1)
    return source_fingerprint(known, split) if known in SETS else "own"


def uses(dataset: Dataset) -> None:
    """Note that this page rests on ``dataset``, and show what it is and where it came from."""
    note(dataset)
    shape = " × ".join(str(size) for size in dataset.x.shape)
    names = html.escape(", ".join(dataset.classes)) if dataset.classes else "real-valued"
    style.display_html(
        f'<p class="ra-data"><b>{html.escape(dataset.name)}</b> ({dataset.split}): {shape}; '
        f"labels: {names}. <br>Source: {html.escape(dataset.source)}. "
        f"Fingerprint <code>{dataset.fingerprint}</code>.</p>",
        f"{dataset.name} ({dataset.split}): {shape}. Source: {dataset.source}.",
    )


def versions() -> dict[str, str]:
    """Versions of what a number depends on."""
    used = ("repalign", "torch", "torchvision", "numpy", "scipy")
    return {"python": platform.python_version(), **{name: library_version(name) for name in used}}


def machine() -> str:
    """Cores, processor and accelerator, on which rounding depends, and nothing that names the machine."""
    cores = os.cpu_count() or 1
    parts = [f"{cores} cores", onednn.model(onednn.processor()) or platform.machine(), platform.system()]
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name(0))
    return ", ".join(parts)


def stamp() -> None:
    """The last cell of a page: how this run was made. Fails when a declared claim was not measured."""
    missing = sorted(set(current.declared) - set(current.measured))
    if missing:
        raise RuntimeError(
            f"these claims were declared but never measured: {', '.join(missing)}. "
            "Measure each with study.claim(id, effects={...})."
        )
    used = versions()
    facts = {
        "page": current.page,
        "profile": current.profile,
        "settings": current.settings,
        "changed": current.changed,
        "seconds": current.seconds,
        "machine": machine(),
        "versions": used,
        "data": current.data,
        "from_store": current.from_store,
        "claims": sorted(current.measured),
    }
    write_json(style.output_directory() / "run.json", facts)
    line = (
        f"{current.page} · profile {current.profile} · {current.seconds:.0f} s · {facts['machine']} · "
        f"python {used['python']}, torch {used['torch']}, numpy {used['numpy']}, repalign {used['repalign']}"
    )
    style.display_html(f'<p class="ra-stamp">{html.escape(line)}</p>', line)
