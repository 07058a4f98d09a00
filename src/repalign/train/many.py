"""Many small networks of one architecture, trained as one batched model.

A small MLP leaves most of a core idle: the time goes into starting operations. Stacking the weights of
M networks turns M small products into one batched product, with the same numbers up to rounding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from repalign.train.context import device_of, in_training, mixed, training
from repalign.train.history import History, check_finite
from repalign.train.loop import _checked
from repalign.train.recipes import LOSSES, SCHEDULES, Loss, Schedule, SeesModel, named
from repalign.train.stack import Stack
from repalign.train.targets import check_broadcast, check_labels, check_values, right_rule
from repalign.train.watch import Measure, Pair, Stops, Times, Watch


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
    stop_loss: float | None = None,
    stop_fit: int | None = None,
    patience: int | None = None,
    measure: Measure | None = None,
    at: Collection[int] | None = None,
    at_steps: Collection[int] | None = None,
    test: Pair | None = None,
    full_train: bool = False,
) -> list[History]:
    """Train ``models`` in place, each as :func:`fit` would with its own seed, lr and weight decay.

    ``y`` is shared, (n, ...), or per model, (M, n, ...), and so are the labels of ``test``. The other
    options are those of :func:`fit`, for each model by itself: a model that stops keeps its weights from
    then on, and the others go on without it; ``measure(model, epoch)`` gets each model in turn, the
    object that was passed, and its results go to that model's history. ``seconds`` are those of all
    models together. Optimizers: sgd, momentum and adam. Layers that keep statistics or draw at random
    while they train (batch norm, dropout) are refused: they would not be the same.
    """
    m, n = len(models), len(x)
    _check_models(models, seeds, optimizer)
    rates, decays = _per_model(lr, m), _per_model(weight_decay, m)
    rate = next((rate for rate in rates if not rate > 0), rates[0])
    # As fit does; whether y has a label for each row is a question of its own here.
    x, _ = _checked(models[0], x, x, epochs=epochs, batch_size=batch_size, lr=rate)
    device = device_of(models[0])
    labels_of = _labels(y.to(device), m, n)
    loss_of, factor = named(LOSSES, loss, "loss"), named(SCHEDULES, schedule, "schedule")
    if isinstance(loss_of, SeesModel):
        raise ValueError("a loss that sees the model needs one model at a time: use fit for each.")
    batches = math.ceil(n / batch_size)
    times = Times.of(at, at_steps, epochs, batches)
    stops = Stops(epochs, stop_loss, stop_fit, patience)
    tests: list[Pair | None] = [None] * m
    if test is not None:
        tests = [(test[0], labels) for labels in _labels(test[1], m, len(test[0]))]
    watches = [
        Watch(times, stops, loss_of, seeds[i], (x, labels_of[i]), full_train, tests[i], measure)
        for i in range(m)
    ]
    histories = [History(batches=batches) for _ in range(m)]
    stack = Stack(models, optimizer, rates, decays, momentum)
    with training(models[0]), torch.no_grad():
        output = models[0](x[:batch_size])
    check_labels(loss_of, output, labels_of.flatten(0, 1))
    check_broadcast(loss_of, output, labels_of[0][:batch_size])
    right_of = right_rule(loss_of, output, labels_of.flatten(0, 1))

    def one(state: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        output = functional_call(models[0], state, (inputs,))
        values = loss_of(output, labels)
        check_values(values, output, labels)
        return values.mean(), output.detach()

    for watch, model, history in zip(watches, models, histories, strict=True):
        watch.look(model, history, 0)
    sizes = [min(batch_size, n - start) for start in range(0, n, batch_size)]
    for epoch in range(epochs):
        started, alive = time.perf_counter(), stack.alive
        if not alive:
            break
        drawn = [torch.Generator().manual_seed(mixed(seeds[i], epoch)) for i in alive]
        order = torch.stack([torch.randperm(n, generator=randomness) for randomness in drawn]).to(device)
        each = torch.tensor(alive, device=device)[:, None]
        losses = torch.zeros(batches, len(alive), device=device)
        correct = torch.zeros(len(alive), device=device, dtype=torch.long)
        with training(models[0]):
            for step in range(batches):
                rows = order[:, step * batch_size : (step + 1) * batch_size]
                labels = labels_of[each, rows]
                values, outputs = vmap(one)(stack.state, x[rows], labels)
                scale = factor((epoch * batches + step) / (epochs * batches), epoch)
                # The sum's gradient holds each model's own gradient: they share no weights.
                stack.step(values.sum(), scale)
                losses[step] = values.detach()
                if right_of is not None:
                    right = right_of(outputs.flatten(0, 1), labels.flatten(0, 1))
                    correct += right.view(len(alive), -1).sum(dim=1)
                done = epoch * batches + step + 1
                if done in times.steps and step + 1 < batches:
                    stack.write(models)
                    for i, value in zip(alive, values.tolist(), strict=True):
                        check_finite(value, done - 1, batches, f"This is model {i} of seed {seeds[i]}")
                        watches[i].look(models[i], histories[i], done)
        seconds = time.perf_counter() - started
        for i, of_batches, count in zip(alive, losses.T.tolist(), correct.tolist(), strict=True):
            who = f"This is model {i} of seed {seeds[i]}"
            histories[i].add_epoch(of_batches, sizes, rates[i] * scale, seconds, who)
            if right_of is not None:
                histories[i].accuracy.append(count / n)
        stack.write(models)
        for i in alive:
            watches[i].end_epoch(models[i], histories[i])
        stack.keep([i for i in alive if not histories[i].stopped])
    return histories


def _check_models(models: Sequence[nn.Module], seeds: Sequence[int], optimizer: str) -> None:
    if len(models) == 0 or len(seeds) != len(models):
        raise ValueError(
            f"there should be one seed per model, but there are {len(seeds)} for {len(models)} models."
        )
    if any(str(model) != str(models[0]) for model in models):
        raise ValueError("the models should have one architecture, but differ: train the groups one by one.")
    frozen = [[name for name, p in model.named_parameters() if not p.requires_grad] for model in models]
    if any(names != frozen[0] for names in frozen):
        raise ValueError("the same parameters should be frozen in all models, but some differ: use fit.")
    if any(in_training(model) != in_training(models[0]) for model in models):
        raise ValueError("the same parts of all models should be in eval mode, but some differ: use fit.")
    for name in in_training(models[0]):
        part = models[0].get_submodule(name)
        draws = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
        if draws or isinstance(part, nn.modules.batchnorm._NormBase):
            raise ValueError(
                f"{name} ({type(part).__name__}) cannot be trained in a batch: use fit for each model."
            )
    if optimizer not in ("sgd", "momentum", "adam"):
        raise ValueError(f"unknown optimizer {optimizer!r}: choose sgd, momentum or adam, or use fit.")


def _labels(y: Tensor, m: int, n: int) -> Tensor:
    """Labels of each model, (M, n, ...): those given, or the same for all."""
    own, shared = y.ndim > 1 and y.shape[:2] == (m, n), len(y) == n
    if own == shared:
        raise ValueError(
            f"labels should be of shape (n, ...) or (models, n, ...), with {n} samples and {m} models, but "
            f"have shape {tuple(y.shape)}{', which could be either' if own else ''}."
        )
    return y if own else y.expand(m, *y.shape)


def _per_model(value: float | Sequence[float], m: int) -> list[float]:
    values = torch.as_tensor(value, dtype=torch.float64)
    if values.ndim and len(values) != m:
        raise ValueError(f"there should be one value per model, but there are {len(values)} for {m} models.")
    return values.expand(m).tolist()
