"""Records: the claims and figures of runs worth keeping, under ``records/``, and what they say together.

A record is ``records/<paper>/<page>/<date>-<profile>/`` with ``run.json`` (date, profile, machine,
commit, versions, settings), ``claims/*.json``, ``figures/*.svg`` and the tables behind them as ``*.csv``,
and ``tables.json``, the tables of the page in their order.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repalign._files import replace_directory, write_json, write_text
from repalign.runner.pages import Page, UserError
from repalign.study.claims import read
from repalign.study.tables import TABLE, number, shown

TABLES = "tables.json"


@dataclass(frozen=True)
class Kept:
    """The results of one run of a page, live or recorded."""

    place: Path
    run: dict[str, Any] = field(default_factory=dict)
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def profile(self) -> str:
        """The profile, and what was changed in it: ``laptop`` or ``laptop with n=9``."""
        given = ", ".join(f"{name}={value}" for name, value in self.run.get("changed", {}).items())
        return self.run["profile"] + (f" with {given}" if given else "")

    def figure(self, id: str) -> str | None:
        """The SVG of figure ``id``, if this run drew it."""
        path = self.place / "figures" / f"{id}.svg"
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def table(self, id: str) -> Path | None:
        """The table behind figure ``id``, if this run kept it."""
        path = self.place / "figures" / f"{id}.csv"
        return path if path.is_file() else None

    @property
    def tables(self) -> list[str]:
        """The tables that the page showed, as HTML, in their order; none in records without them."""
        path = self.place / TABLES
        return list(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else []


def tables_of(notebook: Any) -> list[Any]:
    """The outputs of an executed page that :func:`repalign.study.table` made, in their order."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [one for one in outputs if one.get("data", {}).get("text/html", "").startswith(TABLE)]


def kept(place: Path) -> Kept | None:
    """What a run left at ``place``, or None if there is no finished run."""
    if not (place / "run.json").is_file():
        return None
    try:
        run = json.loads((place / "run.json").read_text(encoding="utf-8"))
        claims = {claim["id"]: claim for claim in read(place / "claims")}
    except ValueError as error:
        raise UserError(f"{place} is damaged ({error}). Delete it and run its page again.") from None
    return Kept(place, run, claims)


def live(root: Path, page: str, profile: str) -> Kept | None:
    """The last finished run of ``page`` at ``profile``."""
    return kept(root / "build" / profile / page)


def seconds(root: Path, page: str, profile: str, *, or_recorded: bool = False) -> float | None:
    """What the last run of ``page`` at ``profile`` took; without one, None or what its newest record took."""
    try:
        last = live(root, page, profile) or (newest(root, page) if or_recorded else None)
    except UserError:  # damaged, and about to be replaced
        return None
    return float(last.run["seconds"]) if last and "seconds" in last.run else None


def newest(root: Path, page: str) -> Kept | None:
    """The newest record of ``page``; of the same day, the larger profile."""
    size = {"laptop": 0, "desktop": 1, "paper": 2}
    found = []
    for place in (root / "records" / page).glob("*-*-*-*"):
        date, _, profile = place.name.rpartition("-")
        if profile in size:
            found.append((date, size[profile], place))
    return kept(max(found)[2]) if found else None


def record(root: Path, page: Page, profile: str) -> Path:
    """Keep the last run of ``page`` at ``profile`` as a record, and return where."""
    if profile == "smoke":
        raise UserError("a smoke run gives no verdict, so it is not recorded: choose another --profile.")
    run = live(root, page.name, profile)
    if run is None:
        raise UserError(
            f"{page.name} has no finished run at {profile}: repalign run {page.name} --profile {profile}."
        )
    if run.profile != profile:
        raise UserError(
            f"{page.name} was run at {run.profile}; only runs with the table's own settings are "
            f"recorded: repalign run {page.name} --profile {profile}."
        )
    import nbformat

    place = root / "records" / page.name / f"{run.run['date']}-{profile}"
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=place.parent, prefix=".record-"))
    try:
        os.chmod(fresh, 0o755)
        shutil.copytree(run.place, fresh, dirs_exist_ok=True)
        page_as_run = nbformat.read(run.place.with_name(f"{run.place.name}.ipynb"), as_version=4)
        write_json(fresh / TABLES, [one.data["text/html"] for one in tables_of(page_as_run)])
        replace_directory(fresh, place)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return place


def evidence(root: Path, page: str, profile: str, *, or_recorded: bool = True) -> dict[str, dict[str, Any]]:
    """For each claim of ``page`` its best-founded result: the newest record's, else the live run's.

    Without ``or_recorded``, the live run's alone.
    """
    sources = [(False, live(root, page, profile))]
    sources += [(True, newest(root, page))] if or_recorded else []
    return {
        id: {**claim, "profile": source.profile, "recorded": recorded}
        for recorded, source in sources
        if source
        for id, claim in source.claims.items()
    }


# What is counted apart: evidence on the paper's own data and kind of network, and on a stand-in.
KINDS = (
    *("exact", "shown", "reproduced", "reproduced on a stand-in", "partly", "open", "not reproduced"),
    "untested",
)


def kind(claim: dict[str, Any]) -> str:
    """Under which of KINDS a claim is counted."""
    verdict = str(claim["verdict"]).lower()
    return "reproduced on a stand-in" if verdict == "reproduced" and claim["stand_in"] else verdict


def counts(claims: Iterable[dict[str, Any]]) -> dict[str, int]:
    """How many claims there are of each kind, in the order of KINDS."""
    counted = Counter(kind(claim) for claim in claims)
    return {name: counted[name] for name in KINDS}


def summary(claims: list[dict[str, Any]]) -> str:
    """Verdicts counted in a few words, for a heading."""
    return ", ".join(f"{n} {name}" for name, n in counts(claims).items() if n) or "no claim measured yet"


def in_words(claim: dict[str, Any], most: int = 3) -> str:
    """What was measured, in a line: effects without a yes first, then those with a number of the paper."""
    effects = claim["effects"]
    if not effects:
        return shown(claim["measured"]) if claim["measured"] not in (None, {}, []) else ""
    chosen = sorted(effects, key=lambda e: (("no", "open", "yes").index(e["answer"]), e["paper"] is None))
    parts = [_one_effect(effect) for effect in chosen[:most]]
    yes = sum(effect["answer"] == "yes" for effect in effects)
    rest = [f"{yes} of {len(effects)} effects yes"] if len(effects) > len(parts) else []
    return "; ".join([*rest, *parts])


def _one_effect(effect: dict[str, Any]) -> str:
    ends = effect["interval"]
    interval = f" [{number(ends[0], 3)}, {number(ends[1], 3)}]" if ends else ""
    paper = f" (paper {number(effect['paper'], 3)})" if effect["paper"] is not None else ""
    text = f"{effect['name']}: {number(effect['mean'], 3)}{interval}{paper}"
    if effect["answer"] == "yes":
        return text
    # A bound of zero is the usual one, and the interval shows its sign.
    bound = f", claimed {effect['side']} {shown(effect['bound'])}" if any(effect["bound"]) else ""
    return f"{text}{bound}, {effect['answer']}"


def _settled(claim: dict[str, Any]) -> bool:
    return claim["verdict"] in ("EXACT", "SHOWN", "REPRODUCED")


def _in_the_way(claim: dict[str, Any], most: int = 3) -> str:
    """The effects that keep a claim from being reproduced, those that are a no first."""
    against = [e for answer in ("no", "open") for e in claim["effects"] if e["answer"] == answer]
    if not against:
        return in_words(claim)
    parts = [_one_effect(effect) for effect in against[:most]]
    more = [f"{len(against) - most} more"] if len(against) > most else []
    of = f"{len(against)} of {len(claim['effects'])} effects"
    return f"{of} without a yes: " + "; ".join([*parts, *more])


def write_readme(root: Path, pages: list[Page]) -> None:
    """Update the README's table from the records, between its two markers."""
    found = [(page.name, record) for page in pages if (record := newest(root, page.name))]
    counted = {name: counts(record.claims.values()) for name, record in found}
    used = [name for name in KINDS if any(row[name] for row in counted.values())]
    rows = [f"| page | recorded | {' | '.join(used)} |", "|---" * (len(used) + 2) + "|"]
    for name, record in found:
        when = f"{record.run['date']}, {record.run['profile']}"
        numbers = " | ".join(str(counted[name][one] or "") for one in used)
        rows.append(f"| `{name}` | {when} | {numbers} |")
    totals = " | ".join(str(sum(row[one] for row in counted.values())) for one in used)
    rows.append(f"| all | | {totals} |")
    failed = [claim for _, record in found for claim in record.claims.values() if not _settled(claim)]
    if failed:
        title = f"{len(failed)} claims that are open, or hold in part or not at all; their pages say more"
        rows += ["", "<details>", f"<summary>{title}</summary>", ""]
        rows += [f"- `{claim['id']}`, {claim['verdict'].lower()}: {_in_the_way(claim)}" for claim in failed]
        rows += ["", "</details>"]
    path = root / "README.md"
    text = path.read_text(encoding="utf-8")
    pattern = r"(<!-- scoreboard -->\n).*?(<!-- /scoreboard -->)"
    renewed, times = re.subn(pattern, lambda m: m[1] + "\n".join(rows) + "\n" + m[2], text, flags=re.S)
    if not times:
        raise UserError("README.md has lost its <!-- scoreboard --> markers: put them back around the table.")
    if renewed != text:
        write_text(path, renewed)
