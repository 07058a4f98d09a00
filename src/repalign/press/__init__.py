"""What makes the book: a page with settings, sweeps, figures and claims; records, runs and rendering.

A page calls these in reading order::

    page = press.page("lou/03_scaling_law")
    settings = page.settings(profile, change, smoke=..., laptop=..., desktop=..., paper=...)
    runs = page.sweep(lou.peak_layers, press.grid(depth=settings.depths, seed=settings.seeds))

    @page.figure("lou.fig3", "What to see.", runs)
    def peaks(runs):
        return plots.scatter(runs, x="depth", y="peak")

    @page.claim("lou.fig3", runs)
    def slope(runs):
        yield press.condition("networks fit", runs.groupby("seed")["accuracy"].min(), above=0.95)
        yield press.within("slope", slopes(runs), 0.5, 0.7, paper=0.6)

    page.end()

A figure or a claim is a function of the table and of nothing else: it is called on the table of this run and
on the recorded one. The press knows nothing of alignment.
"""

from repalign.press.effects import (
    Effect,
    above,
    at_most,
    below,
    condition,
    correlation,
    decreasing,
    increasing,
    ratio,
    required,
    share,
    student,
    wilson,
    within,
)
from repalign.press.page import Page, page
from repalign.press.settings import PROFILES
from repalign.press.style import PALETTE
from repalign.press.sweep import SweepError, grid

__all__ = [
    "PALETTE",
    "PROFILES",
    "Effect",
    "Page",
    "SweepError",
    "above",
    "at_most",
    "below",
    "condition",
    "correlation",
    "decreasing",
    "grid",
    "increasing",
    "page",
    "ratio",
    "required",
    "share",
    "student",
    "wilson",
    "within",
]
