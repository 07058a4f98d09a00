"""Representations of data: what a network's layers say, and the hand-made features of Imani et al. §7.2.

>>> import torch
>>> from repalign import features, models
>>> x = torch.linspace(-1, 1, 60).reshape(20, 3)
>>> net = models.build("mlp", inputs=3, outputs=2, width=(8, 5))
>>> {layer: tuple(phi.shape) for layer, phi in features.extract(net, x).items()}
{'act1': (20, 8), 'act2': (20, 5)}
"""

from repalign.features.by_name import DESIGNED, designed, last_hidden, last_map
from repalign.features.handmade import (
    dictionary,
    hog,
    learn_dictionary,
    rbf,
    sift_bag_of_words,
    sift_vocabulary,
)
from repalign.features.hooks import activation_rates, extract
from repalign.features.learned import KINDS, learn
from repalign.features.resemblance import layer_cka
from repalign.features.survey import Layer, Layers, layers

__all__ = [
    "DESIGNED",
    "KINDS",
    "Layer",
    "Layers",
    "activation_rates",
    "designed",
    "dictionary",
    "extract",
    "hog",
    "last_hidden",
    "last_map",
    "layer_cka",
    "layers",
    "learn",
    "learn_dictionary",
    "rbf",
    "sift_bag_of_words",
    "sift_vocabulary",
]
