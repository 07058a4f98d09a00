"""One table per notebook is its whole configuration: a column for each profile."""

from __future__ import annotations

import html
from typing import Any

from repalign.study import run

PROFILES = ("smoke", "laptop", "desktop", "paper")


class Settings:
    """The settings of this run as attributes (``s.n``), shown beside the paper's."""

    def __init__(self, profile: str, values: dict[str, Any], paper: dict[str, Any]) -> None:
        self.profile = profile
        self._values = values
        self._paper = paper

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"no setting {name!r} on this page; there are {', '.join(values)}")

    def __repr__(self) -> str:
        return f"Settings({self.profile}: {', '.join(f'{k}={v!r}' for k, v in self._values.items())})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td>"
            f"<td>{html.escape(str(self._paper[name]))}</td></tr>"
            for name, value in self._values.items()
        )
        head = f"<tr><th>setting</th><th>this run ({self.profile})</th><th>profile paper</th></tr>"
        return f'<table class="ra-table ra-settings">{head}{rows}</table>'


def settings(
    profile: str,
    change: dict[str, Any] | None = None,
    *,
    smoke: dict[str, Any],
    laptop: dict[str, Any],
    desktop: dict[str, Any],
    paper: dict[str, Any],
) -> Settings:
    """The column of ``profile``, with the entries of ``change`` replaced.

    >>> s = settings("laptop", {"n": 50}, smoke=dict(n=9), laptop=dict(n=99), desktop=dict(n=999),
    ...              paper=dict(n=9999))
    >>> s.n
    50
    """
    table = dict(zip(PROFILES, (smoke, laptop, desktop, paper), strict=True))
    if profile not in table:
        raise ValueError(f"unknown profile {profile!r}: choose one of {', '.join(PROFILES)}.")
    for name, column in table.items():
        if column.keys() != paper.keys():
            odd = ", ".join(sorted(column.keys() ^ paper.keys()))
            raise ValueError(f"every profile should set the same names; {name} and paper differ in {odd}.")
    unknown = sorted(set(change or {}) - set(paper))
    if unknown:
        raise ValueError(
            f"unknown setting {', '.join(unknown)}: this page has {', '.join(paper) or 'no settings'}."
        )
    values = {**table[profile], **(change or {})}
    run.current.profile = profile
    run.current.settings = values
    run.current.paper = paper
    run.current.changed = {k: v for k, v in values.items() if v != table[profile][k]}
    return Settings(profile, values, paper)


def seeds(runs: int) -> list[int]:
    """The seeds of ``runs`` independent runs, by the profile of this page.

    They begin at 100 where a run may be recorded (``desktop``, ``paper``): nobody has looked at those.
    Smaller ones are for pilots and first looks. One run has no interval, so outside of ``smoke`` it is
    refused here, before anything is computed.

    >>> table = dict.fromkeys(PROFILES, dict(runs=3))
    >>> s = settings("laptop", **table)
    >>> seeds(s.runs)
    [0, 1, 2]
    """
    profile = run.current.profile
    least = 1 if profile == "smoke" else 2
    if runs < least:
        raise ValueError(
            f"{runs} runs have no interval, and so no verdict: set at least {least} "
            f"{f'at {profile}' if profile else 'here'}."
        )
    first = 100 if profile in ("desktop", "paper") else 0
    chosen = list(range(first, first + runs))
    run.current.seeds = sorted({*run.current.seeds, *chosen})
    return chosen
