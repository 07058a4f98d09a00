"""One loop for squared, logistic and cross-entropy loss, from a laptop to several GPUs.

Data that fits stays on the device as tensors; there is no loader and no worker. All randomness of an
epoch (order, augmentation, dropout) follows from the seed and the epoch's number, so a run that resumes
from a checkpoint takes the very steps that it would have taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from repalign.machine import onednn
from repalign.train import checkpoint as state
from repalign.train.context import device_of
from repalign.train.history import History
from repalign.train.optimizers import LEARNING_RATE, MOMENTUM, Factory, optimizer_of
from repalign.train.recipes import LOSSES, SCHEDULES, Augment, Loss, Schedule, SeesModel, named
from repalign.train.snapshots import Writer
from repalign.train.steps import Steps
from repalign.train.targets import AS_TENSORS, as_tensor
from repalign.train.watch import Best, Measure, Pair, Stops, Times, Watch


def fit(
    model: nn.Module,
    x: Tensor | NDArray[Any],
    y: Tensor | NDArray[Any],
    *,
    epochs: int,
    loss: str | Loss | SeesModel = "cross_entropy",
    optimizer: str | Factory = "adam",
    lr: float | None = None,
    batch_size: int = 64,
    momentum: float | None = None,
    weight_decay: float = 0.0,
    schedule: str | Schedule = "constant",
    augment: Augment | None = None,
    stop_loss: float | None = None,
    stop_fit: int | None = None,
    patience: int | None = None,
    best: bool = False,
    measure: Measure | None = None,
    at: Collection[int] | None = None,
    at_steps: Collection[int] | None = None,
    test: Pair | None = None,
    full_train: bool = False,
    snapshots: str | Path | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    every: int = 1,
    bfloat16: bool = False,
    channels_last: bool | str = "auto",
    compile: bool = False,
    accelerator: Any = None,
    progress: Callable[[int, History], None] | None = None,
) -> History:
    """Train ``model`` in place on (x, y) for ``epochs`` epochs.

    ``x`` and ``y``, and those of ``test``, are tensors or arrays with a row per sample; numbers of an array
    come to the model's precision.

    **Labels.** ``"squared"`` takes a target per output, or class numbers, which count as one-hot;
    ``"cross_entropy"`` class numbers or probabilities; ``"logistic"`` ±1. Others are refused. A loss of
    your own is called as ``loss(outputs, labels)`` and returns a value per sample, or their mean; one that
    needs the model is wrapped, ``SeesModel(f)``, and called as ``f(model, x, y)``. Outputs (n, 1) and
    labels (n,) that such a loss broadcasts to (n, n) are refused.

    **Optimizer.** A name of ``OPTIMIZERS``, with ``lr`` 1e-3 and, where it has one, ``momentum`` 0.9 if these
    are not given; or one of torch's classes, which gets ``lr``, ``weight_decay`` and, if given, ``momentum``
    by name; or a function of the parameters, ``lambda p: torch.optim.SGD(p, lr=0.1, dampening=0.5)``,
    whose own learning rates then count, per group of parameters. ``schedule`` scales all of them.

    **Looking.** Before training (epoch 0), after each epoch in ``at`` (default: all), after each number
    of steps in ``at_steps`` (an epoch has ceil(n / batch_size) of them; see :func:`log_steps`), and
    where training stops early: ``measure(model, epoch)`` is called in eval mode, without gradients,
    with a fraction for ``epoch`` inside an epoch, and its result is kept in ``history.measured[epoch]``
    or ``history.measured_steps[step]``; the ``test`` samples (x, y) are evaluated and, with
    ``full_train``, all training samples, without augmentation, in full precision; and the weights are
    kept in the directory ``snapshots``, for :class:`Snapshots`. The history's ``loss`` and ``accuracy``
    cost nothing: they come from the epoch's own batches, while the network changes.

    **Stopping.** When the epoch's mean loss falls below ``stop_loss``; when every training sample has
    been classified correctly after ``stop_fit`` epochs in a row; or when the last ``patience``
    evaluations brought no lower test loss. The weights are then those of the last step, or with
    ``best=True`` those of the evaluation with the lowest test loss, however training stops.

    **Modes.** Parts that are in eval mode inside a model in train mode stay so (a frozen batch norm);
    a model in eval mode trains whole. Afterwards every module is in the mode in which it came.
    Parameters that need no gradient stay as they are.

    **Resuming.** With ``checkpoint`` the state is written there every ``every`` epochs, atomically, and
    the same call goes on from it; what ``measure`` computes should not change meanwhile.

    **Speed.** ``bfloat16`` computes outputs in that precision; ``channels_last="auto"`` decides by
    :func:`prefers_channels_last`; ``accelerator`` is a Hugging Face ``Accelerator``, among whose
    processes each batch is then shared.
    """
    rate = LEARNING_RATE if lr is None else lr
    x, y = (as_tensor(model, given, name) for given, name in ((x, "x"), (y, "y")))
    if test is not None:
        test = (as_tensor(model, test[0], "x of test"), as_tensor(model, test[1], "y of test"))
    x, y = _checked(model, x, y, epochs=epochs, batch_size=batch_size, lr=rate, every=every)
    if bfloat16 and device_of(model).type == "cpu":
        onednn.require()
    config = dict(
        epochs=epochs, loss=loss, optimizer=optimizer, lr=rate, batch_size=batch_size,
        momentum=MOMENTUM if momentum is None else momentum,
        weight_decay=weight_decay, schedule=schedule, augment=augment, stop_loss=stop_loss, stop_fit=stop_fit,
        patience=patience, seed=seed, bfloat16=bfloat16, compile=compile, full_train=full_train,
        channels_last=_turned(model, x, channels_last),
    )  # fmt: skip
    if best:
        config["best"] = best
    loss_of = loss if isinstance(loss, SeesModel) else named(LOSSES, loss, "loss")
    factor = named(SCHEDULES, schedule, "schedule")
    if isinstance(loss, SeesModel) and (compile or accelerator is not None):
        raise ValueError("a loss that sees the model cannot be compiled nor shared among processes.")
    layout = torch.channels_last if config["channels_last"] else torch.contiguous_format
    if config["channels_last"]:
        model.to(memory_format=layout)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=layout)
    trained = [p for p in model.parameters() if p.requires_grad]
    descent: Any = optimizer_of(optimizer, trained, lr, momentum, weight_decay)
    rates = [float(group["lr"]) for group in descent.param_groups]
    forward: Any = torch.compile(model) if compile else model
    if accelerator is not None:
        forward, descent = accelerator.prepare(forward, descent)
    main = accelerator is None or accelerator.is_main_process
    batches = math.ceil(len(x) / batch_size)
    times, stops = Times.of(at, at_steps, epochs, batches), Stops(epochs, stop_loss, stop_fit, patience)
    history, first, key, writer = History(), 0, "", None
    lowest = Best() if best else None
    if checkpoint is not None or snapshots is not None:
        data = [(x, y)] if test is None else [(x, y), test]
        looks = dict(ends=sorted(times.ends), steps=sorted(times.steps))
        key = state.run_key({**config, **looks}, model, data)
    if checkpoint is not None:
        history, first = state.resume(Path(checkpoint), key, model, descent, lowest)
    if snapshots is not None and main:
        writer = Writer(snapshots, key, batches)
    history.batches = batches
    watch = Watch(times, stops, loss_of, seed, (x, y), full_train, test, measure, writer, lowest)
    steps = Steps(
        model, forward, descent, x, y, loss_of, batch_size, seed, augment, layout, bfloat16, accelerator,
        watch=watch,
        rates=rates,
        factor=lambda step, epoch: factor(step / (epochs * batches), epoch),
        who=f"Configuration: {config}",
    )  # fmt: skip
    if first == 0:
        watch.look(model, history, 0)
    for epoch in range(first, epochs):
        if history.stopped:
            break
        steps.epoch(epoch, history)
        watch.end_epoch(model, history)
        finished = (epoch + 1) % every == 0 or history.stopped
        if checkpoint is not None and finished and main:
            state.save(Path(checkpoint), key, model, descent, history, epoch + 1, lowest)
        if progress:
            progress(epoch + 1, history)
    if lowest is not None:
        lowest.restore(model)
    return history


def prefers_channels_last(model: nn.Module, x: Tensor) -> bool:
    """Does this network say that it trains faster with channels last (``model.channels_last``), on a CPU?

    Of this package's networks the residual ones with batch norm do: on 32×32 images most of them train
    1.1 to 1.4 times as fast. VGG and group norm lose 5–20%, small plain networks go either way. Set the
    attribute on a network of your own. The results are the same up to rounding.
    """
    return x.ndim == 4 and x.device.type == "cpu" and bool(getattr(model, "channels_last", False))


def _turned(model: nn.Module, x: Tensor, wish: bool | str) -> bool:
    if wish not in (True, False, "auto"):
        raise ValueError(f"channels_last should be True, False or 'auto', but is {wish!r}.")
    if wish is True and x.ndim != 4:
        raise ValueError(f"channels_last is for images (n, c, h, w), but x has shape {tuple(x.shape)}.")
    return prefers_channels_last(model, x) if wish == "auto" else bool(wish)


def _checked(model: nn.Module, x: Any, y: Any, **above_zero: float) -> tuple[Tensor, Tensor]:
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        came = " and a ".join(type(given).__name__ for given in (x, y))
        raise TypeError(f"x and y should be tensors, but are a {came}. {AS_TENSORS}")
    if x.dtype == torch.uint8:
        raise TypeError(
            "x holds bytes, which no layer computes with: pass x.float() / 255, or x.long() for tokens."
        )
    if len(x) != len(y) or len(x) == 0:
        raise ValueError(f"x and y should have one row per sample each, but have {len(x)} and {len(y)} rows.")
    for name, value in above_zero.items():
        if not value > 0:
            raise ValueError(f"{name} should be above 0, but is {value}.")
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("the model should have parameters that require gradients, but has none to train.")
    device = device_of(model)
    return x.to(device), y.to(device)
