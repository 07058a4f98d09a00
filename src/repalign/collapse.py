"""Neural collapse: samples of a class meet in one point, and the points are as far apart as can be.

Papyan, Han and Donoho (2020) find it in the last layer of networks that are trained beyond a perfect fit.

>>> import torch
>>> y = torch.arange(60) % 3
>>> apart = torch.eye(3)[y]                                # three corners of a regular triangle
>>> noise = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
>>> [round(float(collapse(apart + size * noise, y).nc1), 4) for size in (0.5, 0.1, 0.0)]
[0.3486, 0.0159, 0.0]
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from repalign._arrays import check, numbers, numpy_too, same_rows, working


class Collapse(NamedTuple):
    """How far a layer has collapsed; all are 0 where it has entirely.

    nc1      tr(Σ_W Σ_B⁺)/C: spread within classes, beside that of the C class means
    cdnv     mean over pairs of classes of (var_a + var_b) / 2‖μ_a − μ_b‖² (Galanti et al. 2022)
    norms    standard deviation of the distances of class means from their center, over their mean (NC2)
    angles   mean distance of the cosines between centered class means from −1/(C − 1) (NC2)
    dual     ‖W/‖W‖ − M/‖M‖‖² of the classifier's weights and the centered class means (NC3), or None
    nearest  share of samples that the classifier does not give to the nearest class mean (NC4), or None
    """

    nc1: Float[Tensor, ""]
    cdnv: Float[Tensor, ""]
    norms: Float[Tensor, ""]
    angles: Float[Tensor, ""]
    dual: Float[Tensor, ""] | None
    nearest: Float[Tensor, ""] | None


@numpy_too
def collapse(
    phi: Float[Tensor, "n d"],
    y: Integer[Tensor, " n"],
    *,
    classifier: tuple[Float[Tensor, "c d"], Float[Tensor, " c"]] | None = None,
) -> Collapse:
    """Measures of neural collapse of a layer, from its class means and the spread about them.

    ``y`` holds class numbers. ``classifier`` is (weight, bias) of the linear layer behind ``phi``, one row
    for every class from 0 on: with it come ``dual`` and ``nearest``. Rotation, shift and scale change nothing
    (of ``dual``: where the weights are turned and scaled along).

    >>> y = torch.arange(6) % 2
    >>> phi = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])[y] + torch.tensor([0.0, 0.5])
    >>> collapse(phi, y, classifier=(torch.tensor([[2.0, 0.0], [-2.0, 0.0]]), torch.zeros(2)))[-2:]
    (tensor(0.), tensor(0.))
    """
    given = numbers(phi, "phi", "n d")
    same_rows(given, check(y, "y", "n"), "phi and y")
    if y.is_floating_point():
        raise ValueError(f"y should hold class numbers, integers, but is {y.dtype}.")
    classes, index, counts = y.to(given.device).unique(return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise ValueError(f"y should hold two classes or more, but holds {len(classes)}.")
    x = working(given)
    index, counts = index.to(x.device), counts.to(x)
    # Without the overall mean, sums lose no digits.
    x = x - x.mean(dim=0)
    means = x.new_zeros(len(classes), x.shape[1]).index_add_(0, index, x) / counts[:, None]
    within = x - means[index]
    variances = x.new_zeros(len(classes)).index_add_(0, index, within.square().sum(dim=1)) / counts
    centered = means - means.mean(dim=0)
    found = (_nc1(within, centered), _cdnv(variances, means), *_simplex(centered))
    nc1, cdnv, norms, angles = (one.to(given) for one in found)
    if classifier is None:
        return Collapse(nc1, cdnv, norms, angles, None, None)
    told = _told(x, given, means, centered, classes, classifier)
    dual, nearest = (one.to(given) for one in told)
    return Collapse(nc1, cdnv, norms, angles, dual, nearest)


def _nc1(within: Tensor, centered: Tensor) -> Tensor:
    """tr(Σ_W Σ_B⁺)/C by the directions in which class means differ, of which C − 1 are enough."""
    classes = len(centered)
    _, spread, directions = torch.linalg.svd(centered / classes**0.5, full_matrices=False)
    least = max(centered.shape) * torch.finfo(torch.float64).eps * within.abs().max().clamp(min=spread[0])
    keep = spread > least
    keep[classes - 1 :] = False
    if not keep.any():
        raise ValueError(
            "the means of all classes are the same, so spread within classes has nothing to be compared with."
        )
    along = within @ directions[keep].mT / spread[keep]
    return along.square().sum() / (len(within) * classes)


def _cdnv(variances: Tensor, means: Tensor) -> Tensor:
    a, b = torch.triu_indices(len(means), len(means), 1, device=means.device).unbind()
    apart = (means[a] - means[b]).square().sum(dim=1)
    return ((variances[a] + variances[b]) / (2 * apart)).mean()


def _simplex(centered: Tensor) -> tuple[Tensor, Tensor]:
    """How far the centered class means are from equal lengths, and from the angles of a simplex."""
    length = torch.linalg.vector_norm(centered, dim=1)
    norms = length.std(correction=0) / length.mean()
    unit = centered / length[:, None]
    a, b = torch.triu_indices(len(unit), len(unit), 1, device=unit.device).unbind()
    cosines = (unit[a] * unit[b]).sum(dim=1)
    return norms, (cosines + 1 / (len(unit) - 1)).abs().mean()


def _told(
    x: Tensor,
    given: Tensor,
    means: Tensor,
    centered: Tensor,
    classes: Tensor,
    classifier: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """What the classifier adds: how far it is from the class means, and how often it decides otherwise."""
    weight, bias = (
        working(numbers(v, n, s)) for v, n, s in zip(classifier, NAMES, ("c d", "c"), strict=True)
    )
    if weight.shape != means.shape or len(bias) != len(weight) or classes.tolist() != list(range(len(means))):
        raise ValueError(
            f"classifier should be (weight, bias) with a row for each class from 0 on, all of which y holds: "
            f"({len(means)}, {means.shape[1]}) and ({len(means)},), but they are {tuple(weight.shape)} and "
            f"{tuple(bias.shape)}, and y holds {len(classes)} classes up to {int(classes[-1])}."
        )
    matrices = (weight, centered)
    dual = torch.sub(*(m / torch.linalg.matrix_norm(m) for m in matrices)).square().sum()
    decided = torch.addmm(bias, working(given), weight.mT).argmax(dim=1)
    return dual, (decided != torch.cdist(x, means).argmin(dim=1)).to(x).mean()


NAMES = ("the classifier's weight", "the classifier's bias")
