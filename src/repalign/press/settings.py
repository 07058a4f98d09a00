"""One table is a page's whole configuration: a column for each profile."""

from __future__ import annotations

import html
from typing import Any

PROFILES = ("smoke", "laptop", "desktop", "paper")
# Seeds below 200 have been looked at: they are for pilots and laptops.
FIRST_SEED = 200
# What an object of settings has besides the settings.
_RESERVED = {"profile", "seeds", "as_dict", "beside_paper"}
# Names whose values say which data and which network stand in for the paper's.
_KINDS = {"data", "dataset", "datasets", "sets", "model", "models", "network", "networks"}
_KINDS |= {"architecture", "size"}
_STEPS = {"steps", "epochs"}


class Settings:
    """The settings of this run as attributes (``settings.n``), shown beside the paper's.

    Where the table has ``runs``, ``settings.seeds`` are the seeds of that many independent runs: from 0 in a
    first look, from 200 on where a run may be recorded.
    """

    def __init__(self, profile: str, values: dict[str, Any], paper: dict[str, Any], first: int) -> None:
        self.profile = profile
        self._values = values
        self._paper = paper
        self._first = first

    @property
    def seeds(self) -> list[int]:
        """The seeds of this run's independent runs."""
        runs = self._values.get("runs")
        least = 1 if self.profile == "smoke" else 2
        if not isinstance(runs, int) or runs < least:
            raise ValueError(
                f"runs should be at least {least} at {self.profile}, but is {runs}: one run has no interval."
            )
        return list(range(self._first, self._first + runs))

    def as_dict(self) -> dict[str, Any]:
        """All settings by name."""
        return dict(self._values)

    def beside_paper(self) -> dict[str, list[Any]]:
        """Each setting with the paper's."""
        return {name: [_plain(value), _plain(self._paper[name])] for name, value in self._values.items()}

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
        head = f"<tr><th>setting</th><th>profile {html.escape(self.profile)}</th><th>profile paper</th></tr>"
        table = f'<table class="ra-table ra-settings">{head}{rows}</table>'
        return f'<details class="ra-fold"><summary>Settings</summary>{table}</details>'


def choose(
    profile: str,
    change: dict[str, Any],
    columns: dict[str, dict[str, Any]],
    first_seed: int = FIRST_SEED,
) -> tuple[Settings, dict[str, Any]]:
    """The column of ``profile`` with the entries of ``change`` replaced, and what they changed.

    The seeds of recorded runs begin with ``first_seed``.

    >>> columns = {name: dict(n=size) for name, size in zip(PROFILES, (9, 99, 999, 9999), strict=True)}
    >>> choose("laptop", {"n": 50}, columns)
    (Settings(laptop: n=50), {'n': 50})
    """
    if profile not in columns:
        raise ValueError(f"unknown profile {profile!r}: choose one of {', '.join(PROFILES)}.")
    paper = columns["paper"]
    for name, column in columns.items():
        if column.keys() != paper.keys():
            odd = ", ".join(sorted(column.keys() ^ paper.keys()))
            raise ValueError(f"every profile should set the same names; {name} and paper differ in {odd}.")
    reserved = sorted(_RESERVED & paper.keys())
    if reserved:
        raise ValueError(f"a setting cannot be called {reserved[0]}: settings have that already.")
    if first_seed < FIRST_SEED:
        raise ValueError(
            f"first_seed should be at least {FIRST_SEED}, as seeds below are for pilots, but is {first_seed}."
        )
    known = {*paper, *(["first_seed"] if "runs" in paper else [])}
    unknown = sorted(set(change) - known)
    if unknown:
        raise ValueError(
            f"unknown setting {', '.join(unknown)}: this page has {', '.join(sorted(known)) or 'none'}."
        )
    usual = first_seed if profile in ("desktop", "paper") else 0
    first = int(change.get("first_seed", usual))
    given = {name: value for name, value in change.items() if name != "first_seed"}
    values = {**columns[profile], **given}
    changed = {name: value for name, value in given.items() if value != columns[profile][name]}
    if first != usual:
        changed["first_seed"] = first
    return Settings(profile, values, paper, first), changed


def stand_ins(desktop: dict[str, Any], paper: dict[str, Any]) -> list[str]:
    """Settings in which the recorded profile is so far from the paper that a claim needs words for it.

    >>> stand_ins(dict(data="digits", epochs=30, n=5000), dict(data="ImageNet", epochs=90, n=60_000))
    ['data']
    """
    found = []
    for name, ours in desktop.items():
        theirs = paper[name]
        if name in _KINDS and ours != theirs:
            found.append(name)
        counted = name in _STEPS and all(isinstance(v, (int, float)) for v in (ours, theirs))
        if counted and (10 * ours < theirs or ours > 10 * theirs):
            found.append(name)
    return found


def _plain(value: Any) -> Any:
    """As a file can hold it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, range)):
        return [_plain(part) for part in value]
    return str(getattr(value, "name", None) or getattr(value, "__name__", None) or value)
