"""Tangent kernels beside what one would use instead: time, peak memory, and the machine's own bound.

    python benchmarks/bench_tangent.py [--repeats 3] [report.json] [--neural-tangents PYTHON] [--only …]

With ``--clock cpu`` and OMP_NUM_THREADS=1 it counts processor time, which others on the machine disturb
less. The network is a ReLU MLP of 10 layers of width 256, 784 in, 10 out, float32, without biases; the case
"tokens" is a transformer of 4 layers of width 256 that reads 32 tokens, with 10 outputs. Times are medians
of interleaved runs in this process; peak memory is that of a child process of its own, above what it held
before the call. A package that is not installed is reported as such. Every contender's result is compared
with ours first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import exponent, machine, memory_now, write
from torch import nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from repalign.machine.memory import environment
from repalign.tangent import label_alignment, layer_kernels, ntk

Call = Callable[[], Any]
ABSENT = "not installed"
NO_FIT = "does not fit in memory"
# neural-tangents needs an environment of its own, which ``make bench`` puts here.
OTHER = Path(sys.prefix) / "neural-tangents" / "bin" / "python"
PYTHON = {"neural-tangents": str(OTHER) if OTHER.exists() else sys.executable}
CLOCK: dict[str, Callable[[], float]] = {"now": time.perf_counter}


def network(depth: int = 10, width: int = 256, inputs: int = 784, outputs: int = 10) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(inputs, width, bias=False), nn.ReLU()]
    for _ in range(depth - 2):
        layers += [nn.Linear(width, width, bias=False), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, outputs, bias=False))
    for parameter in model.parameters():
        nn.init.kaiming_normal_(parameter, nonlinearity="relu")
    return model


def samples(n: int, inputs: int = 784) -> torch.Tensor:
    return torch.randn(n, inputs, generator=torch.Generator().manual_seed(1))


class Reader(nn.Module):
    """A small BERT: tokens and positions, a stack of attention layers, outputs from the first token."""

    def __init__(self, vocabulary: int = 1000, width: int = 256, depth: int = 4, length: int = 32) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True) for _ in range(depth))
        )
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.layers(self.norm(self.tokens(tokens) + self.positions(places)))
        return self.head(x[:, 0])


def task(what: str, n: int) -> tuple[nn.Module, torch.Tensor]:
    """A network and its samples."""
    if what == "tokens":
        torch.manual_seed(0)
        return Reader().eval(), torch.randint(0, 1000, (n, 32))
    return network(), samples(n)


def by_layer(kernels: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Kernels of parameters added up to those of layers."""
    found: dict[str, torch.Tensor] = {}
    for name, kernel in kernels.items():
        layer = name.rpartition(".")[0]
        found[layer] = found[layer] + kernel if layer in found else kernel
    return found


def jacobian_recipe(n: int, what: str) -> Call:
    """Jacobian rows by vmap and jacrev, contracted parameter by parameter: torch's own NTK recipe."""
    model, x = task(what, n)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    contraction = "naf,maf->nm" if what == "trace" else "naf,mbf->namb"

    def one(p: dict[str, torch.Tensor], sample: torch.Tensor) -> torch.Tensor:
        return functional_call(model, p, (sample[None],))[0]

    def call() -> dict[str, torch.Tensor]:
        # Attention in its plain form: the other has no rule for vmap, and would run sample by sample.
        with sdpa_kernel(SDPBackend.MATH):
            rows = vmap(jacrev(one), (None, 0))(parameters, x)
        flat = (r.flatten(2) for r in rows.values())
        return by_layer({name: torch.einsum(contraction, r, r) for name, r in zip(rows, flat, strict=True)})

    return call


def nngeometry_kernels(n: int, together: bool) -> Call | str:
    """One Gram matrix for each layer, or one for all layers, which is the NTK only."""
    try:
        from nngeometry.gram import GramMatrix
        from nngeometry.layercollection import LayerCollection
    except ImportError:
        return ABSENT
    model, x = network(), samples(n)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=n)

    def gram(collection: Any) -> torch.Tensor:
        data = GramMatrix(model, loader, layer_collection=collection).to_torch()
        return data.permute(1, 0, 3, 2)  # theirs is output by sample

    def one(module: nn.Module) -> torch.Tensor:
        collection = LayerCollection()
        collection.add_layer_from_model(model, module)
        return gram(collection)

    if together:
        return lambda: {"ntk": gram(LayerCollection.from_model(model))}
    return lambda: {name: one(m) for name, m in model.named_children() if isinstance(m, nn.Linear)}


class NeuralTangents:
    """Its structured derivatives, compiled, in a worker process: see neural_tangents_worker.py.

    Per layer it is a function of that layer's weights alone; together it is the NTK only.
    """

    def __init__(self, n: int, what: str, python: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.given = Path(self.folder.name) / "given.npz"
        weights = {f"w{i}": p.detach().numpy() for i, p in enumerate(network().parameters())}
        np.savez(self.given, x=samples(n).numpy(), **weights)
        worker = Path(__file__).with_name("neural_tangents_worker.py")
        command = [python, str(worker), str(self.given), what]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, text=True, **pipes)
        self.peak, self.processor = 0, 0.0
        self.installed = self.answer() == "ready"

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def ask(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        peak, processor = self.answer().split()
        self.peak, self.processor = int(peak), float(processor)

    def __call__(self) -> None:
        self.ask("run")

    def kernels(self) -> dict[str, Any]:
        self.ask("save")
        with np.load(f"{self.given}.out.npz") as found:
            return dict(found)

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()


def nngeometry_alignment(n: int) -> Call | str:
    """Equation 7 from a Gram matrix per layer, centered and normed as it is written."""
    kernels = nngeometry_kernels(n, together=False)
    if isinstance(kernels, str):
        return kernels
    y = nn.functional.one_hot(torch.arange(n) % 10, 10).float().flatten()
    y = y - y.mean()

    def aligned(kernel: torch.Tensor) -> torch.Tensor:
        k = kernel.reshape(10 * n, 10 * n)
        k = k - k.mean(dim=0, keepdim=True)
        k = k - k.mean(dim=1, keepdim=True)
        return y @ k @ y / k.norm() / y.square().sum()

    def call() -> dict[str, torch.Tensor]:
        return {layer: aligned(kernel) for layer, kernel in kernels().items()}

    return call


def ours(what: str, n: int) -> Call:
    (model, x), y = task(what, n), torch.arange(n) % 10
    if what == "ntk":
        return lambda: {"ntk": ntk(model, x)}
    if what == "alignment":
        return lambda: label_alignment(model, x, y)
    return lambda: layer_kernels(model, x, outputs="trace" if what == "trace" else "all")


def contender(name: str, what: str, n: int) -> Call | str:
    if name == "repalign":
        return ours(what, n)
    if name == "torch.func":
        return jacobian_recipe(n, what)
    if name == "nngeometry":
        return nngeometry_alignment(n) if what == "alignment" else nngeometry_kernels(n, what == "ntk")
    worker = NeuralTangents(n, what, PYTHON["neural-tangents"])
    if worker.installed:
        return worker
    worker.close()
    return ABSENT


# What is measured: the contenders, and the ratio of their time (and memory) to ours that is aimed at.
CASES: dict[str, dict[str, Any]] = {
    "all": {
        "title": "per-layer kernels, all outputs, n=256",
        "n": 256,
        "against": {"torch.func": (150, 20), "nngeometry": (15, None), "neural-tangents": (2.5, None)},
    },
    # Most of that time goes into fresh pages for the results. Here ours and theirs keep what was freed.
    "kept": {
        "title": "per-layer kernels, all outputs, n=256, memory kept (`repalign.machine.memory`)",
        "n": 256,
        "against": {"neural-tangents": (2.5, None)},
    },
    "ntk": {
        "title": "their sum only (NTK), all outputs, n=256",
        "n": 256,
        "against": {"nngeometry": (None, None), "neural-tangents": (None, None)},
    },
    "trace": {
        "title": "per-layer kernels, trace over outputs, n=256",
        "n": 256,
        "against": {"torch.func": (180, 100)},
    },
    "tokens": {
        "title": "per-layer kernels of a transformer, 4 layers of 256, 32 tokens, n=64",
        "n": 64,
        "against": {"torch.func": (2, None)},
    },
    "alignment": {
        "title": "label_alignment of every layer, n=256",
        "n": 256,
        "against": {"nngeometry": (15, None)},
    },
}


def operations(what: str, n: int, depth: int = 10, width: int = 256, inputs: int = 784, o: int = 10) -> float:
    """Floating-point operations that no way around is known for: products of the triangle, and passes."""
    sides = [(inputs, width), *[(width, width)] * (depth - 2), (width, o)]
    pairs = n * n / 2
    gram = sum(2 * pairs * (d + m * (o if what == "trace" else o * o)) for d, m in sides)
    passes = sum(2 * n * d * m for d, m in sides) + sum(2 * n * o * d * m for d, m in sides[1:])
    return gram + passes


def bound() -> float:
    """What this machine's matrix product reaches now, in operations per second."""
    a = torch.randn(2048, 2048)
    a @ a
    return 2 * 2048**3 / min(timed(lambda: a @ a)[0] for _ in range(5))


def timed(call: Call) -> tuple[float, Any]:
    """Seconds by the chosen clock, and what the call returned."""
    start = CLOCK["now"]()
    result = call()
    passed = CLOCK["now"]() - start
    if isinstance(call, NeuralTangents) and CLOCK["now"] is time.process_time:
        passed = call.processor
    return passed, result


def agree(a: dict[str, Any], b: dict[str, Any], tolerance: float) -> None:
    """Same kernels, layer by layer, whatever they are called and however shaped."""
    for x, y in zip(a.values(), b.values(), strict=True):
        left, right = (np.asarray(v).reshape(-1) for v in (x, y))
        scale = float(np.abs(left).max())
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance * scale)


def apart(name: str, what: str, n: int) -> tuple[float, int] | None:
    """One call in a process of its own: seconds, and the bytes at its peak above those before the call."""
    command = [sys.executable, __file__, "--child", name, what, str(n)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.split():
        return None  # not installed, or killed because it asked for more memory than there is
    seconds, peak = done.stdout.split()[-2:]
    return float(seconds), int(peak)


def peak_memory(name: str, what: str, n: int) -> int | None:
    found = apart(name, what, n)
    return found and found[1]


def child(name: str, what: str, n: int) -> None:
    small = contender(name, what, 4)
    if isinstance(small, str):
        raise SystemExit(1)
    small()  # thread pools, lazily loaded libraries
    call = contender(name, what, n)
    assert not isinstance(call, str)
    before = memory_now("VmRSS")
    seconds = timed(call)[0]
    print(seconds, max(memory_now("VmHWM") - before, 1))


def measure(what: str, repeats: int) -> list[dict[str, Any]]:
    """Rows of one case: ours first."""
    case = CASES[what]
    n = case["n"]
    calls: dict[str, Call | str] = {"repalign": ours(what, n)}
    calls |= {name: contender(name, what, n) for name in case["against"]}
    running = {name: call for name, call in calls.items() if not isinstance(call, str)}
    mine, others = running["repalign"], {k: v for k, v in running.items() if k != "repalign"}
    reference = mine()
    slow = {}
    for name, call in others.items():  # a first run, in which code is compiled, does not count
        slow[name], result = timed(call)
        # The dense recipe's norm of millions of entries in float32 keeps three digits; ours keeps seven.
        tolerance = 3e-3 if what == "alignment" else 1e-4
        agree(reference, call.kernels() if isinstance(call, NeuralTangents) else result, tolerance)
        del result
    del reference
    times: dict[str, list[float]] = {name: [] for name in running}
    bounds = []
    for _ in range(repeats):
        bounds.append(bound())
        for name, call in others.items():
            # What is short is measured more often, and ours beside each of the others.
            for _ in range(1 if slow[name] > 10 else 3):
                times["repalign"].append(timed(mine)[0])
                times[name].append(timed(call)[0])
            print(f"  {what}: {name} {times[name][-1]:.2f} s", file=sys.stderr, flush=True)
    seconds = {name: statistics.median(t) for name, t in times.items()}
    memory = {name: peak_memory(name, what, n) for name in running if name != "neural-tangents"}
    for name, call in running.items():
        if isinstance(call, NeuralTangents):
            memory[name] = call.peak
            call.close()
    rows = []
    for name in calls:
        aims = case["against"].get(name, (None, None))
        row: dict[str, Any] = {"case": what, "title": case["title"], "n": n, "who": name}
        if name in running:
            row |= {"seconds": seconds[name], "all_seconds": times[name], "peak_bytes": memory[name]}
            row |= {"times": seconds[name] / seconds["repalign"], "aim_times": aims[0], "aim_memory": aims[1]}
            mine = memory["repalign"]
            row["memory_times"] = memory[name] / mine if memory[name] and mine else None
        else:
            row["seconds"] = ABSENT
        if name == "repalign":
            speed = statistics.median(bounds)
            row["bound_gflops"] = speed / 1e9
            if what != "tokens":  # how few operations attention can do with is not known
                row["of_bound"] = operations(what, n) / speed / seconds[name]
        rows.append(row)
    return rows


def measure_kept(what: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of a case in a process of its own, whose environment tells glibc to keep memory."""
    command = [sys.executable, __file__, "--kept", what, "--repeats", str(options.repeats)]
    command += ["--clock", options.clock, "--neural-tangents", PYTHON["neural-tangents"]]
    done = subprocess.run(
        command, env={**os.environ, **environment()}, stdout=subprocess.PIPE, text=True, check=True
    )
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def large_alignment(n: int = 2000) -> list[dict[str, Any]]:
    """label_alignment at an n where the (n·o)² kernel of one layer takes gigabytes; one run of each."""
    shared = {"case": "large", "title": f"label_alignment of every layer, n={n}", "n": n}
    speed, mine = bound(), apart("repalign", "alignment", n)
    assert mine is not None
    print(f"  large: repalign {mine[0]:.1f} s; nngeometry takes some minutes", file=sys.stderr, flush=True)
    rows = [{**shared, "who": "repalign", "seconds": mine[0], "peak_bytes": mine[1]}]
    rows[0] |= {"bound_gflops": speed / 1e9, "of_bound": operations("all", n) / speed / mine[0]}
    theirs = apart("nngeometry", "alignment", n)
    row: dict[str, Any] = {**shared, "who": "nngeometry"}
    if theirs is None:
        return [*rows, {**row, "seconds": ABSENT if isinstance(nngeometry_kernels(4, True), str) else NO_FIT}]
    row |= {"seconds": theirs[0], "peak_bytes": theirs[1], "times": theirs[0] / mine[0]}
    return [*rows, {**row, "memory_times": theirs[1] / mine[1]}]


def scaling(repeats: int) -> list[dict[str, Any]]:
    """Cost against depth, and against n, with the fitted exponent."""
    rows = []
    for what in ("all", "trace"):
        series = {
            "depth": [(d, network(depth=d), samples(64)) for d in (4, 8, 16, 32)],
            "n": [(n, network(depth=4), samples(n)) for n in (64, 128, 256, 512)],
        }
        for axis, cases in series.items():
            sizes = [size for size, _, _ in cases]
            calls = [partial(layer_kernels, model, x, what) for _, model, x in cases]
            rounds = [[timed(call)[0] for call in calls] for _ in range(2 * repeats + 1)]
            seconds = [statistics.median(column) for column in zip(*rounds[1:], strict=True)]
            slope = exponent(sizes, seconds)
            rows.append({"case": what, "axis": axis, "sizes": sizes, "seconds": seconds, "exponent": slope})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    def number(value: float | str | None, unit: str = "", digits: int = 3) -> str:
        if value is None or isinstance(value, str):
            return value or "–"
        return f"{value:.{digits}g}{unit}"

    head = ("work", "who", "time", "× ours", "aim", "peak MB", "× ours", "aim", "of bound")
    table = [head]
    for row in rows:
        peak = row.get("peak_bytes")
        table.append(
            (
                row["title"],
                row["who"],
                number(row["seconds"], " s"),
                number(row.get("times")),
                number(row.get("aim_times")),
                number(peak / 2**20 if peak else None, digits=4),
                number(row.get("memory_times")),
                number(row.get("aim_memory")),
                f"{row['of_bound']:.0%}" if "of_bound" in row else "",
            )
        )
    widths = [max(len(line[i]) for line in table) for i in range(len(head))]
    for line in table:
        print("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip())


def pairs_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each contender beside ours: the form in which all benchmarks are recorded."""
    ours = {row["case"]: row for row in rows if row["who"] == "repalign"}
    found = []
    for row in rows:
        mine = ours[row["case"]]
        if row is mine:
            continue
        pair = {
            "work": row["title"],
            "against": row["who"],
            "ours": mine["seconds"],
            "theirs": row["seconds"],
            "aim": row.get("aim_times"),
            "times_bound": 1 / mine["of_bound"] if "of_bound" in mine else None,
        }
        if isinstance(row["seconds"], str):
            pair |= {"theirs": None, "why": row["seconds"]}
        elif row.get("peak_bytes") and mine["peak_bytes"]:
            memory = {"ours": mine["peak_bytes"], "theirs": row["peak_bytes"], "aim": row.get("aim_memory")}
            pair["memory"] = memory
        found.append(pair)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("report", nargs="?", help="write the results to this file, as JSON")
    parser.add_argument("--only", nargs="*", choices=[*CASES, "large", "scaling"])
    parser.add_argument("--neural-tangents", metavar="PYTHON", help="an interpreter that has it")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--kept", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        name, what, n = options.child
        return child(name, what, int(n))
    if options.clock == "cpu":
        CLOCK["now"] = time.process_time
    if options.neural_tangents:
        PYTHON["neural-tangents"] = options.neural_tangents
    if options.kept:
        return print(json.dumps(measure(options.kept, options.repeats)))
    wanted = options.only or [*CASES, "large", "scaling"]
    about = machine() | {"clock": options.clock}
    rows = []
    for what in [what for what in CASES if what in wanted]:
        rows += measure_kept(what, options) if what == "kept" else measure(what, options.repeats)
    rows += large_alignment() if "large" in wanted else []
    curves = scaling(options.repeats) if "scaling" in wanted else []
    speeds = [row["bound_gflops"] for row in rows if "bound_gflops" in row]
    print(f"\n{about['threads']} threads, torch {about['torch']}", end="")
    print(f", matrix product {statistics.median(speeds):.0f} GFLOP/s" if speeds else "")
    show(rows)
    for curve in curves:
        pairs = zip(curve["sizes"], curve["seconds"], strict=True)
        points = ", ".join(f"{size}: {t * 1e3:.0f} ms" for size, t in pairs)
        print(f"{curve['case']} against {curve['axis']}: exponent {curve['exponent']:.2f} ({points})")
    curves = [
        {**curve, "work": f"layer_kernels, {curve['case']}", "against": curve["axis"]} for curve in curves
    ]
    write(options.report, {"machine": about, "rows": pairs_of(rows), "curves": curves})
    return None


if __name__ == "__main__":
    main()
