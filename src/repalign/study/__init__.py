"""What a notebook calls: settings by profile, claims and their verdicts, a store, one plot style.

A page calls these in reading order::

    study.begin("imani/05_layers")
    study.claims(dict(id="imani.fig7.after", paper="...", criterion="..."))
    s = study.settings(profile, change, smoke=..., laptop=..., desktop=..., paper=...)
    study.uses(dataset)
    runs = study.sweep(one_run, study.grid(data=sets, seed=study.seeds(s.runs)), width=s.width)
    study.show(figure, "imani.fig7", "What to see.", table=runs)
    study.claim("imani.fig7.after", effects={"layer 2 above layer 1": study.above(step)})
    study.stamp()
"""

from repalign.study.claims import claim, claims
from repalign.study.correlations import correlation
from repalign.study.effects import above, below, interval, ordered, ratio, share, spearman, verdict, within
from repalign.study.run import begin, stamp, uses
from repalign.study.settings import PROFILES, seeds, settings
from repalign.study.store import cached
from repalign.study.style import PALETTE, show
from repalign.study.sweep import SweepError, grid, sweep
from repalign.study.tables import table

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
    "verdict",
    "within",
]
