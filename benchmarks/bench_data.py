"""Loading images from a warm cache, beside decoding them one by one as torchvision's data sets do.

    python benchmarks/bench_data.py [report.json]

Each case runs in a process of its own; memory is how far its peak grows over what imports took.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from timing import machine, memory_now, write

N = 10_000
LIMITS = {"cifar10 float32": (0.3, 3.0), "cifar10 uint8": (0.3, 3.0), "mnist float32": (0.1, 3.0)}


def repalign_load(name: str, dtype: str) -> tuple[float, int]:
    import torch

    from repalign import data

    begin = time.perf_counter()
    d = data.load(name, n=N, dtype=getattr(torch, dtype))
    return time.perf_counter() - begin, d.x.nbytes


def one_by_one(name: str, dtype: str) -> tuple[float, int]:
    """What ``torchvision.datasets`` does at each index: an image, then ToTensor; stacked at the end."""
    import numpy as np
    import torch
    from PIL import Image

    from repalign.data.acquire import cache
    from repalign.machine.vision import torchvision

    to_tensor = torchvision().transforms.ToTensor()
    begin = time.perf_counter()
    stored = cache.read(f"{name}/train")
    assert stored is not None
    whole = np.array(stored.x)  # torchvision keeps the whole set in memory
    rows = np.random.default_rng(0).permutation(len(whole))[:N]
    images = (Image.fromarray(whole[i].transpose(1, 2, 0).squeeze()) for i in rows)
    x = torch.stack([to_tensor(image) for image in images])
    return time.perf_counter() - begin, x.nbytes


METHODS: dict[str, Callable[[str, str], tuple[float, int]]] = {
    "repalign.data.load": repalign_load,
    "torchvision, one by one": one_by_one,
}
CASES = [
    ("cifar10", "float32", "repalign.data.load"),
    ("cifar10", "uint8", "repalign.data.load"),
    ("cifar10", "float32", "torchvision, one by one"),
    ("mnist", "float32", "repalign.data.load"),
    ("mnist", "float32", "torchvision, one by one"),
]


def case(name: str, dtype: str, method: str) -> None:
    """Run one case in this process and print its numbers."""
    import torch

    from repalign import data  # what imports take is not counted
    from repalign.machine.vision import torchvision

    torchvision()
    torch.set_num_threads(1)
    data.load(name, n=10)
    before = memory_now("VmRSS")
    begin = time.process_time()
    seconds, size = METHODS[method](name, dtype)
    busy = time.process_time() - begin
    memory = memory_now("VmHWM") - before
    print(json.dumps({"seconds": seconds, "busy": busy, "bytes": size, "memory": memory}))


def main(report: str | None = None) -> None:
    from repalign import data

    for name in ("cifar10", "mnist"):
        data.load(name, n=N)  # into the cache, once
    print(f"{N:,} images, best of 3; memory as a multiple of the tensor's bytes\n")
    print(f"{'set':8} {'dtype':8} {'method':24} {'seconds':>8} {'processor':>10} {'memory':>7}   limits")
    rows: list[dict[str, Any]] = []
    ours: dict[str, dict[str, float]] = {}
    for name, dtype, method in CASES:
        command = [sys.executable, __file__, name, dtype, method]
        runs = [json.loads(subprocess.check_output(command, text=True)) for _ in range(3)]
        best, busy = (min(run[key] for run in runs) for key in ("seconds", "busy"))
        ratio = min(run["memory"] / run["bytes"] for run in runs)
        limits = LIMITS[f"{name} {dtype}"] if method.startswith("repalign") else None
        said = f"{limits[0]} s, {limits[1]:.0f}×" if limits else ""
        print(f"{name:8} {dtype:8} {method:24} {best:8.3f} {busy:10.3f} {ratio:6.2f}×   {said}")
        memory = min(run["memory"] for run in runs)
        if method.startswith("repalign"):
            ours.setdefault(name, {"seconds": best, "memory": memory})
        else:
            mine = ours[name]
            row = {
                "work": f"{N:,} images of {name}",
                "against": method,
                "ours": mine["seconds"],
                "theirs": best,
            }
            row["memory"] = {"ours": mine["memory"], "theirs": memory}
            rows.append(row)
    write(report, {"machine": machine(), "rows": rows, "curves": []})


if __name__ == "__main__":
    case(*sys.argv[1:]) if len(sys.argv) > 2 else main(*sys.argv[1:])
