"""Kernels, modes and power: the identities of sections II and III, and what they tell about learning."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repalign import data
from repalign.alignment import cumulative_power, predicted_error, spectrum
from repalign.data import Dataset
from repalign.kernels import center, cka, gram, kta

# Random features: more samples than features, fewer, and a rank below both.
SHAPES = {"tall": (30, 12, 12), "wide": (12, 30, 12), "low rank": (30, 20, 5)}
# Groups of modes far apart: how many there are, and by how much eigenvalues fall from group to group.
GROUPS, FALL = (5, 25, 125), 1e-4


def identities(shape: str, seed: int) -> list[dict[str, Any]]:
    """By how much equations 1 to 4 are missed on random features: a row for each statement.

    >>> rows = identities("low rank", seed=0)
    >>> all(row["deviation"] <= row["limit"] for row in rows)
    True
    """
    generator = torch.Generator().manual_seed(seed)
    samples, width, rank = SHAPES[shape]

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    features = normal(samples, width) if rank == width else normal(samples, rank) @ normal(rank, width)
    target = normal(samples, 3)
    rotation = torch.linalg.qr(normal(width, width)).Q
    shift = 5 * normal(width)
    return [
        *_modes(features, target),
        *_power(features, target),
        *_cosines(features, target, rotation, shift),
    ]


def _modes(features: Tensor, target: Tensor) -> list[dict[str, Any]]:
    """Equations 1 and 2, by a textbook decomposition of the kernel."""
    samples = len(features)
    kernel = gram(features)
    values, vectors = torch.linalg.eigh(kernel / samples)
    kept = values > 1e-12 * values[-1]
    values, modes = values[kept], math.sqrt(samples) * vectors[:, kept]
    coefficients = modes.T @ target / samples
    rest = target - modes @ coefficients
    identity = torch.eye(len(values), dtype=torch.float64)
    return [
        _statement("eq1", "modes are orthonormal", modes.T @ modes / samples - identity, 1e-8),
        _statement(
            "eq1", "the kernel is the sum of its modes", ((modes * values) @ modes.T - kernel) / samples, 1e-8
        ),
        _statement("eq1", "no mode reaches the rest of the target", modes.T @ rest / samples, 1e-8),
    ]


def _power(features: Tensor, target: Tensor) -> list[dict[str, Any]]:
    """Equation 3, from features, from their kernel, and as the alignment of chapter 1."""
    power = spectrum(features, target).cumulative()
    of_kernel = cumulative_power(gram(features), target)[: len(power)]
    single = spectrum(features, target[:, 0])
    sigma = single.sigma[single.sigma > 0]
    between = (sigma[1:] + sigma[:-1]) / 2
    aligned = single.alignment(between) / single.alignment(0.0)
    return [
        _statement("eq3", "cumulative power never falls", power.diff().clamp(max=0), 0.0),
        _statement("eq3", "it ends at 1", power[-1] - 1, 1e-10),
        _statement("eq3", "it is the same from the kernel", of_kernel - power, 1e-8),
        _statement(
            "eq3", "it is the alignment of chapter 1", single.cumulative()[: len(aligned)] - aligned, 1e-8
        ),
    ]


def _cosines(features: Tensor, target: Tensor, rotation: Tensor, shift: Tensor) -> list[dict[str, Any]]:
    """Equation 4, and what a constant does to it."""
    kernel, other = gram(features), gram(target)
    plain, centered = kta(kernel, other), cka(features, target)
    moved = features + shift
    both = torch.stack([torch.as_tensor(plain), torch.as_tensor(centered)])
    moves = abs(float(kta(gram(moved), gram(target + 5)) - plain))
    return [
        _statement("eq4", "KTA and CKA lie from 0 to 1", (both - 0.5).abs().clamp(min=0.5) - 0.5, 1e-12),
        _statement("eq4", "KTA of a kernel with itself is 1", kta(kernel, kernel) - 1, 1e-10),
        _statement("eq4", "CKA of features with themselves is 1", cka(features, features) - 1, 1e-10),
        _statement("eq4", "scaling a kernel leaves KTA", kta(7.3 * kernel, other) - plain, 1e-8),
        _statement(
            "eq4", "rotating features leaves KTA", kta(gram(features @ rotation), other) - plain, 1e-8
        ),
        _statement(
            "eq4", "CKA is the KTA of centered kernels", kta(center(kernel), center(other)) - centered, 1e-8
        ),
        _statement("eq4", "scaling features leaves CKA", cka(7.3 * features, target) - centered, 1e-8),
        _statement("eq4", "rotating features leaves CKA", cka(features @ rotation, target) - centered, 1e-8),
        _statement("eq4", "constants leave CKA", cka(moved, target + 5) - centered, 1e-8),
        _statement("eq4", "constants move KTA by 0.01 or more, short of it by", max(0.0, 0.01 - moves), 0.0),
    ]


def _statement(claim: str, statement: str, difference: Any, limit: float) -> dict[str, Any]:
    deviation = float(torch.as_tensor(difference, dtype=torch.float64).abs().max())
    return {"claim": claim, "statement": statement, "deviation": deviation, "limit": limit}


def best_kernel(seed: int, tried: int = 100, samples: int = 20) -> list[dict[str, Any]]:
    """Looks for a kernel with a higher KTA with ``y yᵀ`` than ``y yᵀ`` itself: a row for each statement."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    y = normal(samples)
    goal = torch.outer(y, y)
    mixtures = np.geomspace(1e-3, 1e3, tried)
    highest = max(float(kta(m * goal + gram(normal(samples, samples)), goal)) for m in mixtures)
    from_one_sample = goal[:, 0] / goal[0, 0] * y[0]
    classes = gram(torch.eye(10, dtype=torch.float64).repeat(5, 1))
    ranks = [int(torch.linalg.matrix_rank(kernel)) for kernel in (classes, center(classes))]
    return [
        _statement("optimum", "KTA of y yᵀ with itself is 1", kta(goal, goal) - 1, 1e-12),
        _statement("optimum", "a random kernel exceeds 1 by", max(0.0, highest - 1), 1e-12),
        _statement(
            "optimum",
            "gradient ascent ends short of 1 by",
            1 - _ascended(normal(samples, samples), goal),
            1e-4,
        ),
        _statement("optimum", "regression from one sample misses y by", from_one_sample - y, 1e-8),
        _statement("optimum", "rank for ten classes, less 10", ranks[0] - 10, 0.0),
        _statement("optimum", "rank for ten classes, centered, less 9", ranks[1] - 9, 0.0),
    ]


def _ascended(start: Tensor, goal: Tensor) -> float:
    """KTA of A Aᵀ with the goal, after gradient ascent on A."""
    a = start.clone().requires_grad_()
    climb = torch.optim.Adam([a], lr=0.3, maximize=True)
    for _ in range(300):
        climb.zero_grad()
        kta(a @ a.T, goal).backward()
        climb.step()
    best = a.detach()
    return float(kta(best @ best.T, goal))


def tasks_on_pixels(digits: Dataset, task: str, seed: int) -> list[dict[str, Any]]:
    """A task on the kernel of pixels: cumulative power by mode; KTA and CKA as a constant feature grows."""
    x, samples = digits.x.flatten(1).double(), len(digits)
    labels = digits.y if task == "classes" else data.shuffled(digits.y, seed=seed)
    y = data.one_hot(labels).double()
    modes = spectrum(x, y)
    power = modes.cumulative()
    at_thresholds = modes.curve().value.sum(1).flip(0)  # at the largest singular value, the next, …, and 0
    rows = []
    for mode in sorted({int(k) for k in np.geomspace(1, len(at_thresholds) - 1, 60)}):
        of_chapter_1 = float(at_thresholds[mode - 1] / at_thresholds[-1])
        rows.append({"what": "power", "at": mode, "value": float(power[mode - 1]), "alignment": of_chapter_1})
    for size in np.geomspace(0.5, 500, 30):
        grown = torch.cat([x, torch.full((samples, 1), float(size), dtype=torch.float64)], 1)
        for what, value in (("KTA", kta(gram(grown), gram(y))), ("CKA", cka(grown, y))):
            rows.append({"what": what, "at": float(size), "value": float(value), "alignment": None})
    return rows


def learning_curves(seed: int, draws: int) -> list[dict[str, Any]]:
    """Test error of kernel regression, measured over ``draws`` training sets, beside the predicted one.

    First groups of modes far apart with a ridge between two of them, then power laws without a gap.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for learned in (5, 30):
        for each in (3, 5, 10, 20, 40):
            rows.append(_between_groups(learned, learned * each, draws, generator))
    for noise in (0.0, 0.1):
        for ridge in (0.001, 0.1):
            for samples in (40, 80, 160, 320):
                rows.append(_power_law(noise, ridge, samples, draws, generator))
    return rows


def _between_groups(learned: int, samples: int, draws: int, generator: torch.Generator) -> dict[str, Any]:
    """Groups of modes, a third of the power in each; errors as shares of the power that is not learned."""
    group = torch.repeat_interleave(torch.arange(3), torch.tensor(GROUPS)).double()
    values = FALL**group
    power = 1 / (3 * torch.tensor(GROUPS)[group.long()].double())
    ridge = samples * math.sqrt(float(values[learned - 1] * values[learned]))
    rest = float(power[learned:].sum())
    measured = _regression(values, power, samples, ridge, 0.0, draws, generator)
    predicted = float(predicted_error(values, power, samples, ridge=ridge, noise=0.0))
    about = {"spectrum": "groups", "learned": learned, "samples": samples, "noise": 0.0, "ridge": ridge}
    return {**about, "measured": measured / rest, "predicted": predicted / rest}


def _power_law(
    noise: float, ridge: float, samples: int, draws: int, generator: torch.Generator
) -> dict[str, Any]:
    """Eigenvalues and power without a gap; errors as shares of all power."""
    k = torch.arange(1, 201).double()
    values, power = k**-1.5, k**-1.2
    unit = float(power.sum())
    measured = _regression(values, power, samples, ridge, noise * unit, draws, generator)
    predicted = float(predicted_error(values, power, samples, ridge=ridge, noise=noise * unit))
    about = {"spectrum": "power law", "learned": 0, "samples": samples, "noise": noise, "ridge": ridge}
    return {**about, "measured": measured / unit, "predicted": predicted / unit}


def _regression(
    values: Tensor,
    power: Tensor,
    samples: int,
    ridge: float,
    noise: float,
    draws: int,
    generator: torch.Generator,
) -> float:
    """Test error of kernel regression on Gaussian modes, its mean over training sets.

    The error over all inputs is a sum of squares: that of the coefficients that were not found.
    """
    like: dict[str, Any] = dict(generator=generator, dtype=torch.float64)
    coefficients = power.sqrt()
    modes = torch.randn(draws, samples, len(values), **like)
    y = modes @ coefficients + math.sqrt(noise) * torch.randn(draws, samples, **like)
    kernel = (modes * values) @ modes.mT + ridge * torch.eye(samples, dtype=torch.float64)
    found = values * (modes.mT @ torch.linalg.solve(kernel, y[..., None])).squeeze(2)
    return float((found - coefficients).square().sum(1).mean())
