"""Claims: the rows of ``notebooks/<paper>/claims.toml``, and the verdict that a table of results gives them.

The file is the only copy of what a paper says, of the criterion and of what we found. A row is fixed by a
commit before the recorded run; a later change says so in ``revised``.
"""

from __future__ import annotations

import datetime
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from repalign.press import tables
from repalign.press.effects import Effect, key_of, verdict

# paper: what the paper says; ours: a control, a robustness check, an extension; exact: mathematics to
# rounding; shown: an illustration that cannot fail; not tried: needs the paper's scale.
KINDS = ("paper", "ours", "exact", "shown", "not tried")
VERDICTS = (
    "EXACT",
    "SHOWN",
    "REPRODUCED",
    "PARTLY",
    "OPEN",
    "NOT REPRODUCED",
    "NOT TRIED",
    "UNTESTED",
)
TO_BE_WRITTEN = "To be written: the verdict is no longer the one that the text was written for."


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


# Of a row in claims.toml, whose name is the id.
_FIELDS = {one.name for one in fields(Claim)} - {"id"}
_REQUIRED = ("page", "says", "kind", "criterion", "fixed")
_TEXTS = _FIELDS - {"fixed", "paper_value", "revised"}
_REVISION = {"date", "reason", "was"}


def path(root: Path, paper: str) -> Path:
    """Where the claims of ``paper`` are."""
    return root / "notebooks" / paper / "claims.toml"


def read(root: Path, paper: str) -> dict[str, Claim]:
    """All claims of a paper by id, in the order of the file; none when there is no such file."""
    place = path(root, paper)
    if not place.is_file():
        return {}
    name = f"notebooks/{paper}/claims.toml"
    try:
        text = place.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ClaimError(f"{name} is not UTF-8 text ({error}): save it as UTF-8.") from None
    return parse(text, name, paper)


def parse(text: str, name: str, paper: str) -> dict[str, Claim]:
    """The claims in ``text``; ``name`` is the file for errors."""
    try:
        rows = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClaimError(f"{name} is not TOML: {error}.") from None
    found = {}
    for id, row in rows.items():
        wrong = _wrong(id, row, paper)
        if wrong:
            raise ClaimError(f"{name}: {id} {wrong}.")
        values: dict[str, Any] = {k: v.strip() if isinstance(v, str) else v for k, v in row.items()}
        found[id] = Claim(id=id, **values)
    return found


def of_page(root: Path, page: str) -> dict[str, Claim]:
    """The claims of the page ``paper/NN_topic``."""
    paper, _, topic = page.partition("/")
    return {id: claim for id, claim in read(root, paper).items() if claim.page == topic}


def _wrong(id: str, row: Any, paper: str) -> str:
    """What is wrong with a row, in words that follow its id; nothing where all is well."""
    if not isinstance(row, dict):
        return f'should be a table, such as ["{paper}.fig1"]'
    if not id.startswith(f"{paper}."):
        return f"belongs to another paper: ids here begin with {paper}."
    lacking = [key for key in _REQUIRED if not row.get(key)]
    if lacking:
        return f"lacks {', '.join(lacking)}"
    unknown = sorted(row.keys() - _FIELDS)
    if unknown:
        return f"has the unknown fields {', '.join(unknown)}: there are {', '.join(sorted(_FIELDS))}"
    odd = sorted(key for key in row.keys() & _TEXTS if not isinstance(row[key], str))
    if odd:
        return f"should have a text in quotes as {odd[0]}, not {row[odd[0]]!r}"
    if row["kind"] not in KINDS:
        return f"has the kind {row['kind']!r}: there are {', '.join(KINDS)}"
    if bool(row.get("found")) != bool(row.get("found_for")):
        return "should have found and found_for, or neither"
    if row.get("found_for", "") not in ("", *VERDICTS):
        return f"is found_for {row['found_for']!r}: there are {', '.join(VERDICTS)}"
    revised = row.get("revised", [])
    if not isinstance(revised, list) or not all(_is_revision(entry) for entry in revised):
        return 'should have revised = [{ date = 2026-11-20, reason = "…", was = "…" }], with all three'
    for date in (row["fixed"], *(entry["date"] for entry in revised)):
        wrong = _wrong_date(date)
        if wrong:
            return wrong
    return ""


def _is_revision(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() == _REVISION
        and all(isinstance(entry[name], str) and entry[name].strip() for name in ("reason", "was"))
    )


def _wrong_date(date: Any) -> str:
    if type(date) is not datetime.date:
        return f"needs dates without quotes, such as 2026-11-20, not {date!r}"
    # It may be a day later elsewhere.
    latest = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1)
    return f"has the date {date}, which lies in the future" if date > latest else ""


def judge(claim: Claim, yielded: Iterable[Effect] | Effect | None, *, tested: bool = True) -> dict[str, Any]:
    """What a table of results says of ``claim``: its verdict, with the effects and conditions behind it.

    ``tested`` is False at ``smoke``, which proves only that the code runs.
    """
    effects = _effects(claim, yielded)
    return {
        "verdict": _verdict(claim, effects, tested),
        "effects": [one.as_json() for one in effects if not one.condition],
        "conditions": [one.as_json() for one in effects if one.condition],
    }


def _effects(claim: Claim, yielded: Any) -> list[Effect]:
    """What a claim's function yielded, or returned: effects, one, or nothing."""
    if yielded is None:
        return []
    found = list(yielded) if isinstance(yielded, Iterable) else [yielded]
    for one in found:
        if not isinstance(one, Effect):
            raise ClaimError(
                f"{claim.id}: a claim yields effects, such as press.above(name, values), not {one!r:.60}."
            )
    twice = [name for name, count in Counter(one.name for one in found).items() if count > 1]
    if twice:
        raise ClaimError(f"{claim.id}: two effects are called {twice[0]!r}: give each a name of its own.")
    return found


def _verdict(claim: Claim, effects: list[Effect], tested: bool) -> str:
    if claim.kind in ("shown", "not tried"):
        if effects:
            raise ClaimError(f"{claim.id} is {claim.kind}: it takes no effects.")
        return claim.kind.upper()
    if all(one.condition for one in effects):
        raise ClaimError(f"{claim.id} yields no effect: yield press.above(name, values) or one of its kin.")
    if claim.kind == "exact":
        return _exact(claim, effects)
    if any(one.kind == "exact" for one in effects):
        raise ClaimError(f'{claim.id}: press.at_most is for claims of kind = "exact".')
    if not tested:
        return "UNTESTED"
    single = [one.name for one in effects if one.interval is None and one.kind in ("runs", "ratio")]
    if single:
        raise ClaimError(
            f"{claim.id}: {single[0]!r} has one run, and one run has no interval: raise the runs in settings."
        )
    return verdict(effects)


def _exact(claim: Claim, effects: list[Effect]) -> str:
    if any(one.kind != "exact" for one in effects):
        raise ClaimError(f"{claim.id} is exact: its effects are press.at_most(name, deviations, limit).")
    failed = [one for one in effects if one.answer != "yes"]
    if failed:
        said = "; ".join(f"{one.name}: {one.mean:.3g}, at most {one.bound[0]:g}" for one in failed)
        raise AssertionError(f"{claim.id} is exact and does not hold: {said}.")
    return "EXACT"


def sentence(claim: Claim, judged: Mapping[str, Any]) -> str:
    """What we found, with the numbers of this table; "to be written" where the verdict is another one."""
    if not claim.found:
        return ""
    if judged["verdict"] != claim.found_for:
        return TO_BE_WRITTEN
    return filled(claim, judged)


def texts(claim: Claim, judged: Mapping[str, Any], recorded: bool) -> dict[str, Any]:
    """What claims.toml says of a claim today, for its card; what was found only of a record."""
    return {
        "id": claim.id,
        **{name: getattr(claim, name) for name in ("says", "where", "kind", "criterion", "stand_in")},
        "paper_value": claim.paper_value,
        "fixed": claim.fixed.isoformat(),
        "revised": [{**entry, "date": entry["date"].isoformat()} for entry in claim.revised],
        "found": sentence(claim, judged) if recorded else "",
    }


def filled(claim: Claim, judged: Mapping[str, Any]) -> str:
    """``found`` with its numbers."""
    effects = [*judged["effects"], *judged["conditions"]]
    counted = Counter(key_of(one["name"]) for one in effects)
    # Of two effects whose names differ in signs alone neither can be meant.
    values = {key: _Numbers(one) for one in effects if counted[key := key_of(one["name"])] == 1}
    try:
        return claim.found.format_map(values)
    except (KeyError, AttributeError, ValueError, IndexError, TypeError) as error:
        raise ClaimError(
            f"what {claim.id} found cannot be filled in ({type(error).__name__}: {error}). There are: "
            f"{', '.join(values)}, each with .mean .size .percent .low .high .interval .paper."
        ) from None


class _Numbers:
    """The numbers of an effect as ``found`` names them: ``{slope.mean:.2f} {slope.interval}``."""

    def __init__(self, effect: Mapping[str, Any]) -> None:
        self.mean = effect["mean"]
        self.size = abs(effect["mean"])  # "falls by 0.2"
        self.paper = effect["paper"]
        ends = effect["interval"] or [float("nan"), float("nan")]
        self.low, self.high = float(ends[0]), float(ends[1])
        self.interval = tables.interval(self.low, self.high)
        self.percent = f"{100 * self.mean:.0f}%"


def changed_since(claim: Claim, criterion: str) -> bool:
    """Has the criterion changed, without a word, since a record was judged by ``criterion``?

    A change that says so has an entry in ``revised`` whose ``was`` is the record's criterion.
    """
    if claim.criterion == criterion:
        return False
    return all(entry["was"] != criterion for entry in claim.revised)
