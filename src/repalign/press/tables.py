"""Tables of a page: a frame as HTML for a reader, as lines for a terminal."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


WHOLE = 1e7  # below this a whole number is written in full
TABLE = '<table class="ra-table">'  # how the markup of a table begins


class Table:
    """A table for a notebook: HTML for a reader, lines for a terminal."""

    def __init__(self, markup: str, text: str) -> None:
        self._markup, self._text = markup, text

    def _repr_html_(self) -> str:
        return self._markup

    def __repr__(self) -> str:
        return self._text


def table(frame: pd.DataFrame, caption: str = "", *, paper: pd.DataFrame | None = None) -> Table:
    """``frame`` as a table: numbers to four digits, the index as row headings, named levels as headings.

    With ``paper``, a frame of the same rows and columns, each cell shows the paper's value under ours.
    """
    if paper is not None and not (paper.index.equals(frame.index) and paper.columns.equals(frame.columns)):
        raise ValueError(
            "the paper's table should have the rows and columns of ours, but has "
            f"{list(paper.index)} × {list(paper.columns)} beside {list(frame.index)} × {list(frame.columns)}."
        )
    plain = frame.columns.map(_heading) if frame.columns.nlevels == 1 else frame.columns.map(_levels)
    named = [str(name) if name is not None else "" for name in frame.index.names]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in [*named, *plain])
    rows = []
    for i, (key, row) in enumerate(zip(frame.index, frame.to_numpy(), strict=True)):
        keys = key if isinstance(key, tuple) else (key,)
        cells = "".join(f"<th>{html.escape(_heading(k))}</th>" for k in keys)
        for j, value in enumerate(row):
            theirs = "" if paper is None else f"<br><small>paper {_cell(paper.iat[i, j])}</small>"
            cells += f"<td>{_cell(value)}{theirs}</td>"
        rows.append(f"<tr>{cells}</tr>")
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    markup = f"{TABLE}{title}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    text = frame.to_string(float_format=lambda value: number(float(value)))
    return Table(markup, f"{caption}\n{text}" if caption else text)


def _heading(value: Any) -> str:
    return number(float(value)) if isinstance(value, float) else str(value)


def _levels(value: Any) -> str:
    return ", ".join(_heading(v) for v in value)


def _cell(value: Any) -> str:
    if getattr(getattr(value, "dtype", None), "kind", "") == "f":  # a number of numpy, of any width
        value = float(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return html.escape(number(value))


def interval(low: float, high: float) -> str:
    """An interval with as many decimals as its width deserves, the same for both ends.

    >>> interval(-0.04231, 0.0000626), interval(0.8312, 0.8579), interval(1520.0, 3100.0)
    ('[-0.042, 0.000]', '[0.831, 0.858]', '[1520, 3100]')
    """
    width = abs(high - low)
    if not 1e-6 < width < math.inf:
        return f"[{number(low, 3)}, {number(high, 3)}]"
    decimals = max(0, math.ceil(1.3 - math.log10(width)))
    # Adding zero takes the sign from a zero that was rounded to.
    ends = (f"{round(end, decimals) + 0.0:.{decimals}f}" for end in (low, high))
    return f"[{', '.join(ends)}]"


def number(value: Any, digits: int = 4) -> str:
    """A float with so many significant digits, 1000 and not 1e+03; whole numbers and all else as they are.

    >>> number(1234.5678), number(1.5e-12), number(16384.0), number(7)
    ('1235', '1.5e-12', '16384', '7')
    """
    if not isinstance(value, float):
        return str(value)
    if value.is_integer() and abs(value) < WHOLE:
        return f"{value:.0f}"
    return f"{float(f'{value:.{digits}g}'):.10g}"


def shown(value: Any) -> str:
    """A measured value in words: numbers shortened, dicts and lists on one line.

    >>> shown({"layers": [0.51234, 2], "input": "mnist"})
    'layers: 0.5123, 2; input: mnist'
    """
    if isinstance(value, dict):
        return "; ".join(f"{str(k).replace('_', ' ')}: {shown(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(v) for v in value)
    return number(value)
