"""What the layers of a network resemble, and models in the order of it."""

import io
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from repalign import features, kernels, models
from repalign.models.initialization import generator, normal
from repalign.papers import canatar
from repalign.study import style


@pytest.fixture(autouse=True)
def _style():
    style.use()
    yield
    plt.close("all")


def drawn(figure):
    figure.savefig(io.BytesIO(), format="svg")
    return figure


@pytest.fixture
def x():
    return normal((12, 3, 8, 8), generator(0))


def test_rows_are_the_cka_of_extracted_layers(x):
    net = models.ResNet11(width=4)
    y = nn.functional.one_hot(torch.arange(12) % 3).float()
    rows = canatar.layer_cka(net, x, {"target": y, "input": x})
    assert [row["layer"] for row in rows] == list(range(1, 11))
    for row, phi in zip(rows, features.extract(net, x).values(), strict=True):
        for name, other in (("target", y), ("input", x.flatten(1))):
            assert row[name] == pytest.approx(float(kernels.cka(phi, other)), abs=1e-4)
            debiased = float(kernels.cka(phi, other, debiased=True))
            assert row[f"{name}, debiased"] == pytest.approx(debiased, abs=1e-3)


def test_a_layer_resembles_itself_and_a_dead_one_nothing(x):
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.ReLU(), nn.Linear(5, 4))
    own = features.extract(net, x, ["1"])["1"]
    (row,) = canatar.layer_cka(net, x, {"itself": own}, ["1"])
    assert row["itself"] == pytest.approx(1)
    nn.init.zeros_(net[1].weight)
    rows = canatar.layer_cka(net, x, {"itself": own}, ["1", "2"])
    assert all(math.isnan(v) for row in rows for k, v in row.items() if k != "layer")
    net[3].weight.data.fill_(math.nan)
    (row,) = canatar.layer_cka(net, x, {"itself": own}, ["3"])
    assert math.isnan(row["itself"])


def test_ranked_draws_a_line_for_each_column_in_the_order_of_the_rows():
    frame = pd.DataFrame(np.arange(24.0).reshape(3, 8), columns=range(1, 9))
    figure = drawn(canatar.ranked({"a": frame, "b": -frame}, ticks=["x", "y", "z"], legend="layer"))
    upper, lower = figure.axes
    assert [list(line.get_ydata()) for line in upper.get_lines()] == frame.T.to_numpy().tolist()
    assert list(lower.get_lines()[0].get_ydata()) == [0.0, -8.0, -16.0]
    assert [text.get_text() for text in lower.get_xticklabels()] == ["x", "y", "z"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list("12345678")
    figure = drawn(canatar.ranked({"a": frame[[1, 2]], "b": frame[[3]]}))
    assert [len(ax.get_legend().get_texts()) for ax in figure.axes] == [2, 1]


def test_spreads_draws_means_with_standard_deviations():
    x = pd.DataFrame({1: [0.0, 2.0], 2: [3.0, 5.0]})
    y = pd.DataFrame({1: [1.0, 1.0], 2: [2.0, 6.0]})
    figure = drawn(canatar.spreads({"a": (x, y)}, {"a": ("before", "after")}, legend="layer"))
    (ax,) = figure.axes
    dots = [container.lines[0].get_xydata()[0].tolist() for container in ax.containers]
    assert dots == [[1.0, 1.0], [4.0, 4.0]]
    across, up = (bar.get_segments()[0] for bar in ax.containers[1].lines[2])
    assert np.allclose(across[:, 0], [4 - np.sqrt(2), 4 + np.sqrt(2)])
    assert np.allclose(up[:, 1], [4 - np.sqrt(8), 4 + np.sqrt(8)])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("before", "after")
