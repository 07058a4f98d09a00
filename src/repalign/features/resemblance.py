"""What the layers of a network resemble: its input, its target, or any other view of the same samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from repalign import kernels
from repalign.features.hooks import extract


def layer_cka(
    model: nn.Module,
    x: Tensor,
    others: Mapping[str, Tensor],
    layers: str | Sequence[str] | None = None,
    *,
    batch_size: int = 256,
) -> list[dict[str, Any]]:
    """CKA of each layer on ``x`` with each of ``others``, plain and debiased: a row for each layer.

    ``others`` are tensors with a row for each sample: the input itself, one-hot targets, another network's
    layer. ``layers`` as for :func:`extract`; they are counted from 1. A layer that is the same for all
    samples, or not finite, resembles nothing: NaN.

    >>> from repalign import models
    >>> x = torch.linspace(-1, 1, 60).reshape(20, 3) ** 3
    >>> net = models.build("mlp", inputs=3, outputs=2, width=(8, 5))
    >>> [sorted(row) for row in layer_cka(net, x, {"input": x})]
    [['input', 'input, debiased', 'layer'], ['input', 'input, debiased', 'layer']]
    """
    found = extract(model, x, layers, batch_size)
    rows: list[dict[str, Any]] = [{"layer": k} for k in range(1, len(found) + 1)]
    alive = [k for k, phi in enumerate(found.values()) if 0 < float((phi - phi[0]).abs().sum()) < math.inf]
    own = [list(found.values())[k] for k in alive]
    fixed = [torch.as_tensor(other).detach().cpu().flatten(1).float() for other in others.values()]
    for debiased, end in ((False, ""), (True, ", debiased")):
        for row in rows:
            row.update({f"{name}{end}": math.nan for name in others})
        grid = kernels.cka_grid(own, fixed, debiased=debiased).tolist() if alive else []
        for k, values in zip(alive, grid, strict=True):
            rows[k].update({f"{name}{end}": value for name, value in zip(others, values, strict=True)})
    return rows
