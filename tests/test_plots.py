"""Drawings from frames: what is drawn is the mean and the standard error of the table."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from repalign import plots
from repalign.alignment import spectrum, unit_rows
from repalign.study import style
from repalign.study.effects import above, below


@pytest.fixture(autouse=True)
def _style():
    style.use()
    yield
    plt.close("all")


@pytest.fixture
def runs():
    rng = np.random.default_rng(0)
    rows = [
        dict(data=data, seed=seed, layer=layer, stage=stage, tau=tau, alignment=rng.random())
        for data in ("a", "b")
        for seed in range(4)
        for layer in (1, 2)
        for stage in ("before", "after")
        for tau in (0.0, 1.0, 2.0)
    ]
    return pd.DataFrame(rows)


def drawn(figure):
    figure.savefig(io.BytesIO(), format="svg")
    return figure


def test_lines_are_means_and_bands_standard_errors(runs):
    figure = drawn(plots.curves(runs, x="tau", y="alignment", hue="layer", style="stage", col="data"))
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["a", "b"]
    part = runs.query("data == 'b' and layer == 2 and stage == 'after'").groupby("tau")["alignment"]
    lines = [line.get_ydata() for line in figure.axes[1].get_lines() if len(line.get_ydata())]
    assert sum(np.allclose(line, part.mean()) for line in lines) == 1
    bands = [band.get_paths()[0].vertices for band in figure.axes[1].collections]
    upper = part.mean() + part.std() / 2  # four runs
    assert sum(all(np.isclose(band[:, 1], top).any() for top in upper) for band in bands) == 1
    assert len(bands) == 4


def test_bands_follow_their_lines_in_any_order_of_rows(runs):
    how = dict(x="tau", y="alignment", hue="layer", style="stage", col="data")
    mixed = runs.sort_values("tau", key=lambda tau: (tau - 1).abs(), kind="stable")
    paths = [
        sorted(band.get_paths()[0].vertices.round(9).tolist() for band in figure.axes[0].collections)
        for figure in (drawn(plots.curves(frame, **how)) for frame in (runs, mixed))
    ]
    assert paths[0] == paths[1]


def test_whole_numbers_have_ticks_at_whole_numbers(runs):
    wide = runs.assign(layer=runs["layer"] * 5 - 4)  # from 1 to 6
    figure = drawn(plots.curves(wide.query("tau == 0"), x="layer", y="alignment", hue="stage", col="data"))
    ticks = figure.axes[0].get_xticks()
    assert len(ticks) > 2
    assert (ticks % 1 == 0).all()


def test_bands_have_the_color_of_their_line(runs):
    figure = drawn(plots.curves(runs, x="tau", y="alignment", hue="layer", col="data", style="stage"))
    lines = {plt.matplotlib.colors.to_hex(line.get_color()) for line in figure.axes[0].get_lines()}
    bands = {plt.matplotlib.colors.to_hex(b.get_facecolor()[0]) for b in figure.axes[0].collections}
    assert bands <= lines
    assert len(bands) == 2


def test_what_is_left_out_of_a_drawing_is_not_averaged_in_silence(runs):
    with pytest.raises(ValueError, match=r"one alignment for each tau, layer, seed.*but there are 4"):
        plots.curves(runs, x="tau", y="alignment", hue="layer")


def test_missing_columns_are_named(runs):
    with pytest.raises(ValueError, match="no column depth: it has data, seed"):
        plots.curves(runs, x="tau", y="alignment", hue="depth")


def test_one_run_has_no_band_to_speak_of(runs):
    one = plots.averaged(runs.query("seed == 0"), ["data", "layer", "stage", "tau"], "alignment", "seed")
    assert (one["se"] == 0).all()
    assert (one["runs"] == 1).all()


def test_alignment_curves_end_where_the_last_has_fallen():
    y = torch.tensor([1.0, 1.0, -1.0, -1.0])
    phi = {"label": y[:, None], "own": torch.eye(4)}
    tau = plots.thresholds(4)
    rows = [
        dict(seed=0, phi=name, tau=float(t), alignment=float(v))
        for name, one in phi.items()
        for t, v in zip(tau, spectrum(unit_rows(one), y).curve(tau).value, strict=True)
    ]
    figure = drawn(plots.alignment(pd.DataFrame(rows), hue="phi"))
    assert float(tau[-1]) == 2.0
    assert figure.axes[0].get_xlim()[1] == pytest.approx(2.2)
    assert figure.axes[0].get_xlabel() == "threshold $\\tau$"


def test_modes_count_from_one():
    frame = pd.DataFrame(dict(seed=0, index=[1, 2, 3], power=[3.0, 2.0, 1.0]))
    assert drawn(plots.modes(frame)).axes[0].get_xscale() == "log"
    with pytest.raises(ValueError, match="counted from 1"):
        plots.modes(frame.assign(index=frame["index"] - 1))


def test_a_scatter_with_its_diagonal_has_equal_axes():
    frame = pd.DataFrame(dict(scratch=[0.1, 0.5], pretrained=[0.4, 0.9], kind=["a", "b"]))
    ax = drawn(plots.scatter(frame, x="scratch", y="pretrained", hue="kind", diagonal=True)).axes[0]
    assert ax.get_xlim() == ax.get_ylim()
    assert ax.get_xlim()[0] < 0.1
    assert ax.get_xlim()[1] > 0.9


def test_a_scatter_in_panels_has_one_legend_and_the_same_colors():
    frame = pd.DataFrame(
        dict(x=[0.1, 0.5, 0.2], y=[0.4, 0.9, 0.3], kind=["a", "b", "b"], task=["u", "u", "v"])
    )
    first, second = drawn(plots.scatter(frame, x="x", y="y", hue="kind", col="task", diagonal=True)).axes
    assert [ax.get_title(loc="left") for ax in (first, second)] == ["u", "v"]
    assert first.get_legend() is None
    assert second.get_legend() is not None
    dots = first.collections[0].get_facecolor(), second.collections[0].get_facecolor()
    assert (dots[0][1] == dots[1][0]).all()


def test_a_matrix_prints_ours_and_the_papers():
    ours = pd.DataFrame([[0.5, 0.25]], index=["row"], columns=["a", "b"])
    figure = drawn(plots.matrix(ours, paper=ours + 0.1))
    assert [t.get_text() for t in figure.axes[0].texts] == ["0.50\n(0.60)", "0.25\n(0.35)"]


def test_a_forest_shows_every_effect():
    effects = {"up": above([1.0, 1.1], paper=2.0), "down": below([1.0, 1.1]), "one run": above([1.0])}
    ax = drawn(plots.forest(effects)).axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == list(effects)


def test_strips_show_the_images_as_they_are():
    g = torch.Generator().manual_seed(0)
    byte = torch.randint(256, (3, 3, 4, 5), generator=g, dtype=torch.uint8)
    gray = 2 * torch.rand(2, 1, 6, 6, generator=g) - 1
    figure = drawn(plots.strips({"bytes": byte, "gray": gray}, span=(-1, 1)))
    first, second = (ax.get_images()[0].get_array() for ax in figure.axes)
    assert first.shape == (4, 15, 3)
    np.testing.assert_allclose(first[:, 5:10], byte[1].permute(1, 2, 0) / 255, atol=1e-6)
    np.testing.assert_allclose(second[:, 6:], (gray[1, 0] + 1) / 2, atol=1e-6)
    assert [ax.get_ylabel() for ax in figure.axes] == ["bytes", "gray"]
    with pytest.raises(ValueError, match="shape \\(3, 4, 5\\)"):
        plots.strips({"": byte[0]})


def test_ranked_draws_a_line_for_each_column_in_the_order_of_the_rows():
    frame = pd.DataFrame(np.arange(24.0).reshape(3, 8), columns=range(1, 9))
    figure = drawn(plots.ranked({"a": frame, "b": -frame}, ticks=["x", "y", "z"], legend="layer"))
    upper, lower = figure.axes
    assert [list(line.get_ydata()) for line in upper.get_lines()] == frame.T.to_numpy().tolist()
    assert list(lower.get_lines()[0].get_ydata()) == [0.0, -8.0, -16.0]
    assert [text.get_text() for text in lower.get_xticklabels()] == ["x", "y", "z"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list("12345678")
    figure = drawn(plots.ranked({"a": frame[[1, 2]], "b": frame[[3]]}))
    assert [len(ax.get_legend().get_texts()) for ax in figure.axes] == [2, 1]


def test_spreads_draws_means_with_standard_deviations():
    x = pd.DataFrame({1: [0.0, 2.0], 2: [3.0, 5.0]})
    y = pd.DataFrame({1: [1.0, 1.0], 2: [2.0, 6.0]})
    figure = drawn(plots.spreads({"a": (x, y)}, {"a": ("before", "after")}, legend="layer"))
    (ax,) = figure.axes
    dots = [container.lines[0].get_xydata()[0].tolist() for container in ax.containers]
    assert dots == [[1.0, 1.0], [4.0, 4.0]]
    across, up = (bar.get_segments()[0] for bar in ax.containers[1].lines[2])
    assert np.allclose(across[:, 0], [4 - np.sqrt(2), 4 + np.sqrt(2)])
    assert np.allclose(up[:, 1], [4 - np.sqrt(8), 4 + np.sqrt(8)])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("before", "after")


def test_layer_maps_draw_shares_of_the_maximum_and_geometric_means_of_peaks():
    rows = []
    for kind, col, depth, seed in [
        (k, c, d, s) for k in "ab" for c in "xyz" for d in (4, 16) for s in (0, 1)
    ]:
        at = dict(kind=kind, col=col, depth=depth, seed=seed)
        rows += [dict(at, layer=k, height=k * (1.0 + seed)) for k in range(1, depth + 1)]
        rows += [dict(at, top=depth / 2 ** (2 * seed), other=2.0)]
    frame = pd.DataFrame(rows)
    options = dict(y="height", peak="top", row="kind", col="col", slope=0.5, lines=["other"])
    figure = drawn(plots.layer_maps(frame, **options))
    axes = [ax for ax in figure.axes if ax.get_title(loc="left")]
    assert [ax.get_title(loc="left") for ax in axes] == ["x, a", "y, a", "z, a", "x, b", "y, b", "z, b"]
    dots = axes[0].collections[0]
    at = dict(zip(map(tuple, dots.get_offsets().data), dots.get_array(), strict=True))
    assert at[4, 1] == pytest.approx(0.25)
    assert at[16, 16] == pytest.approx(1)
    lines = {line.get_label(): line.get_ydata() for line in axes[0].get_lines()}
    assert lines["peak"] == pytest.approx([2, 8])
    assert lines["best fit"] == pytest.approx([2, 8])
    assert lines["slope 0.5"] == pytest.approx([2 * 2**0.5, 4 * 2**0.5])
    assert lines["other"] == pytest.approx([2, 2])
    alone = drawn(plots.layer_maps(frame[frame.depth == 4], **options))
    assert "best fit" not in [line.get_label() for line in alone.axes[0].get_lines()]
    with pytest.raises(ValueError, match="no column nothing"):
        plots.layer_maps(frame, **{**options, "peak": "nothing"})
