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


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """The slope of the larger half on logarithmic axes: there fixed costs no longer count."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(seconds[half:]), 1)[0])


def memory_now(field: str) -> int:
    """Resident memory now (VmRSS) or at its peak (VmHWM), in bytes; 0 where the system does not say.

    As Linux keeps them: getrusage would start a child at its parent's peak.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
    except OSError:
        return 0
    return int(lines[field].split()[0]) * 1024


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def write(path: str | None, report: dict[str, Any]) -> None:
    """The report as JSON, when a path was given."""
    if path is not None:
        Path(path).write_text(json.dumps(report, indent=1) + "\n")
