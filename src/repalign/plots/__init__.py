"""Drawings that pages and reports share: a tidy frame in, a figure out, laid out by seaborn.

Every frame has one row per measured value. What repeats (``unit``, by default the column ``seed``) becomes a
mean and a band of one standard error, aggregated once with pandas: seaborn's own bands take seconds on the
frames of a page.
"""

from repalign.plots.dots import forest, scatter
from repalign.plots.frames import averaged
from repalign.plots.lines import POINTS, alignment, curves, modes, spread, thresholds
from repalign.plots.maps import matrix, strips

__all__ = [
    "POINTS",
    "alignment",
    "averaged",
    "curves",
    "forest",
    "matrix",
    "modes",
    "scatter",
    "spread",
    "strips",
    "thresholds",
]
