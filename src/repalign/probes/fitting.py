"""Softmax or ridge regression on many representations of the same samples, trained together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from repalign._arrays import numpy_too, same_rows, working
from repalign.kernels.loaders import Loader, sources

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
