"""Records: the claims and figures of runs worth keeping, under ``records/``, and what they say together.

A record is ``records/<paper>/<page>/<date>-<profile>/`` with ``run.json`` (date, profile, machine,
commit, versions, settings), ``claims/*.json`` and ``figures/*.svg``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repalign._files import replace_directory, write_text
from repalign.runner.pages import Page, UserError
from repalign.study.claims import VERDICTS, read


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
    place = root / "records" / page.name / f"{run.run['date']}-{profile}"
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=place.parent, prefix=".record-"))
    try:
        os.chmod(fresh, 0o755)
        shutil.copytree(run.place, fresh, dirs_exist_ok=True)
        replace_directory(fresh, place)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return place


def evidence(root: Path, page: str, profile: str) -> dict[str, dict[str, Any]]:
    """For each claim of ``page`` its best-founded result: the newest record's, else the live run's."""
    sources = [live(root, page, profile), newest(root, page)]
    return {
        id: {**claim, "profile": source.profile}
        for source in sources
        if source
        for id, claim in source.claims.items()
    }


def summary(claims: list[dict[str, Any]]) -> str:
    """Verdicts counted in a few words, for a heading."""
    counted = Counter(claim["verdict"] for claim in claims)
    return ", ".join(f"{counted[v]} {v.lower()}" for v in VERDICTS if counted[v]) or "no claim measured yet"


def write_readme(root: Path, pages: list[Page]) -> None:
    """Update the README's table from the records, between its two markers."""
    rows = ["| page | recorded | verdicts |", "|---|---|---|"]
    for page in pages:
        run = newest(root, page.name)
        if run:
            when = f"{run.run['date']}, {run.run['profile']}"
            rows.append(f"| `{page.name}` | {when} | {summary(list(run.claims.values()))} |")
    path = root / "README.md"
    text = path.read_text(encoding="utf-8")
    pattern = r"(<!-- scoreboard -->\n).*?(<!-- /scoreboard -->)"
    renewed, times = re.subn(pattern, lambda m: m[1] + "\n".join(rows) + "\n" + m[2], text, flags=re.S)
    if not times:
        raise UserError("README.md has lost its <!-- scoreboard --> markers: put them back around the table.")
    if renewed != text:
        write_text(path, renewed)
