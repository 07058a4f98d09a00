"""Sharon & Dar: how representations change while a network trains, and what probes of its layers decide.

>>> import torch
>>> from repalign.papers import sharon
>>> kept = sharon.Kernels(debiased=(False,))
>>> for turn in (0, 1, 2):
...     kept.keep({"toy": torch.eye(6)[:, :3].roll(turn, 0)})
>>> kept.cka()["toy"].shape
torch.Size([3, 3])
"""

from repalign.papers.sharon.evolution import Evolution, Kernels, logged, recomputed, watched
from repalign.papers.sharon.maps import layer_table, shared_limits, with_errors
from repalign.papers.sharon.moving import shifted, usual
from repalign.papers.sharon.probing import probed, told_by_probes
from repalign.papers.sharon.tasks import noisy_task, train_test
from repalign.papers.sharon.transitions import (
    change,
    described,
    milestones,
    novelty,
    returned,
    set_apart,
    summary,
)

__all__ = [
    "Evolution",
    "Kernels",
    "change",
    "described",
    "layer_table",
    "logged",
    "milestones",
    "noisy_task",
    "novelty",
    "probed",
    "recomputed",
    "returned",
    "set_apart",
    "shared_limits",
    "shifted",
    "summary",
    "told_by_probes",
    "train_test",
    "usual",
    "watched",
    "with_errors",
]
