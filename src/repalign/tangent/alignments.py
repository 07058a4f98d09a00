"""How well the tangent features of every layer are aligned with the labels (Lou et al., eq. 6, 7)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Real
from torch import Tensor, nn

from repalign._arrays import check, numpy_too
from repalign.tangent.capture import Watched
from repalign.tangent.gram import Tile, assemble, block, tiles
from repalign.tangent.model import Inputs, Output
from repalign.tangent.plan import watch
from repalign.tangent.products import inner, pulled, pushed, top_eigenpairs

CENTERS = ("entries", "examples")


class AlignmentTerms(NamedTuple):
    """A_l = correlation / √stable_rank (Lou et al., appendix G.1)."""

    alignment: Float[Tensor, ""]
    correlation: Float[Tensor, ""]
    stable_rank: Float[Tensor, ""]


@numpy_too
def label_alignment(
    model: nn.Module,
    x: Inputs,
    y: Real[Tensor, " n *o"],
    outputs: str = "all",
    *,
    center: str = "entries",
    layers: Sequence[str] | None = None,
    bias: str = "with",
    batch_size: int | None = None,
    output: Output = None,
    create_graph: bool = False,
) -> dict[str, Float[Tensor, ""]]:
    """A_l, the centered alignment of every layer's tangent kernel with the labels.

    There are two, and they are not the same number:

    ``outputs="all"``    the (on)×(on) kernel with vec(Y) vec(Y)ᵀ (Lou et al., eq. 7). For a last linear
                         layer without bias it is at most 1/√(o(o−1)) when classes are balanced.
    ``outputs="trace"``  the n×n kernel traced over outputs with Y Yᵀ: no such bound.

    ``y`` holds class numbers, (n,), or targets, (n, o). ``center="entries"`` centers over all on entries
    at once, as eq. 6 does; ``center="examples"`` over the examples of each output, as the authors' code
    does. For the trace the two are one. ``layers``, ``bias``, ``batch_size`` and ``output`` are those of
    :func:`layer_kernels`. A layer whose kernel is constant or zero has no alignment: NaN, with a warning.

    No (on)×(on) matrix is formed: the numerator ‖Ψ_l Ỹ‖² is one vector–Jacobian product, and the norm of
    the kernel is summed over tiles, each centered before it is squared so that float32 stays accurate.

    With ``create_graph=True`` the values can be differentiated in the parameters that require gradients, as
    in ``(-label_alignment(model, x, y, create_graph=True)["2"]).backward()``, to maximize the features of a
    layer (Lou et al., appendix F). Kernels are then formed, all samples at once: meant for minibatches.

    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False))
    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> label_alignment(model, x, torch.tensor([[1.0], [-1.0]]))     # K is the labels' own kernel
    {'0': tensor(1.)}
    """
    if create_graph and batch_size is not None:
        raise ValueError("with create_graph=True all samples are in one batch: leave batch_size out.")
    if create_graph and not torch.is_grad_enabled():
        raise ValueError(
            "with create_graph=True the values are to be differentiated, but gradients are switched off: "
            "call outside of torch.no_grad and torch.inference_mode."
        )
    watched = watch(
        model,
        x,
        outputs,
        layers=layers,
        bias=bias,
        batch_size=batch_size,
        output=output,
        graph=create_graph,
    )
    measured = _measure(watched, y, center)
    return {layer: (m.along / m.norm).to(watched.like) for layer, m in measured.items()}


@numpy_too
def alignment_terms(
    model: nn.Module,
    x: Inputs,
    y: Real[Tensor, " n *o"],
    outputs: str = "all",
    *,
    center: str = "entries",
    layers: Sequence[str] | None = None,
    bias: str = "with",
    batch_size: int | None = None,
    output: Output = None,
) -> dict[str, AlignmentTerms]:
    """A_l taken apart: A_l = Σᵢ (λᵢ/λ₁) ⟨uᵢ, Ỹ⟩² / √R_l (Lou et al., appendix G.1).

    λᵢ and uᵢ are the eigenvalues and eigenvectors of the centered kernel, Ỹ has length one, and the stable
    rank is R_l = Σ λᵢ² / λ₁². Of the spectrum only λ₁ is computed, by Lanczos on products with Ψ and Ψᵀ.
    Arguments as in :func:`label_alignment`.

    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False))
    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> alignment_terms(model, x, torch.tensor([[1.0], [-1.0]]))["0"].stable_rank
    tensor(1.)
    """
    watched = watch(model, x, outputs, layers=layers, bias=bias, batch_size=batch_size, output=output)
    found = {}
    for layer, m in _measure(watched, y, center).items():
        if m.norm.isnan():
            found[layer] = AlignmentTerms(*(m.norm.to(watched.like) for _ in range(3)))
            continue
        top = top_eigenpairs(m.multiply, m.size, 1, watched.like).values[0]
        terms = (m.along / m.norm, m.along / top, (m.norm / top).square())
        found[layer] = AlignmentTerms(*(term.to(watched.like) for term in terms))
    return found


class Measured(NamedTuple):
    """Of one centered kernel K: ỸᵀKỸ / ‖Ỹ‖², its norm, and how to multiply by it."""

    along: Float[Tensor, ""]
    norm: Float[Tensor, ""]
    multiply: Callable[[Tensor], Tensor]
    size: int


def _measure(watched: Watched, y: Tensor, center: str) -> dict[str, Measured]:
    if center not in CENTERS:
        raise ValueError(f"center should be entries or examples, but is {center!r}.")
    targets = as_targets(y, watched.n, watched.outputs).to(watched.like)
    deviation = centered(targets, "examples" if watched.trace else center)
    if deviation.norm() <= 8 * torch.finfo(targets.dtype).eps * targets.norm():
        raise ValueError(
            f"the {watched.n} labels should differ from each other: centered they are all 0, and nothing "
            "can be aligned with them."
        )
    if watched.graph:
        measured = {layer: _graphed(watched, layer, deviation, center) for layer in watched.layers}
    elif watched.trace:
        measured = _traced(watched, deviation)
    else:
        measured = _full(watched, deviation, center)
    flat = [layer for layer, m in measured.items() if not m.norm > 0]
    if flat:
        warnings.warn(
            f"the kernel of {', '.join(flat)} is constant or zero, so its alignment is undefined and given "
            "as NaN. Is the layer dead, or unused?",
            stacklevel=4,
        )
    nan = torch.tensor(torch.nan, dtype=torch.float64, device=targets.device)
    return {layer: m._replace(norm=nan) if layer in flat else m for layer, m in measured.items()}


def as_targets(y: Any, n: int, o: int) -> Float[Tensor, "n o"]:
    """Labels as one row of targets per sample: class numbers become one-hot rows."""
    given = y if isinstance(y, Tensor) else torch.as_tensor(y)
    whole = not given.is_floating_point() and not given.is_complex()
    y = check(given, "y", "n *o")
    if len(y) != n:
        raise ValueError(f"x and y should have one row per sample each, but have {n} and {len(y)} rows.")
    if y.ndim == 1 and o > 1:
        if not whole or y.min() < 0 or y.max() >= o:
            raise ValueError(
                f"y with one number per sample should hold classes 0 to {o - 1}, as integers, because the "
                f"model has {o} outputs; but it is {given.dtype} from {y.min():g} to {y.max():g}. Pass "
                f"targets of shape ({n}, {o}) for anything else."
            )
        return nn.functional.one_hot(given.long(), o).double()
    if y.numel() != n * o:
        raise ValueError(f"y should have shape ({n},) or ({n}, {o}), but has shape {tuple(y.shape)}.")
    return y.reshape(n, o)


def centered(v: Float[Tensor, "n o *g"], center: str) -> Float[Tensor, "n o *g"]:
    """Without the mean over samples and outputs (entries), or over the samples of each output (examples)."""
    return v - v.mean(dim=(0, 1) if center == "entries" else 0)


def _full(watched: Watched, targets: Tensor, center: str) -> dict[str, Measured]:
    """Through Ψ: its products with the labels and with the means, then the norm of its Gram in tiles."""
    n, o = targets.shape
    if center == "entries":
        means = torch.full_like(targets, 1 / (n * o))[:, :, None]
    else:
        means = (torch.eye(o).to(targets) / n).expand(n, o, o)
    found = pulled(watched, torch.cat([targets[:, :, None], means], dim=2))
    label = {layer: [tuple(t[:1] for t in part) for part in u] for layer, u in found.items()}
    mean = {layer: [tuple(t[1:] for t in part) for part in u] for layer, u in found.items()}
    common = {layer: inner(u, u).to(targets) for layer, u in mean.items()}
    shared = pushed(watched, mean)
    squares = {layer: torch.zeros((), dtype=torch.float64, device=targets.device) for layer in found}
    for tile in tiles(watched):
        value = _centered_tile(tile, shared[tile.layer], common[tile.layer])
        # Rows first: torch adds them up pairwise, and the last sum is over few numbers, in float64.
        square = value.square_().sum(dim=1).double().sum()
        squares[tile.layer] += 2 * square if tile.twice else square
    length = targets.double().square().sum()

    def measured(layer: str) -> Measured:
        along = inner(label[layer], label[layer]).sum() / length
        # What rounding leaves of a constant kernel is no kernel.
        floor = 16 * n * o * torch.finfo(targets.dtype).eps * common[layer].abs().max().double()
        norm = squares[layer].sqrt()

        def multiply(v: Tensor) -> Tensor:
            v = centered(v.reshape(n, o, -1), center)
            return centered(pushed(watched, pulled(watched, v, [layer]))[layer], center).flatten(0, 1)

        return Measured(along, norm.where(norm > floor, 0), multiply, n * o)

    return {layer: measured(layer) for layer in watched.layers}


def _centered_tile(tile: Tile, shared: Tensor, common: Tensor) -> Tensor:
    """The tile of (Ψ − Ψ̄)ᵀ(Ψ − Ψ̄), in place, from those of ΨᵀΨ, ΨᵀΨ̄ and Ψ̄ᵀΨ̄."""
    (i, k), (j, m) = tile.rows, tile.columns
    left, right = shared[i, k], shared[j, m]
    if len(common) == 1:
        tile.value.sub_((left - common).reshape(-1, 1))
        return tile.value.sub_(right.reshape(1, -1))
    value = tile.value.view(*left.shape[:2], *right.shape[:2])
    value.sub_((left[:, :, m] - common[k, m])[:, :, None])
    value.sub_(right[:, :, k].movedim(2, 0)[None])
    return tile.value


def _traced(watched: Watched, targets: Tensor) -> dict[str, Measured]:
    """Through the n×n kernels themselves, in float64."""
    n, deviation = len(targets), targets.double()
    kernels = assemble(watched).items()
    return {
        layer: _against(k.double().view(n, 1, n, 1), deviation, "examples", True, k.dtype)
        for layer, k in kernels
    }


def _graphed(watched: Watched, layer: str, targets: Tensor, center: str) -> Measured:
    """Through the kernel itself, formed so that it can be differentiated."""
    (n, o), factors = targets.shape, watched.batch(0).layers[layer]
    k = 1 if watched.trace else o
    if not factors:
        return _against(targets.new_zeros(n, k, n, k), targets, "examples", watched.trace)
    [(_, _, kernel)] = block(factors, factors, same=True, trace=watched.trace, k=o, whole=True)
    return _against(kernel.view(n, k, n, k), targets, center, watched.trace)


def _against(
    kernel: Float[Tensor, "n k n k"],
    targets: Tensor,
    center: str,
    trace: bool,
    made: torch.dtype | None = None,
) -> Measured:
    """A whole kernel, ``made`` in some precision, as the definitions say."""
    size = kernel.shape[0] * kernel.shape[1]
    half = centered(kernel.flatten(2), "examples" if trace else center)
    half = half.flatten(0, 1).mT.reshape(*kernel.shape[:2], -1)
    k = centered(half, "examples" if trace else center).flatten(0, 1)
    labels = targets @ targets.mT if trace else targets.reshape(-1, 1) @ targets.reshape(1, -1)
    floor = 16 * size * torch.finfo(made or kernel.dtype).eps * kernel.detach().abs().max()
    along, norm = (k * labels).sum() / labels.norm(), k.norm()
    return Measured(along, norm.where(norm > floor, 0), lambda v: k @ v.to(k), size)
