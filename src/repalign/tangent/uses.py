"""What one call of a torch function does with a parameter, as the shapes a gradient can have.

For a sample i and an output k, the gradient of fₖ(xᵢ) through one call is

- ``Product``      Σ over positions p of b[i, k, p] ⊗ a[i, p]: linear layers (one position per token),
                   convolutions (one per pixel, a being the patch under it);
- ``Lookup``       the same with a one-hot a, kept as an index: embeddings;
- ``Elementwise``  Σ over the broadcast axes of b · factor: biases, scales, positional embeddings;
- ``Through``      any of these, of a part of the parameter that was cut out before a sample was met.

a is what the call saw and b is the gradient at what it returned (Lou et al., eq. 9: forward, backward).
The ``read_…`` functions say which of them a torch function is; ``READERS`` lists them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import vjp, vmap


def samples_first(t: Tensor, n: int, axis: int, lead: int = 0) -> Tensor:
    """Split ``(lead, n·r, …)`` or, for axis 1, ``(lead, r, n, …)`` into ``(lead, n, r, …)``."""
    if axis == 1:
        return t.movedim(lead + 1, lead)
    return t.unflatten(lead, (n, -1))


@dataclass(frozen=True)
class Product:
    """A call that multiplies its input by a weight matrix, or by one for each group of channels.

    ``saw`` and ``returned`` bring the input, and a gradient at the output, into the form of positions.
    """

    saw: Callable[[int, int], Float[Tensor, "n p g d"]]
    returned: Callable[[Tensor, int, int], Float[Tensor, "n k p g m"]]
    shape: tuple[int, int, int]  # g, m, d
    transposed: bool = False
    axes: tuple[int, ...] = (0, 1)

    def rows(self, grad: Float[Tensor, "k ..."], n: int, axis: int) -> Float[Tensor, "n k q"]:
        b = self.returned(grad, n, axis)
        a = self.saw(n, axis).to(b.dtype)
        full = torch.einsum("nkpgm,npgd->nkgdm" if self.transposed else "nkpgm,npgd->nkgmd", b, a)
        return full.flatten(2)


@dataclass(frozen=True)
class Lookup:
    """A call that picks rows of a table; the row ``padding`` gets no gradient."""

    indices: Int[Tensor, "..."]
    shape: tuple[int, int]
    padding: int | None = None
    axes: tuple[int, ...] = (0, 1)

    def saw(self, n: int, axis: int) -> Int[Tensor, "n p"]:
        return samples_first(self.indices, n, axis).reshape(n, -1)

    def returned(self, grad: Float[Tensor, "k ..."], n: int, axis: int) -> Float[Tensor, "n k p m"]:
        b = _last_axis_returned(grad, n, axis)[:, :, :, 0]
        if self.padding is None:
            return b
        return b * (self.saw(n, axis) != self.padding)[:, None, :, None]

    def rows(self, grad: Float[Tensor, "k ..."], n: int, axis: int) -> Float[Tensor, "n k q"]:
        b = self.returned(grad, n, axis)
        table = b.new_zeros(n, b.shape[1], *self.shape)
        index = self.saw(n, axis)[:, None, :, None].expand_as(b)
        return table.scatter_add(2, index, b).flatten(2)


@dataclass(frozen=True)
class Elementwise:
    """A call that adds a parameter, or multiplies by it, after broadcasting from ``aligned``."""

    aligned: tuple[int, ...]
    factor: Tensor | None = None
    axes: tuple[int, ...] = (0, 1)

    def rows(self, grad: Float[Tensor, "k ..."], n: int, axis: int) -> Float[Tensor, "n k q"]:
        b = samples_first(grad, n, axis, lead=1)
        if self.factor is not None:
            b = b * samples_first(self.factor, n, axis)
        # All that one sample has may lie along the first axis.
        first = self.aligned[0] if axis == 1 or n == 1 else 1
        kept = (first, *self.aligned[axis + 1 :])
        summed = [i + 2 for i, size in enumerate(kept) if size == 1]
        return b.sum(dim=summed, keepdim=True).flatten(2).transpose(0, 1)


@dataclass(frozen=True)
class Through:
    """A call that uses ``cut(parameter)``, which is linear in it and the same for every sample.

    ``isometric`` when every entry of the cut is an entry of the parameter and none is there twice.
    """

    use: Product | Lookup | Elementwise
    cut: Callable[[Tensor], Tensor]
    parameter: Tensor
    isometric: bool
    numel: int  # of the cut

    @property
    def axes(self) -> tuple[int, ...]:
        return self.use.axes

    def rows(self, grad: Float[Tensor, "k ..."], n: int, axis: int) -> Float[Tensor, "n k q"]:
        return self.back(self.use.rows(grad, n, axis))

    def back(self, rows: Float[Tensor, "*n q"]) -> Float[Tensor, "*n p"]:
        """Gradients at the cut as gradients at the parameter."""
        made, pull, *_ = vjp(self.cut, self.parameter.detach())
        each = rows.reshape(-1, *made.shape)
        return vmap(lambda g: pull(g)[0])(each).reshape(*rows.shape[:-1], -1)


Use = Product | Lookup | Elementwise | Through
Found = Iterable[tuple[Tensor | None, Use]]


def read_linear(out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Found:
    m, d = weight.shape

    def saw(n: int, axis: int) -> Tensor:
        return samples_first(input, n, axis).reshape(n, -1, 1, d)

    yield weight, Product(saw, _last_axis_returned, (1, m, d))
    yield bias, _shift(out, bias)


def read_matmul(out: Tensor, input: Tensor, other: Tensor) -> Found:
    if other.ndim != 2 or input.ndim < 2:
        return
    d, m = other.shape

    def saw(n: int, axis: int) -> Tensor:
        return samples_first(input, n, axis).reshape(n, -1, 1, d)

    yield other, Product(saw, _last_axis_returned, (1, m, d), transposed=True)


def read_addmm(out: Tensor, input: Tensor, mat1: Tensor, mat2: Tensor) -> Found:
    yield from read_matmul(out, mat1, mat2)
    yield input, _shift(out, input)


def _last_axis_returned(grad: Tensor, n: int, axis: int) -> Tensor:
    k, m = grad.shape[0], grad.shape[-1]
    return samples_first(grad, n, axis, lead=1).reshape(k, n, -1, 1, m).transpose(0, 1)


def read_conv(
    out: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Found:
    axes = weight.ndim - 2
    if input.ndim != axes + 2:
        return
    kernel, pixels = tuple(weight.shape[2:]), tuple(out.shape[2:])
    steps, spread = _each(stride, axes), _each(dilation, axes)
    seen = nnf.pad(input, _padding(padding, kernel, spread))
    g, m, d, p = groups, len(weight) // groups, weight[0].numel(), math.prod(pixels)

    def saw(n: int, axis: int) -> Tensor:
        a = _patches(seen, kernel, steps, spread, pixels).reshape(n, -1, g, d, p)
        return a.movedim(4, 2).reshape(n, -1, g, d)

    def returned(grad: Tensor, n: int, axis: int) -> Tensor:
        k = len(grad)
        b = grad.reshape(k, n, -1, g, m, p).movedim(5, 3).reshape(k, n, -1, g, m)
        return b.transpose(0, 1)

    yield weight, Product(saw, returned, (g, m, d), axes=(0,))
    yield bias, _channels(out, bias)


def _each(value: Any, axes: int) -> tuple[int, ...]:
    """One number per spatial axis."""
    if isinstance(value, int):
        return (value,) * axes
    return tuple(value) if len(value) == axes else tuple(value) * axes


def _padding(padding: Any, kernel: Sequence[int], spread: Sequence[int]) -> list[int]:
    """What torch.nn.functional.pad wants: begin and end of each axis, the last axis first."""
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [s * (k - 1) for s, k in zip(spread, kernel, strict=True)]
        pairs = [(t // 2, t - t // 2) for t in total]
    else:
        pairs = [(p, p) for p in _each(padding, len(kernel))]
    return [side for pair in reversed(pairs) for side in pair]


def _patches(
    x: Tensor, kernel: tuple[int, ...], steps: tuple[int, ...], spread: tuple[int, ...], out: tuple[int, ...]
) -> Tensor:
    """The patch under every output pixel, (n, c, *kernel, *out), as a view."""
    n, c, *along = x.stride()
    inside = [s * a for s, a in zip(spread, along, strict=True)]
    between = [s * a for s, a in zip(steps, along, strict=True)]
    return x.as_strided((*x.shape[:2], *kernel, *out), (n, c, *inside, *between))


def read_embedding(
    out: Tensor,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Found:
    if max_norm is None:
        padding = None if padding_idx is None else padding_idx % len(weight)
        yield weight, Lookup(input, (weight.shape[0], weight.shape[1]), padding)


def read_layer_norm(
    out: Tensor,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Found:
    yield weight, _scale(out, weight, nnf.layer_norm(input, normalized_shape, eps=eps))
    yield bias, _shift(out, bias)


def read_rms_norm(
    out: Tensor,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Found:
    yield weight, _scale(out, weight, nnf.rms_norm(input, normalized_shape, eps=eps))


def read_group_norm(
    out: Tensor,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Found:
    yield weight, _channels(out, weight, nnf.group_norm(input, num_groups, eps=eps))
    yield bias, _channels(out, bias)


def read_batch_norm(
    out: Tensor,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Found:
    normal = nnf.batch_norm(input, running_mean, running_var, eps=eps)
    yield weight, _channels(out, weight, normal)
    yield bias, _channels(out, bias)


def read_instance_norm(
    out: Tensor,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Found:
    normal = nnf.instance_norm(
        input, running_mean, running_var, use_input_stats=use_input_stats, momentum=0.0, eps=eps
    )
    yield weight, _channels(out, weight, normal)
    yield bias, _channels(out, bias)


def read_add(out: Tensor, input: Any, other: Any) -> Found:
    for term in (input, other):
        if isinstance(term, Tensor):
            yield term, _shift(out, term)


def read_add_in_place(out: Tensor, input: Tensor, other: Any) -> Found:
    if isinstance(other, Tensor):
        yield other, _shift(out, other)


def read_mul(out: Tensor, input: Any, other: Any) -> Found:
    for term, rest in ((input, other), (other, input)):
        if isinstance(term, Tensor):
            factor = rest if isinstance(rest, Tensor) else torch.as_tensor(rest).to(out)
            yield term, _scale(out, term, factor.expand_as(out))


def read_expand(out: Tensor, input: Tensor, *size: Any) -> Found:
    yield input, _shift(out, input)


def read_repeat(out: Tensor, input: Tensor, *repeats: Any) -> Found:
    aligned = _shift(out, input).aligned
    if all(here in (1, there) for here, there in zip(aligned, out.shape, strict=True)):
        yield input, Elementwise(aligned)


def read_getitem(out: Tensor, input: Tensor, index: Any) -> Found:
    whole = isinstance(index, Tensor) and index.dtype in (torch.int32, torch.int64)
    if whole and input.ndim == 2 and index.ndim and not (index < 0).any():
        yield input, Lookup(index, (input.shape[0], input.shape[1]))


def _shift(out: Tensor, parameter: Tensor | None) -> Elementwise:
    shape = () if parameter is None else tuple(parameter.shape)
    return Elementwise((1,) * (out.ndim - len(shape)) + shape)


def _scale(out: Tensor, parameter: Tensor | None, factor: Tensor) -> Elementwise:
    return Elementwise(_shift(out, parameter).aligned, factor)


def _channels(out: Tensor, parameter: Tensor | None, factor: Tensor | None = None) -> Elementwise:
    """A parameter with one entry per channel, the axis after the samples."""
    size = 1 if parameter is None else len(parameter)
    return Elementwise((1, size) + (1,) * (out.ndim - 2), factor, axes=(0,))


READERS: dict[Any, Callable[..., Found]] = {
    nnf.linear: read_linear,
    torch.conv1d: read_conv,
    torch.conv2d: read_conv,
    torch.conv3d: read_conv,
    nnf.embedding: read_embedding,
    nnf.layer_norm: read_layer_norm,
    nnf.rms_norm: read_rms_norm,
    nnf.group_norm: read_group_norm,
    nnf.batch_norm: read_batch_norm,
    nnf.instance_norm: read_instance_norm,
    **dict.fromkeys([torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__], read_matmul),
    **dict.fromkeys([torch.addmm, Tensor.addmm], read_addmm),
    **dict.fromkeys([Tensor.add_, Tensor.__iadd__], read_add_in_place),
    **dict.fromkeys([torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__], read_add),
    **dict.fromkeys([torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__], read_mul),
    Tensor.expand: read_expand,
    Tensor.repeat: read_repeat,
    Tensor.__getitem__: read_getitem,
}

# What only moves entries, or picks some of them once: no reader, but the uses of what comes out are read.
_VIEWS = "view reshape flatten unflatten unsqueeze squeeze permute movedim transpose t swapaxes narrow select"
VIEWS: set[Any] = {
    *(getattr(home, name) for name in _VIEWS.split() for home in (Tensor, torch) if hasattr(home, name)),
    *(getattr(Tensor, name).__get__ for name in ("T", "mT")),
    Tensor.__getitem__,
    Tensor.contiguous,
}
