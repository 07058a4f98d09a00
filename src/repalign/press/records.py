"""Records: the tables of a finished run with the provenance of every cell, in ``records/<paper>/<page>/``.

A record is data. ``<sweep>.parquet`` has the rows, ``<sweep>.cells.parquet`` a row for each cell: its
configuration, the fingerprint of its data, and commit, date, seconds, processor and versions of its
computation. ``run.json`` has what they share, the criteria they were judged by, and digests of the files.
Figures and verdicts are not kept: they are functions of the tables.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repalign._files import replace_directory, write_json
from repalign.press import claims, provenance
from repalign.press.effects import Effect
from repalign.press.settings import FIRST_SEED

if TYPE_CHECKING:
    import pandas as pd

    from repalign.press.sweep import Result

FORM = 2  # of run.json; the first form kept drawings
RUN, VERIFIED = "run.json", "verified.json"
# Profiles that are evidence.
RECORDED = ("desktop", "paper")
_NEEDED: dict[str, Any] = {
    "page": str,
    "profile": str,
    "date": str,
    "commit": str,
    "clean": bool,
    "seconds": (int, float),
    "settings": dict,
    "sweeps": dict,
    "claims": dict,
    "machine": str,
    "versions": dict,
}
# What a record has besides, and a run has not.
_KEPT = {"criteria": dict, "history": list, "retired": list, "work": dict}
# What the parts of a sweep and of an earlier record are.
_SWEEP = {"rows": int, "cells": int, "sha256": dict}
_EARLIER = {"date": str, "profile": str, "commit": str, "verdicts": dict}


class RecordError(Exception):
    """A record cannot be read, trusted or kept: says which page, what came, and what to do."""


@dataclass(frozen=True)
class Record:
    """The record of one page."""

    place: Path
    run: dict[str, Any]

    @property
    def page(self) -> str:
        return str(self.run["page"])

    def sweep(self, name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The rows and the cells of a sweep; a file that is not the recorded one is an error."""
        about = self.run["sweeps"].get(name)
        if about is None:
            raise RecordError(
                f"the record of {self.page} has no sweep {name}: it has {', '.join(self.run['sweeps'])}. "
                "If its function was only renamed, give the sweep its old name (page.sweep(…, name=…)); else "
                f"record the page again: repalign run {self.page} --profile desktop --fresh."
            )
        found = []
        for file in _files(name):
            raw = _bytes(self.place / file, self.page)
            if hashlib.sha256(raw).hexdigest() != about["sha256"].get(file):
                raise RecordError(
                    f"{file} of {self.page} is not the file that the run left: take it back from git, or run "
                    "the page again."
                )
            found.append(_frame(self.place / file, self.page))
        return found[0], found[1]

    def sweeps(self) -> Iterator[str]:
        """The names of the recorded sweeps."""
        yield from self.run["sweeps"]

    def label(self) -> str:
        """What its tab says."""
        return f"record of {self.run['date']} ({self.run['profile']})"

    def made(self) -> str:
        """How its numbers were made, in a line: from the cells, never from a redraw."""
        cells = [self.sweep(name)[1] for name in self.sweeps()]
        seconds = sum(float(table["seconds"].sum()) for table in cells)
        count = sum(len(table) for table in cells)
        processors = sorted({str(one) for table in cells for one in table["processor"]})
        run = self.run
        return (
            f"profile {run['profile']}, {run['date']}, commit {run['commit']}, {count} cells, "
            f"{seconds:.0f} s of computing on {' and '.join(processors) or run['machine']}, "
            f"torch {run['versions'].get('torch', '?')}"
        )

    def earlier(self, id: str) -> list[str]:
        """What the records before this one said of a claim; git has their files."""
        lines = []
        for one in self.run.get("history", []):
            if id in one["verdicts"]:
                lines.append(
                    f"{one['date']} ({one['profile']}, commit {one['commit']}): {one['verdicts'][id]}"
                )
        return lines

    def verified(self) -> str:
        """When cells were last computed again, and how far they were off; nothing before the first time."""
        place = self.place / VERIFIED
        if not place.is_file():
            return ""
        try:
            last = json.loads(place.read_text(encoding="utf-8"))[-1]
            return (
                f"{last['date']}, at commit {last['commit']}: {last['cells']} of {last['of']} cells on "
                f"{last['processor']}, largest relative difference {last['largest']:.1g}"
            )
        except (ValueError, KeyError, IndexError, TypeError):
            raise RecordError(f"{VERIFIED} of {self.page} cannot be read: delete it.") from None


def place_of(root: Path, page: str) -> Path:
    """Where the record of ``page`` is."""
    return root / "records" / page


def newest(root: Path, page: str) -> Record | None:
    """The record of ``page``, or None where there is none of this form."""
    place = place_of(root, page)
    if not (place / RUN).is_file():
        return None
    return read(place, page)


def read(place: Path, page: str) -> Record:
    """The run or record at ``place``."""
    again = f"Take it back from git, or run {page} again."
    try:
        run = json.loads((place / RUN).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{RUN} of {page} cannot be read ({error}). {again}") from None
    if not isinstance(run, dict) or run.get("form") != FORM:
        raise RecordError(f"{RUN} of {page} is not of form {FORM}. {again}")
    lacking = [key for key, kind in _NEEDED.items() if not isinstance(run.get(key), kind)]
    lacking += [key for key, kind in _KEPT.items() if key in run and not isinstance(run[key], kind)]
    if lacking or run["page"] != page:
        raise RecordError(f"{RUN} of {page} lacks {', '.join(lacking) or 'its own name'}. {again}")
    parts: list[tuple[Any, dict[str, Any]]] = [(part, _SWEEP) for part in run["sweeps"].values()]
    parts += [(part, {}) for part in run["claims"].values()]
    parts += [(part, _EARLIER) for part in run.get("history", [])]
    if not all(_has(part, kinds) for part, kinds in parts):
        raise RecordError(f"{RUN} of {page} has a sweep, a claim or a history that cannot be read. {again}")
    try:
        day = datetime.date.fromisoformat(run["date"])
    except (TypeError, ValueError):
        raise RecordError(f"{RUN} of {page} has the date {run['date']!r}, which is none. {again}") from None
    if day > _tomorrow():
        raise RecordError(f"{RUN} of {page} has the date {day}, which lies in the future. {again}")
    return Record(place, run)


def _has(part: Any, kinds: dict[str, Any]) -> bool:
    return isinstance(part, dict) and all(isinstance(part.get(key), kind) for key, kind in kinds.items())


def write_sweep(out: Path, name: str, found: Result) -> None:
    """Keep a finished sweep of this run in ``out``."""
    for file, table in zip(_files(name), (found.table, found.cells), strict=True):
        out.mkdir(parents=True, exist_ok=True)
        part = out / f".{file}.part"
        try:
            table.to_parquet(part, index=False, compression="zstd")
            os.replace(part, out / file)
        except (ValueError, TypeError) as error:
            raise TypeError(
                f"the table of {name} cannot be kept ({error}): a column holds numbers, texts or booleans."
            ) from None
        finally:
            part.unlink(missing_ok=True)


def described(out: Path, name: str) -> dict[str, Any]:
    """What ``run.json`` says of a sweep: its size, and the digests of its files."""
    table, cells = (_frame(out / file, name) for file in _files(name))
    marks = {file: hashlib.sha256((out / file).read_bytes()).hexdigest() for file in _files(name)}
    return {"rows": len(table), "cells": len(cells), "sha256": marks}


def keep(root: Path, page: str, profile: str, retired: Iterable[str] = ()) -> Path:
    """Make the last run of ``page`` at ``profile`` its record; what speaks against it is an error."""
    if profile not in RECORDED:
        raise RecordError(f"a run at {profile} is no evidence: only {' and '.join(RECORDED)} are recorded.")
    place = root / "build" / profile / page
    rerun = f"repalign run {page} --profile {profile} --fresh"
    if not (place / RUN).is_file():
        raise RecordError(f"{page} has no finished run at {profile}: {rerun}.")
    run = read(place, page)
    wrong = _against(root, run)
    if wrong:
        raise RecordError(f"{page} is not recorded: {'; '.join(wrong)}. Then: {rerun}.")
    before = _before(root, page, run)
    known = claims.read(root, page.partition("/")[0])
    last = newest(root, page)
    if last is not None and last.run["sweeps"] != run.run["sweeps"]:
        wrong = _weakened(last, run, known)
        if wrong:
            raise RecordError(f"{page} is not recorded: {'; '.join(wrong)}.")
    judged_before = set(last.run["claims"]) if last else {id for one in before[:1] for id in one["verdicts"]}
    _none_lost(page, judged_before, set(known) | set(retired))
    target = place_of(root, page)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=".record-"))
    try:
        os.chmod(fresh, 0o755)
        for name in run.sweeps():
            for file in _files(name):
                shutil.copyfile(place / file, fresh / file)
        criteria = {id: known[id].criterion for id in run.run["claims"]}
        judged = {id: found["live"] for id, found in run.run["claims"].items() if "live" in found}
        facts = {key: value for key, value in run.run.items() if key not in ("mode", "changed", "key")}
        facts |= {"criteria": criteria, "claims": judged, "history": before, "retired": sorted(retired)}
        write_json(fresh / RUN, facts)
        replace_directory(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def _weakened(last: Record, run: Record, known: dict[str, claims.Claim]) -> list[str]:
    """Claims judged by another criterion than in the last record: without a word, or on seeds it has seen."""
    changed = [
        known[id]
        for id, criterion in last.run.get("criteria", {}).items()
        if id in run.run["claims"] and id in known and known[id].criterion != criterion
    ]
    found = [
        f"the criterion of {claim.id} is not that of the record before, and revised does not say so"
        for claim in changed
        if claims.changed_since(claim, last.run["criteria"][claim.id])
    ]
    seen = sorted(_seeds(last) & _seeds(run))
    if seen and any(claim.kind != "exact" for claim in changed):
        found.append(
            f"criteria were revised after seeds {seen[0]} to {seen[-1]} had been seen: run on new ones "
            "(page.settings(…, first_seed=…))"
        )
    return found


def _seeds(record: Record) -> set[int]:
    """The seeds of its cells that are evidence: those of pilots do not count."""
    cells = [record.sweep(name)[1]["configuration"] for name in record.sweeps()]
    named = {int(seed) for table in cells for text in table for seed in re.findall(r"\bseed=(\d+)", text)}
    return {seed for seed in named if seed >= FIRST_SEED}


def _none_lost(page: str, recorded: set[str], known: set[str]) -> None:
    lost = sorted(recorded - known)
    if lost:
        raise RecordError(
            f"{page} is not recorded: its record judges {', '.join(lost)}, and claims.toml has no such "
            "row any more. Put the rows back, or name each with --retired."
        )


def judge(root: Path, page: str, retired: Iterable[str] = ()) -> list[str]:
    """Keep what today's claims say of the recorded tables, as the last reading found it; what has changed."""
    record = newest(root, page)
    found = read(root / "build" / "read" / page, page)
    assert record is not None
    now = {id: one["record"] for id, one in found.run["claims"].items()}
    then = record.run["claims"]
    # A claim that has moved to another page is not lost: its row is there.
    rows = claims.read(root, page.partition("/")[0])
    _none_lost(page, set(then), set(rows) | set(retired))
    wrong = _afterwards(root, record, now, rows)
    if wrong:
        raise RecordError(f"{page} is not judged again: {'; '.join(wrong)}.")
    changed = {
        id: then[id]["verdict"] for id in now if id in then and then[id]["verdict"] != now[id]["verdict"]
    }
    facts = {**record.run, "claims": now, "criteria": {id: rows[id].criterion for id in now}}
    # What work a page has is no result of the run, but what the page says today.
    facts["work"] = found.run.get("work", {})
    if changed:
        about = {key: record.run[key] for key in ("date", "profile", "commit")}
        facts["history"] = [{**about, "verdicts": changed}, *record.run.get("history", [])]
    write_json(record.place / RUN, facts)
    return [
        f"{id}: {then.get(id, {}).get('verdict', 'not judged')} to {one['verdict']}"
        for id, one in now.items()
        if then.get(id, {}).get("verdict") != one["verdict"]
    ]


def _afterwards(
    root: Path, record: Record, now: dict[str, dict[str, Any]], rows: dict[str, claims.Claim]
) -> list[str]:
    """What must not change once the tables are seen: claims, criteria, on which side effects lie."""
    paper, found = record.page.partition("/")[0], []
    for id, one in now.items():
        if rows[id].kind in ("exact", "shown", "not tried"):
            continue
        if not any(kept == rows[id].criterion for kept in _criteria_of(root, paper, id)):
            found.append(
                f"the criterion of {id} is in no record of this chapter: a claim is fixed before its run, so "
                f"record the page again on new seeds (repalign run {record.page} --profile desktop --fresh)"
            )
            continue
        before = {effect["name"]: effect for effect in record.run["claims"].get(id, {}).get("effects", [])}
        moved = [
            effect["name"]
            for effect in one["effects"]
            if effect["name"] in before
            and any(effect[key] != before[effect["name"]][key] for key in ("side", "bound"))
        ]
        if moved:
            found.append(f"the bound of {moved[0]!r} of {id} is not the one that it was recorded with")
    return found


def _criteria_of(root: Path, paper: str, id: str) -> list[str]:
    """The criteria by which records of a chapter judge a claim: it may have moved to another page."""
    found = []
    for place in sorted((root / "records" / paper).glob(f"*/{RUN}")):
        criteria = read(place.parent, f"{paper}/{place.parent.name}").run.get("criteria", {})
        found += [criteria[id]] if id in criteria else []
    return found


def differing(record: Record, judged: dict[str, dict[str, Any]]) -> list[str]:
    """Claims whose kept verdict is not the one that the recorded tables give."""
    kept = record.run["claims"]
    return [
        f"{id} is kept as {kept.get(id, {}).get('verdict')}, and its record says {one['verdict']}"
        for id, one in judged.items()
        if id not in kept or kept[id]["verdict"] != one["verdict"]
    ]


def _against(root: Path, run: Record) -> list[str]:
    """What speaks against keeping a run as evidence."""
    facts, found = run.run, []
    if facts.get("mode") != "run" or facts.get("edited"):
        found.append("the package or the page was edited while it ran")
    if facts.get("changed"):
        found.append(f"it was run with {', '.join(facts['changed'])} changed")
    if not facts["clean"]:
        found.append("it was run on files that differ from their commit (untracked ones count): commit first")
    if not known_commit(root, facts["commit"]):
        found.append(f"its commit {facts['commit']} is not in this history")
    if not facts["sweeps"]:
        found.append("it has no table")
    for name in run.sweeps():
        try:
            _, cells = run.sweep(name)
        except RecordError as error:
            found.append(str(error))
            continue
        if not cells["clean"].all() or set(cells["commit"]) != {facts["commit"]}:
            found.append(f"cells of {name} were computed at another commit: run with --fresh")
    rows = claims.of_page(root, run.page)
    if set(rows) != set(facts["claims"]):
        found.append("claims.toml has other claims for this page now")
    try:
        then = _criteria_at(root, run.page, facts["commit"])
    except (OSError, subprocess.CalledProcessError, claims.ClaimError):
        then = {}
    for id, row in rows.items():
        if then.get(id) != row.criterion:
            found.append(
                f"the criterion of {id} was fixed after the run: commit {facts['commit']} has another one"
            )
        if row.fixed.isoformat() > facts["date"]:
            found.append(f"{id} is said to be fixed on {row.fixed}, after the run of {facts['date']}")
    return found


def _criteria_at(root: Path, page: str, commit: str) -> dict[str, str]:
    """The criteria of a page at a commit: the lock on them is git's history."""
    paper, _, topic = page.partition("/")
    name = f"notebooks/{paper}/claims.toml"
    text = provenance.git(root, "show", f"{commit}:{name}")
    return {id: c.criterion for id, c in claims.parse(text, name, paper).items() if c.page == topic}


def known_commit(root: Path, commit: str) -> bool:
    """Is ``commit`` in the history of what is checked out?

    True where git cannot tell: a shallow copy, an unpacked archive, no git at all.
    """
    if not provenance.is_commit(commit):
        return False
    try:
        if Path(provenance.git(root, "rev-parse", "--show-toplevel")).resolve() != root.resolve():
            return True
    except (OSError, subprocess.SubprocessError):
        return True
    try:
        if provenance.git(root, "rev-parse", "--is-shallow-repository") == "true":
            return True
        provenance.git(root, "merge-base", "--is-ancestor", commit, "HEAD")
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _before(root: Path, page: str, run: Record) -> list[dict[str, Any]]:
    """What records of ``page`` before ``run`` said, newest first: date, profile, commit and verdicts."""
    found: list[dict[str, Any]] = []
    last = newest(root, page)
    if last is not None and last.run["sweeps"] == run.run["sweeps"] and last.run["date"] == run.run["date"]:
        return list(last.run.get("history", []))  # the same run, kept once more
    if last is not None:
        verdicts = {id: found["verdict"] for id, found in last.run["claims"].items()}
        about = {key: last.run[key] for key in ("date", "profile", "commit")}
        found = [{**about, "verdicts": verdicts}, *last.run.get("history", [])]
    for place in sorted(place_of(root, page).glob("*-*-*-*/run.json"), reverse=True):
        found.append(_of_first_form(place))
    return found


def _of_first_form(place: Path) -> dict[str, Any]:
    """The verdicts of a record of the first edition, which kept drawings."""
    run = json.loads(place.read_text(encoding="utf-8"))
    kept = [json.loads(one.read_text(encoding="utf-8")) for one in sorted(place.parent.glob("claims/*.json"))]
    verdicts = {str(one["id"]): str(one["verdict"]) for one in kept}
    return {**{key: str(run[key]) for key in ("date", "profile", "commit")}, "verdicts": verdicts}


def problems(root: Path, page: str) -> list[str]:
    """What is wrong with the record of ``page``: nothing where there is none, or where all is well."""
    try:
        record = newest(root, page)
        if record is None:
            return []
        for name in record.sweeps():
            record.sweep(name)
        record.verified()
    except RecordError as error:
        return [str(error)]
    found = []
    if not record.run["clean"]:
        found.append(f"the record of {page} comes from a tree that was not clean")
    if not known_commit(root, record.run["commit"]):
        found.append(f"the record of {page} names the commit {record.run['commit']}, which is in no history")
    rows = claims.of_page(root, page)
    for id, row in rows.items():
        kept = record.run["claims"].get(id)
        verdict = kept and kept.get("verdict")
        if kept is None:
            found.append(f"the record of {page} does not judge {id}: repalign record {page} --judge")
        elif not _follows(row, kept):
            found.append(
                f"the record of {page} keeps {id} as {verdict}, which its own effects do not say: take "
                f"{RUN} back from git, or repalign record {page} --judge"
            )
    for id, criterion in record.run.get("criteria", {}).items():
        if id in rows and claims.changed_since(rows[id], criterion):
            found.append(
                f"the criterion of {id} is not the one that its record was judged by: put it back, or say so "
                f"in revised = [{{ date = …, reason = …, was = … }}] and record {page} again on new seeds"
            )
    return found


def unwritten(root: Path, page: str) -> list[str]:
    """What was found, where it was written for another verdict: the book says "to be written" meanwhile."""
    record = newest(root, page)
    if record is None:
        return []
    return [
        f"what {id} found was written for {row.found_for}, and its record says {kept['verdict']}"
        for id, row in claims.of_page(root, page).items()
        if (kept := record.run["claims"].get(id)) and row.found and row.found_for != kept["verdict"]
    ]


def _follows(row: claims.Claim, kept: dict[str, Any]) -> bool:
    """Does the verdict that is kept follow from the effects that are kept beside it?"""
    try:
        given = [*kept["effects"], *kept["conditions"]]
        answers = [one["answer"] for one in given]
        effects = [Effect(**{key: one[key] for key in one if key != "answer"}) for one in given]
        same = claims.judge(row, effects)["verdict"] == kept["verdict"]
    except (KeyError, TypeError, ValueError, IndexError, claims.ClaimError, AssertionError):
        return False
    return same and [effect.answer for effect in effects] == answers


def _files(name: str) -> tuple[str, str]:
    return f"{name}.parquet", f"{name}.cells.parquet"


def _bytes(path: Path, page: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(
            f"{path.name} of {page} is missing ({error.strerror}): take it back from git, or run the page."
        ) from None


def _frame(path: Path, page: str) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except Exception as error:  # pyarrow has a dozen kinds for a torn file
        raise RecordError(
            f"{path.name} of {page} cannot be read ({type(error).__name__}): take it back from git, or run "
            "the page again."
        ) from None


def _tomorrow() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1)


def finite(value: float) -> float:
    """For JSON, which has no infinity: a number larger than any difference."""
    return value if math.isfinite(value) else 1e308
