"""What the layers of a network resemble."""

import math

import pytest
import torch
from torch import nn

from repalign import features, kernels, models
from repalign.models.initialization import generator, normal


@pytest.fixture
def x():
    return normal((12, 3, 8, 8), generator(0))


def test_rows_are_the_cka_of_extracted_layers(x):
    net = models.ResNet11(width=4)
    y = nn.functional.one_hot(torch.arange(12) % 3).float()
    rows = features.layer_cka(net, x, {"target": y, "input": x})
    assert [row["layer"] for row in rows] == list(range(1, 11))
    for row, phi in zip(rows, features.extract(net, x).values(), strict=True):
        for name, other in (("target", y), ("input", x.flatten(1))):
            assert row[name] == pytest.approx(float(kernels.cka(phi, other)), abs=1e-4)
            debiased = float(kernels.cka(phi, other, debiased=True))
            assert row[f"{name}, debiased"] == pytest.approx(debiased, abs=1e-3)


def test_a_layer_resembles_itself_and_a_dead_one_nothing(x):
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.ReLU(), nn.Linear(5, 4))
    own = features.extract(net, x, ["1"])["1"]
    (row,) = features.layer_cka(net, x, {"itself": own}, ["1"])
    assert row["itself"] == pytest.approx(1)
    nn.init.zeros_(net[1].weight)
    rows = features.layer_cka(net, x, {"itself": own}, ["1", "2"])
    assert all(math.isnan(v) for row in rows for k, v in row.items() if k != "layer")
    net[3].weight.data.fill_(math.nan)
    (row,) = features.layer_cka(net, x, {"itself": own}, ["3"])
    assert math.isnan(row["itself"])
