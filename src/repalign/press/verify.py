"""Would a page still give these numbers? Some recorded cells are computed again and compared.

The page is executed with its recorded tables, and each sweep computes its cheapest cells again within the
budget, at least one of every sweep. A difference beyond what another processor explains fails, by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repalign._files import write_json
from repalign.press import cells as cells_
from repalign.press import provenance, records, store
from repalign.press import sweep as sweep_

if TYPE_CHECKING:
    import pandas as pd

BUDGET = "REPALIGN_BUDGET"  # seconds for each sweep
# Which cells among equally cheap ones: another choice each day that CI asks.
TURN = "REPALIGN_TURN"
# Closed forms agree to rounding; a page says where training in float32 may move further.
TOLERANCE = 1e-6
# What differs below this is zero for both: rounding around zero has no relative size.
ZERO = 1e-9


class DifferenceError(AssertionError):
    """A cell computed again is not what its record says."""


def check(
    fn: Callable[..., Any],
    configs: Sequence[Mapping[str, Any]],
    data: Any,
    common: Mapping[str, Any],
    name: str,
    table: pd.DataFrame,
    cells: pd.DataFrame,
    tolerance: float,
    trained: bool = False,
) -> None:
    """Compute some cells of the recorded sweep ``name`` again, compare, and note what was found.

    Where networks are ``trained``, a difference counts beside the spread of such values over the record:
    rounding on another processor ends in another network, and small values of two networks have no size in
    common.
    """
    now = ["; ".join(f"{k}={sweep_.label(v)}" for k, v in config.items()) for config in configs]
    if now != cells["configuration"].tolist():
        raise DifferenceError(
            f"the sweep {name} has other configurations than its record ({len(now)} beside {len(cells)}): "
            "the settings of the recorded profile have changed, so the page is to be recorded again."
        )
    budget = float(os.environ.get(BUDGET, 60))
    chosen = _cheapest(cells, budget)
    data = data() if callable(data) else data
    mark = sweep_.fingerprint_of(data)
    first = () if data is None else (data,)
    arguments = [(first, {**configs[place], **common}) for place in chosen]
    spread = _Spread(table, set().union(*configs)) if trained else None
    largest, worst = 0.0, ""
    for place, outcome in cells_.compute(fn, arguments, min(cells_.jobs(), len(arguments))):
        cell = chosen[place]
        if mark != cells["data"][cell]:
            raise DifferenceError(f"the sweep {name} finds other data than its record was computed on.")
        if outcome.error:
            raise DifferenceError(
                f"the cell {now[cell]} of {name} fails today: {outcome.error.splitlines()[-1]}"
            )
        recorded = table[table[sweep_.CELL] == cell].drop(columns=[sweep_.CELL, *configs[cell]])
        apart, column = _apart(store.plain(outcome.value, name), recorded, spread)
        if apart > largest or not worst:
            largest, worst = max(apart, largest), f"{column} of {now[cell]}"
    found = {
        "sweep": name,
        "tolerance": tolerance,
        "cells": len(chosen),
        "of": len(cells),
        "largest": records.finite(largest),
        "worst": worst,
    }
    out = Path(os.environ[sweep_.OUT])
    write_json(out / f"{name}.verified.json", found)


def same_settings(page: str, now: Mapping[str, Any], recorded: Mapping[str, Any]) -> None:
    """The settings of the recorded profile are locked with the criteria: a difference is an error."""
    here, then = ({name: value[0] for name, value in one.items()} for one in (now, recorded))
    changed = sorted(name for name in here.keys() | then.keys() if here.get(name) != then.get(name))
    if changed:
        told = "; ".join(f"{name} {here.get(name)!r}, recorded {then.get(name)!r}" for name in changed)
        raise DifferenceError(f"{page} has other settings than its record ({told}): record it again.")


def _cheapest(cells: pd.DataFrame, budget: float) -> list[int]:
    """The cells that fit in ``budget`` seconds on this machine's cores, the cheapest first; at least one."""
    order = cells["seconds"].sort_values(kind="stable").index.tolist()
    turn = int(os.environ.get(TURN, 0)) % len(order)
    alike = [place for place in order if cells["seconds"][place] <= 2 * cells["seconds"][order[0]] + 0.5]
    order = [*alike[turn % len(alike) :], *alike[: turn % len(alike)], *order[len(alike) :]]
    chosen: list[int] = []
    left = budget * cells_.jobs()
    for place in order:
        left -= float(cells["seconds"][place])
        if chosen and left < 0:
            break
        chosen.append(place)
    return chosen


class _Spread:
    """The standard deviation of every column over the recorded rows that have the same texts.

    ``given`` names the columns that a cell's rows do not have themselves: those of its configuration.
    """

    def __init__(self, table: pd.DataFrame, given: set[str]) -> None:
        values = table.drop(columns=[sweep_.CELL, *given])
        numbers = values.select_dtypes("number")
        self._texts = [name for name in values if name not in numbers]
        # A text that a row does not have is None in the row and may be NaN in the table.
        texts = values[self._texts].astype(object).where(values[self._texts].notna(), None)
        kinds = [self._kind(row) for row in texts.to_dict("records")]
        self._found = numbers.groupby(kinds).std(ddof=0).fillna(0.0).to_dict("index")

    def _kind(self, row: Mapping[str, Any]) -> str:
        return "; ".join(str(row.get(name)) for name in self._texts)

    def of(self, row: Mapping[str, Any], column: str) -> float:
        """The spread of ``column`` over rows like ``row``; 0 where there are none."""
        return float(self._found.get(self._kind(row), {}).get(column, 0.0))


def _apart(
    rows: list[dict[str, Any]], recorded: pd.DataFrame, spread: _Spread | None = None
) -> tuple[float, str]:
    """The largest difference between the rows of a cell and the recorded ones, and its column.

    It is relative to the size of the value, or to the spread of such values where that is larger.
    """
    if len(rows) != len(recorded):
        return float("inf"), f"the number of rows, {len(rows)} beside {len(recorded)},"
    largest, worst = 0.0, "no column"
    for row, (_, then) in zip(rows, recorded.iterrows(), strict=True):
        new = sorted(row.keys() - set(recorded))
        if new:
            return float("inf"), f"the new column {new[0]}"
        for column in recorded:
            was = _plain(then[column])
            # A row without a value has none in the table either.
            value = row.get(column)
            value = float("nan") if value is None and was != was else value
            apart = store.same(value, was)
            if isinstance(value, (int, float)) and isinstance(was, (int, float)) and 0 < apart < float("inf"):
                if abs(value - was) < ZERO:
                    continue
                if spread:
                    size = max(abs(value), abs(was))
                    apart *= size / max(size, spread.of(row, column))
            if apart > largest:
                largest, worst = apart, column
    return largest, worst


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def summarize(record: records.Record, out: Path, root: Path) -> dict[str, Any]:
    """What the sweeps of a page found, written beside its record; a difference is an error that names it."""
    found = [json.loads(place.read_text(encoding="utf-8")) for place in sorted(out.glob("*.verified.json"))]
    missing = sorted(set(record.sweeps()) - {one["sweep"] for one in found})
    if missing:
        raise DifferenceError(f"{record.page} no longer has the recorded sweep {', '.join(missing)}.")
    for one in found:
        if one["largest"] > one["tolerance"]:
            raise DifferenceError(
                f"{record.page}, sweep {one['sweep']}: {one['worst']} differs by {one['largest']:.2g} "
                f"from the record, more than {one['tolerance']:g} of its size. Find what changed, or record "
                "the page again."
            )
    origin = provenance.ask(root)
    return {
        "date": provenance.today(),
        "commit": origin["commit"] + ("" if origin["clean"] else "+"),
        "processor": provenance.processor(),
        "cells": sum(one["cells"] for one in found),
        "of": sum(one["of"] for one in found),
        "largest": max((one["largest"] for one in found), default=0.0),
    }


def note(record: records.Record, entry: dict[str, Any]) -> None:
    """Write a verification beside the record; the last five are kept."""
    place = record.place / records.VERIFIED
    before = json.loads(place.read_text(encoding="utf-8")) if place.is_file() else []
    write_json(place, [*before, entry][-5:])
