"""CKA of all pairs of epochs on the paper's own grid: 4000 epochs, 2048 examples, six layers (Sharon & Dar).

    python benchmarks/bench_evolution.py [report.json] [--epochs N] [--examples N] [...]

Random features stand for those of the paper's network, a ResNet18 of width 64 on 32 × 32 pixels. Two parts:

- looks: the kernels of all layers at one epoch, on batches of 512 examples and of features as wide as the
  network's. They are made while a network trains. A few are timed, and the time for all epochs is given;
- maps: for each layer the product of its kernels of all epochs, from the file in which they are kept.
  Their time does not depend on the width of layers, so that narrow features do. One is computed in full,
  and the time for all layers is given.

The paper reports about 15 hours on six GPUs for the maps of a network, from 170 GB of checkpoints.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from timing import exponent, machine, product_rate, write

from repalign.kernels.grid import packed_length
from repalign.papers.sharon.evolution import Kernels

# Features of each layer at width 64: 64 × 32 × 32, the same, 128 × 16 × 16, ..., ten outputs.
LAYERS = {"stem": 65536, "stage1": 65536, "stage2": 32768, "stage3": 16384, "stage4": 8192, "head": 10}
NARROW = 32


def look(examples: int, batch: int) -> float:
    """Seconds to make and keep the kernels of all layers at one epoch."""
    total = 0.0
    for layer, width in LAYERS.items():
        kept, phi = Kernels(batch, debiased=(False,)), torch.randn(examples, width)
        begun = time.perf_counter()
        kept.keep({layer: phi})
        total += time.perf_counter() - begun
    return total


def one_map(epochs: int, examples: int, batch: int) -> float:
    """Seconds for CKA of all pairs of epochs of one layer, whose features drift."""
    kept, phi = Kernels(batch, debiased=(False,)), torch.randn(examples, NARROW)
    for _ in range(epochs):
        phi += 0.1 * torch.randn(examples, NARROW)
        kept.keep({"layer": phi})
    begun = time.perf_counter()
    found = kept.cka()["layer"]
    took = time.perf_counter() - begun
    assert (found.diagonal() - 1).abs().max() < 1e-3
    return took


def growth(epochs: int, examples: int, batch: int) -> list[dict[str, Any]]:
    """How the time of one map grows with epochs and with examples, below the size of the grid."""
    sizes = {
        "epochs": [max(4, epochs // k) for k in (64, 32, 16, 8, 4)],
        "examples": [batch * k for k in range(1, examples // batch + 1)],
    }
    curves = []
    for against, several in sizes.items():
        fixed = {"epochs": max(4, epochs // 8), "examples": examples, "batch": batch}
        runs = [[one_map(**{**fixed, against: size}) for size in several] for _ in range(3)]
        seconds = [statistics.median(times) for times in zip(*runs, strict=True)]
        slope = exponent(several, seconds)
        print(f"one map ~ {against}^{slope:.2f}  {seconds[-1]:.3g} s at {several[-1]}", flush=True)
        about = {"work": "CKA map", "against": against, "sizes": several}
        curves.append({**about, "seconds": seconds, "exponent": slope})
    return curves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("report", nargs="?")
    parser.add_argument("--epochs", type=int, default=4000)
    parser.add_argument("--examples", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--looks", type=int, default=3)
    parser.add_argument("--maps", type=int, default=1)
    given = parser.parse_args()
    grid = {"epochs": given.epochs, "examples": given.examples, "batch": given.batch}
    curves = growth(**grid)
    length = given.examples // given.batch * packed_length(given.batch)
    size = 4e-9 * len(LAYERS) * given.epochs * length
    what = f"{given.epochs} epochs, {given.examples} examples, {len(LAYERS)} layers"
    each = statistics.median([look(given.examples, given.batch) for _ in range(given.looks)])
    looks = given.epochs * each
    print(f"looks, {what}: {looks / 60:.1f} minutes while training, {size:.3g} GB kept", flush=True)
    maps = len(LAYERS) * statistics.mean([one_map(**grid) for _ in range(given.maps)])
    bound = 2 * len(LAYERS) * given.epochs**2 * length / product_rate(torch.float32)
    print(f"maps, {what}: {maps / 60:.1f} minutes, {maps / bound:.2f} times the bound")
    paper = (given.epochs, given.examples) == (4000, 2048)
    row = {"theirs": 15 * 3600 if paper else None, "why": "another grid than the paper's", "aim": 15}
    row |= {"work": f"CKA maps, {what}", "against": "the paper, on six GPUs", "ours": maps}
    kept = {"work": f"kernels while training, {what}, {size:.3g} GB", "against": "checkpoints, 170 GB"}
    kept |= {"ours": looks, "theirs": None, "why": "the paper gives no time"}
    rows = [{**row, "times_bound": maps / bound}, kept]
    write(given.report, {"machine": machine(), "rows": rows, "curves": curves})


if __name__ == "__main__":
    main()
