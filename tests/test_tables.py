"""Tables of a page: what is in the frame, and the paper's numbers beside it."""

from pathlib import Path

import pandas as pd
import pytest

from repalign import study
from repalign.runner import book
from repalign.runner.records import Kept


@pytest.fixture
def frame():
    index = pd.MultiIndex.from_tuples([("mnist", 1), ("<b>", 2)], names=["data", "layer"])
    return pd.DataFrame({"area": [0.123456, float("nan")], "runs": [5, 3]}, index=index)


def test_a_table_shows_its_frame(frame):
    shown = study.table(frame, "Areas & runs")
    markup = shown._repr_html_()
    assert "<caption>Areas &amp; runs</caption>" in markup
    assert "<th>data</th><th>layer</th><th>area</th><th>runs</th>" in markup
    assert "<th>mnist</th><th>1</th><td>0.1235</td><td>5</td>" in markup
    assert "<th>&lt;b&gt;</th><th>2</th><td>–</td><td>3</td>" in markup
    assert "0.1235" in repr(shown)


def test_the_papers_numbers_stand_below_ours(frame):
    markup = study.table(frame, paper=frame.assign(area=[0.2, 0.3]))._repr_html_()
    assert "<td>0.1235<br><small>paper 0.2</small></td>" in markup
    with pytest.raises(ValueError, match="rows and columns of ours"):
        study.table(frame, paper=frame[["area"]])


def test_whole_numbers_are_whole():
    markup = study.table(pd.DataFrame({"inputs": [16384.0], "loss": [0.123456]}))._repr_html_()
    assert "<td>16384</td><td>0.1235</td>" in markup


def test_a_table_says_whose_it_is_beside_a_record(frame):
    now, then = (study.table(frame.assign(runs=n), "Areas")._repr_html_() for n in (5, 6))
    run, record = (Kept(Path(), {"profile": p, "date": "2026-01-02"}) for p in ("laptop", "desktop"))
    same = book._table(0, now, now, run, record)
    assert same == now  # a toy is the same in all profiles
    both = book._table(0, now, then, run, record)
    assert both.index("record of 2026-01-02 (desktop)") < both.index("this run (laptop)")
    assert both.index(then) < both.index(now)
    alone = book._table(0, now, None, run, record)
    assert '<caption>Areas <span class="ra-note">this run (laptop)</span></caption>' in alone
    plain = book._table(0, study.table(frame)._repr_html_(), None, run, record)
    assert '<caption><span class="ra-note">this run (laptop)</span></caption>' in plain
