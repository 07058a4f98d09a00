"""Representations of data: what a network's layers say.

>>> import torch
>>> from repalign import features, models
>>> x = torch.linspace(-1, 1, 60).reshape(20, 3)
>>> net = models.build("mlp", inputs=3, outputs=2, width=(8, 5))
>>> {layer: tuple(phi.shape) for layer, phi in features.extract(net, x).items()}
{'act1': (20, 8), 'act2': (20, 5)}
"""

from repalign.features.hooks import activation_rates, extract
from repalign.features.survey import Layer, Layers, layers

__all__ = [
    "Layer",
    "Layers",
    "activation_rates",
    "extract",
    "layers",
]
