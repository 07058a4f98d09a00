"""The steps of an epoch: draw an order, take its batches one after the other, follow the gradient."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repalign.train.context import mixed, own_randomness, training
from repalign.train.history import History, check_finite
from repalign.train.recipes import Augment, Loss, SeesModel
from repalign.train.targets import Right, check_broadcast, check_labels, check_values, right_rule
from repalign.train.watch import Watch


@dataclass
class Steps:
    """All that the steps of a run need, and how to tell which samples are right, once it is known."""

    model: nn.Module
    forward: Any  # the model, or what stands for it: compiled, shared among processes
    descent: Any
    x: Tensor
    y: Tensor
    loss: Loss | SeesModel
    batch_size: int
    seed: int
    augment: Augment | None
    layout: torch.memory_format
    bfloat16: bool
    accelerator: Any
    watch: Watch
    rates: list[float]  # of the optimizer's groups of parameters
    factor: Callable[[int, int], float]  # of a step and its epoch, for all rates
    who: str
    checked: bool = False
    right: Right | None = None

    def epoch(self, epoch: int, history: History) -> None:
        """Take the steps of one epoch. Nothing here waits for the device but a look at the model."""
        n, device, batches = len(self.x), self.x.device, history.batches
        started = time.perf_counter()
        # Drawn on the CPU, so that every device takes the same steps.
        randomness = torch.Generator().manual_seed(mixed(self.seed, epoch))
        order = torch.randperm(n, generator=randomness).to(device)
        losses = torch.zeros(batches, device=device)
        correct = torch.zeros((), device=device, dtype=torch.long)
        sizes = [min(self.batch_size, n - start) for start in range(0, n, self.batch_size)]
        with training(self.model), own_randomness(mixed(self.seed, epoch), device):
            for i, rows in enumerate(order.split(self.batch_size)):
                step = epoch * batches + i
                factor = self.factor(step, epoch)
                for group, rate in zip(self.descent.param_groups, self.rates, strict=True):
                    group["lr"] = rate * factor
                losses[i], right = self._step(rows, randomness)
                if right is not None:
                    correct += right
                if step + 1 in self.watch.times.steps and i + 1 < batches:
                    check_finite(losses[i].item(), step, batches, self.who)
                    self.watch.look(self.model, history, step + 1)
        if self.accelerator is not None:
            losses = self.accelerator.reduce(losses, reduction="mean")
            correct = self.accelerator.reduce(correct, reduction="sum")
        history.add_epoch(
            losses.tolist(), sizes, self.rates[0] * factor, time.perf_counter() - started, self.who
        )
        if self.right is not None:
            history.accuracy.append(correct.item() / n)

    def _step(self, rows: Tensor, randomness: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """One step on these rows; their mean loss, and how many of them were right before it."""
        size, shared = len(rows), self.accelerator
        if shared is not None:
            rows = rows[shared.process_index :: shared.num_processes]
        inputs, labels, right = self.x[rows], self.y[rows], None
        if self.augment is not None:
            inputs = self.augment(inputs, randomness)
        inputs = inputs.contiguous(memory_format=self.layout)  # augmentation may have turned them
        cast = torch.autocast(inputs.device.type, torch.bfloat16) if self.bfloat16 else nullcontext()
        with cast:
            if isinstance(self.loss, SeesModel):
                values = self.loss.loss(self.model, inputs, labels)
                check_values(values, labels, labels)
            else:
                output = self.forward(inputs)
                if not self.checked:
                    check_labels(self.loss, output, self.y)
                    check_broadcast(self.loss, output, labels)
                    self.right, self.checked = right_rule(self.loss, output, self.y), True
                values = self.loss(output, labels)
                check_values(values, output, labels)
                right = None if self.right is None else self.right(output.detach(), labels).sum()
        self.descent.zero_grad(set_to_none=True)
        if shared is None:
            value = values.mean()
            value.backward()
        else:
            # Gradients are averaged over processes: weigh each by its share of the batch, which may be none.
            mean = values.sum() / max(values.numel(), 1)
            value = mean * (len(inputs) * shared.num_processes / size)
            shared.backward(value)
        self.descent.step()
        return value.detach(), right
