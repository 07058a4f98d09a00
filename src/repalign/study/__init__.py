"""What a notebook calls: settings by profile, claims and their verdicts, a store, one plot style.

A page calls these in reading order::

    study.begin("imani/02_alignment")
    study.claims(dict(id="imani.eq2", paper="...", criterion="...", exact=True))
    s = study.settings(profile, change, smoke=..., laptop=..., desktop=..., paper=...)
    study.uses(dataset)
    result = study.cached(expensive, dict(data=dataset, n=s.n, seed=0))
    runs = study.sweep(one_run, study.grid(data=sets, seed=range(s.runs)), width=s.width)
    study.show(figure, "imani.fig2", "What to see.")
    study.claim("imani.eq2", measured=error, holds=error < 1e-10)
    study.stamp()
"""

from repalign.study.claims import claim, claims
from repalign.study.effects import above, below, interval, share, verdict, within
from repalign.study.run import begin, stamp, uses
from repalign.study.settings import PROFILES, settings
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
    "grid",
    "interval",
    "settings",
    "share",
    "show",
    "stamp",
    "sweep",
    "table",
    "uses",
    "verdict",
    "within",
]
