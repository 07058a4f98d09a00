"""Section VI: the tangent kernel of a network through its training, what it resembles and consists of."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor, func, nn

from repalign import data, models, plots, tangent, train
from repalign.alignment import kernel_spectrum
from repalign.data import Dataset
from repalign.kernels import center, effective_rank, gram, kta
from repalign.machine import devices
from repalign.papers.canatar.networks import CLASSES

# The three alignments of the paper's figure 7.
TANGENT_PAIRS = ("NTK–target", "NTK–network", "network–target")
OPERATOR = "operator NTK–target"
# The two terms of equation 8: the kernel of the last weights, and the sum of all others.
PENULTIMATE, GRADIENT = "penultimate", "gradient"
TERM_PAIRS = (f"{PENULTIMATE}–target", f"{GRADIENT}–target")
# A column for each profile: the network and the training are the paper's but for rate and epochs. A sweep of
# its own has the paper's rate, 0.1.
_NETWORK = dict(width=200, depth=4)
TANGENT_SETTINGS: dict[str, dict[str, Any]] = dict(
    smoke=dict(
        _NETWORK,
        rates=(0.007, 0.001),
        n=200,
        n_test=100,
        n_kernel=50,
        n_operator=20,
        epochs=4,
        epochs_at_high_rate=1,
        batch=50,
        looks=4,
        trials=2,
        runs=2,
        runs_elsewhere=2,
    ),
    laptop=dict(
        _NETWORK,
        rates=(0.007, 0.001),
        n=2000,
        n_test=2000,
        n_kernel=200,
        n_operator=50,
        epochs=40,
        epochs_at_high_rate=3,
        batch=200,
        looks=9,
        trials=5,
        runs=4,
        runs_elsewhere=2,
    ),
    desktop=dict(
        _NETWORK,
        rates=(0.007, 0.001),
        n=10_000,
        n_test=10_000,
        n_kernel=400,
        n_operator=100,
        epochs=300,
        epochs_at_high_rate=30,
        batch=500,
        looks=14,
        trials=20,
        runs=20,
        runs_elsewhere=5,
    ),
    paper=dict(
        _NETWORK,
        rates=(0.007, 0.001),
        n=10_000,
        n_test=10_000,
        n_kernel=5000,
        n_operator=1000,
        epochs=3000,
        epochs_at_high_rate=3000,
        batch=500,
        looks=30,
        trials=20,
        runs=5,
        runs_elsewhere=5,
    ),
)
# How far numbers may move on another processor, relative to themselves: a long training there ends in another
# network, and small eigenvalues of two networks differ by up to two thirds.
TANGENT_TOLERANCE = 0.8
# What a kernel that is the same for all images says, by its name.
_CONSTANT = {
    "NTK": "the NTK is the same for all images",
    "network": "the output is the same for all images",
    PENULTIMATE: "the last hidden layer is the same for all images",
    GRADIENT: "the gradient kernel is the same for all images",
}
_NOTHING = 1e-12  # a centered kernel below this share of the kernel itself is what rounding leaves


def chain_shares(weights: Sequence[float]) -> pd.DataFrame:
    """Shares of the layers in the NTK of a chain of single linear units: known and measured.

    >>> chain_shares([1.0, 1.0])["known"].tolist()
    [0.5, 0.5]
    """
    chain = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in weights])
    w = torch.tensor(weights)
    nn.utils.vector_to_parameters(w, chain.parameters())
    parts = tangent.layer_kernels(chain, torch.tensor([[1.0], [-1.0]]), "trace")
    known = w**-2 / (w**-2).sum()
    frame = pd.DataFrame({"weight": w, "known": known, "measured": list(_shares(parts).values())})
    return frame.set_axis([f"layer {k}" for k in range(1, len(w) + 1)])


def _shares(parts: dict[str, Tensor]) -> dict[str, float]:
    """The share of each kernel in their sum, ⟨K_l, K⟩ / ⟨K, K⟩."""
    whole = torch.stack(list(parts.values())).sum(0)
    norm = whole.square().sum()
    return {name: float((part * whole).sum() / norm) for name, part in parts.items()}


def multilayer_network(pixels: int, *, width: int, depth: int, seed: int) -> models.MLP:
    """The paper's network of section VI: weights from N(0, 1/N), biases 0, and none in the last layer."""
    net = models.MLP(pixels, CLASSES, width=width, depth=depth, init="width", seed=seed)
    net.get_submodule("head").register_parameter("bias", None)
    return net


def tangent_identities(seed: int, images: int = 12) -> list[dict[str, Any]]:
    """By how much equations 5 to 8 are missed in a small network: a row for each statement.

    >>> all(row["deviation"] < 1e-8 for row in tangent_identities(seed=0))
    True
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(images, 30, generator=generator, dtype=torch.float64)
    target = data.one_hot(torch.randint(CLASSES, (images,), generator=generator), CLASSES).double()
    net = multilayer_network(30, width=20, depth=4, seed=seed).double()
    outputs = partial(func.functional_call, net, args=(x,))
    theta = _parameters(net)
    hidden = nn.Sequential(*list(net)[:-1])
    activations = partial(func.functional_call, hidden, args=(x,))
    inner = _parameters(hidden)

    jacobian = _jacobian(outputs, theta).flatten(0, 1)
    gradient = (theta["head.weight"] @ _jacobian(activations, inner)).flatten(0, 1)
    penultimate = gram(activations(inner))
    ntk = tangent.ntk(net, x)
    identity = torch.eye(CLASSES, dtype=torch.float64)
    traced = _trace(ntk, images) / CLASSES
    eighth = penultimate + _trace(gradient @ gradient.T, images) / CLASSES

    downhill = func.grad(lambda at: -(outputs(at) - target).square().sum() / 2)(theta)
    moved = _along(outputs, theta, downhill).flatten()
    error = (outputs(theta) - target).flatten()
    return [
        _missed("eq7", "the NTK is the product of Jacobians", ntk, jacobian @ jacobian.T),
        _missed(
            "eq7",
            "it is the penultimate plus the gradient kernel",
            ntk,
            torch.kron(penultimate, identity) + gradient @ gradient.T,
        ),
        _missed("eq7", "equation 8 is its trace over C", traced, eighth),
        _missed("eq7", "the package gives the same trace", tangent.ntk(net, x, "trace") / CLASSES, traced),
        _missed("eq5", "outputs move by −K (f − f̄)", moved, -ntk @ error),
        _missed("eq5", "the same from Jacobians", moved, -jacobian @ (jacobian.T @ error)),
    ]


def _parameters(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in net.named_parameters()}


def _jacobian(function: Any, at: dict[str, Tensor]) -> Tensor:
    """(images, outputs, parameters), a column for each number among the parameters."""
    return torch.cat([part.flatten(2) for part in func.jacrev(function)(at).values()], 2)


def _along(function: Any, at: dict[str, Tensor], direction: dict[str, Tensor]) -> Tensor:
    """The derivative of ``function`` along a direction in its parameters, without a Jacobian."""
    names = list(at)

    def of_values(*values: Tensor) -> Tensor:
        return function(dict(zip(names, values, strict=True)))

    values, steps = (tuple(part[name] for name in names) for part in (at, direction))
    return torch.autograd.functional.jvp(of_values, values, steps)[1]


def _trace(kernel: Tensor, images: int) -> Tensor:
    """Summed over the outputs: (on)×(on) becomes n×n."""
    return torch.einsum("kaia->ki", kernel.reshape(images, CLASSES, images, CLASSES))


def _missed(claim: str, statement: str, found: Tensor, wanted: Tensor) -> dict[str, Any]:
    deviation = float((found - wanted).abs().max() / wanted.abs().max())
    return {"claim": claim, "statement": statement, "deviation": deviation, "limit": 1e-8}


def digits() -> tuple[Dataset, Dataset]:
    """Handwritten digits to learn and to test on; fewer where only the shipped ones are at hand."""
    learned = data.load("mnist", "train", 60_000, shrink=True, dtype=torch.uint8)
    return learned, data.load("mnist", "test", 10_000, shrink=True, dtype=torch.uint8)


def tangent_common(settings: Any) -> dict[str, Any]:
    """What every cell of a sweep over :func:`tangent_evolution` shares, from a page's settings."""
    given = settings.as_dict()
    names = ("n", "n_test", "n_kernel", "n_operator", "batch", "looks", "width", "depth")
    sizes = {name: given[name] for name in names}
    return dict(data=digits, trained=True, tolerance=TANGENT_TOLERANCE, **sizes)


def tangent_work(settings: Any) -> float:
    """Floating-point operations of training and of the kernels at every look, at all three rates."""
    weights = settings.width * (784 + (settings.depth - 1) * settings.width + CLASSES)
    epoch = 6 * weights * settings.n
    # Twice, on training and on test images: gradients of each output, and products of all pairs of images.
    widths = 784 + 2 * settings.depth * settings.width + CLASSES
    kernels = 2 * (4 * CLASSES * weights * settings.n_kernel + 2 * CLASSES * widths * settings.n_kernel**2)
    whole = 2 * (2 * widths * (CLASSES * settings.n_operator) ** 2)
    looks = settings.looks * (kernels + whole)
    networks = settings.runs + settings.runs_elsewhere * (len(settings.rates) - 1)
    at_high_rate = settings.runs_elsewhere * (settings.epochs_at_high_rate * epoch + looks)
    return networks * (settings.epochs * epoch + looks) + at_high_rate


def tangent_evolution(
    sets: Sequence[Dataset],
    *,
    rate: float,
    seed: int,
    n: int,
    n_test: int,
    n_kernel: int,
    n_operator: int,
    epochs: int,
    batch: int,
    looks: int,
    width: int,
    depth: int,
    device: str,
) -> list[dict[str, Any]]:
    """A network through its training: accuracy, alignments, and what its NTK is made of, at every look.

    ``seed`` chooses images, first weights and the order of the images. Each row has ``images``, ``epoch`` and
    a ``value`` of ``what``, ``of`` what. A value that does not exist is NaN, with the reason. Each row says
    how the network ended: trained, its units dead, or diverged.
    """
    where = devices.device(device)
    both = {
        name: _pixels(one, count, seed, where)
        for name, one, count in zip(("training", "test"), sets, (n, n_test), strict=True)
    }
    x, y = both["training"]
    at = train.log_epochs(epochs, looks)
    stages = {0: "start", _middle(at): "middle", epochs: "end"}
    rows: list[dict[str, Any]] = []

    def look(net: nn.Module, epoch: float) -> None:
        if not all(torch.isfinite(value).all() for value in net.parameters()):
            raise train.DivergedError(f"the weights became infinite in epoch {epoch:g}")
        stage = stages.get(int(epoch), "")
        for images, (some, labels) in both.items():
            found = _look(net, some, labels, n_kernel, n_operator, in_full=bool(stage))
            rows.extend({"images": images, "epoch": int(epoch), "stage": stage, **row} for row in found)

    net = multilayer_network(x[0].numel(), width=width, depth=depth, seed=seed).to(where)
    try:
        train.fit(
            net,
            x,
            y,
            loss="squared",
            optimizer="adam",
            lr=rate,
            epochs=epochs,
            batch_size=batch,
            seed=seed,
            at=at,
            measure=look,
        )
        ended = "dead" if _output_is_constant(net, x[:n_kernel]) else "trained"
    except train.DivergedError as error:
        ended = f"diverged: {error}".splitlines()[0][:80]
    return [{**row, "ended": ended} for row in rows]


def _pixels(one: Dataset, count: int, seed: int, where: torch.device) -> tuple[Tensor, Tensor]:
    """``count`` images with values from 0 to 1, and their labels."""
    chosen = data.subset(one, min(count, len(one)), seed=seed)
    return chosen.x.to(where).float() / 255, chosen.y.to(where)


def _middle(epochs: Sequence[int]) -> int:
    """The look nearest to the middle of training on a logarithmic axis of epochs."""
    return min(epochs, key=lambda epoch: abs(math.log(max(epoch, 0.1) ** 2 / max(epochs[-1], 1))))


def _output_is_constant(net: nn.Module, x: Tensor) -> bool:
    with torch.no_grad():
        return _is_constant(gram(net(x).double()))


def _is_constant(kernel: Tensor) -> bool:
    return bool(center(kernel).abs().max() <= _NOTHING * kernel.abs().max())


def _look(
    net: nn.Module, x: Tensor, y: Tensor, n_kernel: int, n_operator: int, *, in_full: bool
) -> Iterator[dict[str, Any]]:
    """All that is measured on some images at one time; spectra only when the look is ``in_full``."""
    yield _row("accuracy", "network", train.accuracy(net, x, y))
    exact = copy.deepcopy(net).double()
    x = x[:n_kernel].double()
    target = data.one_hot(y[:n_kernel], CLASSES).double()
    yield from _live_units(exact, x)
    parts = {
        _name(layer): kernel / CLASSES for layer, kernel in tangent.layer_kernels(exact, x, "trace").items()
    }
    rest = torch.stack([part for name, part in parts.items() if name != PENULTIMATE]).sum(0)
    terms = {PENULTIMATE: parts[PENULTIMATE], GRADIENT: rest}
    whole = parts[PENULTIMATE] + rest
    with torch.no_grad():
        network = gram(exact(x))
    yield from _alignments({"NTK": whole, "target": gram(target), "network": network, **terms})
    yield from _operator_alignments(exact, x[:n_operator], target[:n_operator])
    if _is_constant(whole):
        for name in parts:
            yield _row("share", name, math.nan, _CONSTANT["NTK"])
        return
    flat = {name: center(part) for name, part in parts.items()}
    trace = sum(float(part.trace()) for part in flat.values())
    for name, value in _shares(flat).items():
        yield _row("share", name, value)
        yield _row("share of trace", name, float(flat[name].trace()) / trace)
    if in_full:
        for name, kernel in {"NTK": whole, **terms}.items():
            yield from _rank_and_power(name, kernel, target)
        yield from _modes(whole, target)


def _row(what: str, of: str, value: float, reason: str = "", mode: int | None = None) -> dict[str, Any]:
    return {"what": what, "of": of, "mode": mode, "value": value, "reason": reason}


def _name(layer: str) -> str:
    """fc1 is layer 1; the kernel of the last weights is the penultimate kernel."""
    return PENULTIMATE if layer == "head" else layer.replace("fc", "layer ")


def _live_units(net: nn.Module, x: Tensor) -> Iterator[dict[str, Any]]:
    """The share of units in each hidden layer that respond to at least one image."""
    with torch.no_grad():
        for name, module in net.named_children():
            x = module(x)
            if name.startswith("act"):
                yield _row("live units", name.replace("act", "layer "), float((x > 0).any(0).double().mean()))


def _alignments(kernels: dict[str, Tensor]) -> Iterator[dict[str, Any]]:
    """KTA of each pair, and CKA, for which both kernels are centered."""
    constant = {name: _is_constant(kernel) for name, kernel in kernels.items()}
    for pair in (*TANGENT_PAIRS, *TERM_PAIRS):
        first, second = pair.split("–")
        reason = next((_CONSTANT[name] for name in (first, second) if constant[name]), "")
        if reason:
            yield _row("KTA", pair, math.nan, reason)
            yield _row("CKA", pair, math.nan, reason)
            continue
        yield _row("KTA", pair, float(kta(kernels[first], kernels[second])))
        yield _row("CKA", pair, float(kta(center(kernels[first]), center(kernels[second]))))


def _operator_alignments(net: nn.Module, x: Tensor, target: Tensor) -> Iterator[dict[str, Any]]:
    """Alignment of the NTK for all outputs, (on)×(on), with the rank-1 kernel of the stacked labels.

    As it is (KTA), and with the mean over images taken from each output (CKA).
    """
    whole = tangent.ntk(net, x)
    images = len(x)
    centering = torch.eye(images, dtype=x.dtype, device=x.device) - 1 / images
    blocks = whole.reshape(images, CLASSES, images, CLASSES)
    flat = torch.einsum("ki,iajb,jl->kalb", centering, blocks, centering).reshape_as(whole)
    for what, kernel, labels in (("KTA", whole, target), ("CKA", flat, target - target.mean(0))):
        if kernel.abs().max() <= _NOTHING * whole.abs().max():
            yield _row(what, OPERATOR, math.nan, _CONSTANT["NTK"])
            continue
        stacked = labels.flatten()
        value = stacked @ kernel @ stacked / (kernel.norm() * stacked.square().sum())
        yield _row(what, OPERATOR, float(value))


def _rank_and_power(name: str, kernel: Tensor, target: Tensor) -> Iterator[dict[str, Any]]:
    """Effective rank once centered, and the labels' power in the first ten modes of the kernel as it is."""
    if _is_constant(kernel):
        yield _row("rank", name, math.nan, _CONSTANT[name])
        yield _row("power", name, math.nan, _CONSTANT[name])
        return
    power = kernel_spectrum(kernel, target).power[:CLASSES]
    yield _row("rank", name, float(effective_rank(center(kernel))))
    yield _row("power", name, float(power.sum() / target.square().sum()))


def _modes(ntk: Tensor, target: Tensor) -> Iterator[dict[str, Any]]:
    """Eigenvalues of the NTK, and cumulative power of the labels in its modes."""
    found = kernel_spectrum(ntk, target)
    power = found.power.sum(1).cumsum(0) / target.square().sum()
    for mode in plots.spread(len(ntk), 50).tolist():
        yield _row("eigenvalue", "mode", float(found.eigenvalues[mode - 1]) / len(ntk), mode=mode)
        yield _row("cumulative power", "mode", float(power[mode - 1]), mode=mode)
