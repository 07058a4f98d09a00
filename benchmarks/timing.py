"""Fair timing on a machine that others use too: alternatives in turns, medians, the bound beside them."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch


class Seconds(NamedTuple):
    """Medians: by the clock, and of processor time, which does not count waiting for other programs."""

    clock: float
    processor: float


def in_turns(contenders: dict[str, Callable[[], Any]], repeats: int) -> dict[str, Seconds]:
    """The time of each, all run once per round, after one round that does not count."""
    seconds: dict[str, list[Seconds]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, run in contenders.items():
            clock, processor = time.perf_counter(), time.process_time()
            run()
            if turn:
                took = Seconds(time.perf_counter() - clock, time.process_time() - processor)
                seconds[name].append(took)
    return {
        name: Seconds(*(statistics.median(kind) for kind in zip(*values, strict=True)))
        for name, values in seconds.items()
    }


def product_rate(dtype: torch.dtype, size: int = 2048, repeats: int = 7) -> float:
    """Floating-point operations per second of a large square matrix product: the machine's bound."""
    a = torch.randn(size, size, dtype=dtype)
    return 2 * size**3 / in_turns({"product": lambda: a @ a}, repeats)["product"].clock


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = [line for line in _cpuinfo() if line.startswith("model name")]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": model[0].split(":", 1)[1].strip() if model else platform.processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def write(path: str | None, report: dict[str, Any]) -> None:
    """The report as JSON, when a path was given."""
    if path is not None:
        Path(path).write_text(json.dumps(report, indent=1) + "\n")
