"""Softmax or ridge regression on many representations of the same samples, trained together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor

from repalign._arrays import as_numpy, refuse_words, working
from repalign.kernels.loaders import Loader, sources
from repalign.probes.linear_probes import Features, Probes
from repalign.probes.softmax import MEMORY, softmax

METHODS = ("softmax", "adam", "ridge")


def fit_probes(
    features: Features | Mapping[str, Any],
    labels: Integer[Tensor, " n"],
    *,
    test: tuple[Any, Integer[Tensor, " m"]] | None = None,
    classes: int | None = None,
    method: str | None = None,
    ridge: float = 1e-3,
    tolerance: float = 1e-5,
    max_steps: int = 1000,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    chunk: int = 20,
    max_bytes: int = 2**30,
) -> Any:
    """A linear classifier on each of E representations of the same samples: :class:`Probes`.

    ``method="softmax"``, the default, is softmax regression to its minimum: mean cross-entropy +
    ``ridge``·‖W‖², with W the weights of features scaled to mean 0 and variance 1, by L-BFGS until no entry
    of the gradient is above ``tolerance``; a warning says when ``max_steps`` were not enough.

    ``method="adam"`` is what Sharon & Dar do (eq. 3, F.3): cross-entropy, Adam, 10 ``epochs`` at ``lr`` 1e-4,
    in batches of 128, weights drawn as ``nn.Linear`` draws them. It stops long before the minimum. All
    probes start from the same draw and see the same batches (``seed``), so they differ by their features
    alone. Naming ``epochs``, ``lr`` or ``batch_size`` chooses it. ``method="ridge"`` regresses on one-hot
    labels in closed form, least mean squares + ``ridge``·‖W‖², with a free intercept; here W are the weights
    of the features as they are, so that layers of different scale want different penalties.

    ``features`` is a tensor (E, n, d) or a sequence of (n, d) tensors, paths or functions, as for
    :func:`repalign.kernels.cka_grid`; or a dict {layer: (n, d)} as ``features.extract`` gives it, whose
    layers may be of different width: then the result is {layer: :class:`Probe`}. At most ``chunk`` of them
    are copied, and trained, at a time, fewer where ``max_bytes`` holds fewer with all that the method makes
    of them, but one at least; beside these there is the one that is being read. The result is that of a loop
    over single probes, to rounding.

    ``test`` is (features, labels) of samples that the probes are not fitted to, with features of the same
    kind: ``.accuracy`` then is the share that each classifies correctly. That on the samples of the fit says
    little where features are many: labels drawn at random are learned as well.

    >>> fit_probes(torch.eye(3)[None], torch.arange(3)).predict(torch.eye(3)[None])
    tensor([[0, 1, 2]])
    >>> seen, unseen = {"relu1": torch.eye(3)}, {"relu1": torch.eye(3)[:2]}
    >>> fit_probes(seen, torch.arange(3), test=(unseen, torch.tensor([0, 2])))["relu1"].accuracy
    tensor(0.5000)
    """
    of_adam = {"epochs": epochs, "lr": lr, "batch_size": batch_size}
    named = [name for name, value in of_adam.items() if value is not None]
    method = method or ("adam" if named else "softmax")
    if method not in METHODS:
        raise ValueError(f"method should be softmax, adam or ridge, but is {method!r}.")
    if named and method != "adam":
        raise ValueError(f"{', '.join(named)} should be left to method='adam', but method is {method!r}.")
    epochs, lr, batch_size = epochs or 10, 1e-4 if lr is None else lr, batch_size or 128
    positive = of_adam | {
        "tolerance": tolerance,
        "max_steps": max_steps,
        "chunk": chunk,
        "max_bytes": max_bytes,
    }
    for name, value in positive.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} should be positive, but is {value}.")
    if not ridge >= 0:
        raise ValueError(f"ridge should not be negative, but is {ridge}.")
    only_numpy = _only_numpy(features, labels)
    labels, classes = _labels(labels, classes)
    unseen = None if test is None else _unseen(features, *test, classes)
    most = partial(_held, method, len(labels), classes=classes, batch_size=batch_size)
    fits = []
    for x in _groups(_loaders(features), len(labels), chunk, max_bytes, most, isinstance(features, Mapping)):
        if method == "softmax":
            fits.append(softmax(x, labels, classes, ridge, tolerance, max_steps))
        elif method == "adam":
            fits.append(_adam(x, labels, classes, epochs, lr, batch_size, seed))
        else:
            fits.append(_ridge(x, labels, classes, ridge))
        del x  # else it would keep this buffer while the next is made
    short = sum(int((~fit.converged).sum()) for fit in fits if fit.converged is not None)
    if short:
        warnings.warn(
            f"{short} probes have not converged in {max_steps} steps (see .converged): raise max_steps, or "
            "ridge where classes can be separated.",
            stacklevel=2,
        )
    if unseen is not None:
        fits = _tested(fits, *unseen)
    if isinstance(features, Mapping):
        singles = [fit.one(e) for fit in fits for e in range(len(fit.weight))]
        by_layer = dict(zip(features, singles, strict=True))
        return as_numpy(by_layer) if only_numpy else by_layer
    converged = [fit.converged for fit in fits if fit.converged is not None]
    accuracy = [fit.accuracy for fit in fits if fit.accuracy is not None]
    probes = Probes(
        torch.cat([fit.weight for fit in fits]),
        torch.cat([fit.bias for fit in fits]),
        torch.cat(converged) if converged else None,
        torch.cat(accuracy) if accuracy else None,
    )
    return as_numpy(probes) if only_numpy else probes


def _unseen(features: Any, test: Any, labels: Any, classes: int) -> tuple[list[Loader], Tensor]:
    """One function per representation that returns its features of the test samples, and their labels."""
    if isinstance(features, Mapping) != isinstance(test, Mapping) or (
        isinstance(features, Mapping) and set(features) != set(test)
    ):
        kinds = [list(one) if isinstance(one, Mapping) else type(one).__name__ for one in (features, test)]
        raise ValueError(
            f"test should be (features, labels) with features of the same layers, but these are of "
            f"{kinds[1]}, and those of the fit of {kinds[0]}."
        )
    if isinstance(features, Mapping):
        test = {name: test[name] for name in features}
    loads = _loaders(test)
    if len(loads) != len(features):
        raise ValueError(
            f"test should have features of {len(features)} representations, but has those of {len(loads)}."
        )
    return loads, _labels(labels, classes, "the labels of test")[0]


def _tested(fits: list[Probes], loads: list[Loader], labels: Tensor) -> list[Probes]:
    """The same probes with the share of the test samples that each classifies correctly."""
    waiting = iter(loads)
    done = []
    for fit in fits:
        shares = []
        for e in range(len(fit.weight)):
            load = next(waiting)
            found = fit.one(e).predict(load())
            if len(found) != len(labels):
                raise ValueError(
                    f"test should have one row per label, but {load.name} has {len(found)} rows and there "
                    f"are {len(labels)} labels."
                )
            shares.append((found == labels.to(found.device)).to(fit.weight).mean())
        done.append(fit._replace(accuracy=torch.stack(shares)))
    return done


def _loaders(features: Any) -> list[Loader]:
    """One function per representation; what is on disk stays there until its turn."""
    if isinstance(features, np.ndarray):
        features = list(features) if features.ndim == 3 else torch.from_numpy(np.array(features))
    names = list(features) if isinstance(features, Mapping) else None
    loads = sources(list(features.values()) if isinstance(features, Mapping) else features, "features")
    for load, name in zip(loads, names or (), strict=False):
        load.name = f"features[{name!r}]"
    for load in loads:
        if isinstance(load.rep, np.ndarray):
            load.rep = _Copied(load.rep)
    return loads


class _Copied:
    """An array, perhaps a read-only map of a file, that becomes a tensor when called."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape = array, array.shape

    def __call__(self) -> Tensor:
        return torch.from_numpy(np.array(self.array))


def _only_numpy(features: Any, labels: Any) -> bool:
    parts = features.values() if isinstance(features, Mapping) else features
    inside = [features] if isinstance(features, (Tensor, np.ndarray)) else list(parts)
    kinds = {type(part) for part in (*inside, labels)}
    return any(issubclass(kind, np.ndarray) for kind in kinds) and not any(
        issubclass(kind, Tensor) for kind in kinds
    )


def _held(method: str, n: int, d: int, itemsize: int, *, classes: int, batch_size: int) -> int:
    """The bytes that a probe on n samples of width d holds at most while it is fitted, features included."""
    scores, weight = classes * n, classes * (d + 1)
    if method == "softmax":
        # Scores here and on the line, errors, a few vectors over samples; what L-BFGS remembers of weights.
        return itemsize * (n * d + 8 * scores + 4 * n + (2 * MEMORY + 8) * weight + 8 * d)
    if method == "adam":
        batch = min(batch_size, n)
        # One-hot labels, the order, a batch with its scores; weights, their gradient and its two means.
        return itemsize * (n * d + scores + 4 * n + batch * (d + 3 * classes) + 6 * weight)
    side = min(n, d)
    # In float64: the features again if they are not, a product and its factor, both sides of the equation.
    again = n * d if itemsize < 8 else 0
    sides = 2 * side**2 + 3 * side * classes
    return itemsize * (n * d + weight) + 8 * (again + sides + scores + n + 2 * weight + 4 * d)


def _groups(
    loads: list[Loader], n: int, chunk: int, max_bytes: int, held: Callable[[int, int], int], any_width: bool
) -> Iterator[Tensor]:
    """Neighbors of the same width, as many as fit, as (n, p, d): a buffer that is used again.

    ``held(d, itemsize)`` is what one of them takes. Samples first: a batch of all probes is then one copy of
    whole rows. A group is handed out before the next representation is read, unless only reading tells
    that its width is another.
    """
    buffer: Tensor | None = None
    dtype, filled, width = torch.float32, 0, 0
    for i, load in enumerate(loads):
        ahead = load.width() if any_width else None
        if buffer is not None:
            other = ahead is not None and ahead != buffer.shape[2]
            if filled == buffer.shape[1] or other:
                yield buffer[:, :filled]
                filled = 0
                buffer = None if other else buffer
        x = load()
        if len(x) != n:
            raise ValueError(
                f"features and labels should have one row per sample each, but have {len(x)} and {n} rows."
            )
        d = x.shape[1]
        if i == 0:
            width = d
            dtype = x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32
        if d != width and not any_width:
            raise ValueError(
                f"features should all have the same shape, but the first have {(n, width)} and {load.name} "
                f"has {(n, d)}. Pass layers of different width as a dict: {{name: features}}."
            )
        if buffer is not None and d != buffer.shape[2]:
            if filled:
                yield buffer[:, :filled]
            buffer, filled = None, 0
        if buffer is None:
            room = max(1, max_bytes // held(d, dtype.itemsize))
            buffer = x.new_empty(n, min(chunk, len(loads) - i, room), d, dtype=dtype)
        buffer[:, filled] = x
        filled += 1
        del x
    assert buffer is not None
    yield buffer[:, :filled]


def _one_hot(labels: Tensor, classes: int, like: Tensor) -> Tensor:
    labels = labels.to(like.device)
    return like.new_zeros(len(labels), classes).scatter_(1, labels[:, None], 1.0)


def _adam(
    x: Tensor, labels: Tensor, classes: int, epochs: int, lr: float, batch_size: int, seed: int
) -> Probes:
    """Softmax regression of all probes of a chunk in one go, with the gradient written out."""
    n, p, d = x.shape
    c, targets = classes, _one_hot(labels, classes, x)
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


def _ridge(x: Tensor, labels: Tensor, classes: int, ridge: float) -> Probes:
    """Regression on one-hot labels, in float64, on the smaller side of each representation.

    ``x`` is (n, p, d) and may be written to.
    """
    a = working(x)
    y = _one_hot(labels, classes, a)
    mean, share = a.mean(dim=0)[..., None], y.mean(dim=0)
    a, y = a.sub_(mean[..., 0]).transpose(0, 1), y.sub_(share)
    p, n, d = a.shape
    left, right = (a, a.mT) if n < d else (a.mT, a)
    rhs = y.expand(p, n, classes)
    rhs = rhs if n < d else torch.bmm(a.mT, rhs)
    gram = torch.bmm(left, right)
    gram.diagonal(dim1=1, dim2=2).add_(n * ridge)
    factor, info = torch.linalg.cholesky_ex(gram)
    del gram
    if info.any():
        raise ValueError("ridge should be larger: some features are linear combinations of others.")
    solved = torch.cholesky_solve(rhs, factor)
    weight = (torch.bmm(a.mT, solved) if n < d else solved).mT
    bias = share - torch.bmm(weight, mean)[..., 0]
    return Probes(weight.to(x), bias.to(x), torch.ones(p, dtype=torch.bool, device=x.device))


def _labels(labels: Any, classes: int | None, name: str = "labels") -> tuple[Tensor, int]:
    if not isinstance(labels, Tensor):
        refuse_words(labels, name)
    labels = torch.as_tensor(labels)
    if labels.ndim != 1 or labels.is_floating_point() or labels.numel() == 0:
        raise ValueError(
            f"{name} should be class numbers of shape (n,), but are {labels.dtype} of shape "
            f"{tuple(labels.shape)}."
        )
    top = int(labels.max()) + 1
    classes = max(top, 2) if classes is None else classes
    if int(labels.min()) < 0 or top > classes:
        raise ValueError(
            f"{name} should be from 0 to {classes - 1}, but reach from {int(labels.min())} to {top - 1}."
        )
    return labels.long(), classes
