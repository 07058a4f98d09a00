"""Sweeps as the first edition's pages call them: cells may return anything that the store can keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from repalign.press import cells
from repalign.press.sweep import SweepError, grid, label
from repalign.study import store

__all__ = ["SweepError", "grid", "sweep"]


def sweep(
    fn: Callable[..., Any],
    configs: Sequence[dict[str, Any]],
    *,
    data: Any = None,
    jobs: int | None = None,
    **common: Any,
) -> Any:
    """``[cached(fn, {**config, **common}, data=data) for config in configs]``, in parallel.

    When every cell returns rows (a list of dicts), the answer is one tidy table instead of a list.
    """
    shown, configs = configs, [{**config, **common} for config in configs]
    keys = store.keys(fn, configs, data)
    found = {key: store.read(fn, key) for key in dict.fromkeys(keys)}
    todo = [key for key, value in found.items() if value is None]
    first = () if data is None else (data,)
    where = [keys.index(key) for key in todo]
    arguments = [(first, configs[place]) for place in where]
    failed = []
    for place, outcome in cells.compute(fn, arguments, min(jobs or cells.jobs(), max(len(todo), 1))):
        error = outcome.error
        if not error:
            try:
                store.write(fn, todo[place], outcome.value)
                found[todo[place]] = store.read(fn, todo[place])
            except TypeError as wrong:
                error = str(wrong)
        if error:
            failed.append((configs[where[place]], error))
    if failed:
        raise SweepError(failed, len(configs))
    results = [value[0] for key in keys if (value := found[key]) is not None]
    rows = bool(results) and all(isinstance(r, list) and all(isinstance(x, dict) for x in r) for r in results)
    return _tidy(shown, results) if rows else results


def _tidy(configs: Sequence[dict[str, Any]], results: list[list[dict[str, Any]]]) -> Any:
    """One table of all rows, each with its configuration."""
    import pandas as pd

    lines = []
    for config, rows in zip(configs, results, strict=True):
        left = {name: _label(value) for name, value in config.items()}
        for row in rows:
            twice = left.keys() & row.keys()
            if twice:
                raise ValueError(
                    f"both the configuration and the rows have {', '.join(sorted(twice))}: "
                    "give the rows' columns other names."
                )
            lines.append({**left, **row})
    return pd.DataFrame(lines) if lines else pd.DataFrame(columns=[*configs[0]])


def _label(value: Any) -> Any:
    return tuple(_label(part) for part in value) if isinstance(value, (tuple, list)) else label(value)
