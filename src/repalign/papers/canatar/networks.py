"""The 48 networks of Canatar & Pehlevan IV: trained once, looked at by several pages of the chapter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d
from torch.optim.swa_utils import update_bn
from torch.utils.flop_counter import FlopCounterMode

from repalign import data, features, models, plots, train
from repalign.alignment import predicted_error, spectrum
from repalign.data import Dataset
from repalign.kernels import cka_floor, cka_grid, effective_rank
from repalign.machine import devices
from repalign.train.recipes import Augment
from repalign.train.targets import evaluate

# What a layer has beside its resemblances.
_SIZES = ("rank", "size", "gap", "ten")
# How many eigenvalues count as large: as many as the paper's figures show apart.
LARGE = 30
CLASSES = 10
# Of the centered kernel of ten classes, of which the labels of nine tell the tenth.
TARGET_RANK = CLASSES - 1
# The layers whose spectra the paper shows.
LAST_TWO = (9, 10)
# Which features of a map form the kernel: the mean of each filter, or all filters at all positions.
POOLS = {"means": "mean", "maps": "flatten"}
# One table of settings for all pages that look at these networks, so that they are trained once.
SETTINGS: dict[str, dict[str, Any]] = dict(
    smoke=dict(
        runs=2,
        n=60,
        n_test=60,
        pixels=8,
        width=4,
        batches=(20,),
        rates=(0.1,),
        output_scale=0.125,
        shift=1,
        length=("steps", 9),
        early=0.3,
        fits=0.0,
        probe=60,
        samples=20,
        draws=2,
    ),
    laptop=dict(
        runs=2,
        n=200,
        n_test=1000,
        pixels=8,
        width=8,
        batches=(16, 32),
        rates=(0.05, 0.2),
        output_scale=0.125,
        shift=0,
        length=("steps", 300),
        early=0.1,
        fits=0.95,
        probe=200,
        samples=50,
        draws=4,
    ),
    desktop=dict(
        runs=3,
        n=800,
        n_test=10_000,
        pixels=16,
        width=16,
        batches=(32, 64, 128),
        rates=(0.05, 0.2),
        output_scale=0.125,
        shift=1,
        length=("steps", 1000),
        early=0.1,
        fits=0.95,
        probe=500,
        samples=100,
        draws=20,
    ),
    paper=dict(
        runs=3,
        n=50_000,
        n_test=10_000,
        pixels=32,
        width=64,
        batches=(512, 2048, 4096),
        rates=(0.05, 0.5),
        output_scale=0.2,
        shift=2,
        length=("epochs", 5000),
        early=0.005,
        fits=0.95,
        probe=1000,
        samples=200,
        draws=8,
    ),
)
# How far a trained network's numbers may move on another processor, relative to their size or spread.
TOLERANCE = 0.5


def forty_eight(settings: Any, device: str) -> dict[str, Any]:
    """What a sweep over :func:`network` is given: every configuration, for several seeds.

    Two of each choice and three batch sizes make 48 configurations, where there are two learning rates. Every
    batch size has seeds of its own: the networks of one seed are a group of sixteen, with images and first
    weights that no other group has.
    """
    runs, first = len(settings.seeds), settings.seeds[0]
    configs = [
        dict(seed=seed, skip=skip, augment=augment, batch=batch, rate=rate, momentum=momentum)
        for place, batch in enumerate(settings.batches)
        for skip, augment, rate, momentum in product(
            (False, True), (False, True), settings.rates, (False, True)
        )
        for seed in range(first + place * runs, first + (place + 1) * runs)
    ]
    chosen = {"runs", "batches", "rates"}
    shared = {name: getattr(settings, name) for name in SETTINGS["paper"] if name not in chosen}
    sets = partial(_sets, max(10_000, settings.n), settings.n_test)
    return dict(configs=configs, data=sets, trained=True, tolerance=TOLERANCE, device=device, **shared)


def _sets(n: int, n_test: int) -> list[Dataset]:
    """CIFAR-10, as many images as networks draw theirs from; bytes, as it is stored."""
    kind: dict[str, Any] = dict(dtype=torch.uint8, shrink=True)
    return [data.load("cifar10", "train", n, **kind), data.load("cifar10", "test", n_test, **kind)]


def work(settings: Any) -> float:
    """Floating-point operations of training all networks: three times those of a forward pass."""
    net = models.ResNet11(width=settings.width)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(torch.zeros(2, 3, settings.pixels, settings.pixels))
    of_an_image = counter.get_total_flops() / 2
    unit, amount = settings.length
    networks = 8 * len(settings.rates) * settings.runs
    if unit == "steps":
        images = amount * sum(settings.batches)
    else:
        images = amount * settings.n * len(settings.batches)
    return 3 * of_an_image * images * networks


def network(
    sets: Sequence[Dataset],
    *,
    seed: int,
    skip: bool,
    augment: bool,
    batch: int,
    rate: float,
    momentum: bool,
    n: int,
    n_test: int,
    pixels: int,
    width: int,
    output_scale: float,
    shift: int,
    length: tuple[str, int],
    early: float,
    fits: float,
    probe: int,
    samples: int,
    draws: int,
    device: str,
) -> list[dict[str, Any]]:
    """One network, trained: how it ended, and what its layers look like at three times.

    ``seed`` chooses the images, the first weights and their order, so that networks of one seed differ in
    nothing but their settings. Training takes ``length``: ``("epochs", 5000)``, or ``("steps", 2000)`` give
    or take an epoch. It is looked at before, after the share ``early`` of it, and at the end. A network
    counts when it classifies the share ``fits`` of its training images. Rows are of three kinds: ``layer``
    (what a layer resembles), ``mode`` (spectrum and power of the last two layers) and ``probe`` (test error
    of regression on a layer, measured and predicted). Each says how the network ended; one that diverges is
    a row that says so.
    """
    where = devices.device(device)
    train_images, test_images = (
        _images(one, count, pixels, seed, where) for one, count in zip(sets, (n, n_test), strict=True)
    )
    x, y = train_images
    net = models.ResNet11(skips=skip, width=width, output_scale=output_scale, seed=seed).to(where)
    update_bn([x[:2000]], net)  # else the look at the start would see batch norm as it was built
    looked = {"training": (x[:probe], y[:probe]), "test": (test_images[0][:probe], test_images[1][:probe])}
    unit, amount = length
    epochs = round(amount * batch / len(x)) if unit == "steps" else amount
    times = _times(epochs, round(early * epochs))

    change = partial(train.crop_and_flip, pad=shift) if augment else None

    def look(net: nn.Module, epoch: float) -> list[dict[str, Any]]:
        time = times[int(epoch)]
        return [{"time": time, **row} for row in _looks(net, looked, time)]

    try:
        history = train.fit(
            net,
            x,
            y,
            loss="squared",
            optimizer="momentum" if momentum else "sgd",
            lr=rate,
            schedule="linear",
            epochs=max(times),
            batch_size=batch,
            augment=change,
            seed=seed,
            at=list(times),
            measure=look,
            full_train=True,
        )
    except train.DivergedError as error:
        return [{"kind": "ended", "ended": f"diverged: {error}".splitlines()[0][:80]}]
    fitted = history.train_accuracy[-1]
    end = {
        "ended": "fits" if fitted > fits else "does not fit",
        "fitted": fitted,
        "tested": train.accuracy(net, *test_images),
        "loss": history.loss[-1],
        "loss_augmented": _loss(net, *train_images, change, seed),
        "loss_without_augmentation": history.train_loss[-1],
    }
    rows = [row for found in history.measured.values() for row in found]
    rows += _probes(net, *looked["test"], samples, draws, seed)
    return [{**row, **end} for row in rows]


def _loss(net: nn.Module, x: Tensor, y: Tensor, change: Augment | None, seed: int) -> float:
    """The loss of the trained network on its training images, augmented once more as in training."""
    if change is not None:
        x = change(x, torch.Generator().manual_seed(seed))
    return evaluate(net, x, y, train.LOSSES["squared"])[0]


def _images(one: Dataset, count: int, pixels: int, seed: int, where: torch.device) -> tuple[Tensor, Tensor]:
    """``count`` images with values from -1 to 1, small ones as block averages, and their labels."""
    chosen = data.subset(one, count, seed=seed)
    x = chosen.x.to(where) / 127.5 - 1
    return avg_pool2d(x, x.shape[-1] // pixels), chosen.y.to(where)


def _times(epochs: int, early: int) -> dict[int, str]:
    """The epochs of the three looks; where two fall together, the later name counts."""
    epochs = max(epochs, 1)
    return {0: "start", min(max(early, 1), epochs): "early", epochs: "end"}


def _looks(net: nn.Module, looked: dict[str, tuple[Tensor, Tensor]], time: str) -> Iterator[dict[str, Any]]:
    """What all layers look like now: on training and on test images, at the end also as whole maps."""
    for images, (x, y) in looked.items():
        target = data.one_hot(y, CLASSES).cpu()
        others = {"input": x.flatten(1).cpu(), "target": target}
        layers = list(features.extract(net, x, pool="mean").values())
        for row in resemblance(layers, others):
            yield {"kind": "layer", "images": images, "features": "means", **row}
        if images == "training":
            yield from _spectra(layers, target)
        if images == "training" and time == "end":  # the other definition, for comparison
            maps = list(features.extract(net, x, pool="flatten").values())
            for row in resemblance(maps, others):
                yield {"kind": "layer", "images": images, "features": "maps", **row}


def resemblance(layers: Sequence[Tensor], others: dict[str, Tensor]) -> list[dict[str, Any]]:
    """CKA of each layer with each of ``others``, plain, debiased and by chance; rank, size, and power.

    Layers are counted from 1. ``rank`` is the effective rank of the centered kernel, ``size`` the geometric
    mean of its thirty largest eigenvalues over samples, ``gap`` by how many powers of ten the first nine of
    them lie above the others, and ``ten`` the share of all power of the last of ``others`` that lies in the
    first ten modes of the kernel as it is. A layer that is the same for all
    images, or not finite, resembles nothing: its row has NaN and the reason.
    """
    rows: list[dict[str, Any]] = []
    empty = {f"{name}{ending}": math.nan for name in others for ending in ("", "_debiased", "_floor")}
    for number, phi in enumerate(layers, start=1):
        rows.append({"layer": number, "reason": _dead(phi), **empty, **dict.fromkeys(_SIZES, math.nan)})
    alive = [row for row in rows if not row["reason"]]
    kept = [layers[row["layer"] - 1].double() for row in alive]
    fixed = [other.double() for other in others.values()]
    for ending, debiased in (("", False), ("_debiased", True)):
        grid = cka_grid(kept, fixed, debiased=debiased).tolist() if kept else []
        for row, values in zip(alive, grid, strict=True):
            row.update({f"{name}{ending}": value for name, value in zip(others, values, strict=True)})
    for row, phi in zip(alive, kept, strict=True):
        row |= _shape(phi - phi.mean(0))
        power = spectrum(phi, fixed[-1]).power.sum(1)
        row["ten"] = float(power[:CLASSES].sum() / fixed[-1].square().sum())
        for name, other in zip(others, fixed, strict=True):
            row[f"{name}_floor"] = cka_floor(phi, other, draws=0).mean
    return rows


def _shape(centered: Tensor) -> dict[str, float]:
    """Effective rank of φφᵀ, the size of its large eigenvalues, and how far the first nine stand out."""
    kernel = _kernel_side(centered)
    large = torch.linalg.eigvalsh(kernel).flip(0)[:LARGE] / len(centered)
    decades = large.clamp(min=1e-30).log10()
    apart = decades[:TARGET_RANK].mean() - decades[TARGET_RANK:].mean()
    return {
        "rank": float(effective_rank(kernel)),
        "size": float(10 ** decades.mean()),
        "gap": float(apart),
    }


def _dead(phi: Tensor) -> str:
    """The reason why a layer cannot be compared; nothing for one that can."""
    if not torch.isfinite(phi).all():
        return "not finite"
    return "" if bool((phi != phi[0]).any()) else "the same for all images"


def _kernel_side(phi: Tensor) -> Tensor:
    """The smaller of φφᵀ and φᵀφ: both have the same eigenvalues but for zeros."""
    return phi @ phi.T if len(phi) <= phi.shape[1] else phi.T @ phi


def _spectra(layers: Sequence[Tensor], target: Tensor) -> Iterator[dict[str, Any]]:
    """Eigenvalues of the kernel over samples, and cumulative power of the target, of the last two layers."""
    for number in LAST_TWO:
        phi = layers[number - 1].double()
        if _dead(phi):
            continue
        found = spectrum(phi, target.double())
        values = (found.sigma.square() / len(phi)).tolist()
        power = found.power.sum(1).cumsum(0) / target.square().sum()
        for mode in plots.spread(len(values), 24).tolist():
            yield {
                "kind": "mode",
                "layer": number,
                "mode": mode,
                "eigenvalue": values[mode - 1],
                "power": float(power[mode - 1]),
            }


def _probes(
    net: nn.Module, x: Tensor, y: Tensor, samples: int, draws: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Test error of ridge regression on every layer, measured and predicted from spectrum and power.

    The images are new to the network and are the whole population: regression learns ``samples`` of them,
    drawn independently, and its error is that over all, a mean over ``draws``; ``uncertain`` is its standard
    error. The ridge is the mean of the kernel's diagonal.
    """
    target = data.one_hot(y, CLASSES).double().cpu()
    generator = torch.Generator().manual_seed(seed)
    for number, phi in enumerate(features.extract(net, x, pool="mean").values(), start=1):
        if _dead(phi):
            yield {"kind": "probe", "layer": number, "reason": _dead(phi)}
            continue
        phi = phi.double()
        ridge = float(phi.square().sum(1).mean())
        found = spectrum(phi, target)
        values, power = found.sigma.square() / len(phi), found.power / len(phi)
        outside = found.residual / len(phi)
        predicted = predicted_error(values, power, samples, ridge=ridge, outside=outside)
        errors = [_ridge_error(phi, target, samples, ridge, generator) for _ in range(draws)]
        yield {
            "kind": "probe",
            "layer": number,
            "reason": "",
            "predicted": float(predicted.sum()),
            "measured": mean(errors),
            "uncertain": stdev(errors) / math.sqrt(draws),
        }


def _ridge_error(
    phi: Tensor, target: Tensor, samples: int, ridge: float, generator: torch.Generator
) -> float:
    """Mean squared error of one ridge regression over the whole population."""
    seen = torch.randint(len(phi), (samples,), generator=generator)
    identity = torch.eye(phi.shape[1], dtype=phi.dtype)
    weights = torch.linalg.solve(phi[seen].T @ phi[seen] + ridge * identity, phi[seen].T @ target[seen])
    return float((phi @ weights - target).square().sum(1).mean())
