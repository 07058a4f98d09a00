"""Tangent kernels of every layer, of the whole network, and the two kernels each is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repalign._arrays import numpy_too
from repalign.tangent.capture import Batch, Watched
from repalign.tangent.factors import Factor, Outer
from repalign.tangent.model import Inputs, Output
from repalign.tangent.plan import watch

# Rows of a kernel multiplied at once: a square of them stays in the processor's cache, and the more
# squares, the less is computed twice on the diagonal. A trace has few rows, with long products.
TILE, TRACE_TILE = 640, 128
# Where every pair of positions meets: so many of them, and not more samples than are worth a product.
POSITIONS, FEW = 512, 8
# Where Jacobian rows are formed, a slice of their columns at a time: of so many rows, and so many numbers.
BLOCK, SLICE, DENSE = 2560, 2**23, 160


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

    ``place`` may name the memory to compute a piece in. A piece is good until the next one is made.
    """
    for left, right in watched.pairs():
        for layer, factors in left.layers.items():
            others = right.layers[layer]
            dense = any(factor.dense for factor in factors)
            for i, j in _squares(left, right, _limit(factors, watched.trace)) if factors else ():
                same = left is right and i == j
                rows, columns = _spot(left, i), _spot(right, j)
                if dense:
                    k = left.outputs.stop - left.outputs.start
                    pieces = block(_parts(factors, i), _parts(others, j), same, watched.trace, k)
                else:
                    out = place(layer, rows, columns) if place else None
                    value = direct(_parts(factors, i), _parts(others, j), watched.trace, out)
                    pieces = [(slice(0, i.stop - i.start), slice(0, j.stop - j.start), value)]
                for r, c, value in pieces:
                    twice = not same or c.start > r.start
                    yield Tile(layer, _within(rows, r), _within(columns, c), value, twice)


def direct(left: list[Any], right: list[Any], trace: bool, out: Tensor | None = None) -> Tensor:
    """The sum over a layer's factors of their Gram matrices."""
    total: Tensor | None = None
    for a, b in zip(left, right, strict=True):
        part = a.gram(b, trace, out if total is None else None)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def block(
    left: list[Any], right: list[Any], same: bool, trace: bool, k: int, whole: bool = False
) -> list[tuple[slice, slice, Tensor]]:
    """The same where Jacobian rows are formed: once for all tiles of a block, a slice at a time."""
    n, n2 = left[0].samples, right[0].samples
    limit = max(n, n2) if whole else max(1, TRACE_TILE if trace else DENSE // k)
    squares = [
        (r, c) for r in _shares(n, limit) for c in _shares(n2, limit) if not same or c.start >= r.start
    ]
    joined = (1, 2) if trace else (0, 1)
    totals: list[Tensor | None] = [None] * len(squares)
    for a, b in zip(left, right, strict=True):
        if not a.dense:
            for t, (r, c) in enumerate(squares):
                part = a.part(r).gram(b.part(c), trace)
                before = totals[t]
                totals[t] = part if before is None else before.add_(part)
            continue
        width = SLICE // (max(n, n2) * k)
        mine = a.slices(width)
        for x, y in ((x, x) for x in mine) if same else zip(mine, b.slices(width), strict=True):
            for t, (r, c) in enumerate(squares):
                rows, columns, before = x[r].flatten(*joined), y[c].flatten(*joined).mT, totals[t]
                totals[t] = rows @ columns if before is None else before.addmm_(rows, columns)
    return [(r, c, total) for (r, c), total in zip(squares, totals, strict=True) if total is not None]


def _parts(factors: list[Factor], samples: slice) -> list[Any]:
    return [factor.part(samples) for factor in factors]


def _limit(factors: list[Factor], trace: bool) -> Callable[[int], int]:
    """How many samples with k outputs are multiplied at once."""
    if any(factor.dense for factor in factors):
        return lambda k: BLOCK // k
    positions = max(f.a.shape[1] if isinstance(f, Outer) else 1 for f in factors)
    if positions > 1:
        return lambda k: min(POSITIONS // positions, TRACE_TILE if trace else FEW)
    return lambda k: TRACE_TILE if trace else TILE // k


def _squares(left: Batch, right: Batch, limit: Callable[[int], int]) -> Iterator[tuple[slice, slice]]:
    """Samples of either batch that are multiplied at once; of one batch, the upper triangle."""
    shares = []
    for batch in (left, right):
        k = batch.outputs.stop - batch.outputs.start
        shares.append(_shares(batch.samples.stop - batch.samples.start, max(1, limit(k))))
    return ((i, j) for i in shares[0] for j in shares[1] if left is not right or j.start >= i.start)


def _shares(n: int, limit: int) -> list[slice]:
    """Equal shares of n samples, of at most ``limit`` each."""
    count = math.ceil(n / limit)
    edges = [n * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def _spot(batch: Batch, part: slice) -> Spot:
    return _within((batch.samples, batch.outputs), part)


def _within(spot: Spot, part: slice) -> Spot:
    start = spot[0].start
    return slice(start + part.start, start + part.stop), spot[1]


@numpy_too
def layer_kernels(
    model: nn.Module,
    x: Inputs,
    outputs: str = "all",
    *,
    layers: Sequence[str] | None = None,
    bias: str = "with",
    batch_size: int | None = None,
    output: Output = None,
) -> dict[str, Float[Tensor, "on on"]]:
    """K_l = Ψ_lᵀ Ψ_l, the tangent kernel of every layer (Lou et al., eq. 2 and 3, §2.1).

    ``outputs="all"`` gives the (on)×(on) kernel: row i·o + k belongs to output k of sample i.
    ``outputs="trace"`` gives its n×n trace over outputs, Σₖ ∇fₖ(xᵢ)·∇fₖ(xⱼ) (Canatar & Pehlevan eq. 8,
    times the number of outputs). A layer is a module that owns parameters; parameters that several
    modules share belong to the first, with all their uses. ``bias="apart"`` makes every bias a layer of
    its own, ``bias="without"`` leaves biases out; ``layers`` picks some by name.

    Gradients are never formed where the decomposition of eq. 9 avoids it: linear and convolutional
    layers, embeddings, attention projections, normalization layers. Where a sample has many positions, the
    cheaper of this and a product of Jacobian rows is taken, layer by layer. Other parameters get explicit
    Jacobian rows, with a warning: also those of a model that itself differentiates, such as an energy and its
    forces, and those of experts that tokens are sent to.

    ``batch_size`` bounds the samples in one pass through the network. ``x`` is a tensor, a tuple of inputs,
    for ``model(*x)``, or a dict of them, for ``model(**x)``; integers stay integers. It is taken to the
    model's device and precision; a model in half precision is computed in float32, and so are its kernels.
    Frozen parameters count like all others. What an embedding does for optimizers (``scale_grad_by_freq``,
    ``sparse``) does not count: it is no derivative.

    ``output`` picks what is differentiated where the model returns more than one row of outputs per
    sample: a key or attribute, an index, or a function such as ``lambda out: out.logits[:, -1]``. Of
    compiled and parallel wrappers the model inside is taken, under its own names.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> kernels = layer_kernels(model, torch.ones(4, 2))
    >>> {layer: tuple(k.shape) for layer, k in kernels.items()}
    {'0': (8, 8), '2': (8, 8)}
    """
    watched = watch(model, x, outputs, layers=layers, bias=bias, batch_size=batch_size, output=output)
    return assemble(watched)


@numpy_too
def ntk(
    model: nn.Module,
    x: Inputs,
    outputs: str = "all",
    *,
    bias: str = "with",
    batch_size: int | None = None,
    output: Output = None,
) -> Float[Tensor, "on on"]:
    """The neural tangent kernel: the sum of :func:`layer_kernels` over layers (Lou et al., eq. 2).

    With a last linear layer without bias it is K⁽ᴸ⁾ ⊗ I plus the gradient kernel (Canatar & Pehlevan
    eq. 7), in the order of :func:`layer_kernels`. Only one kernel is held in memory.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> ntk(model, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))     # x xᵀ
    tensor([[ 5., 11.],
            [11., 25.]])
    """
    watched = watch(model, x, outputs, bias=bias, batch_size=batch_size, output=output, together=True)
    return assemble(watched)["model"]


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

    chunks = len(watched.chunks) > 1
    spare = torch.empty(0, dtype=like.dtype, device=like.device)

    def place(layer: str, rows: Spot, columns: Spot) -> Tensor | None:
        if watched.trace or chunks:
            return None
        (i, _), (j, _) = rows, columns
        if i == j:
            return kernels[layer].view(n * o, n * o)[i.start * o : i.stop * o, j.start * o : j.stop * o]
        # From contiguous memory that stays in the cache, a mirror image is made three times as fast.
        height, width = (i.stop - i.start) * o, (j.stop - j.start) * o
        spare.resize_(max(spare.numel(), height * width))
        return spare[: height * width].view(height, width)

    for tile in tiles(watched, place):
        (i, k), (j, m) = tile.rows, tile.columns
        if watched.trace:
            k = m = slice(0, 1)
        kernel, value = kernels[tile.layer], tile.value
        here, mirror = kernel[i, k, j, m], kernel[j, m, i, k]
        # Only the trace comes back to a place, once for every batch of outputs.
        if watched.trace and tile.rows[1].start > 0:
            value = value + here.reshape(value.shape)
        if here.data_ptr() != value.data_ptr():
            here.copy_(value.view(here.shape))
        if tile.twice:
            mirror.copy_(value.view(here.shape).permute(2, 3, 0, 1))
    return {layer: kernel.reshape(n * o, n * o) for layer, kernel in kernels.items()}


class ForwardBackward(NamedTuple):
    """The two kernels whose product is a layer's tangent kernel, each an average over its units."""

    forward: Float[Tensor, "n n"]
    backward: Float[Tensor, "on on"]


@numpy_too
def forward_backward(
    model: nn.Module,
    x: Inputs,
    outputs: str = "all",
    *,
    layers: Sequence[str] | None = None,
    output: Output = None,
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
    watched = watch(model, x, outputs, layers=layers, bias="without", output=output)
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
