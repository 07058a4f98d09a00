"""Two tasks in turn, as Maennel et al. run them (appendix A): random labels first, then the task itself.

>>> import torch
>>> from repalign import data, models
>>> from repalign.papers.maennel import copy_layers
>>> x, y = torch.randn(64, 1, 6, 6), data.random_labels(64, 3, seed=0)
>>> net = models.SimpleCNN((1, 6, 6), 3, convs=1, filters=4, units=8, seed=0)
>>> trained = pretrain(net, x, y, epochs=2, lr=0.01, seed=0)
>>> fresh = models.SimpleCNN((1, 6, 6), 2, convs=1, filters=4, units=8, seed=1)
>>> moved = copy_layers(trained, fresh, 2)      # all but the head
>>> history = learning_curve(moved, x, y % 2, epochs=3, lr=0.01, seed=0)
>>> history.steps, 0 <= curve_area(history) <= 1
([0, 1, 2, 3], True)
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import Tensor, nn

from repalign.papers.maennel import transfer
from repalign.train import DivergedError, History, fit

M = TypeVar("M", bound=nn.Module)
# A.3: SGD with momentum 0.9, batches of 256, the learning rate divided by 3 after each third of all steps.
RECIPE: dict[str, Any] = {"optimizer": "momentum", "batch_size": 256, "schedule": "thirds"}


def pretrain(model: M, x: Tensor, y: Tensor, *, rescale: bool = True, **how: Any) -> M:
    """A copy of ``model`` trained on (x, y); ``how`` are options of ``fit``, beside those of the paper.

    With ``rescale`` every layer then gets back the norm that it had before (A.4). That is for chains of dense
    and convolutional layers; for a residual network say ``rescale=False``, as the paper does.
    """
    before = transfer.norms(model) if rescale else None
    trained = copy.deepcopy(model)
    fit(trained, x, y, **{**RECIPE, "at": (), **how})
    return trained if before is None else transfer.rescale(trained, before)


def learning_curve(model: nn.Module, x: Tensor, y: Tensor, **how: Any) -> History:
    """Train a copy of ``model`` by the paper's recipe and evaluate it on all of (x, y) after every epoch.

    ``how`` are options of ``fit``: ``test=`` evaluates other samples too, ``at=`` chooses fewer epochs.
    """
    return fit(copy.deepcopy(model), x, y, **{**RECIPE, "full_train": True, **how})


def curve_area(history: History, what: str = "train_accuracy") -> float:
    """The area under a curve of ``history`` over its steps, as its mean height: how fast a network learns.

    >>> curve_area(History(steps=[0, 10, 20], train_accuracy=[0.0, 1.0, 1.0]))
    0.75
    """
    at, heights = history.steps, getattr(history, what)
    if len(at) < 2 or len(heights) != len(at):
        raise ValueError(
            f"an area needs {what} at two times or more, but there are {len(heights)} values at {len(at)} "
            "times: evaluate after each epoch (full_train=True, test=...)."
        )
    pieces = ((at[i + 1] - at[i]) * (heights[i] + heights[i + 1]) / 2 for i in range(len(at) - 1))
    return sum(pieces) / (at[-1] - at[0])


def learning_areas(
    model: nn.Module | None, x: Tensor, y: Tensor, *, guess: float, test: Any = None, **how: Any
) -> dict[str, Any]:
    """What a sweep keeps of a curve: its ``area``, that of the ``test`` samples, and whether it ``diverged``.

    For sweeps over settings some of which are too much for a network. One that diverges, or is None as it
    did so before, counts as one that is right by accident, a share ``guess`` of the time.

    >>> import torch
    >>> learning_areas(None, torch.zeros(4, 2), torch.zeros(4), guess=0.1, epochs=1)
    {'area': 0.1, 'diverged': True}
    """
    found: dict[str, Any] = {"area": guess, **({} if test is None else {"test": guess}), "diverged": True}
    if model is None:
        return found
    try:
        history = learning_curve(model, x, y, test=test, **how)
    except DivergedError:
        return found
    found |= {"area": curve_area(history), "diverged": False}
    return found if test is None else {**found, "test": curve_area(history, "test_accuracy")}
