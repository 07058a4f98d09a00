"""Layers of networks as rows, on disk and in memory."""

import errno
import os

import numpy as np
import pytest
import torch
from torch import nn

from repalign import models
from repalign.features import extract
from repalign.models.initialization import generator, normal


@pytest.fixture
def x():
    return normal((11, 3, 8, 8), generator(0))


@pytest.fixture
def net():
    return models.SimpleCNN((3, 8, 8), 4, convs=2, filters=5, units=6)


def by_hand(net, x):
    with torch.no_grad():
        first = net.relu0(net.conv0(x))
        second = net.relu1(net.conv1(first))
        return {"relu0": first, "relu1": second, "dense_relu": net.dense_relu(net.dense(second.flatten(1)))}


@pytest.mark.parametrize("batch_size", [1, 4, 11, 500])
def test_layers_are_the_outputs_of_modules(net, x, batch_size):
    found = extract(net, x, batch_size=batch_size)
    expected = by_hand(net, x)
    assert list(found) == list(models.probed_layers(net)) == list(expected)
    for name, output in expected.items():
        torch.testing.assert_close(found[name], output.flatten(1))
        assert not found[name].requires_grad


def test_named_layers_in_the_order_asked_for(net, x):
    found = extract(net, x, ["head", "conv0"])
    assert {name: tuple(rows.shape) for name, rows in found.items()} == {"head": (11, 4), "conv0": (11, 320)}
    assert list(found) == ["head", "conv0"]
    torch.testing.assert_close(found["head"], net(x).detach())
    assert list(extract(net, x, "head")) == ["head"]  # one name needs no list


def test_pooling_over_positions_and_tokens(net, x):
    expected = by_hand(net, x)
    mean, largest = (extract(net, x, pool=pool) for pool in ("mean", "max"))
    torch.testing.assert_close(mean["relu1"], expected["relu1"].mean((2, 3)))
    torch.testing.assert_close(largest["relu1"], expected["relu1"].amax((2, 3)))
    torch.testing.assert_close(mean["dense_relu"], expected["dense_relu"])
    vit = models.vit_small(image_size=8, depth=1, width=12)
    layer = vit.probed[0]
    tokens = extract(vit, x, [layer])[layer].reshape(11, 5, 12)
    torch.testing.assert_close(extract(vit, x, [layer], pool="mean")[layer], tokens.mean(1))


def test_the_model_is_left_as_it_was(x):
    net = models.preact_resnet18(k=2)
    net.stage1.eval()  # not all in one mode
    before = {name: m.training for name, m in net.named_modules()}
    state = {key: value.clone() for key, value in net.state_dict().items()}
    first = extract(net, x)
    assert {name: m.training for name, m in net.named_modules()} == before
    assert all(torch.equal(net.state_dict()[key], value) for key, value in state.items())  # running averages
    assert torch.is_grad_enabled()
    assert not any(m._forward_hooks for m in net.modules())
    # Eval mode: a sample's features do not depend on its batch.
    torch.testing.assert_close(extract(net, x[:3])["stage4"], first["stage4"][:3])


class Fails(nn.Sequential):
    def forward(self, x):
        super().forward(x)
        raise RuntimeError("in the middle")


def test_hooks_are_removed_when_the_model_raises(x):
    net = Fails(nn.Flatten(), nn.Linear(192, 2)).train()
    with pytest.raises(RuntimeError, match="in the middle"):
        extract(net, x, ["1"])
    assert not net[1]._forward_hooks
    assert net.training


def test_a_later_layer_that_works_in_place_changes_nothing():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    x = normal((6, 3), generator(0))
    with torch.no_grad():
        expected = net[0](x)
    torch.testing.assert_close(extract(net, x, ["0"], batch_size=4)["0"], expected)


def test_numpy_in_numpy_out_in_the_precision_of_the_model(net, x):
    tensors = extract(net, x)
    arrays = extract(net, x.numpy().astype(np.float64))
    for name, rows in tensors.items():
        assert isinstance(arrays[name], np.ndarray)
        assert arrays[name].dtype == np.float32
        np.testing.assert_array_equal(arrays[name], rows)
    frozen = x.numpy().copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(extract(net, frozen)["relu0"], tensors["relu0"])
    assert extract(net.double(), x)["relu0"].dtype == torch.float64
    half = extract(net.bfloat16(), x.numpy())
    assert half["relu0"].dtype == np.float32  # numpy has no bfloat16


def test_to_disk(net, x, tmp_path):
    expected = extract(net, x)
    found = extract(net, x, batch_size=4, out=tmp_path / "new" / "place")
    assert sorted(os.listdir(tmp_path / "new" / "place")) == ["dense_relu.npy", "relu0.npy", "relu1.npy"]
    for name, rows in expected.items():
        assert isinstance(found[name], np.memmap)
        np.testing.assert_allclose(found[name], rows, rtol=1e-5, atol=1e-6)
        assert np.load(tmp_path / "new" / "place" / f"{name}.npy").shape == rows.shape
    assert not found["relu0"].flags.writeable


def test_a_failure_leaves_the_old_files_and_nothing_else(net, x, tmp_path):
    extract(net, x, out=tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    bad = x.clone()
    bad[7, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="rows from 4 on"):
        extract(net, bad, batch_size=4, out=tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_full_disk_is_an_error_and_leaves_nothing(net, x, tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        extract(net, x, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.idle = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(self.layer(x))


class Halves(nn.Module):
    """Its only layer sees every sample as three."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, x):
        return self.layer(x.reshape(-1, 1)).sum()


ROWS = torch.ones(4, 3)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: extract(models.MLP(3, 2), ROWS, ["atc1"]), "did you mean act1"),
        (lambda: extract(models.MLP(3, 2), ROWS, ["zzz"]), "did you mean flatten, fc1"),
        (lambda: extract(models.MLP(3, 2), ROWS, [""]), "no layer ''"),
        (lambda: extract(models.MLP(3, 2), ROWS, ["fc1", "fc1"]), "each once"),
        (lambda: extract(models.MLP(3, 2), ROWS, []), "each once"),
        (lambda: extract(models.MLP(3, 2), ROWS, pool="sum"), "flatten, mean, max, token or last"),
        (lambda: extract(models.MLP(3, 2), ROWS, batch_size=0), "at least 1"),
        (lambda: extract(models.MLP(3, 2), ROWS[0]), "at least one row"),
        (lambda: extract(models.MLP(3, 2), ROWS[:0]), "at least one row"),
        (lambda: extract(models.MLP(3, 2), ROWS * torch.inf), "finite"),
        (lambda: extract(Twice(), ROWS, ["layer"]), "more than once per pass, 2 times: name one call"),
        (lambda: extract(Twice(), ROWS, ["layer#3"]), "'layer#1' to 'layer#2'"),
        (lambda: extract(Twice(), ROWS, ["layer#first"]), "not 'layer#first'"),
        (lambda: extract(Twice(), ROWS, ["idle"]), "does not run these layers: idle"),
        (lambda: extract(Halves(), ROWS), "set model.probed"),
        (lambda: extract(Halves(), ROWS, ["layer"]), "a row per sample, but does not"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()
