"""Claims: the rows of ``notebooks/<paper>/claims.toml``, and the verdict that a table of results gives them.

The file is the only copy of what a paper says, of the criterion and of what we found. A row is fixed by a
commit before the recorded run; a later change says so in ``revised``.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repalign.press.effects import Effect, verdict

# paper: what the paper says; ours: a control, a robustness check, an extension; exact: mathematics to
# rounding; shown: an illustration that cannot fail; not tried: needs the paper's scale.
KINDS = ("paper", "ours", "exact", "shown", "not tried")
VERDICTS = (*("EXACT", "SHOWN", "REPRODUCED", "PARTLY", "OPEN", "NOT REPRODUCED", "NOT TRIED", "UNTESTED"),)
TO_BE_WRITTEN = "To be written: the verdict is no longer the one that the text was written for."
_REQUIRED = ("page", "says", "kind", "criterion", "fixed")
_FIELDS = {
    *_REQUIRED,
    *("where", "stand_in", "paper_value", "revised", "found", "found_for"),
}
_REVISION = {"date", "reason", "was"}


class ClaimError(Exception):
    """A row of claims.toml, or what a page makes of it, is wrong: says which claim and what to do."""


@dataclass(frozen=True)
class Claim:
    """A row of claims.toml.

    says       what the paper says, as a sentence that reads on its own
    where      the place in the paper
    criterion  what we would accept as its reproduction
    fixed      the day on which the criterion was fixed
    stand_in   what replaces the paper's data or network, if anything
    revised    later changes of the criterion: date, reason and what it was
    found      what we found, with numbers of the record in braces
    found_for  the verdict that ``found`` was written for
    """

    id: str
    page: str
    says: str
    kind: str
    criterion: str
    fixed: datetime.date
    where: str = ""
    stand_in: str = ""
    paper_value: Any = None
    revised: list[dict[str, Any]] = field(default_factory=list)
    found: str = ""
    found_for: str = ""


def path(root: Path, paper: str) -> Path:
    """Where the claims of ``paper`` are."""
    return root / "notebooks" / paper / "claims.toml"


def read(root: Path, paper: str) -> dict[str, Claim]:
    """All claims of a paper by id, in the order of the file; none when there is no such file."""
    place = path(root, paper)
    if not place.is_file():
        return {}
    return parse(place.read_text(encoding="utf-8-sig"), f"notebooks/{paper}/claims.toml", paper)


def parse(text: str, name: str, paper: str) -> dict[str, Claim]:
    """The claims in ``text``; ``name`` is the file for errors."""
    try:
        rows = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClaimError(f"{name} is not TOML: {error}.") from None
    return {id: _claim(id, row, name, paper) for id, row in rows.items()}


def of_page(root: Path, page: str) -> dict[str, Claim]:
    """The claims of the page ``paper/NN_topic``."""
    paper, _, topic = page.partition("/")
    return {id: claim for id, claim in read(root, paper).items() if claim.page == topic}


def _claim(id: str, row: Any, name: str, paper: str) -> Claim:
    if not isinstance(row, dict):
        raise ClaimError(f'{name}: {id} should be a table, such as ["{paper}.fig1"].')
    if not id.startswith(f"{paper}."):
        raise ClaimError(f"{name}: {id} belongs to another paper; ids here begin with {paper}.")
    lacking = [key for key in _REQUIRED if not row.get(key)]
    unknown = sorted(row.keys() - _FIELDS)
    if lacking or unknown:
        raise ClaimError(f"{name}: {id} lacks {lacking}, and has the unknown fields {unknown}.")
    if row["kind"] not in KINDS:
        raise ClaimError(f"{name}: {id} has kind {row['kind']!r}; there are {', '.join(KINDS)}.")
    if bool(row.get("found")) != bool(row.get("found_for")):
        raise ClaimError(f"{name}: {id} should have found and found_for, or neither.")
    if row.get("found_for") and row["found_for"] not in VERDICTS:
        raise ClaimError(f"{name}: {id} is found_for {row['found_for']!r}; there are {', '.join(VERDICTS)}.")
    dates = [row["fixed"]]
    for entry in row.get("revised", []):
        if not isinstance(entry, dict) or entry.keys() != _REVISION:
            raise ClaimError(f"{name}: each entry in revised of {id} needs date, reason and was, no more.")
        dates.append(entry["date"])
    today = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(
        days=1
    )  # it may be later elsewhere
    for date in dates:
        if type(date) is not datetime.date:
            raise ClaimError(f"{name}: {id} needs dates without quotes, such as 2026-11-20, not {date!r}.")
        if date > today:
            raise ClaimError(f"{name}: {id} has the date {date}, which lies in the future.")
    texts: dict[str, Any] = {k: v.strip() if isinstance(v, str) else v for k, v in row.items()}
    return Claim(id=id, **texts)


def judge(claim: Claim, effects: Iterable[Effect], *, tested: bool = True) -> dict[str, Any]:
    """What a table of results says of ``claim``: verdict, effects, conditions and the sentence on them.

    ``tested`` is False at ``smoke``, which proves only that the code runs.
    """
    found = list(effects)
    wrong = [one for one in found if not isinstance(one, Effect)]
    if wrong:
        raise ClaimError(
            f"{claim.id}: a claim yields effects, such as press.above(name, values), not {wrong[0]!r:.60}."
        )
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ClaimError(f"{claim.id}: two effects are called {twice[0]!r}: give each a name of its own.")
    return {
        "verdict": _verdict(claim, found, tested),
        "effects": [one.as_json() for one in found if not one.condition],
        "conditions": [one.as_json() for one in found if one.condition],
        "found": claim.found,
    }


def _verdict(claim: Claim, effects: list[Effect], tested: bool) -> str:
    if claim.kind in ("shown", "not tried"):
        if effects:
            raise ClaimError(f"{claim.id} is {claim.kind}: it takes no effects.")
        return claim.kind.upper()
    if not any(not one.condition for one in effects):
        raise ClaimError(f"{claim.id} yields no effect: yield press.above(name, values) or one of its kin.")
    exact = [one for one in effects if one.kind == "exact"]
    if claim.kind == "exact":
        if len(exact) < len(effects):
            raise ClaimError(f"{claim.id} is exact: its effects are press.at_most(name, deviations, limit).")
        failed = [one for one in exact if one.answer != "yes"]
        if failed:
            said = "; ".join(f"{one.name}: {one.mean:.3g}, at most {one.bound[0]:g}" for one in failed)
            raise AssertionError(f"{claim.id} is exact and does not hold: {said}.")
        return "EXACT"
    if exact:
        raise ClaimError(f'{claim.id}: press.at_most is for claims of kind = "exact".')
    if not tested:
        return "UNTESTED"
    single = [one.name for one in effects if one.interval is None and one.kind in ("runs", "ratio")]
    if single:
        raise ClaimError(
            f"{claim.id}: {single[0]!r} has one run, and one run has no interval: raise the runs in settings."
        )
    return verdict(effects)


def sentence(claim: Claim, judged: Mapping[str, Any]) -> str:
    """What we found, with the numbers of this table; "to be written" where the verdict is another one."""
    if not claim.found:
        return ""
    if judged["verdict"] != claim.found_for:
        return TO_BE_WRITTEN
    return filled(claim, judged)


def filled(claim: Claim, judged: Mapping[str, Any]) -> str:
    """``found`` with its numbers."""
    values = {_Numbers.key(one): _Numbers(one) for one in [*judged["effects"], *judged["conditions"]]}
    try:
        return claim.found.format_map(values)
    except (KeyError, AttributeError, ValueError, IndexError) as error:
        raise ClaimError(
            f"what {claim.id} found cannot be filled in ({type(error).__name__}: {error}). There are: "
            f"{', '.join(values)}, each with .mean .low .high .interval .paper."
        ) from None


class _Numbers:
    """The numbers of an effect as ``found`` names them: ``{slope.mean:.2f} {slope.interval}``."""

    def __init__(self, effect: Mapping[str, Any]) -> None:
        self.mean = effect["mean"]
        self.paper = effect["paper"]
        ends = effect["interval"] or [float("nan"), float("nan")]
        self.low, self.high = float(ends[0]), float(ends[1])
        self.interval = f"[{self.low:.2g}, {self.high:.2g}]"
        self.percent = f"{100 * self.mean:.0f}%"

    @staticmethod
    def key(effect: Mapping[str, Any]) -> str:
        fields = {key: effect[key] for key in ("name", "values", "side", "bound", "mean", "interval")}
        return Effect(**fields).key


def changed_since(claim: Claim, criterion: str, date: str) -> bool:
    """Has the criterion changed, without a word, since a record of ``date`` was judged by ``criterion``?

    A change that says so has an entry in ``revised`` whose ``was`` is the record's criterion.
    """
    if claim.criterion == criterion:
        return False
    return all(entry["was"] != criterion for entry in claim.revised)
