"""What takes the steps: one of torch's optimizers by its name, by its class, or made by a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from repalign.train.recipes import OPTIMIZERS, named

# A class of torch, or a function of the parameters.
Factory: TypeAlias = Callable[..., torch.optim.Optimizer]
LEARNING_RATE = 1e-3
MOMENTUM = 0.9


def optimizer_of(
    given: str | Factory,
    parameters: Sequence[Tensor],
    lr: float | None,
    momentum: float | None,
    weight_decay: float,
) -> torch.optim.Optimizer:
    """The optimizer of ``parameters``; what a class or a function takes of the rest goes in by name.

    Positions differ from class to class: the third argument is the momentum of SGD and the decay of averages
    of RMSprop.
    """
    if isinstance(given, str):
        maker = named(OPTIMIZERS, given, "optimizer")
        rate = LEARNING_RATE if lr is None else lr
        return maker(parameters, rate, MOMENTUM if momentum is None else momentum, weight_decay)
    if isinstance(given, torch.optim.Optimizer):
        kind = type(given).__name__
        raise TypeError(
            f"optimizer should be a name, a class such as torch.optim.{kind}, or a function of the "
            f"parameters, but is an {kind} that is made already: pass lambda p: torch.optim.{kind}(p, "
            "lr=...)."
        )
    made = given(parameters, **_options(given, lr, momentum, weight_decay))
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(f"optimizer should make a torch.optim.Optimizer, but made a {type(made).__name__}.")
    if inspect.signature(type(made).step).parameters["closure"].default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(made).__name__} evaluates the loss several times per step, which this loop does not: "
            "choose an optimizer that steps along one gradient."
        )
    return made


def _options(
    given: Factory, lr: float | None, momentum: float | None, weight_decay: float
) -> dict[str, float]:
    """What of learning rate, momentum and weight decay goes to a class or a function, by name."""
    own = given.keywords if isinstance(given, functools.partial) else {}
    taken = inspect.signature(given).parameters
    any_name = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
    asked = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay or None}
    options = {name: value for name, value in asked.items() if value is not None}
    refused = [name for name in options if name in own or not (any_name or name in taken)]
    if refused:
        raise ValueError(
            f"fit was given {', '.join(refused)}, but the optimizer has its own or does not take it: set it "
            "there, and leave it out of fit."
        )
    # What has a place for them gets the defaults of fit, not those of the class.
    for name, default in (("lr", LEARNING_RATE), ("weight_decay", 0.0)):
        if name in taken and name not in own:
            options.setdefault(name, default)
    return options
