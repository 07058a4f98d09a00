"""Labels and losses: refuse those that do not belong together, and count what is classified correctly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repalign._arrays import refuse_words
from repalign.train.context import device_of, evaluating
from repalign.train.recipes import LOSSES, Loss, SeesModel, by_class, cross_entropy, logistic, squared

AS_TENSORS = "An array: torch.from_numpy(x); a set of samples: stack its samples and labels."
Right = Callable[[Tensor, Tensor], Tensor]  # outputs and labels of a batch: which samples are right


def as_tensor(model: nn.Module, given: Any, name: str) -> Any:
    """An array as a tensor, its numbers in the model's precision; anything else as it is."""
    if not isinstance(given, np.ndarray):
        return given
    refuse_words(given, name)
    tensor = torch.from_numpy(np.array(given))
    like = next((p.dtype for p in model.parameters() if p.is_floating_point()), tensor.dtype)
    return tensor.to(like) if tensor.is_floating_point() else tensor


def check_labels(loss: Loss, output: Tensor, y: Tensor) -> None:
    """Refuse labels that a loss of this package would take for something else; looks at all of them, once."""
    if not isinstance(output, Tensor):
        raise TypeError(
            f"the model should return a tensor of outputs, but returned a {type(output).__name__}. Wrap it "
            "in a module that picks one, or pass a loss that calls the model: SeesModel(f)."
        )
    if loss not in LOSSES.values():
        return  # a stranger's loss knows its labels
    numbers = not y.is_floating_point() and output.ndim > 1 and output.shape[1] > 1
    if numbers and (loss is cross_entropy or (loss is squared and by_class(output, y))):
        low, high = _range(y)
        if low < 0 or high >= output.shape[1]:
            raise ValueError(
                f"class numbers should be from 0 to {output.shape[1] - 1}, one for each of the model's "
                f"{output.shape[1]} outputs, but they are from {low:g} to {high:g}."
            )
    loss(output[:1], y[:1])  # refuses shapes
    if loss is logistic and not _are_signs(y):
        low, high = _range(y)
        raise ValueError(
            f"logistic loss needs the labels −1 and +1, but they are from {low:g} to {high:g}. "
            "Convert 0 and 1 with repalign.data.signs(y)."
        )
    if loss is cross_entropy and y.is_floating_point():
        total = y.sum(dim=1)
        if bool((y < 0).any()) or not torch.allclose(total, torch.ones_like(total), atol=1e-3):
            raise ValueError(
                "the labels of a sample should be probabilities of classes, 0 or more and 1 in sum, but are "
                "not. For targets of another kind take the loss squared."
            )


def check_values(values: Tensor, output: Tensor, y: Tensor) -> None:
    """Refuse what a loss returns where it is neither a number nor a value for each sample, or for its parts.

    A difference of outputs (n, 1) and labels (n,) has a value for every pair of samples.
    """
    if not isinstance(values, Tensor):
        raise TypeError(f"a loss should return a tensor, but returned a {type(values).__name__}.")
    parts = max(output.numel(), y.numel())
    if values.ndim and (len(values) != len(y) or values.numel() > parts):
        raise ValueError(
            f"a loss should return a value per sample, ({len(y)},), or their mean, but returned "
            f"{tuple(values.shape)} from outputs {tuple(output.shape)} and labels {tuple(y.shape)}. Did "
            "these broadcast against each other? Bring the labels to the shape of the outputs: y[:, None]."
        )


def check_broadcast(loss: Loss, output: Tensor, y: Tensor) -> None:
    """Refuse a mean that a stranger's loss takes over all pairs of a sample's output with another's label."""
    if loss in LOSSES.values() or output.shape == y.shape or output.numel() != y.numel() or len(y) < 2:
        return
    with torch.no_grad():
        values = loss(output, y)
        try:
            aligned = loss(output.reshape(y.shape), y)
        except Exception:  # a loss for this very shape
            return
    both = isinstance(values, Tensor) and isinstance(aligned, Tensor) and values.ndim == aligned.ndim == 0
    if both and not torch.allclose(values, aligned, rtol=1e-3, atol=1e-6):
        raise ValueError(
            f"the loss takes outputs {tuple(output.shape)} and labels {tuple(y.shape)} for more than one "
            f"pair per sample: it is {values.item():.4g}, and {aligned.item():.4g} where both have one "
            "shape. Bring the labels to the shape of the outputs: y[:, None]."
        )


def right_rule(loss: Loss, output: Tensor, y: Tensor) -> Right | None:
    """How to tell which samples are classified correctly, or None where the labels are no classes."""
    if by_class(output, y):
        return lambda output, y: output.argmax(dim=1) == y
    if output.ndim == 2 and output.shape[1] > 1 and y.shape[1:] == output.shape[1:]:
        if loss is cross_entropy or _one_hot(y):
            return lambda output, y: output.argmax(dim=1) == y.argmax(dim=1)
    elif output.numel() == len(output) and y.numel() == len(y) and _are_signs(y):
        return lambda output, y: output.reshape(len(y)).sign() == y.reshape(len(y))
    return None


def predict(model: nn.Module, x: Tensor, *, batch_size: int = 1024) -> Tensor:
    """Outputs of ``model`` in eval mode, in batches; the modes of its modules are restored."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x should be a tensor, but is a {type(x).__name__}. {AS_TENSORS}")
    device = device_of(model)
    with evaluating(model):
        return torch.cat([model(part.to(device)) for part in x.split(batch_size)])


def accuracy(model: nn.Module, x: Tensor, y: Tensor, *, batch_size: int = 1024) -> float:
    """Share classified correctly: by the largest of several outputs, by the sign of a single one.

    Labels are class numbers or one-hot for several outputs, and ±1 for a single one.
    """
    output = predict(model, x, batch_size=batch_size)
    y = y.to(output.device)
    right = right_rule(cross_entropy, output, y)
    if right is None:
        raise ValueError(
            f"accuracy needs class numbers or one-hot labels for several outputs, and ±1 for a single one "
            f"(repalign.data.signs), but there are outputs of shape {tuple(output.shape)} and {y.dtype} "
            f"labels of shape {tuple(y.shape)}."
        )
    return right(output, y).double().mean().item()


def evaluate(
    model: nn.Module, x: Tensor, y: Tensor, loss: Loss | SeesModel, *, batch_size: int = 1024
) -> tuple[float, float | None]:
    """Mean loss over all samples, and the accuracy where the labels are classes; in eval mode.

    A loss that sees the model has no outputs to count from: then there is no accuracy.
    """
    device = device_of(model)
    y = y.to(device)
    total, right = torch.zeros((), device=device), None
    correct = torch.zeros((), device=device, dtype=torch.long)
    with evaluating(model):
        for start in range(0, len(x), batch_size):
            inputs, labels = x[start : start + batch_size].to(device), y[start : start + batch_size]
            if isinstance(loss, SeesModel):
                values = loss.loss(model, inputs, labels)
                check_values(values, labels, labels)
            else:
                output = model(inputs)
                if start == 0:
                    check_labels(loss, output, y)
                    check_broadcast(loss, output, labels)
                    right = right_rule(loss, output, y)
                values = loss(output, labels)
                check_values(values, output, labels)
                if right is not None:
                    correct += right(output, labels).sum()
            total += values.mean() * len(inputs)
    share = correct.item() / len(x) if right is not None else None
    return total.item() / len(x), share


def _are_signs(y: Tensor) -> bool:
    return bool(((y == 1) | (y == -1)).all())


def _one_hot(y: Tensor) -> bool:
    """One value of each row is high, all others are low: 1 and 0, or 1 and −1, or with the mean taken off."""
    low, high = y.amin(), y.amax()
    is_high = y == high
    return bool((low < high) & ((y == low) | is_high).all() & (is_high.sum(dim=1) == 1).all())


def _range(y: Tensor) -> tuple[float, float]:
    low, high = torch.stack([y.min(), y.max()]).tolist()
    return low, high
