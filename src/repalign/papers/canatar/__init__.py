"""Canatar & Pehlevan: kernels of layers, what they resemble and what they say about learning.

>>> from repalign.papers import canatar
>>> rows = canatar.best_kernel(seed=0, tried=10)
>>> all(row["deviation"] <= row["limit"] for row in rows)
True
"""

from repalign.papers.canatar.layers import layer_cka, ranked, spreads
from repalign.papers.canatar.modes import (
    SHAPES,
    best_kernel,
    identities,
    learning_curves,
    tasks_on_pixels,
)

__all__ = [
    "SHAPES",
    "best_kernel",
    "identities",
    "layer_cka",
    "learning_curves",
    "ranked",
    "spreads",
    "tasks_on_pixels",
]
