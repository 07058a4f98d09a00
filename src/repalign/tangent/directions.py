"""Products with the tangent features of every layer, Ψ_l v and Ψ_lᵀ u, for use from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Real
from torch import Tensor, nn

from repalign._arrays import check, numpy_too
from repalign.tangent.capture import Part, Watched
from repalign.tangent.model import Inputs, Output
from repalign.tangent.plan import watch
from repalign.tangent.products import Pulled, pulled, pushed
from repalign.tangent.recorder import Key
from repalign.tangent.uses import Product, Through


@numpy_too
def pull(
    model: nn.Module,
    x: Inputs,
    v: Real[Tensor, " n *o"],
    *,
    layers: Sequence[str] | None = None,
    batch_size: int | None = None,
    output: Output = None,
) -> dict[str, dict[str, Tensor]]:
    """Ψ_l v = Σ over samples and outputs of v[i, k] ∂fₖ(xᵢ)/∂θ_l, by layer and parameter.

    What a step of gradient descent along v does to the parameters. ``v`` is (n, o), or (n,) for one
    output; ``layers``, ``batch_size`` and ``output`` are those of :func:`layer_kernels`.

    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False))
    >>> pull(model, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0], [10.0]]))
    {'0': {'0.weight': tensor([[31., 42.]])}}
    """
    watched = watch(model, x, layers=layers, batch_size=batch_size, output=output)
    n, o = watched.n, watched.outputs
    v = check(v, "v", "n *o").to(watched.like)
    if v.shape[0] != n or v.numel() != n * o:
        raise ValueError(f"v should have shape ({n}, {o}), but has shape {tuple(v.shape)}.")
    found = pulled(watched, v.reshape(n, o, 1))
    return {layer: _named(watched, layer, u) for layer, u in found.items()}


@numpy_too
def push(
    model: nn.Module,
    x: Inputs,
    u: Mapping[str, Tensor] | Mapping[str, Mapping[str, Tensor]],
    *,
    batch_size: int | None = None,
    output: Output = None,
) -> dict[str, Float[Tensor, "n o"]]:
    """Ψ_lᵀ u: how the outputs change, to first order, when the parameters of layer l move by u.

    ``u`` holds a tensor for every parameter that moves, by the parameter's name, or by layer and name as
    :func:`pull` returns it. The result holds a layer for each that ``u`` names; their sum is the change when
    all move.

    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False))
    >>> push(model, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), {"0.weight": torch.tensor([[1.0, 10.0]])})
    {'0': tensor([[21.],
            [43.]])}
    """
    moves: dict[str, Any] = {}
    for name, value in u.items():
        moves |= dict(value) if isinstance(value, Mapping) else {name: value}
    watched = watch(model, x, batch_size=batch_size, output=output)
    for name, value in moves.items():
        if name not in watched.parameters:
            raise ValueError(
                f"u names {name!r}, which is no parameter; they are {', '.join(watched.parameters)}."
            )
        shape = watched.parameters[name].shape
        if value.shape != shape:
            raise ValueError(f"u[{name!r}] should have shape {tuple(shape)}, but has {tuple(value.shape)}.")
    named = [layer for layer, names in watched.layers.items() if moves.keys() & set(names)]
    found = pushed(watched, {layer: _vectors(watched, layer, moves) for layer in named})
    still = torch.zeros(watched.n, watched.outputs).to(watched.like)
    return {layer: found[layer][:, :, 0] if layer in found else still.clone() for layer in named}


def _pieces(watched: Watched, layer: str) -> Iterator[tuple[Part | None, list[Key]]]:
    """The factors of a layer in their order, as the parameters each is about."""
    for part in watched.parts[layer]:
        yield part, [part.key, part.bias] if part.ones and part.bias else [part.key]
        if part.bias and not part.ones:
            yield None, [part.bias]
    for name in watched.explicit[layer]:
        yield None, [(name, 0)]


def _vectors(watched: Watched, layer: str, moves: Mapping[str, Tensor]) -> Pulled:
    """Named tensors in the form that the layer's factors know; 0 for what is not named."""

    def flat(part: Part | None, key: Key, is_bias: bool) -> Tensor:
        name, third = key
        whole = moves[name].to(watched.like) if name in moves else torch.zeros_like(watched.parameters[name])
        piece = whole.detach().chunk(3)[third - 1] if third else whole.detach()
        if part is None or is_bias:
            return piece.reshape(1, -1)
        if part.way == "table":
            return piece[None]
        if part.way == "rows":
            return (_narrow(part).cut(piece) if _narrow(part) else piece).reshape(1, -1)
        turned = isinstance(part.use, Product) and part.use.transposed
        return (piece.mT if turned else piece.flatten(1))[None]

    return [
        tuple(flat(part, key, i > 0) for i, key in enumerate(keys)) for part, keys in _pieces(watched, layer)
    ]


def _named(watched: Watched, layer: str, u: Pulled) -> dict[str, Tensor]:
    """The reverse: what the factors returned, as one tensor for every parameter of the layer."""
    found = {name: torch.zeros_like(watched.parameters[name]).detach() for name in watched.layers[layer]}
    for (part, keys), vectors in zip(_pieces(watched, layer), u, strict=True):
        for key, vector in zip(keys, vectors, strict=True):
            name, third = key
            piece = found[name].chunk(3)[third - 1] if third else found[name]
            value = vector[0]
            if part is not None and key == part.key:
                if _narrow(part):
                    value = _narrow(part).back(value)
                elif part.way not in ("rows", "table") and isinstance(part.use, Product):
                    value = value.mT if part.use.transposed else value
            piece += value.reshape(piece.shape)
    return found


def _narrow(part: Part) -> Any:
    """The cut in whose entries the rows of a part are kept, if they are."""
    kept = part.way == "rows" and isinstance(part.use, Through) and part.use.isometric and part.only
    return part.use if kept else None
