"""Power of targets in the eigenbasis of a kernel or of features, summed mode by mode (Canatar & Pehlevan)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Real
from torch import Tensor

from repalign._arrays import check, numpy_too, same_rows, working
from repalign.alignment.spectra import spectrum


@numpy_too
def cumulative_power(
    kernel_or_features: Float[Tensor, "n d"],
    targets: Real[Tensor, "n *c"],
    *,
    kind: str = "auto",
) -> Float[Tensor, " k"]:
    """C(ρ): the share of the targets' power in the first ρ modes (Canatar & Pehlevan eq. 3).

    Entry ρ−1 sums the first ρ modes over all target columns, relative to what the representation can
    express at all; the curve ends at 1. For features the modes are left singular vectors, for a kernel
    its eigenvectors: the same for K = ΦΦᵀ. ``kind="auto"`` takes a square symmetric matrix for a kernel;
    say ``"features"`` or ``"kernel"`` where that guess could be wrong.

    >>> cumulative_power(torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([1.0, 1.0]))
    tensor([0.5000, 1.0000])
    """
    m, y = check(kernel_or_features, "kernel_or_features", "n d"), check(targets, "targets", "n *c")
    same_rows(m, y, "kernel_or_features and targets")
    if kind not in ("auto", "kernel", "features"):
        raise ValueError(f"kind should be auto, kernel or features, but is {kind!r}.")
    square = m.shape[0] == m.shape[1]
    symmetric = square and torch.allclose(m, m.mT, rtol=1e-5, atol=1e-6 * float(m.abs().max()))
    if kind == "kernel" and not symmetric:
        raise ValueError(f"a kernel should be square and symmetric, but this {tuple(m.shape)} is not.")
    if kind == "kernel" or (kind == "auto" and symmetric):
        power = _kernel_power(m, working(y).reshape(len(y), -1))
    else:
        power = spectrum(working(m), working(y).reshape(len(y), -1)).power.sum(dim=1)
    total = power.sum()
    if total <= 0:
        raise ValueError(
            "the targets have no power in the range of this representation, so no share of it can be "
            "given. Are all targets zero?"
        )
    return (power.cumsum(dim=0) / total).to(m.device, m.dtype)


def _kernel_power(kernel: Tensor, targets: Tensor) -> Tensor:
    """Power of the targets along each eigenvector, largest eigenvalue first; 0 beyond the rank."""
    k = working(kernel)
    eigenvalues, vectors = torch.linalg.eigh((k + k.mT) / 2)
    slack = len(k) * torch.finfo(kernel.dtype).eps * eigenvalues.abs().max()
    if eigenvalues[0] < -slack:
        raise ValueError(
            f"a kernel should have no negative eigenvalue, but the smallest is {eigenvalues[0]:.3g} beside "
            f"a largest of {eigenvalues[-1]:.3g}."
        )
    in_range = eigenvalues > slack
    along = (vectors.mT @ targets).where(in_range[:, None], 0)
    return along.square().sum(dim=1).flip(0)
