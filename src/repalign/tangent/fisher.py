"""The Fisher information of every layer, seen from the outputs (Lou et al., appendix G.3 to G.5)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from jaxtyping import Float, Real
from torch import Tensor, nn

from repalign._arrays import numpy_too
from repalign.tangent.alignments import as_targets, centered
from repalign.tangent.capture import Watched
from repalign.tangent.gram import assemble
from repalign.tangent.model import Inputs, Output
from repalign.tangent.plan import watch
from repalign.tangent.products import inner, pulled, pushed, top_eigenpairs

LOSSES = ("cross_entropy", "mse")


@numpy_too
def fisher_spectrum(
    model: nn.Module,
    x: Inputs,
    k: int | None = None,
    *,
    loss: str = "cross_entropy",
    layers: Sequence[str] | None = None,
    bias: str = "with",
    batch_size: int | None = None,
    output: Output = None,
) -> dict[str, Float[Tensor, " k"]]:
    """Eigenvalues of I_l = Ψ_l S Ψ_lᵀ, largest first, S the loss's second derivative in the outputs (G.3).

    They are those of S^½ Ψ_lᵀ Ψ_l S^½, which is (on)×(on) instead of as large as the layer: all on of them
    (those beyond the number of parameters are 0), or with ``k`` the largest k by Lanczos, and then no
    kernel is formed. S is diag(p) − p pᵀ per sample for ``loss="cross_entropy"``, where p is the softmax of
    the outputs, and the identity for ``loss="mse"``, where the spectrum is that of the tangent kernel.
    S belongs to the sum of losses over samples: divide by n for their mean.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> fisher_spectrum(model, torch.eye(2) * 2, loss="mse")
    {'model': tensor([4., 4.])}
    """
    watched = watch(model, x, layers=layers, bias=bias, batch_size=batch_size, output=output)
    root = _root(watched, loss)
    n, o = watched.n, watched.outputs
    if k is not None and not 1 <= k <= n * o:
        raise ValueError(f"k should be from 1 to the {n * o} pairs of sample and output, but is {k}.")
    if k is not None:
        return {layer: _top(watched, layer, root, k).to(watched.like) for layer in watched.layers}
    spectra = {}
    for layer, kernel in assemble(watched).items():
        full = kernel.double().view(n, o, n, o)
        weighted = torch.einsum("iab,ibjc,jcd->iajd", root, full, root).reshape(n * o, n * o)
        spectra[layer] = torch.linalg.eigvalsh(weighted).flip(0).clamp(min=0).to(kernel.dtype)
    return spectra


@numpy_too
def fisher_correlation(
    model: nn.Module,
    x: Inputs,
    y: Real[Tensor, " n *o"],
    *,
    loss: str = "cross_entropy",
    layers: Sequence[str] | None = None,
    bias: str = "with",
    batch_size: int | None = None,
    output: Output = None,
) -> dict[str, Float[Tensor, ""]]:
    """Σᵢ (λᵢ/λ₁) ⟨μᵢ, Ỹ⟩² over the eigenpairs of S^½ Ψ_lᵀ Ψ_l S^½ (Lou et al., appendix G.5).

    Ỹ is the label vector centered over all entries, with length one; arguments as in
    :func:`fisher_spectrum` and :func:`label_alignment`.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> x, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([1.0, -1.0])
    >>> fisher_correlation(model, x, y, loss="mse")      # (4 · ½ + 1 · ½) / 4
    {'model': tensor(0.6250)}
    """
    watched = watch(model, x, layers=layers, bias=bias, batch_size=batch_size, output=output)
    root = _root(watched, loss)
    targets = centered(as_targets(y, watched.n, watched.outputs).double().to(watched.like.device), "entries")
    if not targets.any():
        raise ValueError("the labels should differ from each other: centered they are all 0.")
    weighted = (root @ targets[:, :, None] / targets.norm()).to(watched.like)
    found = {}
    for layer, u in pulled(watched, weighted).items():
        top = _top(watched, layer, root, 1)[0]
        found[layer] = inner(u, u).sum() / top if top > 0 else top.new_tensor(torch.nan)
    dead = [layer for layer, value in found.items() if value.isnan()]
    if dead:
        warnings.warn(
            f"the Fisher information of {', '.join(dead)} is 0, so there is no direction to correlate, and "
            "NaN is given. Is the layer dead, or unused?",
            stacklevel=3,
        )
    return {layer: value.to(watched.like) for layer, value in found.items()}


def _root(watched: Watched, loss: str) -> Float[Tensor, "n o o"]:
    """The symmetric square root of the loss's second derivative, in float64, for every sample."""
    if loss not in LOSSES:
        raise ValueError(f"loss should be cross_entropy or mse, but is {loss!r}.")
    n, o = watched.n, watched.outputs
    if loss == "mse":
        return torch.eye(o, dtype=torch.float64, device=watched.x.device).expand(n, o, o)
    f = torch.cat([_outputs(watched, watched.x[i : i + 256]) for i in range(0, n, 256)])
    p = f.double().softmax(dim=1)
    values, vectors = torch.linalg.eigh(torch.diag_embed(p) - p[:, :, None] * p[:, None])
    return (vectors * values.clamp(min=0).sqrt()[:, None]) @ vectors.mT


def _outputs(watched: Watched, x: Tensor) -> Tensor:
    return watched.run(x)[0].detach()  # with gradients: the model itself may take some


def _top(watched: Watched, layer: str, root: Tensor, k: int) -> Tensor:
    n, o = watched.n, watched.outputs
    if not watched.parts[layer] and not watched.explicit[layer]:
        return root.new_zeros(k)  # a layer that is not used

    def multiply(v: Tensor) -> Tensor:
        weighted = root @ v.double().reshape(n, o, -1)
        found = pushed(watched, pulled(watched, weighted.to(watched.like), [layer]))[layer]
        return (root @ found.double()).flatten(0, 1)

    return top_eigenpairs(multiply, n * o, k, watched.like).values.clamp(min=0)
