"""Products with Ψ and Ψᵀ, without Ψ: over all batches, for every layer at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from repalign.tangent.capture import Watched

# Parameter vectors in the form the factors of a layer know: per factor, tensors with a column axis first.
Pulled = list[tuple[Tensor, ...]]


def pulled(
    watched: Watched, v: Float[Tensor, "n o g"], layers: Sequence[str] | None = None
) -> dict[str, Pulled]:
    """Ψ_l v for g columns at once: a vector–Jacobian product per layer."""
    total: dict[str, Pulled] = {}
    for batch in watched:
        part = v[batch.samples, batch.outputs]
        for layer in layers or watched.layers:
            found = [factor.pull(part) for factor in batch.layers[layer]]
            if layer in total:
                pairs = zip(total[layer], found, strict=True)
                found = [tuple(a + b for a, b in zip(x, y, strict=True)) for x, y in pairs]
            total[layer] = found
    return total


def pushed(watched: Watched, u: dict[str, Pulled]) -> dict[str, Float[Tensor, "n o g"]]:
    """Ψ_lᵀ u for every column of u: the transpose of :func:`pulled`."""
    rows: dict[str, Tensor] = {}
    for batch in watched:
        for layer, parts in u.items():
            pairs = zip(batch.layers[layer], parts, strict=True)
            for some in (factor.push(part) for factor, part in pairs):
                if layer not in rows:
                    rows[layer] = some.new_zeros(watched.n, watched.outputs, some.shape[2])
                rows[layer][batch.samples, batch.outputs] += some
    return rows


def inner(u: Pulled, v: Pulled) -> Float[Tensor, "g h"]:
    """Inner products of the columns of two parameter vectors, in float64."""
    total = torch.zeros(())
    for x, y in zip(u, v, strict=True):
        for a, b in zip(x, y, strict=True):
            total = total.to(a.device) + a.flatten(1).double() @ b.flatten(1).double().mT
    return total


class Eigenpairs(NamedTuple):
    """Eigenvalues of largest magnitude first, and their eigenvectors as rows, in float64."""

    values: Float[Tensor, " k"]
    vectors: Float[Tensor, "k size"]


def top_eigenpairs(multiply: Callable[[Tensor], Tensor], size: int, k: int, like: Tensor) -> Eigenpairs:
    """The k eigenpairs of largest magnitude, by Lanczos; from the whole matrix when that is small.

    ``multiply`` takes and returns (size, g), g vectors at once. The start is drawn from a fixed seed: from
    the labels, say, Lanczos might never leave their subspace.
    """

    def apply(v: np.ndarray) -> np.ndarray:
        out = multiply(torch.from_numpy(v.reshape(size, -1)).to(like.device, like.dtype))
        return out.double().cpu().numpy()

    if size <= max(64, 2 * k):
        matrix = apply(np.eye(size))
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    else:
        start = np.random.default_rng(0).standard_normal(size)
        operator = LinearOperator((size, size), matvec=apply, dtype=np.float64)
        tol = 8 * torch.finfo(like.dtype).eps
        values, vectors = eigsh(operator, k=k, which="LM", v0=start, tol=tol)
    order = np.argsort(-np.abs(values))[:k]
    pairs = (values[order], np.ascontiguousarray(vectors.T[order]))
    return Eigenpairs(*(torch.from_numpy(part).to(like.device) for part in pairs))
