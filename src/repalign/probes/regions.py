"""Where classifiers decide what: points on planes through samples, and the share on which two agree."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Integer, Real
from torch import Tensor

from repalign._arrays import check, numpy_too, working
from repalign.probes import agreement


@numpy_too
def planes(
    x: Real[Tensor, " n *s"], triplets: Integer[Tensor, "t 3"], *, resolution: int = 50, margin: float = 0.1
) -> Float[Tensor, "t r r *s"]:
    """A square grid of points on the plane through each three samples (Sharon F.3, after Somepalli et al.).

    The first axis of a plane points from the first sample to the second, the second axis is at right
    angles to it, towards the third. The grid covers the box around the three, and ``margin`` times its
    sides beyond. One plane of 50×50 color images of 32×32 takes 31 MB: see :func:`plane_batches`.

    >>> corners = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 2.0]])
    >>> planes(corners, torch.tensor([[0, 1, 2]]), resolution=3, margin=0.0)[0, :, :, 0]
    tensor([[0., 2., 4.],
            [0., 2., 4.],
            [0., 2., 4.]])
    """
    x = check(x, "x", "n *s")
    triplets = torch.as_tensor(triplets)
    if triplets.ndim != 2 or triplets.shape[1] != 3 or triplets.is_floating_point():
        raise ValueError(
            f"triplets should be indices of shape (t, 3), but have shape {tuple(triplets.shape)}."
        )
    if triplets.numel() and not (int(triplets.min()) >= 0 and int(triplets.max()) < len(x)):
        raise ValueError(f"triplets should be indices from 0 to {len(x) - 1}, but some are not.")
    if resolution < 2 or margin < 0:
        raise ValueError(
            f"resolution should be at least 2 and margin at least 0, not {resolution} and {margin}."
        )
    flat = working(x.reshape(len(x), -1))
    base, second, third = (flat[triplets[:, i].to(x.device)] for i in range(3))
    a, b = second - base, third - base
    width = torch.linalg.vector_norm(a, dim=1, keepdim=True)
    along = (a * b).sum(dim=1, keepdim=True) / width.square()
    up = b - along * a
    height = torch.linalg.vector_norm(up, dim=1, keepdim=True)
    reach = torch.linalg.vector_norm(b, dim=1, keepdim=True)
    if not ((width > 0) & (height > 1e-9 * torch.maximum(width, reach))).all():
        raise ValueError("the three samples of a triplet should not lie on a line, but those of one do.")
    # Coordinates in units of a and of up: the samples are at (0, 0), (1, 0) and (along, 1).
    low, high = along.clamp(max=0), along.clamp(min=1)
    steps = torch.linspace(-margin, 1 + margin, resolution, dtype=flat.dtype, device=flat.device)
    across = (low + (high - low) * steps)[:, None, :, None]
    points = base[:, None, None] + across * a[:, None, None] + steps[:, None, None] * up[:, None, None]
    return points.reshape(len(triplets), resolution, resolution, *x.shape[1:]).to(x.device, x.dtype)


def plane_batches(
    x: Real[Tensor, " n *s"], triplets: Integer[Tensor, "t 3"], *, resolution: int = 50, margin: float = 0.1
) -> Iterator[Float[Tensor, " m *s"]]:
    """The points of :func:`planes`, a plane at a time and flat, ready for a network: 500 planes fit anywhere.

    >>> [p.shape[0] for p in plane_batches(torch.eye(3), torch.tensor([[0, 1, 2]]), resolution=5)]
    [25]
    """
    for triplet in triplets:
        points = planes(x, triplet[None], resolution=resolution, margin=margin)
        yield points.reshape(resolution * resolution, *x.shape[1:])


@numpy_too
def decision_region_similarity(
    predictions: Integer[Tensor, "E m"], other: Integer[Tensor, "F m"] | None = None
) -> Float[Tensor, "E F"]:
    """The share of points on which two classifiers agree, for all pairs (Sharon eq. 5).

    ``predictions[e]`` are the classes that classifier e gives to m points; with ``other`` its classifiers
    are the columns. Exact counts: by bit planes on a CPU, 64 points per operation; by products of one-hot
    vectors on a GPU.

    >>> decision_region_similarity(torch.tensor([[0, 1, 2, 1], [0, 1, 1, 1]]))
    tensor([[1.0000, 0.7500],
            [0.7500, 1.0000]], dtype=torch.float64)
    """
    predictions = torch.as_tensor(predictions)
    for name, value in (("predictions", predictions), ("other", predictions if other is None else other)):
        if value.ndim != 2 or value.is_floating_point() or value.is_complex() or 0 in value.shape:
            raise ValueError(
                f"{name} should be class numbers of shape (E, m), but are {value.dtype} of shape "
                f"{tuple(value.shape)}. From scores take scores.argmax(-1)."
            )
    if other is not None and other.shape[1] != predictions.shape[1]:
        raise ValueError(
            f"predictions and other should be on the same points, but have {predictions.shape[1]} and "
            f"{other.shape[1]}."
        )
    equal = agreement.count_equal(predictions, other)
    return equal.double() / predictions.shape[1]
