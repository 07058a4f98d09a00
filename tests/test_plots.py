"""Drawings from frames: what is drawn is the mean and the standard error of the table."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from repalign import plots
from repalign.alignment import spectrum, unit_rows
from repalign.press import style
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
