"""Maps of layers with their errors."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from repalign.papers.sharon.maps import _edges, layer_table, shared_limits, with_errors
from repalign.press import style

EPOCHS = [0, 1, 3, 10, 100]
ERRORS = [
    {"epoch": e, "statistics": kind, "train": 0.1, "test": 0.2}
    for e in EPOCHS
    for kind in ("training", "new")
]
MAPS = {"one": np.eye(5), "two": np.eye(5) / 2, "three": np.ones((5, 5)), "four": np.ones((5, 5))}


@pytest.mark.parametrize("mark", [10, None, np.nan])
def test_every_layer_has_its_colors_and_the_mark(mark):
    figure = with_errors(MAPS, EPOCHS, ERRORS, mark=mark, limits={"two": (0.25, 0.75)})
    figure.canvas.draw()
    panels = {ax.get_title(loc="left") or ax.get_title(): ax for ax in figure.axes}
    assert panels["one"].collections[0].get_clim() == (0, 1)
    assert panels["two"].collections[0].get_clim() == (0.25, 0.75)
    assert len(panels["one"].get_lines()) == (2 if mark == 10 else 0)
    (errors,) = (ax for ax in figure.axes if ax.get_ylabel() == "error")
    names = [text.get_text() for text in errors.get_legend().get_texts()]
    assert names == ["test, training", "train, training", "test, new", "train, new"]
    plt.close(figure)


def test_one_kind_of_errors_needs_no_name():
    figure = with_errors(MAPS, EPOCHS, ERRORS[::2])
    (errors,) = (ax for ax in figure.axes if ax.get_ylabel() == "error")
    assert [text.get_text() for text in errors.get_legend().get_texts()] == ["test", "train"]
    assert {line.get_linestyle() for line in errors.get_lines()} == {"-"}
    plt.close(figure)


def test_errors_fill_their_axis_once_training_has_begun():
    test = dict(zip(EPOCHS, (0.9, 0.2, 0.3, 0.25, 0.21), strict=True))
    figure = with_errors(MAPS, EPOCHS, [{**row, "test": test[row["epoch"]]} for row in ERRORS])
    (errors,) = (ax for ax in figure.axes if ax.get_ylabel() == "error")
    assert errors.get_ylim() == (0, pytest.approx(1.8 * 0.3))
    plt.close(figure)


def test_no_number_beside_the_colors_is_cut_off():
    maps = {name: np.linspace(0.82, 1, 25).reshape(5, 5) for name in "abcde"}
    with plt.rc_context():
        style.use()
        figure = with_errors(maps, EPOCHS, ERRORS)
        figure.canvas.draw()
    bars = [bar for ax in figure.axes for bar in ax.child_axes]
    ends = [label.get_window_extent().x1 for bar in bars for label in bar.get_yticklabels()]
    assert len(bars) == 5
    assert max(ends) < figure.bbox.width
    plt.close(figure)


def test_cells_lie_around_their_epochs():
    edges = _edges(EPOCHS)
    assert (np.diff(edges) > 0).all()
    assert all(low < e < high for e, low, high in zip(EPOCHS[1:], edges[1:-1], edges[2:], strict=True))


def test_what_does_not_fit_is_said():
    with pytest.raises(ValueError, match=r"two should be 5 × 5, but is \(4, 4\)"):
        with_errors({"two": np.eye(4)}, EPOCHS, ERRORS)
    with pytest.raises(ValueError, match="should rise"):
        with_errors({"one": np.eye(2)}, [3, 1], ERRORS)


def test_a_table_has_all_pairs():
    table = layer_table(MAPS, EPOCHS)
    assert list(table) == ["epoch", "other", *MAPS]
    assert len(table) == 25
    assert table.query("epoch == 3 and other == 3")["two"].item() == 0.5


def test_shared_limits_hold_all_values():
    assert shared_limits({"one": [[1, 0.5]]}, {"one": [[0.25, 1]]}) == {"one": (0.25, 1.0)}


def test_of_very_many_epochs_some_are_drawn():
    epochs = list(range(1001))
    table = layer_table({"one": np.arange(1001.0)[:, None] + np.zeros(1001)}, epochs)
    shown = table["epoch"].unique()
    assert len(shown) <= 200
    assert (shown[0], shown[1], shown[-1]) == (0, 1, 1000)
    assert (np.diff(np.log(shown[1:])) < 0.7).all()
    assert (table["one"] == table["epoch"]).all()
