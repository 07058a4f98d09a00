"""Tables of a page: what is in the frame, and the paper's numbers beside it."""

import pandas as pd
import pytest

from repalign import study


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
