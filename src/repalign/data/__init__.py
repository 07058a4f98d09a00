"""The data sets of the papers, from wherever this machine can reach them.

>>> from repalign import data
>>> digits = data.load("mnist", n=500, seed=0)
>>> digits.x.shape, digits.y.bincount().tolist()
(torch.Size([500, 1, 28, 28]), [50, 50, 50, 50, 50, 50, 50, 50, 50, 50])
"""

from repalign.data.errors import DataError
from repalign.data.loading import Dataset, load, source_fingerprint
from repalign.data.sets import SETS

__all__ = ["SETS", "DataError", "Dataset", "load", "source_fingerprint"]
