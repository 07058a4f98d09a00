"""Softmax regression to its minimum, for many representations at once: L-BFGS on standardized features.

Scores are linear in the weights, so a step along a direction costs one product for the direction's scores
and one for the next gradient; the length of the step is found on scores alone, for each probe its own.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from repalign.probes.linear_probes import Probes

MEMORY = 10  # pairs of steps and changes of the gradient


def softmax(
    x: Tensor, labels: Tensor, classes: int, ridge: float, tolerance: float, max_steps: int
) -> Probes:
    """The minimum of mean cross-entropy + ridge·‖W‖², W being weights of standardized features.

    ``x`` is (n, p, d) and is written to. A probe has converged when no entry of its gradient is above
    ``tolerance``.
    """
    mean, spread = x.mean(dim=0), x.std(dim=0, correction=0)
    # A feature that only rounding varies says nothing.
    eps = torch.finfo(x.dtype).eps
    constant = spread <= 10 * eps * mean.abs() + torch.finfo(x.dtype).tiny
    scale = torch.where(constant, torch.zeros_like(spread), 1 / spread.masked_fill(constant, 1.0))
    x.sub_(mean).mul_(scale)
    problem = _Problem(x.transpose(0, 1), labels, classes, ridge)
    w, converged = _minimize(problem, tolerance, max_steps)
    weight, bias = problem.split(w)
    weight = weight * scale[:, None]
    return Probes(weight, bias[..., 0] - (weight @ mean[..., None])[..., 0], converged)


class _Problem:
    """Loss and gradient of p regressions; the parameters of each are one row of (p, c·d + c)."""

    def __init__(self, x: Tensor, labels: Tensor, classes: int, ridge: float) -> None:
        self.x, self.ridge, self.classes = x, ridge, classes
        self.p, self.n, self.d = x.shape
        self.labels = labels.to(x.device).expand(self.p, 1, self.n)
        self.minus = -x.new_ones(()).expand(self.p, 1, self.n)

    def split(self, w: Tensor) -> tuple[Tensor, Tensor]:
        c, d = self.classes, self.d
        return w[:, : c * d].view(self.p, c, d), w[:, c * d :].view(self.p, c, 1)

    def scores(self, w: Tensor) -> Tensor:
        weight, bias = self.split(w)
        return torch.baddbmm(bias, weight, self.x.mT)

    def at(self, scores: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and the derivative of its first part by the scores: (probability − one-hot) / n."""
        log = torch.log_softmax(scores, 1)
        fit = -log.gather(1, self.labels)[:, 0].mean(1)
        error = log.exp_().scatter_add_(1, self.labels, self.minus).div_(self.n)
        return fit + self.ridge * self.split(w)[0].square().sum((1, 2)), error

    def gradient(self, error: Tensor, w: Tensor) -> Tensor:
        weight = torch.bmm(error, self.x) + 2 * self.ridge * self.split(w)[0]
        return torch.cat([weight.flatten(1), error.sum(2)], dim=1)

    def curvature(self, error: Tensor, along: Tensor, direction: Tensor) -> Tensor:
        """Second derivative of the loss along a direction: how much its scores vary over classes."""
        own = along.gather(1, self.labels)[:, 0]
        mean = self.n * (error * along).sum(1) + own
        square = self.n * (error * along.square()).sum(1) + own.square()
        penalty = 2 * self.ridge * self.split(direction)[0].square().sum((1, 2))
        return (square - mean.square()).mean(1) + penalty

    def slope(self, error: Tensor, along: Tensor, w: Tensor, direction: Tensor) -> Tensor:
        pull = (self.split(w)[0] * self.split(direction)[0]).sum((1, 2))
        return (error * along).sum((1, 2)) + 2 * self.ridge * pull


class _Place(NamedTuple):
    """Where the descent has come to."""

    scores: Tensor
    loss: Tensor
    error: Tensor


def _minimize(problem: _Problem, tolerance: float, max_steps: int) -> tuple[Tensor, Tensor]:
    w = problem.x.new_zeros(problem.p, problem.classes * (problem.d + 1))
    memory = _Memory(problem.p, w)
    stuck = torch.zeros(problem.p, dtype=torch.bool, device=w.device)
    place, gradient = _arrive(problem, w)
    for step in range(1, max_steps + 1):
        at_rest = gradient.abs().amax(1) <= tolerance
        # Scores that are only added to collect rounding: now and then, and at the end, they are made anew.
        if step % 20 == 0 or bool((at_rest | stuck).all()):
            place, gradient = _arrive(problem, w)
            at_rest = gradient.abs().amax(1) <= tolerance
            if bool((at_rest | stuck).all()):
                break
        direction = memory.direction(gradient).masked_fill_((at_rest | stuck)[:, None], 0.0)
        length, place = _advance(problem, place, w, direction)
        change = length[:, None] * direction
        w = w + change
        before, gradient = gradient, problem.gradient(place.error, w)
        # No step helped, even straight down: this is as far as the precision goes.
        failed = (length == 0) & ~at_rest & ~stuck
        stuck = stuck | (failed & memory.empty)
        memory.clear(failed)
        memory.add(change, gradient - before)
    return w, gradient.abs().amax(1) <= tolerance


def _arrive(problem: _Problem, w: Tensor) -> tuple[_Place, Tensor]:
    scores = problem.scores(w)
    place = _Place(scores, *problem.at(scores, w))
    return place, problem.gradient(place.error, w)


def _advance(problem: _Problem, place: _Place, w: Tensor, direction: Tensor) -> tuple[Tensor, _Place]:
    """How far to go for each probe, 0 where nothing helps, and what is found there.

    First a Newton step on the line, then shorter ones, until the loss has not grown and the line does not
    rise much.
    """
    along = problem.scores(direction)
    falls = problem.slope(place.error, along, w, direction)
    bends = problem.curvature(place.error, along, direction)
    length = torch.where((falls < 0) & (bends > 0), -falls / bends, torch.zeros_like(falls))
    slack = 4 * torch.finfo(w.dtype).eps * place.loss.abs()

    def go(length: Tensor) -> tuple[_Place, Tensor]:
        scores, moved = place.scores + length[:, None, None] * along, w + length[:, None] * direction
        there = _Place(scores, *problem.at(scores, moved))
        return there, problem.slope(there.error, along, moved, direction)

    good = length == 0
    for _ in range(20):
        there, rises = go(length)
        good = ((there.loss <= place.loss + slack) & (rises <= 0.5 * falls.abs())) | (length == 0)
        if bool(good.all()):
            return length, there
        shorter = length * (falls / (falls - rises)).nan_to_num(0.5).clamp(0.1, 0.7)
        length = torch.where(good, length, shorter)
    length = length.masked_fill(~good, 0.0)
    return length, go(length)[0]


class _Memory:
    """The last steps of every probe and what they did to its gradient."""

    def __init__(self, p: int, like: Tensor) -> None:
        self.pairs: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=MEMORY)
        self.gain = like.new_ones(p, 1)
        self.empty = torch.ones(p, dtype=torch.bool, device=like.device)

    def add(self, step: Tensor, change: Tensor) -> None:
        product = (step * change).sum(1, keepdim=True)
        size = change.square().sum(1, keepdim=True)
        # Without curvature a pair weighs nothing.
        counts = product > torch.finfo(step.dtype).eps * size
        safe = torch.where(counts, product, torch.ones_like(product))
        self.pairs.append((step, change, torch.where(counts, 1 / safe, torch.zeros_like(safe))))
        self.gain = torch.where(counts, safe / size.clamp_min(torch.finfo(step.dtype).tiny), self.gain)
        self.empty = self.empty & ~counts[:, 0]

    def clear(self, which: Tensor) -> None:
        for _, _, weight in self.pairs:
            weight[which] = 0.0
        self.gain[which] = 1.0
        self.empty = self.empty | which

    def direction(self, gradient: Tensor) -> Tensor:
        """The two loops of L-BFGS."""
        q = gradient.clone()
        kept = []
        for step, change, weight in reversed(self.pairs):
            a = weight * (step * q).sum(1, keepdim=True)
            q -= a * change
            kept.append(a)
        q *= self.gain
        for (step, change, weight), a in zip(self.pairs, reversed(kept), strict=True):
            q += (a - weight * (change * q).sum(1, keepdim=True)) * step
        return q.neg_()
