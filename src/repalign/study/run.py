"""The run of one page: when it began, what it was set to, which data it read; and its stamp."""

from __future__ import annotations

import html
import os
import platform
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from repalign._files import digest, write_json
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
    data: dict[str, dict[str, str]] = field(default_factory=dict)
    declared: dict[str, dict[str, Any]] = field(default_factory=dict)
    measured: dict[str, dict[str, Any]] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return round(time.perf_counter() - self.started, 2)

    @property
    def fingerprint(self) -> str:
        """One fingerprint for all the data this page has read so far."""
        return digest(*(f"{k}={v['fingerprint']}" for k, v in sorted(self.data.items())))


current = Run()


def begin(page: str) -> None:
    """Start the page called ``page`` ("paper/NN_topic"): a fresh run, and the book's plot style."""
    global current
    current = Run(page=page)
    style.use()
    style.display_html(f"<style>{style.stylesheet()}</style>", "", {"style": True})


def uses(dataset: Dataset) -> None:
    """Note that this page rests on ``dataset``, and show what it is and where it came from."""
    from repalign.data import source_fingerprint  # torch, which a reader of claims need not load

    current.data[f"{dataset.name}/{dataset.split}"] = {
        "source": dataset.source,
        "fingerprint": dataset.fingerprint,
        # What load would find now: a later run asks again, and runs anew when the answer changes.
        "found": source_fingerprint(dataset.name, dataset.split),
    }
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
    found = {"python": platform.python_version()}
    for name in ("repalign", "torch", "torchvision", "numpy", "scipy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def machine() -> str:
    """Cores, architecture and accelerator, without anything that names the machine."""
    cores = os.cpu_count() or 1
    parts = [f"{cores} cores", platform.machine(), platform.system()]
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
            "Measure each with study.claim(id, measured=..., holds=...)."
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
        "claims": sorted(current.measured),
    }
    write_json(style.output_directory() / "run.json", facts)
    line = (
        f"{current.page} · profile {current.profile} · {current.seconds:.0f} s · {facts['machine']} · "
        f"python {used['python']}, torch {used['torch']}, numpy {used['numpy']}, repalign {used['repalign']}"
    )
    style.display_html(f'<p class="ra-stamp">{html.escape(line)}</p>', line)
