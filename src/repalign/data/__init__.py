"""The data sets of the papers, from the first source that this machine can reach.

>>> from repalign import data
>>> digits = data.load("mnist", n=500, seed=0)
>>> digits.x.shape, digits.y.bincount().tolist()
(torch.Size([500, 1, 28, 28]), [50, 50, 50, 50, 50, 50, 50, 50, 50, 50])
"""

from repalign.data.errors import DataError
from repalign.data.labels import disjoint, noisy, one_hot, random_labels, shuffled, signs
from repalign.data.loading import Dataset, load, source_fingerprint
from repalign.data.names import IMAGENET_ARTIFICIAL, IMAGENET_NATURAL
from repalign.data.sets import SETS
from repalign.data.streaming import ImageFiles, image_files
from repalign.data.subsets import subset
from repalign.data.synthetic import gaussian, peaks

__all__ = [
    "IMAGENET_ARTIFICIAL",
    "IMAGENET_NATURAL",
    "SETS",
    "DataError",
    "Dataset",
    "ImageFiles",
    "disjoint",
    "gaussian",
    "image_files",
    "load",
    "noisy",
    "one_hot",
    "peaks",
    "random_labels",
    "shuffled",
    "signs",
    "source_fingerprint",
    "subset",
]
