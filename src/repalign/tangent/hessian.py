"""The Hessian of the outputs weighted by w, which moves parameters and features (Lou et al., app. B.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Real
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from repalign._arrays import at_least_single, check, numpy_too
from repalign.tangent.model import Inputs, Output, as_input, as_outputs, unwrapped, usable
from repalign.tangent.plan import grouped
from repalign.tangent.products import top_eigenpairs
from repalign.tangent.recorder import Derivatives


class HessianTop(NamedTuple):
    """Eigenpairs of H_w, largest magnitude first, and where in the network they live.

    values   (k,)          eigenvalues
    vectors  (k, P)        eigenvectors, in the order of ``model.parameters()``
    energy   {layer: (k,)} the share of each eigenvector's squared length that lies in the layer
    """

    values: Float[Tensor, " k"]
    vectors: Float[Tensor, "k p"]
    energy: dict[str, Float[Tensor, " k"]]


@numpy_too
@torch.inference_mode(mode=False)
def hessian_vector(
    model: nn.Module,
    x: Inputs,
    w: Real[Tensor, " n *o"],
    v: Float[Tensor, " p"] | Mapping[str, Tensor],
    *,
    batch_size: int | None = None,
    output: Output = None,
) -> Float[Tensor, " p"] | dict[str, Tensor]:
    """H_w v with H_w = Σ over samples and outputs of w[i, k] ∂²fₖ(xᵢ)/∂θ² (Lou et al., theorem A).

    ``v`` is a vector over all parameters, in the order of ``model.parameters()``, or a dictionary by
    name; the result has the same form. For a ReLU network of L layers without biases,
    H_w θ = (L−1) Ψ w: the theorem. No Hessian is formed: two backward passes.

    >>> model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))   # f = θ₁θ₀x
    >>> hessian_vector(model, torch.tensor([[3.0]]), torch.tensor([[1.0]]), torch.tensor([1.0, 0.0]))
    tensor([0., 3.])
    """
    multiply, parameters = _multiplier(model, x, w, batch_size, output)
    if isinstance(v, Mapping):
        missing = parameters.keys() ^ v.keys()
        if missing:
            raise ValueError(f"v should name every parameter of the model once: see {sorted(missing)[0]!r}.")
        flat = torch.cat([v[name].reshape(-1) for name in parameters])
        pieces = _split(multiply(_vector(flat, parameters)), parameters)
        return {name: piece for (name, _), piece in zip(parameters.items(), pieces, strict=True)}
    return multiply(_vector(v, parameters))


@numpy_too
@torch.inference_mode(mode=False)
def hessian_top(
    model: nn.Module,
    x: Inputs,
    w: Real[Tensor, " n *o"],
    k: int = 10,
    *,
    batch_size: int | None = None,
    output: Output = None,
) -> HessianTop:
    """The k eigenpairs of H_w of largest magnitude, and their energy in every layer (Lou et al., fig. 5).

    By Lanczos on :func:`hessian_vector`; with all samples in one batch the gradient's graph is built once.

    >>> model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> top = hessian_top(model, torch.tensor([[3.0]]), torch.tensor([[1.0]]), k=2)
    >>> top.values.abs(), top.energy["0"]
    (tensor([3., 3.]), tensor([0.5000, 0.5000]))
    """
    multiply, parameters = _multiplier(model, x, w, batch_size, output)
    size = sum(p.numel() for p in parameters.values())
    if not 1 <= k <= size:
        raise ValueError(f"k should be from 1 to the {size} parameters of the model, but is {k}.")
    like = next(iter(parameters.values())).detach()
    found = top_eigenpairs(lambda v: torch.stack([multiply(c) for c in v.mT], dim=1), size, k, like)
    vectors = found.vectors.to(like.dtype)
    return HessianTop(found.values.to(like.dtype), vectors, layer_energy(model, vectors))


@numpy_too
def layer_energy(
    model: nn.Module, vectors: Float[Tensor, "*k p"], *, bias: str = "with"
) -> dict[str, Float[Tensor, "*k"]]:
    """The share of the squared length of each parameter vector that lies in each layer.

    ``vectors`` are in the order of ``model.parameters()``. Lou et al. plot the square root of this.

    >>> model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> layer_energy(model, torch.tensor([3.0, 4.0]))
    {'0': tensor(0.3600), '1': tensor(0.6400)}
    """
    parameters = dict(unwrapped(model).named_parameters())
    size = sum(p.numel() for p in parameters.values())
    if vectors.shape[-1] != size:
        raise ValueError(
            f"vectors should have {size} entries, one per parameter, but have {vectors.shape[-1]}."
        )
    vectors = at_least_single(vectors)
    squares = vectors.square() / vectors.square().sum(dim=-1, keepdim=True)
    pieces = squares.split([p.numel() for p in parameters.values()], dim=-1)
    share = {name: piece.sum(dim=-1) for name, piece in zip(parameters, pieces, strict=True)}
    return {layer: sum_of([share[name] for name in names]) for layer, names in grouped(model, bias).items()}


def sum_of(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(dim=0)


def _multiplier(
    model: nn.Module, x: Any, w: Any, batch_size: int | None, output: Output
) -> tuple[Callable[[Tensor], Tensor], dict[str, Tensor]]:
    """The function v → H_w v, and the parameters it is about."""
    model = unwrapped(model)
    x, state = as_input(model, x)
    parameters = state.parameters
    like = next(iter(parameters.values()))
    n, step = len(x), batch_size or len(x)
    if step < 1:
        raise ValueError(f"batch_size should be a positive number of samples, but is {batch_size}.")
    w = usable(check(w, "w", "n *o")).to(like.device, like.dtype)
    if w.numel() % n:
        raise ValueError(f"w should have one row per sample, ({n}, o), but has shape {tuple(w.shape)}.")
    w = w.reshape(n, -1)

    def gradients(part: slice) -> tuple[Tensor, ...]:
        # Attention in its plain form is the one that can be differentiated twice.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), Derivatives():
            f = as_outputs(functional_call(model, state.all, *state.arguments(x[part])), len(x[part]), output)
            if f.shape[1] != w.shape[1]:
                raise ValueError(f"w should have shape {(n, f.shape[1])}, but has shape {tuple(w.shape)}.")
            return torch.autograd.grad(
                (f * w[part]).sum(),
                list(parameters.values()),
                create_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )

    once = gradients(slice(0, n)) if step >= n else None

    def graphs() -> Iterator[tuple[Tensor, ...]]:
        if once is not None:
            yield once
        else:
            yield from (gradients(slice(i, i + step)) for i in range(0, n, step))

    def multiply(v: Tensor) -> Tensor:
        total = torch.zeros_like(v)
        for gradient in graphs():
            # A parameter on which f depends linearly alone has a constant gradient, and no graph.
            pairs = [(g, p) for g, p in zip(gradient, _split(v, parameters), strict=True) if g.requires_grad]
            if pairs:
                products = torch.autograd.grad(
                    [g for g, _ in pairs],
                    list(parameters.values()),
                    [p for _, p in pairs],
                    retain_graph=once is not None,
                    allow_unused=True,
                    materialize_grads=True,
                )
                total += torch.cat([p.reshape(-1) for p in products])
        return total

    return multiply, parameters


def _vector(v: Any, parameters: dict[str, Tensor]) -> Tensor:
    like = next(iter(parameters.values()))
    v = usable(check(v, "v", "p")).to(like.device, like.dtype)
    size = sum(p.numel() for p in parameters.values())
    if len(v) != size:
        raise ValueError(f"v should have {size} entries, one per parameter, but has {len(v)}.")
    return v


def _split(v: Tensor, parameters: dict[str, Tensor]) -> list[Tensor]:
    pieces = v.split([p.numel() for p in parameters.values()])
    return [piece.reshape(p.shape) for piece, p in zip(pieces, parameters.values(), strict=True)]
