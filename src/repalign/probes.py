"""Linear probes of many representations at once, and how alike their decisions are (Sharon & Dar §4, F.3).

>>> import torch
>>> g = torch.Generator().manual_seed(0)
>>> labels = torch.arange(60) % 3
>>> features = torch.randn(4, 60, 8, generator=g) + 3 * torch.eye(8)[labels]     # 4 checkpoints
>>> probes = fit_probes(features, labels, lr=0.1, epochs=50)
>>> (probes.predict(features) == labels).float().mean(dim=1)
tensor([1., 1., 1., 1.])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Integer, Real
from torch import Tensor

from repalign import _agreement
from repalign._arrays import check, numpy_too, same_rows, working
from repalign._sources import Loader, sources

Features = (
    Float[Tensor, "E n d"] | Sequence[Float[Tensor, "_ _"] | Callable[[], Tensor] | str | PathLike[str]]
)


class Probes(NamedTuple):
    """One linear classifier per representation: scores are x · weightᵀ + bias."""

    weight: Float[Tensor, "E c d"]
    bias: Float[Tensor, "E c"]

    def scores(self, features: Features) -> Float[Tensor, "E m c"]:
        """Class scores of probe e on ``features[e]``."""
        return _scores(self, features)

    def predict(self, features: Features) -> Integer[Tensor, "E m"]:
        """The class of the highest score (eq. 4)."""
        return _predict(self, features)


@numpy_too
def fit_probes(
    features: Features,
    labels: Integer[Tensor, " n"],
    *,
    classes: int | None = None,
    method: str = "adam",
    epochs: int = 10,
    lr: float = 1e-4,
    batch_size: int = 128,
    ridge: float = 1e-3,
    seed: int = 0,
    chunk: int = 20,
) -> Probes:
    """A linear classifier on each of E representations of the same samples (Sharon eq. 3, F.3).

    ``method="adam"`` is softmax regression: cross-entropy, Adam, 10 epochs at 1e-4, weights drawn as
    ``nn.Linear`` draws them. All probes start from the same draw and see the same batches (``seed``), so
    they differ by their features alone. ``method="ridge"`` regresses on one-hot labels in closed form,
    least mean squares + ``ridge``·‖W‖², with a free intercept.

    ``features`` is a tensor (E, n, d) or a sequence of (n, d) tensors, paths or functions, as for
    :func:`repalign.kernels.cka_grid`; ``chunk`` of them are in memory, and trained, at a time. The result
    is that of a loop over single probes, to rounding.

    >>> fit_probes(torch.eye(3)[None], torch.arange(3), method="ridge").predict(torch.eye(3)[None])
    tensor([[0, 1, 2]])
    """
    loads = sources(features, "features")
    if method not in ("adam", "ridge"):
        raise ValueError(f"method should be adam or ridge, but is {method!r}.")
    for name, value in (("epochs", epochs), ("lr", lr), ("batch_size", batch_size), ("chunk", chunk)):
        if not value > 0:
            raise ValueError(f"{name} should be positive, but is {value}.")
    if not ridge >= 0:
        raise ValueError(f"ridge should not be negative, but is {ridge}.")
    labels, classes = _labels(labels, classes)
    first = loads[0]()
    same_rows(first, labels, "features and labels")
    dtype = first.dtype if first.dtype in (torch.float32, torch.float64) else torch.float32
    targets = torch.nn.functional.one_hot(labels.to(first.device), classes).to(dtype)
    # Samples first: a batch of all probes is then one copy of whole rows.
    rows = first.new_empty(len(first), min(chunk, len(loads)), first.shape[1], dtype=dtype)
    fits = []
    for start in range(0, len(loads), chunk):
        part = loads[start : start + chunk]
        x = rows[:, : len(part)]
        for i, load in enumerate(part):
            x[:, i] = _like(first, load)
        if method == "adam":
            fits.append(_adam(x, targets, epochs, lr, batch_size, seed))
        else:
            fits.append(_ridge(x, targets, ridge))
    return Probes(torch.cat([fit.weight for fit in fits]), torch.cat([fit.bias for fit in fits]))


def _adam(x: Tensor, targets: Tensor, epochs: int, lr: float, batch_size: int, seed: int) -> Probes:
    """Softmax regression of all probes of a chunk in one go, with the gradient written out."""
    n, p, d = x.shape
    c = targets.shape[1]
    g = torch.Generator().manual_seed(seed)
    bound = 1 / math.sqrt(d)
    # Drawn in float64, so that every precision starts from the same numbers.
    drawn = (torch.rand(*shape, generator=g, dtype=torch.float64) for shape in ((c, d), (c,)))
    weight, bias = ((2 * part - 1) * bound for part in drawn)
    weight = weight.to(x).expand(p, c, d).clone()
    bias = bias.to(x)[:, None].expand(p, c, 1).clone()
    weight.grad, bias.grad = torch.empty_like(weight), torch.empty_like(bias)
    # One kernel for the whole update, where the device has it.
    fused = x.device.type in ("cpu", "cuda")
    optimizer = torch.optim.Adam([weight, bias], lr=lr, fused=fused)
    buffer = x.new_empty(min(batch_size, n), p, d)
    with torch.no_grad():
        for _ in range(epochs):
            order = torch.randperm(n, generator=g).to(x.device)
            for index in order.split(batch_size):
                batch = torch.index_select(x, 0, index, out=buffer[: len(index)]).transpose(0, 1)
                # ∂loss/∂scores is softmax − one-hot, over the batch size; classes are rows here.
                error = torch.softmax(torch.baddbmm(bias, weight, batch.mT), dim=1)
                error.sub_(targets[index].mT).div_(len(index))
                torch.bmm(error, batch, out=weight.grad)
                torch.sum(error, dim=2, keepdim=True, out=bias.grad)
                optimizer.step()
    weight.grad = bias.grad = None
    return Probes(weight, bias[..., 0])


def _ridge(x: Tensor, targets: Tensor, ridge: float) -> Probes:
    """Regression on one-hot labels, in float64, on the smaller side of each representation."""
    a, y = working(x).transpose(0, 1), working(targets)
    mean, share = a.mean(dim=1, keepdim=True), y.mean(dim=0)
    a = a - mean
    n, d = a.shape[1:]
    left, right = (a, a.mT) if n < d else (a.mT, a)
    eye = torch.eye(min(n, d), dtype=a.dtype, device=a.device)
    rhs = y - share if n < d else a.mT @ (y - share)
    factor, info = torch.linalg.cholesky_ex(left @ right + n * ridge * eye)
    if info.any():
        raise ValueError("ridge should be larger: some features are linear combinations of others.")
    solved = torch.cholesky_solve(rhs.expand(len(a), *rhs.shape[-2:]), factor)
    weight = (a.mT @ solved if n < d else solved).mT
    bias = share - (weight @ mean.mT)[..., 0]
    return Probes(weight.to(x), bias.to(x))


@numpy_too
def _scores(probes: Probes, features: Features) -> Tensor:
    parts = [_one(probes, i, load) for i, load in enumerate(_matching(probes, features))]
    return torch.stack(parts)


@numpy_too
def _predict(probes: Probes, features: Features) -> Tensor:
    parts = [_one(probes, i, load).argmax(dim=1) for i, load in enumerate(_matching(probes, features))]
    return torch.stack(parts)


def _one(probes: Probes, i: int, load: Loader) -> Tensor:
    return torch.addmm(probes.bias[i], load().to(probes.weight), probes.weight[i].mT)


def _matching(probes: Probes, features: Any) -> list[Loader]:
    loads = sources(features, "features")
    if len(loads) != len(probes.weight):
        raise ValueError(
            f"there are {len(probes.weight)} probes, but features of {len(loads)} representations."
        )
    return loads


def _like(first: Tensor, load: Loader) -> Tensor:
    x = load()
    if x.shape != first.shape:
        raise ValueError(
            f"features should all have the same shape, but the first have {tuple(first.shape)} and "
            f"{load.name} has {tuple(x.shape)}. Fit layers of other widths by themselves."
        )
    return x


def _labels(labels: Tensor, classes: int | None) -> tuple[Tensor, int]:
    labels = torch.as_tensor(labels)
    if labels.ndim != 1 or labels.is_floating_point() or labels.numel() == 0:
        raise ValueError(
            f"labels should be class numbers of shape (n,), but are {labels.dtype} of shape "
            f"{tuple(labels.shape)}."
        )
    top = int(labels.max()) + 1
    classes = max(top, 2) if classes is None else classes
    if int(labels.min()) < 0 or top > classes:
        raise ValueError(
            f"labels should be from 0 to {classes - 1}, but reach from {int(labels.min())} to {top - 1}."
        )
    return labels.long(), classes


@numpy_too
def planes(
    x: Real[Tensor, "n *s"], triplets: Integer[Tensor, "t 3"], *, resolution: int = 50, margin: float = 0.1
) -> Float[Tensor, "t r r *s"]:
    """A square grid of points on the plane through each three samples (Sharon F.3, after Somepalli et al.).

    The first axis of a plane points from the first sample to the second, the second axis is at right
    angles to it, towards the third. The grid covers the box around the three, and ``margin`` times its
    sides beyond. One plane of 50×50 colour images of 32×32 takes 31 MB: see :func:`plane_batches`.

    >>> corners = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 2.0]])
    >>> planes(corners, torch.tensor([[0, 1, 2]]), resolution=3, margin=0.0)[0, :, :, 0]
    tensor([[0., 2., 4.],
            [0., 2., 4.],
            [0., 2., 4.]])
    """
    x = check(x, "x", "n *s")
    triplets = torch.as_tensor(triplets)
    if triplets.ndim != 2 or triplets.shape[1] != 3 or triplets.is_floating_point():
        raise ValueError(
            f"triplets should be indices of shape (t, 3), but have shape {tuple(triplets.shape)}."
        )
    if triplets.numel() and not (int(triplets.min()) >= 0 and int(triplets.max()) < len(x)):
        raise ValueError(f"triplets should be indices from 0 to {len(x) - 1}, but some are not.")
    if resolution < 2 or margin < 0:
        raise ValueError(
            f"resolution should be at least 2 and margin at least 0, not {resolution} and {margin}."
        )
    flat = working(x.reshape(len(x), -1))
    base, second, third = (flat[triplets[:, i].to(x.device)] for i in range(3))
    a, b = second - base, third - base
    width = torch.linalg.vector_norm(a, dim=1, keepdim=True)
    along = (a * b).sum(dim=1, keepdim=True) / width.square()
    up = b - along * a
    height = torch.linalg.vector_norm(up, dim=1, keepdim=True)
    reach = torch.linalg.vector_norm(b, dim=1, keepdim=True)
    if not ((width > 0) & (height > 1e-9 * torch.maximum(width, reach))).all():
        raise ValueError("the three samples of a triplet should not lie on a line, but those of one do.")
    # Coordinates in units of a and of up: the samples are at (0, 0), (1, 0) and (along, 1).
    low, high = along.clamp(max=0), along.clamp(min=1)
    steps = torch.linspace(-margin, 1 + margin, resolution, dtype=flat.dtype, device=flat.device)
    across = (low + (high - low) * steps)[:, None, :, None]
    points = base[:, None, None] + across * a[:, None, None] + steps[:, None, None] * up[:, None, None]
    return points.reshape(len(triplets), resolution, resolution, *x.shape[1:]).to(x.device, x.dtype)


def plane_batches(
    x: Real[Tensor, "n *s"], triplets: Integer[Tensor, "t 3"], *, resolution: int = 50, margin: float = 0.1
) -> Iterator[Float[Tensor, "m *s"]]:
    """The points of :func:`planes`, a plane at a time and flat, ready for a network: 500 planes fit anywhere.

    >>> [p.shape[0] for p in plane_batches(torch.eye(3), torch.tensor([[0, 1, 2]]), resolution=5)]
    [25]
    """
    for triplet in triplets:
        points = planes(x, triplet[None], resolution=resolution, margin=margin)
        yield points.reshape(resolution * resolution, *x.shape[1:])


@numpy_too
def decision_region_similarity(
    predictions: Integer[Tensor, "E m"], other: Integer[Tensor, "F m"] | None = None
) -> Float[Tensor, "E F"]:
    """The share of points on which two classifiers agree, for all pairs (Sharon eq. 5).

    ``predictions[e]`` are the classes that classifier e gives to m points; with ``other`` its classifiers
    are the columns. Exact counts: by bit planes on a CPU, 64 points per operation; by products of one-hot
    vectors on a GPU.

    >>> decision_region_similarity(torch.tensor([[0, 1, 2, 1], [0, 1, 1, 1]]))
    tensor([[1.0000, 0.7500],
            [0.7500, 1.0000]], dtype=torch.float64)
    """
    predictions = torch.as_tensor(predictions)
    for name, value in (("predictions", predictions), ("other", predictions if other is None else other)):
        if value.ndim != 2 or value.is_floating_point() or value.is_complex() or 0 in value.shape:
            raise ValueError(
                f"{name} should be class numbers of shape (E, m), but are {value.dtype} of shape "
                f"{tuple(value.shape)}. From scores take scores.argmax(-1)."
            )
    if other is not None and other.shape[1] != predictions.shape[1]:
        raise ValueError(
            f"predictions and other should be on the same points, but have {predictions.shape[1]} and "
            f"{other.shape[1]}."
        )
    equal = _agreement.count_equal(predictions, other)
    return equal.double() / predictions.shape[1]
