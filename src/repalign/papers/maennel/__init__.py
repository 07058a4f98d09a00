"""Maennel et al.: what a network learns from random labels, and what the next task gets from it.

>>> import torch
>>> from repalign import models
>>> from repalign.papers import maennel
>>> before, trained = models.MLP(5, 3, width=(8, 8), seed=0), models.MLP(5, 3, width=(8, 8), seed=1)
>>> moved = maennel.copy_layers(trained, before, 2)
>>> torch.equal(moved.fc2.weight, trained.fc2.weight), torch.equal(moved.head.weight, before.head.weight)
(True, True)
"""

from repalign.papers.maennel.image_rows import ImageRows
from repalign.papers.maennel.in_turn import curve_area, learning_areas, learning_curve, pretrain
from repalign.papers.maennel.mosaics import VERSIONS, middle, mosaic
from repalign.papers.maennel.transfer import (
    copy_layers,
    eigenvector_filters,
    filter_covariance,
    filters,
    first_transfer_function,
    layers,
    norms,
    rescale,
    sample_filters,
    zero_bias,
)

__all__ = [
    "VERSIONS",
    "ImageRows",
    "copy_layers",
    "curve_area",
    "eigenvector_filters",
    "filter_covariance",
    "filters",
    "first_transfer_function",
    "layers",
    "learning_areas",
    "learning_curve",
    "middle",
    "mosaic",
    "norms",
    "pretrain",
    "rescale",
    "sample_filters",
    "zero_bias",
]
