"""Settings and seeds as the first edition's pages call them."""

from __future__ import annotations

from typing import Any

from repalign.press import settings as settings_
from repalign.press.settings import PROFILES, Settings
from repalign.study import run

# Recorded runs of the first edition had seeds from 100 on.
_FIRST = 100


def settings(
    profile: str,
    change: dict[str, Any] | None = None,
    *,
    smoke: dict[str, Any],
    laptop: dict[str, Any],
    desktop: dict[str, Any],
    paper: dict[str, Any],
) -> Settings:
    """The column of ``profile``, with the entries of ``change`` replaced."""
    columns = dict(zip(PROFILES, (smoke, laptop, desktop, paper), strict=True))
    chosen, changed = settings_.choose(profile, dict(change or {}), columns)
    run.current.profile = profile
    run.current.settings = chosen.as_dict()
    run.current.paper = paper
    run.current.changed = changed
    return chosen


def seeds(runs: int) -> list[int]:
    """The seeds of ``runs`` independent runs, by the profile of this page."""
    profile = run.current.profile
    least = 1 if profile == "smoke" else 2
    if runs < least:
        where = f"at {profile}" if profile else "here"
        raise ValueError(f"{runs} runs have no interval, and so no verdict: set at least {least} {where}.")
    first = _FIRST if profile in ("desktop", "paper") else 0
    chosen = list(range(first, first + runs))
    run.current.seeds = sorted({*run.current.seeds, *chosen})
    return chosen
