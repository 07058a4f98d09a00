"""The sets that are made here: peaks as in Imani §7.1, Gaussians as in Maennel E.1, the body phantom."""

import dataclasses
import importlib
import linecache
import os
import sys

import numpy as np
import pytest
import torch

from repalign import data
from repalign.data import ct_phantom
from repalign.data.acquire import find
from repalign.data.sets import SETS


def test_peaks_are_those_of_the_paper():
    d = data.load("peaks", n=2000, classes=("ABC", "BAC", "EDF"), seed=3)
    assert d.x.shape == (2000, 60)
    assert d.y.shape == (2000, 3)
    assert d.classes == ("ABC", "BAC", "EDF")
    torch.testing.assert_close(d.x.norm(dim=1), torch.ones(2000))
    assert d.y.mean(0).abs().max() < 1e-6
    # Undo the bumps: with centers c, log(f_i / f_j) is linear in the variable.
    x = data.load("peaks", n=2000, classes=("ABC",), seed=3, dtype=torch.float64).x.view(2000, 6, 10)
    variables = (x[..., 6] / x[..., 5]).log() * 0.1**2 / 0.1 + 0.55
    assert variables.min() >= 0
    assert variables.max() < 1
    a, b, c = variables[:, 0], variables[:, 1], variables[:, 2]
    expected = torch.where(a > 0.5, b, c)
    torch.testing.assert_close(d.y[:, 0].double(), expected - expected.mean(), atol=1e-6, rtol=0)


def test_there_are_120_peaks_functions_and_seeds_and_splits_differ():
    d = data.load("peaks")
    assert d.y.shape == (10_000, 120)
    assert len(set(d.classes)) == 120
    assert not torch.equal(data.load("peaks", n=10, seed=1).x, data.load("peaks", n=10, seed=2).x)
    assert not torch.equal(data.load("peaks", n=10).x, data.load("peaks", "test", n=10).x)
    with pytest.raises(ValueError, match="'AAB' is not one"):
        data.load("peaks", classes=("AAB",))


@pytest.mark.parametrize(
    "setting, dims, n, variances", [("left", 10, 10_000, (1, 1.9)), ("right", 30, 2000, (0.1, 3))]
)
def test_gaussians_have_the_covariance_of_the_paper(setting, dims, n, variances):
    d = data.load("gaussian", setting)
    assert d.x.shape == (n, dims)
    many = data.gaussian(200_000, setting).x
    np.testing.assert_allclose(np.cov(many.T), np.diag(np.linspace(*variances, dims)), atol=0.05)
    assert d.y.unique().tolist() == list(range(10))
    with pytest.raises(ValueError, match="leave classes out"):
        data.load("gaussian", setting, classes=("1",))


@pytest.fixture(scope="module")
def phantom():
    return ct_phantom.generate()


def test_the_phantom_is_a_table_like_the_one_it_stands_for(phantom):
    x, y = phantom
    assert len(x) > 10_000
    assert x.shape == (len(y), 384)
    assert x.dtype == y.dtype == np.float32
    assert np.isfinite(x).all()
    assert (y.min(), y.max()) == (2, 98)
    assert x[:, :240].min() >= 0
    assert x[:, 240:].min() == -0.25
    assert (x.std(0) > 0).sum() > 340


def test_the_phantom_needs_more_than_a_line_and_has_a_long_spectrum(phantom):
    x, y = (part.astype(np.float64) for part in phantom)
    rows = np.random.default_rng(0).permutation(len(x))
    train, test = rows[:1500], rows[1500:3000]
    sigma = np.linalg.svd(x[train], compute_uv=False)
    assert sigma[0] / sigma[sigma > 1e-9 * sigma[0]][-1] > 1e3
    bias = np.c_[x, np.ones(len(x))]
    w = np.linalg.solve(bias[train].T @ bias[train] + 1e-3 * np.eye(385), bias[train].T @ y[train])
    linear = np.sqrt(np.square(bias[test] @ w - y[test]).mean())
    squared = np.square(x[train]).sum(1) - 2 * x[test] @ x[train].T
    nearest = np.sqrt(np.square(y[train][squared.argmin(1)] - y[test]).mean())
    assert nearest < 0.8 * linear < 0.3 * y.std()


def test_a_slice_can_be_looked_at():
    chest = ct_phantom.image(46.0, patient=3)
    assert chest.shape == (128, 128)
    assert chest[0, 0] == 0
    assert chest.max() > 0.95  # bone
    lungs = (chest > 0.05) & (chest < 0.2)
    assert 0.1 < lungs.mean() < 0.35


def test_ct_position_gives_way_to_the_phantom_under_its_own_name(monkeypatch, phantom):
    monkeypatch.setenv("REPALIGN_OFFLINE", "1")
    row = dataclasses.replace(SETS["ct_phantom"], generate=lambda: phantom)
    monkeypatch.setitem(SETS, "ct_phantom", row)
    d = data.load("ct_position", n=100)
    assert d.name == "ct_phantom"
    assert "in place of ct_position" in d.source
    assert d.y.dtype == torch.float32
    again = data.load("ct_phantom", n=100)
    assert again.fingerprint == d.fingerprint
    assert data.source_fingerprint("ct_position").startswith("ct_phantom:generated:")
    with pytest.raises(ValueError, match="not classes"):
        data.load("ct_phantom", n=10, classes=("a",))


def test_a_generated_set_is_made_again_when_its_code_changes_and_not_for_a_comment(tmp_path, monkeypatch):
    file = tmp_path / "makes_a_set.py"
    monkeypatch.syspath_prepend(tmp_path)
    marks = []
    for i, text in enumerate(("x = 1", "x = 1  # one", "x = 2")):
        file.write_text(f"{text}\n\n\ndef generate():\n    return x, x\n")
        os.utime(file, (i, i))
        monkeypatch.delitem(sys.modules, "makes_a_set", raising=False)
        linecache.checkcache()
        made = importlib.import_module("makes_a_set")
        monkeypatch.setitem(
            SETS, "ct_phantom", dataclasses.replace(SETS["ct_phantom"], generate=made.generate)
        )
        marks.append(find.recipe("ct_phantom"))
    assert marks[0] == marks[1] != marks[2]
