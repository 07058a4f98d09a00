"""Records and runs of the first edition: drawings, tables as HTML and verdicts, read with suspicion.

A record is ``records/<paper>/<page>/<date>-<profile>/`` with ``run.json``, ``claims/*.json``,
``figures/*.svg`` with the tables behind them as ``*.csv``, and ``tables.json``. Its drawings were made at the
commit that it names; the cells behind them may be older.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repalign.press import claims
from repalign.press.claims import Claim
from repalign.press.records import RecordError, known_commit
from repalign.press.style import lighter

TABLES = "tables.json"
_SIZES = {"laptop": 0, "desktop": 1, "paper": 2}
# What a drawing of ours never has: whatever could act.
_ACTING = re.compile(
    r"<\s*(script|foreignObject|iframe|object|embed|animate|set)\b.*?(/>|</\s*\1\s*>)|\son\w+\s*=\s*(\"[^\"]*\"|'[^']*'|\S+)"
    r"|(xlink:)?href\s*=\s*(\"(?!#|data:image/png)[^\"]*\"|'(?!#|data:image/png)[^']*')",
    re.I | re.S,
)


@dataclass(frozen=True)
class Old:
    """What a run of a page of the first edition left, live or recorded."""

    place: Path
    run: dict[str, Any]
    claims: dict[str, dict[str, Any]]

    @property
    def profile(self) -> str:
        """The profile, and what was changed in it: ``laptop`` or ``laptop with n=9``."""
        given = ", ".join(f"{name}={value}" for name, value in self.run.get("changed", {}).items())
        return str(self.run["profile"]) + (f" with {given}" if given else "")

    def figures(self) -> list[str]:
        """The ids of its drawings."""
        return sorted(path.stem for path in (self.place / "figures").glob("*.svg"))

    def figure(self, id: str) -> str | None:
        """The drawing of figure ``id``, if this run made it; nothing in it can act."""
        path = self.place / "figures" / f"{id}.svg"
        if not path.is_file():
            return None
        svg = path.read_text(encoding="utf-8", errors="replace")
        return lighter(_ACTING.sub("", svg[svg.find("<svg") :]))

    def caption(self, id: str) -> str:
        """The caption that a drawing was made with."""
        import html

        found = re.search(r'<svg [^>]*?aria-label="([^"]*)"', self.figure(id) or "")
        return html.unescape(found.group(1)) if found else ""

    def csv(self, id: str) -> Path | None:
        """The table behind figure ``id``, if this run kept it."""
        path = self.place / "figures" / f"{id}.csv"
        return path if path.is_file() else None

    def tables(self) -> list[str]:
        """The tables that the page showed, as HTML, in their order; none in records without them."""
        path = self.place / TABLES
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
        return [_ACTING.sub("", str(one)) for one in found]

    def evidence(self, rows: Mapping[str, Claim], page: str, recorded: bool) -> dict[str, dict[str, Any]]:
        """For each claim what this run says of it, as cards and the scoreboard show it."""
        if recorded:
            commit = str(self.run["commit"])
            lost = "" if known_commit(self.place.parents[3], commit) else ", which is in no history"
            made = (
                f"drawn on {self.run['date']} at commit {commit}{lost} ({self.profile}, "
                f"{self.run['machine']}); the cells behind it may be older"
            )
        else:
            made = f"profile {self.profile}, {self.run.get('date', 'by hand')}, {self.run['machine']}"
        return {
            id: {
                **evidence_of(rows[id], page, value, made),
                "profile": self.profile,
                "date": self.run.get("date"),
            }
            for id, value in self.claims.items()
            if id in rows
        }


def newest(root: Path, page: str) -> Old | None:
    """The newest record of ``page`` in the form of the first edition; of the same day, the larger profile."""
    found = []
    for place in (root / "records" / page).glob("*-*-*-*"):
        date, _, profile = place.name.rpartition("-")
        if profile in _SIZES and date <= _latest() and (place / "run.json").is_file():
            found.append((date, _SIZES[profile], place))
    return read(max(found)[2], page) if found else None


def _latest() -> str:
    """It may be a day later elsewhere; what is dated beyond that does not hide other records."""
    return (datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1)).isoformat()


def live(root: Path, page: str, profile: str) -> Old | None:
    """The last finished run of ``page`` at ``profile``."""
    place = root / "build" / profile / page
    return read(place, page) if (place / "run.json").is_file() else None


def read(place: Path, page: str) -> Old:
    """The run at ``place``; what cannot be read is an error that names it."""
    try:
        run = json.loads((place / "run.json").read_text(encoding="utf-8-sig"))
        kept = [
            json.loads(path.read_text(encoding="utf-8")) for path in sorted((place / "claims").glob("*.json"))
        ]
        if not isinstance(run, dict) or run["page"] != page:
            raise ValueError("it is not a run of this page")
        return Old(place, run, {str(one["id"]): _checked(one) for one in kept})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"the run of {page} in {place.name} is damaged ({type(error).__name__}: {error}). Take a record "
            "back from git; delete a run, and run its page again."
        ) from None


def _checked(value: dict[str, Any]) -> dict[str, Any]:
    """A claim with numbers where numbers belong, and a verdict that is one and follows from its effects."""
    for effect in value.get("effects", []):
        effect["values"] = [float(v) for v in effect["values"]]
        effect["bound"] = [float(v) for v in effect["bound"]]
        effect["mean"] = float(effect["mean"])
        effect["interval"] = [float(v) for v in effect["interval"]] if effect["interval"] else None
        effect["paper"] = None if effect["paper"] is None else float(effect["paper"])
    verdict = "EXACT" if value.get("exact") and value["verdict"] == "REPRODUCED" else value["verdict"]
    if verdict not in claims.VERDICTS:
        raise ValueError(f"{value['id']} has the verdict {verdict!r}")
    value["verdict"] = verdict
    follows = _follows(value)
    if follows not in ("", verdict) and verdict != "UNTESTED":
        raise ValueError(f"{value['id']} says {verdict}, and its effects say {follows}")
    return value


def _follows(value: dict[str, Any]) -> str:
    """The verdict that the effects of a kept claim give; nothing where it has none."""
    from repalign.press.effects import Effect, verdict

    fields = ("name", "values", "side", "bound", "mean", "interval", "kind", "paper")
    effects = [Effect(**{name: effect[name] for name in fields}) for effect in value.get("effects", [])]
    return verdict(effects) if effects else ""


def evidence_of(row: Claim, page: str, value: Mapping[str, Any], made: str) -> dict[str, Any]:
    """A measured claim as cards and the scoreboard show it."""
    return {
        "id": row.id,
        "page": page,
        **{name: getattr(row, name) for name in ("says", "where", "kind", "criterion", "paper_value")},
        "fixed": row.fixed.isoformat(),
        "revised": [{**entry, "date": entry["date"].isoformat()} for entry in row.revised],
        "stand_in": value.get("stand_in", row.stand_in),
        "verdict": value["verdict"],
        "effects": [{"unit": "", "condition": False, **effect} for effect in value.get("effects", [])],
        "conditions": [],
        "measured": value.get("measured"),
        "found": "",
        "settings": value.get("size", {}),
        "runs": len(value["seeds"]) if len(value.get("seeds", [])) > 1 else None,
        "profile": value.get("profile", ""),
        "date": "",
        "made": made,
        "verified": "",
        "history": [],
    }
