"""Many small networks of one architecture, trained as one batched model.

A small MLP leaves most of a core idle: the time goes into starting operations. Stacking the weights of
M networks turns M small products into one batched product, with the same numbers up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from repalign.train.loop import DivergedError, History, _mix
from repalign.train.recipes import LOSSES, SCHEDULES, Loss, Schedule, named


def fit_many(
    models: Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    seeds: Sequence[int],
    lr: float | Sequence[float] = 1e-3,
    loss: str | Loss = "cross_entropy",
    optimizer: str = "adam",
    batch_size: int = 64,
    momentum: float = 0.9,
    weight_decay: float | Sequence[float] = 0.0,
    schedule: str | Schedule = "constant",
) -> list[History]:
    """Train ``models`` in place, each as :func:`fit` would with its own seed, lr and weight decay.

    ``y`` is shared, (n, ...), or per model, (M, n, ...). Optimizers: sgd, momentum and adam. Layers
    that keep statistics or draw chance (batch norm, dropout) are refused: they would not be the same.
    """
    m, n = len(models), len(x)
    if m == 0 or len(seeds) != m:
        raise ValueError(f"there should be one seed per model, but there are {len(seeds)} for {m} models.")
    if any(str(model) != str(models[0]) for model in models):
        raise ValueError("the models should have one architecture, but differ: train the groups one by one.")
    for name, part in models[0].named_modules():
        draws = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
        if draws or isinstance(part, nn.modules.batchnorm._NormBase):
            raise ValueError(
                f"{name} ({type(part).__name__}) cannot be trained in a batch: use fit for each model."
            )
    if optimizer not in ("sgd", "momentum", "adam"):
        raise ValueError(f"unknown optimizer {optimizer!r}: choose sgd, momentum or adam, or use fit.")
    device = next(models[0].parameters()).device
    x, y = x.to(device), y.to(device)
    own_labels = y.ndim > 1 and len(y) == m and y.shape[1] == n
    loss_of, factor = named(LOSSES, loss, "loss"), named(SCHEDULES, schedule, "schedule")
    parameters, buffers = stack_module_state(list(models))
    template = models[0]
    names = list(parameters)
    weights = [parameters[name].detach().clone().requires_grad_() for name in names]
    rates, decays = (_per_model(v, m, device) for v in (lr, weight_decay))

    def one(weights: list[Tensor], buffers: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        output = functional_call(template, (dict(zip(names, weights, strict=True)), buffers), (inputs,))
        return loss_of(output, labels).mean()

    batches = math.ceil(n / batch_size)
    first = [torch.zeros_like(w) for w in weights]
    second = [torch.zeros_like(w) for w in weights]
    histories = [History(stopped="epochs") for _ in range(m)]
    each = torch.arange(m, device=device)[:, None]
    taken = 0
    for epoch in range(epochs):
        chances = [torch.Generator().manual_seed(_mix(seed, epoch)) for seed in seeds]
        order = torch.stack([torch.randperm(n, generator=chance) for chance in chances]).to(device)
        losses = torch.zeros(batches, m, device=device)
        for step in range(batches):
            rows = order[:, step * batch_size : (step + 1) * batch_size]
            labels = y[each, rows] if own_labels else y[rows]
            values = vmap(one)(weights, buffers, x[rows], labels)
            # The sum's gradient holds each model's own gradient: they share no weights.
            gradients = torch.autograd.grad(values.sum(), weights)
            taken += 1
            scale = factor((epoch * batches + step) / (epochs * batches), epoch)
            with torch.no_grad():
                _update(optimizer, weights, gradients, first, second, rates * scale, decays, momentum, taken)
            losses[step] = values.detach()
        for i, history in enumerate(histories):
            mean = losses[:, i].mean().item()
            if not math.isfinite(mean):
                raise DivergedError(
                    f"the loss of model {i} (seed {seeds[i]}) became {mean} in epoch {epoch + 1}."
                )
            history.loss.append(mean)
            history.lr.append(float(rates[i]) * scale)
    with torch.no_grad():
        for i, model in enumerate(models):
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[names.index(name)][i])
            model.eval()
    return histories


def _per_model(value: float | Sequence[float], m: int, device: torch.device) -> Tensor:
    values = torch.as_tensor(value, dtype=torch.float64).to(device)
    if values.ndim and len(values) != m:
        raise ValueError(f"there should be one value per model, but there are {len(values)} for {m} models.")
    return values.expand(m).to(torch.get_default_dtype())


def _update(
    optimizer: str,
    weights: list[Tensor],
    gradients: Sequence[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    lr: Tensor,
    decay: Tensor,
    momentum: float,
    taken: int,
) -> None:
    """One step of all models: torch.optim's formulas, with a learning rate per model."""
    for w, g, mean, square in zip(weights, gradients, first, second, strict=True):
        shape = (-1, *[1] * (w.ndim - 1))
        rate, shrink = lr.to(w).view(shape), decay.to(w).view(shape)
        g = torch.addcmul(g, w, shrink)
        if optimizer == "sgd":
            w.addcmul_(g, rate, value=-1)
        elif optimizer == "momentum":
            mean.mul_(momentum).add_(g)
            w.addcmul_(mean, rate, value=-1)
        else:
            mean.lerp_(g, 0.1)
            square.mul_(0.999).addcmul_(g, g, value=0.001)
            root = (square.sqrt() / math.sqrt(1 - 0.999**taken)).add_(1e-8)
            w.addcdiv_(mean * rate, root, value=-1 / (1 - 0.9**taken))
