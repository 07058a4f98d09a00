"""Claims: what a paper says, a criterion fixed before the run, and the verdict that the effects give."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repalign._files import write_json
from repalign.study import criteria, run, style
from repalign.study.card import card
from repalign.study.effects import VERDICTS, Effect, verdict
from repalign.study.tables import Table

if TYPE_CHECKING:
    from repalign.data import Dataset

FIELDS = {
    *("id", "paper", "criterion", "revised", "effects", "paper_value", "measured", "verdict", "stand_in"),
    *("profile", "size", "seeds", "data", "fingerprint", "versions", "seconds", "page"),
}
_DECLARED = {"id", "paper", "criterion", "exact", "shown", "paper_value", "stand_in"}
_ID = re.compile(r"[a-z]+(\.[A-Za-z0-9_-]+)+")


class ClaimError(AssertionError):
    """An exact statement does not hold: that is a mistake in the code, not a result."""


def claims(*declared: dict[str, Any]) -> Table:
    """Declare the claims of a page, before anything runs: ``id``, ``paper`` and ``criterion`` of each.

    ``exact=True`` marks a statement of mathematics: if it fails, so does the page, in every profile.
    ``shown=True`` marks an illustration that cannot fail. ``stand_in`` says what replaces the paper's data or
    network; leave it out where a run may find the real ones, and pass it to :func:`claim`. A criterion that
    differs from the locked one is refused.
    """
    for entry in declared:
        wrong = sorted(entry.keys() - _DECLARED)
        lacking = sorted({"id", "paper", "criterion"} - entry.keys())
        if wrong or lacking:
            raise ValueError(
                f"a claim takes {', '.join(sorted(_DECLARED))}; {entry.get('id', 'one without id')} has "
                f"{wrong} too many, lacks {lacking}."
            )
        _check_id(entry["id"])
        if entry["id"] in run.current.declared:
            raise ValueError(f"the claim {entry['id']} is declared twice on this page.")
        if entry.get("exact") and entry.get("shown"):
            raise ValueError(f"{entry['id']} should be exact or shown, not both.")
        criteria.check(entry["id"], entry["criterion"])
        run.current.declared[entry["id"]] = entry
    rows = "".join(
        f'<tr id="declared-{html.escape(c["id"])}"><td><code>{html.escape(c["id"])}</code></td>'
        f"<td>{html.escape(c['paper'])}</td><td>{html.escape(c['criterion'])}</td></tr>"
        for c in declared
    )
    head = "<tr><th>claim</th><th>the paper says</th><th>holds here if</th></tr>"
    text = "\n".join(f"{c['id']}: {c['paper']} | {c['criterion']}" for c in declared)
    return Table(f'<table class="ra-table ra-claims">{head}{rows}</table>', text)


def claim(
    id: str,
    *,
    effects: Mapping[str, Effect] | None = None,
    holds: bool | None = None,
    measured: Any = None,
    stand_in: str | None = None,
    data: Iterable[Dataset] | None = None,
    seeds: Sequence[int] | None = None,
    size: Sequence[str] | None = None,
) -> None:
    """Record what was measured for a claim, and show its verdict card.

    ``effects`` are named (see :func:`repalign.study.above`), and the verdict follows from their intervals.
    A claim declared ``exact`` takes ``holds`` instead (None where it cannot be checked, as on a part of a
    data set), one declared ``shown`` neither. ``data`` are the sets that this claim rests on (default: all
    that the page uses), ``size`` the settings that a reader should see beside the paper's (default: all),
    ``seeds`` those of its runs (default: all that :func:`repalign.study.seeds` gave), ``measured`` whatever
    numbers help to read the verdict.
    """
    declared = run.current.declared.get(id)
    if declared is None:
        raise ValueError(f"{id} has no criterion: declare it at the top of the page with study.claims(...).")
    found = _verdict(declared, effects or {}, holds, measured)
    profile = run.current.profile or "by hand"
    if profile != "smoke":
        _enough_runs(id, effects or {})
    used = run.current.data if data is None else run.described(data)
    value = {
        "id": id,
        "paper": declared["paper"],
        "criterion": declared["criterion"],
        "revised": criteria.revisions(id),
        "effects": [effect.as_json(name) for name, effect in (effects or {}).items()],
        "paper_value": _plain(declared.get("paper_value")),
        "measured": _plain(measured),
        "verdict": "UNTESTED" if profile == "smoke" and found not in ("EXACT", "SHOWN") else found,
        "stand_in": declared.get("stand_in", "") if stand_in is None else stand_in,
        "profile": profile,
        "size": run.current.size(size),
        "seeds": [int(seed) for seed in (run.current.seeds if seeds is None else seeds)],
        "data": {name: one["source"] for name, one in used.items()},
        "fingerprint": run.fingerprint(used),
        "versions": run.versions(),
        "seconds": run.current.seconds,
        "from_store": dict(run.current.from_store),  # up to here: results read from it, and computed
        "page": run.current.page,
    }
    write_json(style.output_directory() / "claims" / f"{id}.json", value)
    run.current.measured[id] = value
    style.display_html(card(value), f"{id}: {value['verdict']}", {"claim": id})


def _verdict(
    declared: dict[str, Any], effects: Mapping[str, Effect], holds: bool | None, measured: Any
) -> str:
    id = declared["id"]
    if declared.get("exact"):
        if effects:
            raise ValueError(f"{id} is exact: pass holds=True or False, and no effects.")
        if holds is None:
            return "UNTESTED"
        if np.ndim(holds):
            raise ValueError(f"{id} has {np.size(holds)} answers: pass holds=all(...).")
        if not holds:
            raise ClaimError(
                f"{id} is exact and does not hold: {declared['criterion']}; measured {measured}."
            )
        return "EXACT"
    if holds is not None:
        raise ValueError(f"{id} is not exact: its verdict follows from effects, not from holds.")
    if declared.get("shown"):
        if effects:
            raise ValueError(f"{id} is shown and cannot fail: it takes no effects.")
        return "SHOWN"
    wrong = [name for name, effect in effects.items() if not isinstance(effect, Effect)]
    if wrong or not effects:
        raise ValueError(
            f"{id} needs effects with a side, such as effects={{'a above b': study.above(a - b)}}; "
            + (f"{wrong[0]!r} has none." if wrong else "it has none at all.")
        )
    return verdict(effects.values())


def _enough_runs(id: str, effects: Mapping[str, Effect]) -> None:
    single = [name for name, effect in effects.items() if effect.interval is None]
    if single:
        raise ValueError(
            f"the effect {single[0]!r} of {id} has one run, and one run has no interval: raise the number of "
            "runs in the settings."
        )


def read(directory: Path) -> list[dict[str, Any]]:
    """All claims kept in ``directory``, by id. A file that is not a claim is an error that names it."""
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            value = _as_now(value) if isinstance(value, dict) else {}
            complete = value.keys() >= FIELDS
        except ValueError:
            complete = False
        if not complete or value["verdict"] not in VERDICTS:
            raise ValueError(f"{path} is not a claim. Delete it and run its page again.")
        found.append(value)
    return found


def _as_now(value: dict[str, Any]) -> dict[str, Any]:
    """A claim of an older record, with the fields of today."""
    if value.get("exact") and value.get("verdict") == "REPRODUCED":
        value["verdict"] = "EXACT"
    return {"revised": [], "effects": [], "stand_in": "", "size": {}, **value}


def _check_id(id: str) -> None:
    if not _ID.fullmatch(id):
        raise ValueError(f"a claim's id should look like imani.fig7 or imani.fig6.depth, not {id!r}.")


def _plain(value: Any) -> Any:
    """``value`` as JSON can hold it: numbers, strings, lists, dicts; tensors and arrays become lists."""
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    number = float(value)
    return number if math.isfinite(number) else str(number)
