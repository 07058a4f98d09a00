"""The measures beside what a user would pick instead: same arrays, same process, in turns.

    python benchmarks/bench_maths.py [report.json] [--repeats N] [--only cka,spectrum,...]

A slow alternative runs on a stated share of the work and its time is scaled; results are compared before
anything is timed. The bound is the time that the products of the method would take at the rate of a large
matrix product measured in the same run. Packages come from the ``bench`` extra.
"""

from __future__ import annotations

import argparse
import importlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from timing import in_turns, machine, product_rate, write

from repalign.alignment import gd_loss, spectrum
from repalign.kernels import cka, cka_grid
from repalign.probes import decision_region_similarity, fit_probes


class Rival(NamedTuple):
    """What a user would pick instead, on ``share`` of the work, and the ratio to reach."""

    name: str
    run: Callable[[], Any] | None
    share: float
    at_least: float
    ours: str = "repalign"


class Row(NamedTuple):
    """A piece of work: our ways to do it, the rivals, the operations of its matrix products."""

    work: str
    ours: dict[str, Callable[[], Any]]
    rivals: list[Rival]
    operations: float
    dtype: torch.dtype


def package(name: str) -> Any:
    """The module, or None when it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def cka_rows() -> Iterator[Row]:
    e, n, d = 60, 512, 4096
    x = torch.randn(e, n, d, generator=torch.Generator().manual_seed(0))
    x += x[:1].clone()
    torch_cka, ckatorch, pytorch_cka = package("torch_cka.cka"), package("ckatorch.core"), package("cka")

    def torch_cka_row() -> float:
        # Its compare(): for one layer of the first model, every layer of the second.
        one = object.__new__(torch_cka.CKA)
        one.device = "cpu"
        k = (x[0] @ x[0].t()).fill_diagonal_(0)
        own = one._HSIC(k, k)
        for y in x:
            other = (y @ y.t()).fill_diagonal_(0)
            value = one._HSIC(k, other) / math.sqrt(own * one._HSIC(other, other))
        return value

    def feature_pair(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = a - a.mean(0), b - b.mean(0)
        norm = (a.mT @ a).norm() * (b.mT @ b).norm()
        return (a.mT @ b).square().sum() / norm

    biased, debiased = cka_grid(x), cka_grid(x, debiased=True)
    # Ours against float64; the others, all in float32, to what they keep.
    assert abs(cka(x[0], x[1]) - biased[0, 1]) < 5e-6
    assert abs(cka(x[0], x[1], debiased=True) - debiased[0, 1]) < 5e-6
    assert abs(feature_pair(x[0], x[1]) - biased[0, 1]) < 5e-3
    if pytorch_cka:
        assert (pytorch_cka.cka_from_features(x[:2], x[:2]) - debiased[:2, :2]).abs().max() < 5e-3
    pairs = e * e
    yield Row(
        f"CKA of all pairs of {e} checkpoints, n={n}, d={d}, float32",
        {"repalign": lambda: cka_grid(x), "debiased": lambda: cka_grid(x, debiased=True)},
        [
            Rival("torch-cka, HSIC over all pairs", torch_cka and torch_cka_row, 1 / e, 50, "debiased"),
            Rival(
                "ckatorch, all pairs",
                ckatorch and (lambda: [ckatorch.cka_base(x[0], y) for y in x[:4]]),
                4 / pairs,
                180,
            ),
            Rival("feature-space loop, all pairs", lambda: feature_pair(x[0], x[1]), 1 / pairs, 1000),
            Rival(
                "pytorch-cka",
                pytorch_cka and (lambda: pytorch_cka.cka_from_features(x, x)),
                1,
                1.5,
                "debiased",
            ),
        ],
        e * n * n * d,  # half of each symmetric product
        x.dtype,
    )


def spectrum_rows() -> Iterator[Row]:
    n, d = 10_000, 784
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=g, dtype=torch.float64) * torch.logspace(0, -6, d, dtype=torch.float64)
    y = torch.randn(n, generator=g, dtype=torch.float64)
    x_np, y_np = x.numpy(), y.numpy()

    def dense() -> np.ndarray:
        u, _, _ = np.linalg.svd(x_np, full_matrices=False)
        return np.square(u.T @ y_np).cumsum()

    ours, textbook = spectrum(x, y).power.cumsum(0).numpy(), dense()
    assert np.abs(ours / textbook - 1).max() < 1e-10
    yield Row(
        f"alignment curve, {n}×{d}, float64",
        {"repalign": lambda: spectrum(x, y)},
        [Rival("numpy.linalg.svd, thin", dense, 1, 2.3)],
        2 * n * d * d - 2 * d**3 / 3 + 4 * d**3,  # triangular factor, then a small SVD with left vectors
        x.dtype,
    )


def probe_rows() -> Iterator[Row]:
    # The papers do not say how large a batch was: small ones cost a loop more than they cost us.
    for batch in (64, 128):
        yield from probe_row(batch)


def probe_row(batch: int) -> Iterator[Row]:
    p, n, d, c, epochs, lr, some = 100, 5000, 512, 10, 10, 1e-4, 4
    g = torch.Generator().manual_seed(0)
    x = torch.randn(p, n, d, generator=g)
    y = torch.randint(0, c, (n,), generator=g)

    def start(g: torch.Generator) -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
        model = torch.nn.Linear(d, c)
        with torch.no_grad():
            for part in (model.weight, model.bias):
                part.copy_((2 * torch.rand(*part.shape, generator=g, dtype=torch.float64) - 1) / math.sqrt(d))
        return model, torch.optim.Adam(model.parameters(), lr=lr)

    def step(
        model: torch.nn.Linear, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
    ) -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    def loop() -> torch.Tensor:
        out = []
        for one in x[:some]:
            g = torch.Generator().manual_seed(0)
            model, optimizer = start(g)
            for _ in range(epochs):
                for index in torch.randperm(n, generator=g).split(batch):
                    step(model, optimizer, one[index], y[index])
            out.append(model.weight.detach())
        return torch.stack(out)

    def with_loader() -> None:
        model, optimizer = start(torch.Generator().manual_seed(0))
        data = torch.utils.data.TensorDataset(x[0], y)
        loader = torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True)
        for _ in range(epochs):
            for x_batch, y_batch in loader:
                step(model, optimizer, x_batch, y_batch)

    def fit() -> torch.Tensor:
        return fit_probes(x, y, epochs=epochs, lr=lr, batch_size=batch).weight

    assert (fit()[:some] - loop()).abs().max() < 1e-5
    yield Row(
        f"{p} linear probes, n={n}, d={d}, {c} classes, Adam, {epochs} epochs, batches of {batch}",
        {"repalign": fit},
        [
            Rival("loop over nn.Linear, index batches", loop, some / p, 5),
            Rival("loop over nn.Linear, DataLoader", with_loader, 1 / p, 10),
        ],
        4 * p * n * d * c * epochs,
        x.dtype,
    )


def agreement_rows() -> Iterator[Row]:
    e, m, c, some = 300, 200_000, 10, 8
    p = np.random.default_rng(0).integers(0, c, (e, m)).astype(np.uint8)
    pairs = sum(e - 1 - i for i in range(some))

    def pairwise() -> np.ndarray:
        out = np.eye(e)
        for i in range(some):
            for j in range(i + 1, e):
                out[i, j] = (p[i] == p[j]).mean()
        return out

    assert np.array_equal(np.triu(decision_region_similarity(p))[:some], pairwise()[:some])
    yield Row(
        f"decision-region similarity, {e} prediction vectors × {m:,} points",
        {"repalign": lambda: decision_region_similarity(p)},
        [Rival("pairwise (p == q).mean(), uint8", pairwise, pairs / (e * (e - 1) / 2), 5)],
        e * e * m * c,  # half of the symmetric product of one-hot vectors
        torch.float32,
    )


def descent_rows() -> Iterator[Row]:
    n, d, measured = 1000, 1024, 1000
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=g, dtype=torch.float64) / math.sqrt(d)
    y = torch.randn(n, generator=g, dtype=torch.float64)
    eta = 0.5 / float(torch.linalg.matrix_norm(x, 2)) ** 2

    def iterate(steps: int) -> torch.Tensor:
        w = torch.zeros(d, dtype=torch.float64)
        for _ in range(steps):
            gap = x @ w - y
            w -= eta * (x.mT @ gap)
        return (x @ w - y).square().sum()

    assert abs(gd_loss(spectrum(x, y), eta, 200) / iterate(200) - 1) < 1e-9
    for last, at_least in ((10**4, 10), (10**6, 1000)):
        steps = torch.logspace(0, math.log10(last), 300, dtype=torch.float64).round()
        yield Row(
            f"gradient-descent curve at 300 steps up to {last:,}, n={n}, d={d}, float64",
            {"repalign": lambda steps=steps: gd_loss(spectrum(x, y), eta, steps)},
            [Rival("iterated", lambda: iterate(measured), measured / last, at_least)],
            2 * d * n * n - 2 * n**3 / 3 + 4 * n**3,
            x.dtype,
        )


ROWS = {
    "cka": cka_rows,
    "spectrum": spectrum_rows,
    "probes": probe_rows,
    "agreement": agreement_rows,
    "descent": descent_rows,
}


def measure(rows: Iterator[Row], repeats: int) -> Iterator[dict[str, Any]]:
    """One result per rival of each row."""
    for row in rows:
        contenders = {f"ours: {name}": run for name, run in row.ours.items()}
        contenders |= {rival.name: rival.run for rival in row.rivals if rival.run}
        seconds = in_turns(contenders, repeats)
        bound = row.operations / product_rate(row.dtype)
        for rival in row.rivals:
            ours = seconds[f"ours: {rival.ours}"]
            theirs = seconds[rival.name] if rival.run else None
            yield {
                "work": row.work,
                "against": rival.name,
                "ours": ours.clock,
                "theirs": theirs and theirs.clock / rival.share,
                "measured_share": rival.share,
                "ratio": theirs and theirs.clock / rival.share / ours.clock,
                "ratio_processor": theirs and theirs.processor / rival.share / ours.processor,
                "at_least": rival.at_least,
                "times_bound": ours.clock / bound,
            }


def line(r: dict[str, Any]) -> str:
    ratio = f"{r['ratio']:8.1f}×" if r["ratio"] else "not installed"
    processor = "" if not r["ratio"] else f" ({r['ratio_processor']:.1f}× of processor time)"
    verdict = "" if not r["ratio"] else "reached" if r["ratio"] >= r["at_least"] else "MISSED"
    scaled = "" if r["measured_share"] == 1 else f" (from {r['measured_share']:.2%} of it)"
    theirs = "" if r["theirs"] is None else f"{r['theirs']:.3g} s{scaled}"
    return (
        f"  {r['against']:36s} {ratio:>13s}{processor}  at least {r['at_least']:g}×  {verdict:8s} "
        f"ours {r['ours']:.3g} s, {r['times_bound']:.2g} × the product bound; theirs {theirs}"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", nargs="?", help="write the results to this file, as JSON")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default=",".join(ROWS), help="which rows, of " + ", ".join(ROWS))
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    about = machine() | {
        "product_gflops_float32": product_rate(torch.float32) / 1e9,
        "product_gflops_float64": product_rate(torch.float64) / 1e9,
    }
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    results, work = [], None
    for name in options.only.split(","):
        for result in measure(ROWS[name](), options.repeats):
            if result["work"] != work:
                work = result["work"]
                print(work)
            print(line(result), flush=True)
            results.append(result)
    rows = [{**result, "aim": result["at_least"]} for result in results]
    write(options.report, {"machine": about, "rows": rows, "curves": []})


if __name__ == "__main__":
    main()
