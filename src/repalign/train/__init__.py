"""Training: one loop for all the papers' networks, and many small networks at once.

>>> import torch
>>> from repalign.train import fit
>>> x = torch.linspace(-1, 1, 64)[:, None]
>>> model = torch.nn.Linear(1, 1)
>>> history = fit(model, x, 3 * x, loss="squared", optimizer="sgd", lr=0.5, epochs=50, seed=0)
>>> round(model.weight.item(), 3), history.stopped
(3.0, 'epochs')
"""

from repalign.train.history import DivergedError, History, log_epochs, log_steps
from repalign.train.loop import fit, prefers_channels_last
from repalign.train.many import fit_many
from repalign.train.recipes import LOSSES, OPTIMIZERS, SCHEDULES, SeesModel, crop_and_flip
from repalign.train.snapshots import Snapshot, Snapshots
from repalign.train.targets import accuracy, predict

__all__ = [
    "LOSSES",
    "OPTIMIZERS",
    "SCHEDULES",
    "DivergedError",
    "History",
    "SeesModel",
    "Snapshot",
    "Snapshots",
    "accuracy",
    "crop_and_flip",
    "fit",
    "fit_many",
    "log_epochs",
    "log_steps",
    "predict",
    "prefers_channels_last",
]
