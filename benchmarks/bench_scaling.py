"""Cost against size, with the exponent fitted on logarithmic axes: n, d, number of checkpoints, depth.

    python benchmarks/bench_scaling.py [report.json]

The exponent is that of the larger half of the sizes, where fixed costs no longer count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from timing import exponent, in_turns, machine, write

from repalign.alignment import spectrum
from repalign.covariance import patch_covariance
from repalign.kernels import cka_grid
from repalign.probes import decision_region_similarity, fit_probes
from repalign.propagation import gaps


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def classes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 10, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def grid(e: int, n: int, d: int) -> Callable[[], Any]:
    x = normal(e, n, d)
    return lambda: cka_grid(x, side="gram")


def curve(n: int, d: int) -> Callable[[], Any]:
    x, y = normal(n, d), normal(n)
    return lambda: spectrum(x, y)


def probes(e: int, n: int, d: int) -> Callable[[], Any]:
    x, y = normal(e, n, d), classes(n).long()
    return lambda: fit_probes(x, y, epochs=2)


def regions(e: int, m: int) -> Callable[[], Any]:
    p = classes(e, m)
    return lambda: decision_region_similarity(p)


def patches(n: int) -> Callable[[], Any]:
    x = normal(n, 3, 32, 32)
    return lambda: patch_covariance(x, 3)


# What grows, in which function, to which sizes, and the exponent that counting operations gives.
CASES: list[tuple[str, str, list[int], Callable[[int], Callable[[], Any]], float]] = [
    ("cka_grid", "n", [128, 256, 512, 1024, 2048], lambda n: grid(8, n, 512), 2),
    ("cka_grid", "d", [256, 512, 1024, 2048, 4096, 8192], lambda d: grid(8, 512, d), 1),
    ("cka_grid", "checkpoints", [8, 16, 32, 64, 128], lambda e: grid(e, 256, 512), 1),
    ("spectrum", "n", [1000, 2000, 4000, 8000, 16000], lambda n: curve(n, 256), 1),
    ("spectrum", "d", [64, 128, 256, 512, 1024], lambda d: curve(4000, d), 2),
    ("fit_probes", "checkpoints", [5, 10, 20, 40], lambda e: probes(e, 1000, 256), 1),
    ("fit_probes", "d", [128, 256, 512, 1024], lambda d: probes(10, 1000, d), 1),
    ("decision_region_similarity", "checkpoints", [25, 50, 100, 200], lambda e: regions(e, 50_000), 2),
    ("decision_region_similarity", "points", [25_000, 50_000, 100_000], lambda m: regions(100, m), 1),
    ("patch_covariance", "n", [500, 1000, 2000, 4000], patches, 1),
    ("gaps", "depth", [10_000, 30_000, 100_000, 300_000], lambda depth: lambda: gaps(0.9, depth), 1),
]


def measure(repeats: int = 3) -> list[dict[str, Any]]:
    """Median seconds at every size of every case."""
    results = []
    for name, variable, sizes, make, expected in CASES:
        seconds = [in_turns({"run": make(size)}, repeats)["run"].clock for size in sizes]
        slope = exponent(sizes, seconds)
        results.append(
            {
                "function": name,
                "against": variable,
                "sizes": sizes,
                "seconds": seconds,
                "exponent": slope,
                "by_operations": expected,
            }
        )
        print(
            f"{name:27s} ~ {variable}^{slope:.2f}  (operations: {expected:g})  "
            f"{seconds[-1]:.3g} s at {sizes[-1]}"
        )
    return results


def main(path: str | None = None) -> None:
    curves = [{**result, "work": result["function"]} for result in measure()]
    write(path, {"machine": machine(), "rows": [], "curves": curves})


if __name__ == "__main__":
    main(*sys.argv[1:2])
