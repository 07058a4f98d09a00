"""One loop for squared, logistic and cross-entropy loss, from a laptop to several GPUs.

Data that fits stays on the device as tensors; there is no loader and no worker. All chance of an epoch
(order, augmentation, dropout) follows from the seed and the epoch's number, so a run that resumes from
a checkpoint takes the very steps that it would have taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repalign._files import atomic, digest
from repalign.machine import onednn
from repalign.train.recipes import LOSSES, OPTIMIZERS, SCHEDULES, Augment, Loss, Schedule, named


class DivergedError(RuntimeError):
    """The loss became NaN or infinite."""


@dataclass
class History:
    """What happened: one entry per epoch, and why it stopped (epochs, loss, fit)."""

    loss: list[float] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    measured: dict[int, Any] = field(default_factory=dict)
    perfect: int = 0
    stopped: str = ""


def fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    loss: str | Loss = "cross_entropy",
    optimizer: str = "adam",
    lr: float = 1e-3,
    batch_size: int = 64,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    schedule: str | Schedule = "constant",
    augment: Augment | None = None,
    stop_loss: float | None = None,
    stop_fit: int | None = None,
    measure: Callable[[nn.Module, int], Any] | None = None,
    at: Collection[int] | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    every: int = 1,
    bfloat16: bool = False,
    channels_last: bool = False,
    compile: bool = False,
    accelerator: Any = None,
    progress: Callable[[int, History], None] | None = None,
) -> History:
    """Train ``model`` in place on (x, y) for ``epochs`` epochs.

    ``measure(model, epoch)`` is called in eval mode before training (epoch 0) and after each epoch in
    ``at`` (default: all); what it returns is kept in ``history.measured[epoch]``. Training stops early
    when the epoch's mean loss falls below ``stop_loss``, or when every training example has been
    classified correctly for ``stop_fit`` epochs in a row. With ``checkpoint`` the state is written
    there every ``every`` epochs, atomically, and the same call goes on from it. ``accelerator`` is a
    Hugging Face ``Accelerator``: the batch is then shared among its processes.
    """
    config = {
        k: getattr(v, "__qualname__", v)
        for k, v in dict(
            epochs=epochs, loss=loss, optimizer=optimizer, lr=lr, batch_size=batch_size, momentum=momentum,
            weight_decay=weight_decay, schedule=schedule, augment=augment, stop_loss=stop_loss,
            stop_fit=stop_fit, seed=seed, bfloat16=bfloat16,
        ).items()
    }  # fmt: skip
    x, y = _checked(model, x, y, epochs, batch_size, lr, every)
    if bfloat16 and x.device.type == "cpu":
        onednn.require()
    loss_of, factor = named(LOSSES, loss, "loss"), named(SCHEDULES, schedule, "schedule")
    make = named(OPTIMIZERS, optimizer, "optimizer")
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    descent = make([p for p in model.parameters() if p.requires_grad], lr, momentum, weight_decay)
    forward: Any = torch.compile(model) if compile else model
    if accelerator is not None:
        forward, descent = accelerator.prepare(forward, descent)
    history, first = History(), 0
    key = ""
    if checkpoint is not None:
        key = digest(str(config), str(model), _content(x), _content(y))
        history, first = _resume(Path(checkpoint), key, model, descent)
    wanted = set(range(epochs + 1)) if at is None else set(at)
    if first == 0 and 0 in wanted:
        _measure(model, 0, measure, history)
    cast = torch.autocast(x.device.type, torch.bfloat16) if bfloat16 else nullcontext()
    batches = math.ceil(len(x) / batch_size)
    for epoch in range(first, epochs):
        if history.stopped:
            break
        started = time.perf_counter()
        model.train()
        chance = torch.Generator().manual_seed(_mix(seed, epoch))
        order = torch.randperm(len(x), generator=chance).to(x.device)
        losses = torch.zeros(batches, device=x.device)
        with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
            torch.manual_seed(_mix(seed, epoch))
            for step in range(batches):
                rate = lr * factor((epoch * batches + step) / (epochs * batches), epoch)
                for group in descent.param_groups:
                    group["lr"] = rate
                rows = order[step * batch_size : (step + 1) * batch_size]
                total = len(rows)
                if accelerator is not None:
                    rows = rows[accelerator.process_index :: accelerator.num_processes]
                inputs = augment(x[rows], chance) if augment else x[rows]
                with cast:
                    per_sample = loss_of(forward(inputs), y[rows])
                descent.zero_grad(set_to_none=True)
                if accelerator is None:
                    value = per_sample.mean()
                    value.backward()
                else:
                    # Gradients are averaged over processes: weigh each by its share of the batch.
                    value = per_sample.sum() * (accelerator.num_processes / total)
                    accelerator.backward(value)
                    value = accelerator.reduce(value.detach(), reduction="mean")
                descent.step()
                losses[step] = value.detach()
        _end_of_epoch(history, losses, rate, started, config, epoch, batches)
        if stop_loss is not None and history.loss[-1] < stop_loss:
            history.stopped = "loss"
        if stop_fit is not None:
            history.perfect = history.perfect + 1 if accuracy(model, x, y) == 1 else 0
            if history.perfect >= stop_fit:
                history.stopped = "fit"
        if epoch + 1 == epochs and not history.stopped:
            history.stopped = "epochs"
        if epoch + 1 in wanted or (history.stopped and measure):
            _measure(model, epoch + 1, measure, history)
        done = (epoch + 1) % every == 0 or history.stopped
        if checkpoint is not None and done and (accelerator is None or accelerator.is_main_process):
            _save(Path(checkpoint), key, model, descent, history, epoch + 1)
        if progress:
            progress(epoch + 1, history)
    model.eval()
    return history


@torch.no_grad()
def predict(model: nn.Module, x: Tensor, *, batch_size: int = 1024) -> Tensor:
    """Outputs of ``model`` in eval mode, in batches; its mode is restored."""
    was = model.training
    model.eval()
    device = next(model.parameters()).device
    try:
        return torch.cat([model(part.to(device)) for part in x.split(batch_size)])
    finally:
        model.train(was)


def accuracy(model: nn.Module, x: Tensor, y: Tensor, *, batch_size: int = 1024) -> float:
    """Share classified correctly: by the largest of several outputs, by the sign of a single one."""
    output = predict(model, x, batch_size=batch_size)
    y = y.to(output.device)
    single = output.ndim == 1 or output.shape[1] == 1
    right = (output.reshape(len(y)).sign() == y) if single else (output.argmax(dim=1) == y)
    return right.double().mean().item()


def log_epochs(epochs: int, count: int = 30) -> list[int]:
    """About ``count`` epochs from 0 to ``epochs``, dense at first.

    >>> log_epochs(100, 7)
    [0, 1, 3, 6, 16, 40, 100]
    """
    grid = torch.logspace(0, math.log10(max(epochs, 1)), count - 1, dtype=torch.float64)
    return sorted({0, epochs, *(round(v) for v in grid.tolist())})


def _mix(seed: int, epoch: int) -> int:
    """A seed for one epoch: neighbouring seeds and epochs must not share their streams."""
    return int(digest(f"{seed}/{epoch}"), 16) % 2**63


def _checked(
    model: nn.Module, x: Tensor, y: Tensor, epochs: int, batch_size: int, lr: float, every: int
) -> tuple[Tensor, Tensor]:
    if len(x) != len(y) or len(x) == 0:
        raise ValueError(f"x and y should have one row per sample each, but have {len(x)} and {len(y)} rows.")
    for name, value in (("epochs", epochs), ("batch_size", batch_size), ("lr", lr), ("every", every)):
        if not value > 0:
            raise ValueError(f"{name} should be above 0, but is {value}.")
    device = next(model.parameters()).device
    return x.to(device), y.to(device)


def _measure(model: nn.Module, epoch: int, measure: Any, history: History) -> None:
    if measure is not None and epoch not in history.measured:
        model.eval()
        with torch.no_grad():
            history.measured[epoch] = measure(model, epoch)


def _end_of_epoch(
    history: History,
    losses: Tensor,
    lr: float,
    started: float,
    config: dict[str, Any],
    epoch: int,
    batches: int,
) -> None:
    # Looked at once an epoch: a look at every step would make a GPU wait.
    bad = (~torch.isfinite(losses)).nonzero()
    if len(bad):
        step = epoch * batches + int(bad[0])
        raise DivergedError(
            f"the loss became {losses[int(bad[0])].item()} at step {step} (epoch {epoch + 1}). "
            f"Try a smaller lr. Configuration: {config}."
        )
    history.loss.append(losses.mean().item())
    history.lr.append(lr)
    history.seconds.append(round(time.perf_counter() - started, 4))


def _content(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def _save(path: Path, key: str, model: nn.Module, descent: Any, history: History, epoch: int) -> None:
    state = {
        "key": key,
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": descent.state_dict(),
        "history": asdict(history),
    }
    with atomic(path) as part:
        torch.save(state, part)


def _resume(path: Path, key: str, model: nn.Module, descent: Any) -> tuple[History, int]:
    if not path.exists():
        return History(), 0
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen kinds for a torn file
        raise ValueError(
            f"the checkpoint {path} cannot be read ({error}). Delete it to start anew."
        ) from None
    if not isinstance(state, dict) or state.get("key") != key:
        raise ValueError(
            f"the checkpoint {path} belongs to another model, data or configuration. "
            "Delete it, or name another file."
        )
    model.load_state_dict(state["model"])
    descent.load_state_dict(state["optimizer"])
    return History(**state["history"]), int(state["epoch"])
