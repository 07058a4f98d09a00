"""The lock on criteria: ``records/criteria.json`` holds each claim's criterion with the date it was fixed.

    {"imani.fig7.after": {"criterion": "...", "fixed": "2026-11-16", "revised": []}}

``repalign criteria --lock`` adds claims that are new and never changes one. A revision is made by hand:
the new criterion in place of the old one, and an entry in ``revised`` with ``date``, ``reason`` and the
criterion it ``was``. The claim's card shows it.

The criteria of a chapter are locked before its pages are written: an entry may name its ``page``
("paper/NN_topic"), and as long as there is no such page, no page need declare it.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

from repalign._files import write_json


def path(root: Path) -> Path:
    """Where the lock of the book at ``root`` lies."""
    return root / "records" / "criteria.json"


def read(root: Path) -> dict[str, dict[str, Any]]:
    """The locked criteria by claim; none when there is no lock yet."""
    place = path(root)
    if not place.is_file():
        return {}
    try:
        locked = json.loads(place.read_text(encoding="utf-8"))
        for id, entry in locked.items():
            date.fromisoformat(entry["fixed"])
            assert isinstance(entry["criterion"], str), id
            assert all({"date", "reason", "was"} <= set(one) for one in entry["revised"]), id
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise ValueError(
            f"{place} is damaged ({type(error).__name__}: {error}): each claim has criterion, fixed (a date) "
            "and revised (a list of date, reason, was)."
        ) from None
    return locked


def differing(root: Path, declared: dict[str, str]) -> list[str]:
    """Criteria on pages that are not the locked ones: ``declared`` is criterion by claim."""
    locked = read(root)
    return [differs(id) for id, text in declared.items() if id in locked and locked[id]["criterion"] != text]


def problems(root: Path, declared: dict[str, str]) -> list[str]:
    """Where the criteria on all pages and the locked ones do not agree."""
    locked = read(root)
    found = differing(root, declared)
    found += [f"{id} is not locked: repalign criteria --lock" for id in declared if id not in locked]
    return found + [
        f"records/criteria.json locks {id}, which no page declares"
        for id, entry in locked.items()
        if id not in declared and not _to_come(root, entry)
    ]


def lock(root: Path, declared: dict[str, str]) -> list[str]:
    """Lock the claims that are new, with today's date; their ids."""
    locked = read(root)
    new = [id for id in declared if id not in locked]
    today = date.today().isoformat()
    locked |= {id: {"criterion": declared[id], "fixed": today, "revised": []} for id in new}
    if new:
        write_json(path(root), dict(sorted(locked.items())))
    return new


def _to_come(root: Path, entry: dict[str, Any]) -> bool:
    """Is this a claim of a page that is not written yet?"""
    page = entry.get("page")
    return page is not None and not (root / "notebooks" / f"{page}.py").exists()


def check(id: str, criterion: str) -> None:
    """On a page: the criterion is the locked one, if this page belongs to a book that has locked it."""
    entry = _here().get(id)
    if entry and entry["criterion"] != criterion:
        raise ValueError(differs(id))


def revisions(id: str) -> list[dict[str, str]]:
    """How the criterion of a claim was revised after it was fixed, oldest first."""
    return list(_here().get(id, {}).get("revised", []))


def differs(id: str) -> str:
    """What to say of a criterion that is not the locked one."""
    return (
        f"the criterion of {id} differs from the one in records/criteria.json. Put it back, or revise it "
        "openly: write the new one there, and in 'revised' the date, the reason and what it was"
    )


def _here() -> dict[str, dict[str, Any]]:
    here = Path.cwd().resolve()
    root = next((p for p in (here, *here.parents) if path(p).is_file()), None)
    return read(root) if root else {}
