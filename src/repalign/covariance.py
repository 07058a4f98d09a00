"""Do weights point where the data does? Covariances side by side (Maennel et al. §2.2–2.3, appendix D).

A is the covariance of the data, B that of the first layer's weights, both (d, d). B is aligned with A
when every eigenspace of A lies in one of B. What can be measured of it depends on the number of filters,
so the score comes with its floor.

Both covariances are taken about their means, (1/n) Σ (x − x̄)(x − x̄)ᵀ, unless ``center=False`` asks for second
moments. In the theory both means are 0 (appendix C: the data by assumption, the weights by symmetry). Images
have a mean, which as a direction of the data would hide the others; so it is removed, and from the filters
as well, which then count as one fewer: the floor of m of them is ``misalignment_floor(d, m - 1)``.

>>> import torch
>>> A = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
>>> misalignment(A, torch.diag(torch.tensor([1.0, 5.0, 2.0])))      # other order, same axes: aligned
tensor(0.)
>>> round(misalignment_floor(27, 256), 3)                            # what 256 aligned filters score
1.495
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Real
from torch import Tensor

from repalign._arrays import check, indistinct, numbers, numpy_too, rounding, working


class TransferFunction(NamedTuple):
    """Standard deviations along the data's eigenvectors, the strongest first: data σᵢ, weights τᵢ."""

    sigma: Float[Tensor, " d"]
    tau: Float[Tensor, " d"]


class Scores(NamedTuple):
    """Misalignment in the data's basis, its mean in random bases, and the floor, that of alignment."""

    data: float
    random: float
    floor: float


@numpy_too
def misalignment(
    A: Float[Tensor, "d d"], B: Float[Tensor, "d d"], *, rtol: float | None = None
) -> Float[Tensor, ""]:
    """M(A, B) = Σᵢ √(tr B|Vᵢ · tr B⁻¹|Vᵢ) − d over the eigenspaces Vᵢ of A (Maennel def. 1, prop. 2.7).

    The least symmetrized Kullback–Leibler divergence between B and a matrix aligned with A: 0 when B is
    aligned, whatever its eigenvalues. Eigenvalues of A closer than ``rtol`` times the largest count as one
    eigenspace; the score jumps where that changes, as it must. By default ``rtol`` is 1e-10 in float64,
    1e-5 in float32 and ε in half precision, so that only rounding is forgiven. B has to be invertible:
    m filters in dimension d need m > d, and score about d(d − 1)/2m when they are aligned
    (:func:`misalignment_floor`).

    >>> misalignment(torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    tensor(0.3094)
    """
    a, b = _covariance(A, "A"), _covariance(B, "B")
    _same_size(a, b, "A and B")
    values, vectors = torch.linalg.eigh(working(a))
    return _score(vectors, _groups(values, _rtol(A, rtol)), b, B)


@numpy_too
def misalignment_in(basis: Float[Tensor, "d d"], B: Float[Tensor, "d d"]) -> Float[Tensor, ""]:
    """The score with the columns of ``basis`` in place of A's eigenvectors (Maennel A.6).

    A random orthonormal basis gives the score of no relation, which that of the data should stay below.

    >>> misalignment_in(torch.eye(2), torch.diag(torch.tensor([2.0, 1.0])))
    tensor(0.)
    """
    basis, b = numbers(basis, "basis", "d d"), _covariance(B, "B")
    _same_size(basis, b, "basis and B")
    v = working(basis)
    if not torch.allclose(v.mT @ v, torch.eye(len(v)).to(v), atol=1e-4):
        raise ValueError(
            "basis should be orthonormal, but its columns are not. Use torch.linalg.qr(basis).Q."
        )
    return _score(v, [slice(i, i + 1) for i in range(len(v))], b, B)


def misalignment_floor(d: int, m: int) -> float:
    """The expected score of m filters in dimension d that are perfectly aligned, of finite number only.

    Exact for Gaussian filters of any covariance aligned with A, if A has no repeated eigenvalue:
    vᵀBv · vᵀB⁻¹v is then 1/Beta((m − d + 1)/2, (d − 1)/2), so the floor is d(E[Beta^−½] − 1), with
    d(d − 1)/2m as its first term. Subtract one from m where the filters' mean was removed. Report the
    score, the floor and their difference.

    >>> [round(misalignment_floor(27, m), 3) for m in (64, 256, 1024, 4096)]
    [8.33, 1.495, 0.35, 0.086]
    """
    if not (d >= 1 and m > d):
        raise ValueError(f"m filters in dimension d need m > d ≥ 1, but m = {m} and d = {d}.")
    a = (m - d + 1) / 2
    log_mean = math.lgamma(a - 0.5) - math.lgamma(a) + math.lgamma(m / 2) - math.lgamma((m - 1) / 2)
    return d * math.expm1(log_mean)


def random_basis(d: int, *, seed: int) -> Float[Tensor, "d d"]:
    """The columns of a random orthogonal matrix, in float64: a basis that knows nothing of the data.

    >>> basis = random_basis(3, seed=0)
    >>> torch.allclose(basis.mT @ basis, torch.eye(3).double())
    True
    """
    if d < 1:
        raise ValueError(f"d should be at least 1, but is {d}.")
    drawn = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(drawn).Q


def misalignment_scores(
    A: Float[Tensor, " d d"], filters: Float[Tensor, " m *s"], *, bases: int = 10, seed: int = 0
) -> Scores:
    """The score of ``filters`` about their mean in A's basis, beside that of random bases and the floor.

    Isotropic filters score the floor on average in every basis, so only a random score above the floor
    gives that of the data something to be below.

    >>> A = torch.diag(torch.arange(1, 6.0))
    >>> filters = torch.randn(500, 5, generator=torch.Generator().manual_seed(0)) * A.diag()
    >>> [round(score, 2) for score in misalignment_scores(A, filters)]
    [0.01, 3.47, 0.02]
    """
    if bases < 1:
        raise ValueError(f"bases should be at least 1, but is {bases}.")
    found = filter_covariance(torch.as_tensor(filters).detach().cpu().double())
    d = len(found)
    if len(filters) <= d + 1:
        raise ValueError(
            f"filters should be more than their dimensions and one for their mean, {d + 1}, but there are "
            f"{len(filters)}: their covariance has no inverse. Put filters of several runs one below the "
            "other, or compare the strongest directions alone: overlap(A, filter_covariance(filters), k)."
        )
    drawn = [random_basis(d, seed=bases * seed + k) for k in range(bases)]
    other = [float(misalignment_in(basis, found)) for basis in drawn]
    own = float(misalignment(torch.as_tensor(A).cpu().double(), found))
    return Scores(own, sum(other) / bases, misalignment_floor(d, len(filters) - 1))


@numpy_too
def overlap(A: Float[Tensor, "d d"], B: Float[Tensor, "d d"], k: int) -> Float[Tensor, ""]:
    """Mean squared cosine of the angles between the spaces of the first k eigenvectors of A and of B.

    1 when the spaces are equal, whatever their bases; k/d on average for a random space (Maennel fig. 3).

    >>> A, B = torch.diag(torch.tensor([3.0, 2.0, 1.0])), torch.diag(torch.tensor([2.0, 3.0, 1.0]))
    >>> overlap(A, B, 1), overlap(A, B, 2)
    (tensor(0.), tensor(1.))
    """
    a, b = _covariance(A, "A"), _covariance(B, "B")
    _same_size(a, b, "A and B")
    if not 1 <= k <= len(a):
        raise ValueError(f"k should be from 1 to {len(a)}, but is {k}.")
    first, other = (torch.linalg.eigh(working(m)).eigenvectors[:, -k:] for m in (a, b))
    return ((first.mT @ other).square().sum() / k).to(a)


@numpy_too
def transfer_function(
    data_cov: Float[Tensor, "d d"], weight_cov: Float[Tensor, "d d"], *, rtol: float | None = None
) -> TransferFunction:
    """σᵢ ↦ τᵢ: how strong the weights are along each eigenvector of the data (Maennel §2.3, A.8).

    σᵢ² = vᵢᵀ Σ_x vᵢ and τᵢ² = vᵢᵀ Σ_w vᵢ. Within an eigenspace (eigenvalues equal up to ``rtol``, as in
    :func:`misalignment`) single directions mean nothing: τ² is averaged there.

    >>> transfer_function(torch.diag(torch.tensor([1.0, 4.0])), torch.diag(torch.tensor([9.0, 16.0])))
    TransferFunction(sigma=tensor([2., 1.]), tau=tensor([4., 3.]))
    """
    A, B = _covariance(data_cov, "data_cov"), _covariance(weight_cov, "weight_cov")
    _same_size(A, B, "data_cov and weight_cov")
    values, vectors = torch.linalg.eigh(working(A))
    for name, m, its in (
        ("data_cov", data_cov, values),
        ("weight_cov", weight_cov, torch.linalg.eigvalsh(working(B))),
    ):
        if its[0] < -indistinct(its, m):
            raise ValueError(f"{name} should have no negative eigenvalue, but has {float(its[0]):.3g}.")
    along = (vectors * (working(B) @ vectors)).sum(dim=0)
    for group in _groups(values, _rtol(data_cov, rtol)):
        along[group] = along[group].mean()
    parts = (part.clamp(min=0).sqrt().flip(0).to(A) for part in (values, along))
    return TransferFunction(*parts)


def tilt(function: TransferFunction) -> float:
    """How much stronger the weights are where the data is: log of τ over the upper third of σ by the lower.

    Both are root mean squares over directions. 0 when all τ are equal, as before training.

    >>> round(tilt(TransferFunction(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([4.0, 1.0, 2.0]))), 3)
    0.693
    """
    power = working(function.tau).square()
    third = len(power) // 3
    if third < 1:
        raise ValueError(f"a tilt needs three directions or more, but there are {len(power)}.")
    return float((power[:third].mean() / power[-third:].mean()).log() / 2)


@numpy_too
def patch_covariance(
    images: Real[Tensor, "n c h w"],
    size: int,
    *,
    stride: int = 1,
    padding: int = 0,
    center: bool = True,
    batch_size: int = 512,
) -> Float[Tensor, "p p"]:
    """Covariance of all ``size`` × ``size`` patches of the images, (c·size², c·size²) (Maennel A.6, D.1).

    Patches are never cut out. A product of two pixels counts once for every patch that holds both, so
    products of image rows with the rows below them, ``size`` of each, hold every sum needed. Entries are
    ordered as ``conv.weight.flatten(1)``. The patches are those that ``Conv2d(c, m, size, stride, padding)``
    sees: by default inside the images alone, with ``padding`` also those that hang over the edge, into so
    many pixels of zeros. ``center=False`` leaves the mean in, as in :func:`filter_covariance`.

    >>> images = torch.tensor([[[[0.0, 1.0], [2.0, 3.0]]]])
    >>> patch_covariance(images, size=1)
    tensor([[1.2500]])
    """
    if not isinstance(images, Tensor) or images.ndim != 4:
        images = check(images, "images", "n c h w")
    if padding < 0:
        raise ValueError(f"padding should be a number of pixels, 0 or more, but is {padding}.")
    if padding:
        images = torch.nn.functional.pad(images, (padding, padding, padding, padding))
    n, c, h, w = images.shape
    if not 1 <= size <= min(h, w):
        raise ValueError(f"size should be from 1 to {min(h, w)} for images of {h}×{w}, but is {size}.")
    if stride < 1 or batch_size < 1:
        raise ValueError(f"stride and batch_size should be at least 1, but are {stride} and {batch_size}.")
    # Tiles about as wide as 128 numbers: there, products of rows are both large and few.
    across = (w - size) // stride + 1
    tile = max(1, (max(128 // c, 4 * size) - size) // stride + 1)
    first = working(check(images[:batch_size], "images", "n c h w"))
    # Covariance does not see a constant; without it the sums lose no digits.
    offset = first.mean(dim=(0, 2, 3), keepdim=True) if center else first.new_zeros(1, c, 1, 1)
    second = first.new_zeros(c, size, size, c, size, size)
    total = first.new_zeros(c, size, size)
    for start in range(0, across, tile):
        stop = min(start + tile, across)
        columns = slice(start * stride, (stop - 1) * stride + size)
        parts = _patch_sums(images[..., columns], size, stride, offset, batch_size)
        second += parts[0]
        total += parts[1]
    count = n * across * ((h - size) // stride + 1)
    mean = total.reshape(-1) / count
    cov = second.reshape(len(mean), len(mean)) / count
    if center:
        cov -= mean[:, None] * mean
    dtype = images.dtype if images.is_floating_point() else torch.float64
    return cov.to(images.device, torch.promote_types(dtype, torch.float32))


def _patch_sums(x: Tensor, size: int, stride: int, offset: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Sums of products (c, k, k, c, k, k) and of values (c, k, k) over all patches."""
    _, c, h, w = x.shape
    pairs = [offset.new_zeros(h - down, c * w, c * w) for down in range(size)]
    pixels = offset.new_zeros(c, h, w)
    for part in x.split(batch):
        part = working(check(part, "images", "n c h w")) - offset
        pixels += part.sum(dim=0)
        rows = part.permute(2, 1, 3, 0).reshape(h, c * w, -1)
        for down, sums in enumerate(pairs):
            # Row i with row i + down, every pixel with every pixel, summed over the images.
            sums.baddbmm_(rows[: h - down], rows[down:].mT)
    tall, wide = ((side - size) // stride * stride + 1 for side in (h, w))
    k = range(size)
    second = offset.new_zeros(c, size, size, c, size, size)
    for down, sums in enumerate(pairs):
        for a in range(size - down):
            rows = sums[a : a + tall : stride].sum(dim=0).reshape(c, w, c, w)
            for b in k:
                for e in k:
                    block = rows[:, b : b + wide : stride, :, e : e + wide : stride]
                    value = block.diagonal(dim1=1, dim2=3).sum(dim=-1)
                    second[:, a, b, :, a + down, e] = value
                    second[:, a + down, e, :, a, b] = value.mT
    total = torch.stack(
        [pixels[:, a : a + tall : stride, b : b + wide : stride].sum(dim=(1, 2)) for a in k for b in k], dim=1
    )
    return second, total.reshape(c, size, size)


@numpy_too
def filter_covariance(filters: Float[Tensor, " m *s"], *, center: bool = True) -> Float[Tensor, " d d"]:
    """Covariance of filters, one per row; ``conv.weight``, (m, c, k, k), gives (ck², ck²) (Maennel A.6).

    Filters of several runs are put one below the other. About their mean, as :func:`patch_covariance` takes
    that of the data; ``center=False`` leaves the mean in.

    >>> filter_covariance(torch.tensor([[0.0, 1.0], [2.0, 1.0]]))
    tensor([[1., 0.],
            [0., 0.]])
    """
    given = numbers(filters, "filters", "m *s")
    w = working(given).reshape(len(given), -1)
    w = w - w.mean(dim=0) if center else w
    return (w.mT @ w / len(w)).to(given)


@numpy_too
def eigenvector_agreement(
    A: Float[Tensor, "d d"], B: Float[Tensor, "d d"], *, rtol: float | None = None
) -> Float[Tensor, " d"]:
    """|⟨eᵢ, e′ᵢ⟩| of the eigenvectors of two covariances, strongest first (Maennel D.1).

    Where eigenvalues of A are equal up to ``rtol`` (as in :func:`misalignment`) the eigenspaces are
    compared: the root mean square cosine between them, so that a turn within one does not count. A larger
    ``rtol`` treats near-equal pairs so. Sampling alone turns eigenvectors: see :func:`rotation_error`.

    >>> turned = torch.tensor([[2.0, 0.1], [0.1, 1.0]])
    >>> eigenvector_agreement(torch.diag(torch.tensor([2.0, 1.0])), turned)
    tensor([0.9951, 0.9951])
    """
    a, b = _covariance(A, "A"), _covariance(B, "B")
    _same_size(a, b, "A and B")
    values, v = torch.linalg.eigh(working(a))
    cosines = (v.mT @ torch.linalg.eigh(working(b)).eigenvectors).square()
    agreement = cosines.new_zeros(len(values))
    for group in _groups(values, _rtol(A, rtol)):
        agreement[group] = (cosines[group, group].sum() / (group.stop - group.start)).sqrt()
    return agreement.flip(0).to(a)


@numpy_too
def rotation_error(eigenvalues: Float[Tensor, " d"], n: int) -> Float[Tensor, "d d"]:
    """Standard deviation of the angle in the plane of eigenvectors i and j, from n samples (Maennel D.3).

    1/√(n·I) with the Fisher information I = (λᵢ − λⱼ)²/λᵢλⱼ; infinite between equal eigenvalues, 0 on the
    diagonal. Two estimates differ by √2 times that.

    >>> rotation_error(torch.tensor([1.0, 1.1]), n=100_000)     # about 1/30, as in figure 19
    tensor([[0.0000, 0.0332],
            [0.0332, 0.0000]])
    """
    values = numbers(eigenvalues, "eigenvalues", "d")
    if n < 1 or not (values > 0).all():
        raise ValueError(
            f"eigenvalues should be positive and n at least 1, but n = {n} and they are {values}."
        )
    lam = working(values)
    apart = (lam[:, None] - lam).abs()
    error = (lam[:, None] * lam / n).sqrt() / apart
    return error.fill_diagonal_(0).to(values)


def _score(vectors: Tensor, groups: list[slice], b: Tensor, given: Tensor) -> Tensor:
    eigenvalues, w = torch.linalg.eigh((working(b) + working(b).mT) / 2)
    if eigenvalues[0] <= indistinct(eigenvalues, given):
        raise ValueError(
            f"B should be positive definite, but its eigenvalues reach from {float(eigenvalues[0]):.3g} to "
            f"{float(eigenvalues[-1]):.3g}. Take more filters than dimensions ({len(b)}), for instance those "
            f"of several runs one below the other; compare the strongest directions alone, overlap(A, B, k); "
            f"or add a small multiple of the identity."
        )
    cosines = (w.mT @ vectors).square()
    along, inverse = eigenvalues @ cosines, (1 / eigenvalues) @ cosines
    terms = [(along[g].sum() * inverse[g].sum()).sqrt() - (g.stop - g.start) for g in groups]
    # Each term is at least 0; below is rounding.
    return torch.stack(terms).clamp(min=0).sum().to(b)


def _groups(values: Tensor, rtol: float) -> list[slice]:
    """Runs of ascending eigenvalues, each closer to the next than ``rtol`` times the largest."""
    cuts = (values.diff() > rtol * values.abs().max()).nonzero().flatten().add(1).tolist()
    return [slice(a, b) for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True)]


def _rtol(given: Tensor, rtol: float | None) -> float:
    if rtol is None:
        eps = rounding(given)
        return 1e-10 if eps < 1e-10 else max(1e-5, eps)
    if not 0 <= rtol < 1:
        raise ValueError(f"rtol should be in [0, 1), but is {rtol}.")
    return rtol


def _covariance(given: Tensor, name: str) -> Tensor:
    m, eps = numbers(given, name, "d d"), rounding(given)
    rtol, atol = max(1e-4, 2 * eps), max(1e-5, eps) * float(m.abs().max())
    if m.shape[0] != m.shape[1] or not torch.allclose(m, m.mT, rtol=rtol, atol=atol):
        raise ValueError(
            f"{name} should be square and symmetric, but this {tuple(m.shape)} is not. "
            f"Of filters take their covariance: filter_covariance(weight)."
        )
    return m


def _same_size(a: Tensor, b: Tensor, names: str) -> None:
    if a.shape != b.shape:
        raise ValueError(f"{names} should be of one size, but are {tuple(a.shape)} and {tuple(b.shape)}.")
