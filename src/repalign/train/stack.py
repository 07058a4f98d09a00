"""The weights of many networks as one set of tensors, and the step that changes them all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Stack:
    """Parameters and buffers of M networks with a first axis of M, and torch.optim's formulas for them.

    ``state`` holds those of the networks that still train, which are ``alive``.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizer: str,
        lr: Sequence[float],
        decay: Sequence[float],
        momentum: float,
    ) -> None:
        self.alive = list(range(len(models)))
        parts = [dict([*model.named_parameters(), *model.named_buffers()]) for model in models]
        self.state = {name: torch.stack([part[name].detach() for part in parts]) for name in parts[0]}
        self.trained = [name for name, p in models[0].named_parameters() if p.requires_grad]
        self.optimizer, self.momentum, self.taken = optimizer, momentum, 0
        self.first = {name: torch.zeros_like(self.state[name]) for name in self.trained}
        self.second = {name: torch.zeros_like(self.state[name]) for name in self.trained}
        like = self.state[self.trained[0]]
        self.lr, self.decay = (torch.tensor(list(v), device=like.device) for v in (lr, decay))
        self._require_gradients()

    def _require_gradients(self) -> None:
        for name in self.trained:
            self.state[name].requires_grad_()

    def step(self, loss: Tensor, scale: float) -> None:
        """One step of all networks down the gradient of ``loss``, at ``scale`` times their learning rates."""
        weights = [self.state[name] for name in self.trained]
        # Kept until the next ones are there: else the system takes the memory back at every step.
        self._gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        self.taken += 1
        with torch.no_grad():
            for name, weight, gradient in zip(self.trained, weights, self._gradients, strict=True):
                if gradient is not None:
                    self._update(weight, gradient, self.first[name], self.second[name], scale)

    def _update(self, w: Tensor, g: Tensor, mean: Tensor, square: Tensor, scale: float) -> None:
        shape = (-1, *[1] * (w.ndim - 1))
        rate, shrink = (self.lr * scale).to(w).view(shape), self.decay.to(w).view(shape)
        g = torch.addcmul(g, w, shrink)
        if self.optimizer == "sgd":
            w.addcmul_(g, rate, value=-1)
        elif self.optimizer == "momentum":
            mean.mul_(self.momentum).add_(g)
            w.addcmul_(mean, rate, value=-1)
        else:
            mean.lerp_(g, 0.1)
            square.mul_(0.999).addcmul_(g, g, value=0.001)
            root = (square.sqrt() / math.sqrt(1 - 0.999**self.taken)).add_(1e-8)
            w.addcdiv_(mean * rate, root, value=-1 / (1 - 0.9**self.taken))

    @torch.no_grad()
    def write(self, models: Sequence[nn.Module]) -> None:
        """Put the weights of the networks that still train into their modules."""
        for place, i in enumerate(self.alive):
            for name, parameter in models[i].named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(self.state[name][place])

    def keep(self, alive: list[int]) -> None:
        """Go on with these networks only."""
        if alive == self.alive:
            return
        places = [self.alive.index(i) for i in alive]
        self.state = {name: part.detach()[places] for name, part in self.state.items()}
        self.first = {name: part[places] for name, part in self.first.items()}
        self.second = {name: part[places] for name, part in self.second.items()}
        self.lr, self.decay, self.alive = self.lr[places], self.decay[places], alive
        self._require_gradients()
