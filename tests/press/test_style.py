"""Figures: seen on light and dark, the same on a rerun, several on a page; tables that nobody runs."""

import re

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from repalign import press
from repalign.press import style


@pytest.fixture(autouse=True)
def _style():
    style.use()
    yield
    plt.close("all")


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("background", ["#ffffff", "#121212"])
@pytest.mark.parametrize("color", press.PALETTE)
def test_colors_are_seen_on_light_and_dark(color, background):
    """WCAG asks for a contrast of 3 for graphical objects."""
    high, low = sorted((luminance(color), luminance(background)), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 3


def draw(label="line"):
    figure, ax = plt.subplots()
    ax.plot([1, 2, 3], label=label)
    ax.set(xlabel="x", title="a title")
    ax.legend()
    return figure


def test_a_figure_follows_the_page_and_is_the_same_on_a_rerun():
    svg = style.drawn(draw(), "toy.fig1", 'A "quoted" <caption>.')
    assert svg.startswith("<svg")
    assert "currentColor" in svg
    assert "#ffffff" not in svg  # no background of its own
    assert "#000000" not in svg  # no ink that a dark page would swallow
    assert 'aria-label="A &quot;quoted&quot; &lt;caption&gt;."' in svg
    assert style.drawn(draw(), "toy.fig1", 'A "quoted" <caption>.') == svg
    assert not plt.get_fignums()


def test_ids_inside_figures_do_not_collide_on_a_page():
    svg = style.drawn(draw(), "toy.fig1", "c")
    one, two = style.framed(svg, "toy.fig1", "c", "live"), style.framed(svg, "toy.fig1", "c", "record")
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for text, own in zip((one, two), ids, strict=True):
        used = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
        assert used
        assert used <= own


def test_keys_of_styles_follow_the_color_of_the_text():
    svg = '<svg width="10pt"><path style="stroke: #333333"/><path style="fill: #262626"/></svg>'
    assert style.framed(svg, "toy.fig1", "c").count("currentColor") == 2


def test_a_figure_shrinks_with_the_page_and_never_grows():
    framed = style.framed('<svg width="75pt" height="30pt" viewBox="0 0 75 30"></svg>', "toy.fig1", "c")
    assert 'style="width:100%;max-width:100px;height:auto"' in framed
    assert 'width="75pt"' not in framed


@pytest.mark.parametrize(("low", "left"), [(0, True), (-5, False)])
def test_a_symmetric_logarithm_begins_at_zero_where_nothing_is_below(low, left):
    figure, ax = plt.subplots()
    ax.plot([low, 10, 1000], [1, 2, 3])
    ax.set_xscale("symlog")
    assert ax.get_xlim()[0] < 0
    style.drawn(figure, "toy.fig1", "c")
    assert (ax.get_xlim()[0] == 0) == left


def test_markup_in_captions_and_labels_is_drawn_not_run():
    script = "<script>alert(1)</script> --><script>"
    framed = style.framed(style.drawn(draw(script), "toy.fig1", script), "toy.fig1", script)
    assert "<script" not in framed
    assert "<figcaption>&lt;script&gt;" in framed


# Tables to download


def test_a_table_has_six_digits_a_number_and_no_rows_counted():
    table = pd.DataFrame({"tau": [0.0, 1 / 3], "alignment": [1, 2]})
    assert style.csv(table) == "tau,alignment\n0,1\n0.333333,2\n"
    assert style.csv(table.set_index("tau")) == "tau,alignment\n0,1\n0.333333,2\n"


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_a_text_that_a_spreadsheet_would_run_is_quoted(begin):
    formula = f"{begin}HYPERLINK(0)"
    table = pd.DataFrame({"layer": [formula], formula: [-0.5]})
    for one in (table, table.set_index("layer"), table.astype({"layer": "category"})):
        header, row = re.split("\n", style.csv(one).strip("\n"), maxsplit=1)
        assert f"'{formula}" in header
        assert f"'{formula}" in row
        assert row.endswith(",-0.5")  # a number is none
