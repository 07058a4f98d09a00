"""What the pages of the first edition call; it goes when their chapters are rewritten."""

from repalign.press.settings import PROFILES
from repalign.press.style import PALETTE
from repalign.press.tables import table
from repalign.study.claims import claim, claims
from repalign.study.correlations import correlation
from repalign.study.effects import above, below, interval, ordered, ratio, share, spearman, within
from repalign.study.run import begin, show, stamp, uses
from repalign.study.settings import seeds, settings
from repalign.study.store import cached
from repalign.study.sweep import SweepError, grid, sweep

__all__ = [
    "PALETTE",
    "PROFILES",
    "SweepError",
    "above",
    "begin",
    "below",
    "cached",
    "claim",
    "claims",
    "correlation",
    "grid",
    "interval",
    "ordered",
    "ratio",
    "seeds",
    "settings",
    "share",
    "show",
    "spearman",
    "stamp",
    "sweep",
    "table",
    "uses",
    "within",
]
