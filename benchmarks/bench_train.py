"""Training and linear descent against what one would write instead: ratios, in one run, same arrays."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from repalign import study
from repalign.alignment import gd_loss, spectrum, unit_rows
from repalign.train import fit, fit_many


def ratio(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median seconds of both, measured in turns so that a busy machine is unfair to neither."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for call, kept in zip((ours, theirs), times, strict=True):
            started = time.perf_counter()
            call()
            kept.append(time.perf_counter() - started)
    return statistics.median(times[0]), statistics.median(times[1])


def mlp(width: int = 128, depth: int = 3, inputs: int = 784) -> nn.Sequential:
    sizes = [inputs, *[width] * depth]
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def data(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.rand(n, 784, generator=g), torch.randint(10, (n,), generator=g)


def batched_ensemble() -> tuple[float, float]:
    """16 MLPs of width 32, together and one by one."""
    x, y = data(1024)

    def models() -> list[nn.Module]:
        torch.manual_seed(0)
        return [mlp(32, 3) for _ in range(16)]

    def one_by_one() -> None:
        for seed, model in enumerate(models()):
            fit(model, x, y, epochs=2, seed=seed)

    return ratio(lambda: fit_many(models(), x, y, epochs=2, seeds=range(16)), one_by_one, 3)


def tensors_on_device() -> tuple[float, float]:
    """fit against a loop over a DataLoader, the same model and steps."""
    x, y = data(8192)

    def loader() -> None:
        model = mlp()
        descent = torch.optim.Adam(model.parameters(), lr=1e-3)
        for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True):
            descent.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            descent.step()

    return ratio(lambda: fit(mlp(), x, y, epochs=1), loader, 3)


def closed_form(steps: int) -> tuple[float, float]:
    """300 log-spaced points of a learning curve, n = 1000, d = 1024, float64."""
    g = torch.Generator().manual_seed(0)
    phi = unit_rows(torch.randn(1000, 1024, generator=g, dtype=torch.float64))
    y = torch.randn(1000, generator=g, dtype=torch.float64)
    wanted = torch.logspace(0, torch.tensor(float(steps)).log10().item(), 300).round().unique()
    eta = 0.9 / float(torch.linalg.matrix_norm(phi, 2)) ** 2

    def iterated() -> None:
        w = torch.zeros(1024, dtype=torch.float64)
        # A thousand steps stand for all of them: each costs the same.
        for _ in range(1000):
            w -= eta * (phi.mT @ (phi @ w - y))

    ours, thousand = ratio(lambda: gd_loss(spectrum(phi, y), eta, wanted), iterated, 3)
    return ours, thousand * steps / 1000


def spin(seconds: float, seed: int) -> int:
    """A cell of a sweep: a fixed amount of CPU time."""
    end, count = time.process_time() + seconds, 0
    while time.process_time() < end:
        count += 1
    return seed


def sweep_efficiency() -> tuple[float, float]:
    """16 equal cells in two processes, against one core; the workers are already there."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ["REPALIGN_CACHE"] = directory
        study.sweep(spin, [dict(seconds=0.01, seed=-i) for i in (1, 2)], jobs=2)
        times = []
        for jobs, offset in ((2, 0), (1, 100)):
            started = time.perf_counter()
            study.sweep(spin, [dict(seconds=1.0, seed=offset + i) for i in range(16)], jobs=jobs)
            times.append(time.perf_counter() - started)
    return times[0], times[1]


ROWS = {
    "sweep of 16 cells in 2 processes · one core (2.0× is all there is)": sweep_efficiency,
    "batched ensemble, 16 MLPs 3×32 · loop over models": batched_ensemble,
    "tensors on device · DataLoader loop": tensors_on_device,
    "closed-form curve to step 10⁴ · iterated": lambda: closed_form(10**4),
    "closed-form curve to step 10⁶ · iterated (scaled from 1000 steps)": lambda: closed_form(10**6),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", nargs="?", type=Path, help="also write the table here")
    target = parser.parse_args().json
    found = {}
    print(f"{'work · against':68} {'ours':>9} {'theirs':>9} {'ratio':>8}")
    for name, row in ROWS.items():
        ours, theirs = row()
        found[name] = {"ours": ours, "theirs": theirs, "ratio": theirs / ours}
        print(f"{name:68} {ours:8.3f}s {theirs:8.3f}s {theirs / ours:7.1f}×", flush=True)
    if target:
        target.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
