"""Claims as the first edition's pages call them: rows in claims.toml, what was measured in a file each."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from repalign._files import write_json
from repalign.press import cards, provenance, style
from repalign.press.claims import Claim
from repalign.press.effects import Effect, verdict
from repalign.press.tables import Table
from repalign.study import old_records, run

if TYPE_CHECKING:
    from repalign.data import Dataset


class ClaimError(AssertionError):
    """An exact statement does not hold: that is a mistake in the code, not a result."""


def claims() -> Table:
    """What the paper says, and when we shall say that it holds: this page's rows of claims.toml."""
    rows = "".join(
        f'<tr id="declared-{html.escape(c.id)}"><td><code>{html.escape(c.id)}</code></td>'
        f"<td>{html.escape(c.says)}</td><td>{html.escape(c.criterion)}</td></tr>"
        for c in run.current.declared.values()
    )
    head = "<tr><th>claim</th><th>the paper says</th><th>holds here if</th></tr>"
    text = "\n".join(f"{c.id}: {c.says} | {c.criterion}" for c in run.current.declared.values())
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

    ``effects`` are named, and the verdict follows from their intervals. A claim that is ``exact`` takes
    ``holds`` instead (None where it cannot be checked, as on a part of a data set), one that is ``shown``
    neither. ``data`` are the sets that this claim rests on, ``size`` the settings that a reader should see
    beside the paper's, ``seeds`` those of its runs (default: all), ``measured`` whatever helps to read the
    verdict.
    """
    row = run.current.declared.get(id)
    if row is None:
        raise ValueError(f"{id} has no row with the page {run.current.page} in claims.toml.")
    named = dict(effects or {})
    found = _verdict(row, named, holds, measured)
    profile = run.current.profile or "by hand"
    if profile != "smoke":
        _enough_runs(id, named)
    used = run.current.data if data is None else run.described(data)
    value = {
        "id": id,
        "effects": [replace(effect, name=name).as_json() for name, effect in named.items()],
        "measured": _plain(measured),
        "verdict": "UNTESTED" if profile == "smoke" and found not in ("EXACT", "SHOWN") else found,
        "stand_in": row.stand_in if stand_in is None else stand_in,
        "profile": profile,
        "size": run.current.size(size),
        "seeds": [int(seed) for seed in (run.current.seeds if seeds is None else seeds)],
        "data": {name: one["source"] for name, one in used.items()},
        "page": run.current.page,
    }
    write_json(run.output_directory() / "claims" / f"{id}.json", value)
    run.current.measured[id] = value
    made = f"profile {profile}, {provenance.today()}, {provenance.machine()}"
    shown = old_records.evidence_of(row, run.current.page, value, made)
    style.display_html(cards.card(shown), f"{id}: {value['verdict']}", {"claim": id})


def _verdict(row: Claim, effects: Mapping[str, Effect], holds: bool | None, measured: Any) -> str:
    if row.kind == "exact":
        if effects:
            raise ValueError(f"{row.id} is exact: pass holds=True or False, and no effects.")
        if holds is None:
            return "UNTESTED"
        if np.ndim(holds):
            raise ValueError(f"{row.id} has {np.size(holds)} answers: pass holds=all(...).")
        if not holds:
            raise ClaimError(f"{row.id} is exact and does not hold: {row.criterion}; measured {measured}.")
        return "EXACT"
    if holds is not None:
        raise ValueError(f"{row.id} is not exact: its verdict follows from effects, not from holds.")
    if row.kind == "shown":
        if effects:
            raise ValueError(f"{row.id} is shown and cannot fail: it takes no effects.")
        return "SHOWN"
    wrong = [name for name, effect in effects.items() if not isinstance(effect, Effect)]
    if wrong or not effects:
        raise ValueError(
            f"{row.id} needs effects with a side, such as effects={{'a above b': study.above(a - b)}}; "
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
