"""Imani et al.: features of every kind, and how well they are aligned with labels.

>>> import torch
>>> from repalign.papers import imani
>>> x, y = torch.eye(6), torch.arange(6.0)
>>> {kind: tuple(imani.learn(kind, x, y, units=8, epochs=1)(x).shape) for kind in imani.KINDS}
{'network': (6, 8), 'rbf': (6, 8), 'dictionary': (6, 8)}
"""

from repalign.papers.imani.apart import fit_apart
from repalign.papers.imani.by_name import DESIGNED, designed, last_hidden, last_layer, last_map
from repalign.papers.imani.cameras import CAMERAS, camera
from repalign.papers.imani.from_files import fit_images, image_accuracy, image_view
from repalign.papers.imani.handmade import (
    dictionary,
    hog,
    learn_dictionary,
    rbf,
    sift_bag_of_words,
    sift_vocabulary,
)
from repalign.papers.imani.learned import KINDS, examine, learn, learn_and_examine
from repalign.papers.imani.negative_transfer import (
    by_pair,
    curves_lost,
    in_order,
    rank_correlation,
    transfers,
)
from repalign.papers.imani.pairs import ClassPairs, class_pair, class_pairs
from repalign.papers.imani.rates import fit_best_rate

__all__ = [
    "CAMERAS",
    "DESIGNED",
    "KINDS",
    "ClassPairs",
    "by_pair",
    "camera",
    "class_pair",
    "class_pairs",
    "curves_lost",
    "designed",
    "dictionary",
    "examine",
    "fit_apart",
    "fit_best_rate",
    "fit_images",
    "hog",
    "image_accuracy",
    "image_view",
    "in_order",
    "last_hidden",
    "last_layer",
    "last_map",
    "learn",
    "learn_and_examine",
    "learn_dictionary",
    "rank_correlation",
    "rbf",
    "sift_bag_of_words",
    "sift_vocabulary",
    "transfers",
]
