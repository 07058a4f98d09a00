"""Many small networks in one batch, each on samples of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from repalign.train.context import device_of
from repalign.train.history import History
from repalign.train.many import fit_many
from repalign.train.watch import Pair


class _Own(nn.Module):
    """A network that looks at its own samples among those of all, (n, models, ...)."""

    place: Tensor

    def __init__(self, model: nn.Module, place: int) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("place", torch.tensor([place], device=device_of(model)))
        self.train(model.training)

    def forward(self, x: Tensor) -> Any:
        return self.model(x.index_select(1, self.place)[:, 0])


def fit_apart(
    models: Sequence[nn.Module], samples: Sequence[Pair], *, seeds: Sequence[int], **options: Any
) -> list[History]:
    """Train ``models`` in place as :func:`fit_many` does, each on its own (x, y), all of the same shapes.

    Each takes the steps that :func:`fit` would with its seed, up to rounding. The options are those of
    :func:`fit_many` but ``measure`` and ``test``.
    """
    refused = sorted({"measure", "test"} & options.keys())
    if refused:
        raise ValueError(f"fit_apart takes no {' and no '.join(refused)}: use fit for each model.")
    if len(samples) != len(models):
        raise ValueError(
            f"there should be one (x, y) per model, but there are {len(samples)} for {len(models)} models."
        )
    shapes = {(tuple(x.shape), tuple(y.shape)) for x, y in samples}
    if len(shapes) != 1:
        raise ValueError(f"all models should have samples of one shape, but there are {sorted(shapes)}.")
    own = [_Own(model, place) for place, model in enumerate(models)]
    x, y = torch.stack([x for x, _ in samples], dim=1), torch.stack([y for _, y in samples])
    return fit_many(own, x, y, seeds=seeds, **options)
