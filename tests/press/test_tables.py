"""Tables of a page: what is in the frame, and the paper's numbers beside it."""

import numpy as np
import pandas as pd
import pytest

from repalign.press.tables import number, shown, table


@pytest.fixture
def frame():
    index = pd.MultiIndex.from_tuples([("mnist", 1), ("<b>", 2)], names=["data", "layer"])
    return pd.DataFrame({"area": [0.123456, float("nan")], "runs": [5, 3]}, index=index)


def test_a_table_shows_its_frame(frame):
    made = table(frame, "Areas & runs")
    markup = made._repr_html_()
    assert "<caption>Areas &amp; runs</caption>" in markup
    assert "<th>data</th><th>layer</th><th>area</th><th>runs</th>" in markup
    assert "<th>mnist</th><th>1</th><td>0.1235</td><td>5</td>" in markup
    assert "<th>&lt;b&gt;</th><th>2</th><td>–</td><td>3</td>" in markup
    assert "Areas & runs\n" in repr(made)
    assert "0.1235" in repr(made)


def test_the_papers_numbers_stand_below_ours(frame):
    markup = table(frame, paper=frame.assign(area=[0.2, 0.3]))._repr_html_()
    assert "<td>0.1235<br><small>paper 0.2</small></td>" in markup
    with pytest.raises(ValueError, match=r"rows and columns of ours, but has .*\['area'\] beside"):
        table(frame, paper=frame[["area"]])


def test_columns_of_several_levels_have_one_heading(frame):
    wide = pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("cka", 0.25), ("cka", "all")]))
    assert "<th>cka, 0.25</th><th>cka, all</th>" in table(wide)._repr_html_()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (16384.0, "16384"),
        (0.123456, "0.1235"),
        (np.float32(0.123456), "0.1235"),
        (np.float64("nan"), "–"),
        (np.float32("nan"), "–"),
        (None, "–"),
        (True, "True"),
        ("<script>", "&lt;script&gt;"),
    ],
)
def test_a_cell_shows_its_value(value, text):
    frame = pd.DataFrame({"value": pd.Series([value], dtype=object)})
    assert f"<td>{text}</td>" in table(frame)._repr_html_()


def test_captions_and_headings_are_text():
    frame = pd.DataFrame({"<i>": [1]}, index=pd.Index(["<u>"], name="<s>"))
    markup = table(frame, "<script>")._repr_html_()
    for tag in ("<script>", "<i>", "<u>", "<s>"):
        assert tag not in markup
        assert tag.replace("<", "&lt;").replace(">", "&gt;") in markup


def test_numbers_are_short_and_never_in_powers_where_a_reader_expects_none():
    assert [number(v) for v in (1234.5678, 1e6, 1.5e-12, 7, "s")] == ["1235", "1000000", "1.5e-12", "7", "s"]
    assert number(2 / 3, 2) == "0.67"
    assert shown({"of_layers": [0.51234, 2], "input": None}) == "of layers: 0.5123, 2; input: None"
