"""Tangent kernels of every layer, of the whole network, and the two kernels each is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from repalign._arrays import numpy_too
from repalign.tangent.capture import Batch, Watched
from repalign.tangent.factors import Factor, Outer
from repalign.tangent.plan import watch

# Rows of a kernel multiplied at once: a square of them stays in the processor's cache, and the more
# squares, the less is computed twice on the diagonal. A trace has few rows, with long products.
TILE, TRACE_TILE = 640, 128


Spot = tuple[slice, slice]  # samples, outputs
Place = Callable[[str, Spot, Spot], Tensor | None]


class Tile(NamedTuple):
    """A rectangle of one layer's kernel; ``twice`` when its mirror image is not a tile of its own."""

    layer: str
    rows: Spot
    columns: Spot
    value: Float[Tensor, "rows columns"]
    twice: bool


def tiles(watched: Watched, place: Place | None = None) -> Iterator[Tile]:
    """The upper triangle of every layer's kernel, piece by piece; a layer without gradients has none.

    ``place`` may name the memory to compute a piece in, so that it need not be copied there.
    """
    for left, right in watched.pairs():
        for layer, factors in left.layers.items():
            others = right.layers[layer]
            if not factors:
                continue
            for i in _steps(left, watched.trace):
                for j in _steps(right, watched.trace):
                    if left is right and j.start < i.start:
                        continue
                    rows, columns = _spot(left, i), _spot(right, j)
                    out = place(layer, rows, columns) if place else None
                    value = _gram(factors, i, others, j, watched.trace, out)
                    twice = left is not right or j.start > i.start
                    yield Tile(layer, rows, columns, value, twice)


def _gram(
    left: list[Factor], i: slice, right: list[Factor], j: slice, trace: bool, out: Tensor | None
) -> Tensor:
    """The sum over a layer's factors of their Gram matrices, for some samples on either side."""
    total = None
    for a, b in zip(left, right, strict=True):
        here: Any = a.part(i)
        part = here.gram(b.part(j), trace, out if total is None else None)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _steps(batch: Batch, trace: bool) -> list[slice]:
    """Equal shares of the samples, of about TILE rows each."""
    n = batch.samples.stop - batch.samples.start
    rows = n * (1 if trace else batch.outputs.stop - batch.outputs.start)
    count = min(n, math.ceil(rows / (TRACE_TILE if trace else TILE)))
    edges = [n * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def _spot(batch: Batch, part: slice) -> Spot:
    start = batch.samples.start
    return slice(start + part.start, start + part.stop), batch.outputs


@numpy_too
def layer_kernels(
    model: nn.Module,
    x: Shaped[Tensor, "n *d"],
    outputs: str = "all",
    *,
    layers: Sequence[str] | None = None,
    bias: str = "with",
    batch_size: int | None = None,
) -> dict[str, Float[Tensor, "on on"]]:
    """K_l = Ψ_lᵀ Ψ_l, the tangent kernel of every layer (Lou et al., eq. 2 and 3, §2.1).

    ``outputs="all"`` gives the (on)×(on) kernel: row i·o + k belongs to output k of sample i.
    ``outputs="trace"`` gives its n×n trace over outputs, Σₖ ∇fₖ(xᵢ)·∇fₖ(xⱼ) (Canatar & Pehlevan eq. 8,
    times the number of outputs). A layer is a module that owns parameters; parameters that several
    modules share belong to the first, with all their uses. ``bias="apart"`` makes every bias a layer of
    its own, ``bias="without"`` leaves biases out; ``layers`` picks some by name.

    Gradients are never formed where the decomposition of eq. 9 avoids it: linear and convolutional
    layers, embeddings, attention projections, normalization layers. Other parameters get explicit
    Jacobian rows, with a warning. ``batch_size`` bounds the samples in one pass through the network.
    ``x`` is taken to the model's device and precision. Frozen parameters count like all others.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> kernels = layer_kernels(model, torch.ones(4, 2))
    >>> {layer: tuple(k.shape) for layer, k in kernels.items()}
    {'0': (8, 8), '2': (8, 8)}
    """
    return assemble(watch(model, x, outputs, layers=layers, bias=bias, batch_size=batch_size))


@numpy_too
def ntk(
    model: nn.Module,
    x: Shaped[Tensor, "n *d"],
    outputs: str = "all",
    *,
    bias: str = "with",
    batch_size: int | None = None,
) -> Float[Tensor, "on on"]:
    """The neural tangent kernel: the sum of :func:`layer_kernels` over layers (Lou et al., eq. 2).

    With a last linear layer without bias it is K⁽ᴸ⁾ ⊗ I plus the gradient kernel (Canatar & Pehlevan
    eq. 7), in the order of :func:`layer_kernels`. Only one kernel is held in memory.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> ntk(model, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))     # x xᵀ
    tensor([[ 5., 11.],
            [11., 25.]])
    """
    return assemble(watch(model, x, outputs, bias=bias, batch_size=batch_size, together=True))["model"]


def assemble(watched: Watched) -> dict[str, Tensor]:
    """Whole kernels from their tiles."""
    n, o = watched.n, 1 if watched.trace else watched.outputs
    like = watched.like
    # Every entry is written, but for a layer without gradients: filling the others would cost a pass.
    has = {layer: bool(watched.parts[layer] or watched.explicit[layer]) for layer in watched.layers}
    kernels = {
        layer: (torch.empty if has[layer] else torch.zeros)(n, o, n, o, dtype=like.dtype, device=like.device)
        for layer in watched.layers
    }

    def place(layer: str, rows: Spot, columns: Spot) -> Tensor | None:
        if watched.trace or len(watched.chunks) > 1:
            return None
        (i, _), (j, _) = rows, columns
        return kernels[layer].view(n * o, n * o)[i.start * o : i.stop * o, j.start * o : j.stop * o]

    for tile in tiles(watched, place):
        (i, k), (j, m) = tile.rows, tile.columns
        if watched.trace:
            k = m = slice(0, 1)
        kernel = kernels[tile.layer]
        here, mirror = kernel[i, k, j, m], kernel[j, m, i, k]
        if here.data_ptr() != tile.value.data_ptr():
            value = tile.value.reshape(here.shape)
            # Only the trace comes back to a place, once for every batch of outputs.
            here.copy_(here + value if watched.trace and tile.rows[1].start > 0 else value)
        if tile.twice:
            mirror.copy_(here.permute(2, 3, 0, 1))
    return {layer: kernel.reshape(n * o, n * o) for layer, kernel in kernels.items()}


class ForwardBackward(NamedTuple):
    """The two kernels whose product is a layer's tangent kernel, each an average over its units."""

    forward: Float[Tensor, "n n"]
    backward: Float[Tensor, "on on"]


@numpy_too
def forward_backward(
    model: nn.Module,
    x: Shaped[Tensor, "n *d"],
    outputs: str = "all",
    *,
    layers: Sequence[str] | None = None,
) -> dict[str, ForwardBackward]:
    """K̄_l = forward ∘ backward for every linear layer, weights only (Lou et al., eq. 9).

    ``forward`` is a aᵀ / d for the d inputs of the layer, n×n; ``backward`` is b bᵀ / m for the gradients
    at its m outputs, (on)×(on) or traced over outputs as in :func:`layer_kernels`. Their product, with
    ``forward`` repeated for every pair of outputs, times d·m is the layer's kernel. Layers that see more
    than one position per sample (convolutions, tokens) have no such product and are left out.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> parts = forward_backward(model, torch.eye(2))
    >>> parts["0"].forward
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """
    watched = watch(model, x, outputs, layers=layers, bias="without")
    watched.batches = [(slice(0, watched.n), slice(0, watched.outputs))]
    found = {}
    for layer, factors in watched.batch(0).layers.items():
        plain = len(factors) == 1 and _plain(factors[0])
        if plain:
            factor: Any = factors[0]
            n, k, _, m = factor.b.shape
            b = factor.b.reshape((n, k * m) if watched.trace else (n * k, m))
            forward = factor.forward(factor).reshape(n, n) / factor.a.shape[2]
            found[layer] = ForwardBackward(forward, b @ b.mT / m)
    return found


def _plain(factor: Factor) -> bool:
    return isinstance(factor, Outer) and factor.a.ndim == 3 and factor.a.shape[1] == 1
