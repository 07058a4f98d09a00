"""Training and sweeps against what one would write instead: ratios, in one run, same arrays."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from timing import in_turns, machine, write
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from repalign import models, study
from repalign.alignment import unit_rows
from repalign.data import load
from repalign.machine import memory
from repalign.papers.imani import sparse
from repalign.train import fit, fit_many


def ratio(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median seconds of both, measured in turns so that a busy machine is unfair to neither."""
    seconds = in_turns({"ours": ours, "theirs": theirs}, repeats)
    return seconds["ours"].clock, seconds["theirs"].clock


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


def layout(make: Callable[[], nn.Module], other: bool) -> tuple[float, float]:
    """An epoch of a network in the layout that ``fit`` chooses for it, and in the other one."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.rand(128, 3, 32, 32, generator=g), torch.randint(10, (128,), generator=g)

    def epoch(channels_last: bool | str) -> None:
        fit(make(), x, y, epochs=1, channels_last=channels_last)

    return ratio(lambda: epoch("auto"), lambda: epoch(other), 5)


def layout_of_residual() -> tuple[float, float]:
    """With channels last, which helps it, and without."""
    return layout(lambda: models.preact_resnet18(k=16), other=False)


def layout_of_plain() -> tuple[float, float]:
    """Without channels last, which hurts it, and with."""
    return layout(lambda: models.SimpleCNN(filters=16), other=True)


def dictionary_learning() -> tuple[float, float]:
    """A dictionary of 512 atoms and the codes of its 500 samples, as scikit-learn finds them and as we do."""
    from sklearn import decomposition

    x, alpha = unit_rows(load("ct_position", n=500, seed=0, shrink=True).x).double(), 0.01

    def ours() -> None:
        sparse.sparse_codes(x, sparse.learn_atoms(x, 512, alpha=alpha, passes=2), alpha)

    def theirs() -> None:
        learner = decomposition.MiniBatchDictionaryLearning(
            512, alpha=alpha, max_iter=2, fit_algorithm="cd", random_state=0, tol=0, max_no_improvement=None
        )
        atoms = learner.fit(x.numpy()).components_
        decomposition.sparse_encode(x.numpy(), atoms, algorithm="lasso_cd", alpha=alpha, max_iter=10_000)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs says that it nearly converged
        return ratio(ours, theirs, 1)


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


# The median processor time of a training step, in a process of its own: glibc reads its settings first.
STEP = """
import sys, time, torch
from repalign import models
torch.set_num_threads(1)
net = eval(sys.argv[1])
x, y = torch.rand(128, 3, 32, 32), torch.arange(128) % 10
descent = torch.optim.Adam(net.parameters(), fused=True)
seconds = []
for _ in range(15):
    started = time.process_time()
    descent.zero_grad(set_to_none=True)
    torch.nn.functional.cross_entropy(net(x), y).backward()
    descent.step()
    seconds.append(time.process_time() - started)
print(sorted(seconds[3:])[6])
"""


def kept_memory(network: str) -> tuple[float, float]:
    """A step of a network with the settings of kernels and workers, and without; children in turns."""
    free = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(3):
        for found, more in zip(times, (memory.environment(), {}), strict=True):
            done = subprocess.run(
                [sys.executable, "-c", STEP, network],
                env={**free, **more},
                capture_output=True,
                text=True,
                check=True,
            )
            found.append(float(done.stdout))
    return statistics.median(times[0]), statistics.median(times[1])


# What is done, against whom, how it is measured, and the ratio to reach.
ROWS = (
    ("sweep of 16 equal cells, two processes", "one core (2× is all there is)", sweep_efficiency, 1.7),
    ("16 MLPs of 3×32 as one batched model", "one by one", batched_ensemble, None),
    ("an epoch on tensors", "a DataLoader", tensors_on_device, None),
    ("a dictionary of 512 atoms, 500 samples", "scikit-learn", dictionary_learning, None),
    ("an epoch of a residual network", "without channels last", layout_of_residual, 1.1),
    ("an epoch of a plain network", "with channels last", layout_of_plain, 1.0),
    *(
        (f"a step of {name}, batch 128", "memory given back to the system", partial(kept_memory, made), aim)
        for name, made, aim in (
            ("SimpleCNN, 64 filters", "models.SimpleCNN(filters=64)", 1.5),
            ("SimpleCNN, 16 filters", "models.SimpleCNN(filters=16)", 1.05),
            ("a narrow residual network", "models.preact_resnet18(k=8)", 1.05),
        )
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", nargs="?", help="write the results to this file, as JSON")
    target = parser.parse_args().report
    rows = []
    for work, against, measure, aim in ROWS:
        ours, theirs = measure()
        rows.append({"work": work, "against": against, "ours": ours, "theirs": theirs, "aim": aim})
        print(f"{work:42} {against:32} {ours:8.3f}s {theirs:8.3f}s {theirs / ours:7.1f}×", flush=True)
    write(target, {"machine": machine(), "rows": rows, "curves": []})


if __name__ == "__main__":
    main()
