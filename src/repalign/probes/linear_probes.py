"""Fitted linear classifiers: one, or one per representation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from repalign._arrays import check, numpy_too
from repalign.kernels.loaders import Loader, sources

Features = (
    Float[Tensor, "E n d"] | Sequence[Float[Tensor, "_ _"] | Callable[[], Tensor] | str | PathLike[str]]
)


class Probe(NamedTuple):
    """One linear classifier: scores are x · weightᵀ + bias; ``accuracy`` is that on test samples."""

    weight: Float[Tensor, "c d"]
    bias: Float[Tensor, " c"]
    converged: Bool[Tensor, ""] | None = None
    accuracy: Float[Tensor, ""] | None = None

    def scores(self, features: Float[Tensor, "m d"]) -> Float[Tensor, "m c"]:
        """Class scores of every row."""
        return _scores(self, features)

    def predict(self, features: Float[Tensor, "m d"]) -> Integer[Tensor, " m"]:
        """The class of the highest score (eq. 4)."""
        return _predict(self, features)


class Probes(NamedTuple):
    """One linear classifier per representation: scores are x · weightᵀ + bias.

    ``converged`` says of each whether its gradient vanished; it is None for Adam, which stops by the clock.
    ``accuracy`` is the share of test samples that each classifies correctly, None where none were given.
    """

    weight: Float[Tensor, "E c d"]
    bias: Float[Tensor, "E c"]
    converged: Bool[Tensor, " E"] | None = None
    accuracy: Float[Tensor, " E"] | None = None

    def scores(self, features: Features) -> Float[Tensor, "E m c"]:
        """Class scores of probe e on ``features[e]``."""
        return _all_scores(self, features)

    def predict(self, features: Features) -> Integer[Tensor, "E m"]:
        """The class of the highest score (eq. 4)."""
        return _all_predict(self, features)

    def one(self, e: int) -> Probe:
        """Probe e alone: for features of checkpoint e that arrive bit by bit, such as those of planes."""
        more = (None if part is None else part[e] for part in (self.converged, self.accuracy))
        return Probe(self.weight[e], self.bias[e], *more)


@numpy_too
def _scores(probe: Probe, features: Any) -> Tensor:
    x = check(features, "features", "m d")
    d = probe.weight.shape[1]
    if x.shape[1] != d:
        raise ValueError(f"the probe is for {d} features, but these rows have {x.shape[1]}.")
    return torch.addmm(probe.bias, x.to(probe.weight), probe.weight.mT)


@numpy_too
def _predict(probe: Probe, features: Any) -> Tensor:
    return _scores(probe, features).argmax(dim=1)


@numpy_too
def _all_scores(probes: Probes, features: Any) -> Tensor:
    pairs = enumerate(_matching(probes, features))
    return torch.stack([_scores(probes.one(e), load()) for e, load in pairs])


@numpy_too
def _all_predict(probes: Probes, features: Any) -> Tensor:
    pairs = enumerate(_matching(probes, features))
    return torch.stack([_predict(probes.one(e), load()) for e, load in pairs])


def _matching(probes: Probes, features: Any) -> list[Loader]:
    loads = sources(features, "features")
    if len(loads) != len(probes.weight):
        raise ValueError(
            f"there are {len(probes.weight)} probes, but features of {len(loads)} representations."
        )
    return loads
