"""The three representations: what a reader of §3 relies on."""

import math

import pandas as pd
import pytest
import torch

from repalign import data, linear
from repalign.alignment import spectrum, unit_rows
from repalign.papers import imani
from repalign.papers.imani import learned as module


def task(n=40, d=8):
    g = torch.Generator().manual_seed(0)
    x = unit_rows(torch.rand(n, d, generator=g))
    return x, torch.sin(7 * x[:, 0])


def learned(kind, x, y, **change):
    how = {"units": 96, "epochs": 20, "passes": 3, "alpha": 0.001} | change
    return imani.learn(kind, x, y, **how)


@pytest.mark.parametrize("kind", imani.KINDS)
def test_a_linear_model_fits_the_labels_and_other_rows_have_the_same_features(kind):
    x, y = task()
    phi = learned(kind, x, y)
    assert phi(x).shape == (40, 96)
    found = spectrum(phi(x).double(), y.double())
    assert float(found.residual) < 0.05 * float(y.square().sum())
    torch.testing.assert_close(phi(x[:7]), phi(x)[:7], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", imani.KINDS)
def test_the_same_seed_gives_the_same_features(kind):
    x, y = task()
    first, again, other = (learned(kind, x, y, seed=seed)(x) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_only_the_dictionary_never_sees_the_labels():
    x, y = task()
    for kind in imani.KINDS:
        same = torch.equal(learned(kind, x, y)(x), learned(kind, x, y.flip(0))(x))
        assert same == (kind == "dictionary")


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="network, rbf, dictionary, but is 'sparse'"):
        imani.learn("sparse", *task(), units=4)


def test_what_is_said_of_features_is_what_the_single_functions_say():
    g = torch.Generator().manual_seed(0)
    phi, y = torch.randn(30, 8, generator=g).double().relu(), torch.randn(30, generator=g)
    phi[:, 2], phi[:, 5] = 0, 3 + phi[:, 5]
    steps, tau = torch.tensor([0, 1, 50]), torch.tensor([0.0, 1.0, 2.0]).double()
    rows = pd.DataFrame(imani.examine(phi, y, trained=20, etas=(0.1, 1.0), steps=steps, tau=tau))
    assert set(rows["rows"]) == {"scaled", "as learned"}
    said = rows.groupby(["rows", "what"]).value.apply(list)
    unit, b = unit_rows(phi, constant=True), y.double()
    plain = torch.cat([phi, torch.ones(30, 1, dtype=torch.float64)], dim=1)
    for name, full in (("scaled", unit), ("as learned", plain)):
        found = spectrum(full[:20], b[:20])
        parts = full[:20], b[:20], full[20:], b[20:]
        own = linear.squared_descent(*parts, eta=20 / float(found.sigma[0]) ** 2, steps=steps)
        best = linear.squared_descent(*parts, eta=(0.1, 1.0), steps=steps) if name == "scaled" else own
        assert said[name, "training error"] == pytest.approx(best.train.tolist())
        assert said[name, "test error"] == pytest.approx(best.test.tolist())
        assert said[name, "training error, own step size"] == pytest.approx(own.train.tolist())
        assert said[name, "share left"] == pytest.approx(
            [float(found.residual) / float(b[:20].square().sum())]
        )
        assert said[name, "never on"] == [1]
        assert said[name, "always on"] == [1]
        assert said[name, "independent"] == [8]
    assert said["scaled", "alignment"] == pytest.approx(spectrum(unit[:20], b[:20]).alignment(tau).tolist())
    # One number takes the scale of the whole away, and with it the units of the features.
    size = said["as learned", "size"][0]
    assert math.isclose(size**2, float(plain[:20].square().sum()) / 20)
    curve = spectrum(plain[:20] / size, b[:20]).alignment(tau)
    assert said["as learned", "alignment"] == pytest.approx(curve.tolist())


def test_a_decomposition_that_fails_is_tried_in_another_order(monkeypatch):
    g = torch.Generator().manual_seed(0)
    phi, y = torch.randn(30, 8, generator=g).relu(), torch.randn(30, generator=g)
    how = dict(trained=20, etas=(0.1, 1.0), steps=torch.arange(3), tau=torch.tensor([0.0, 1.0]).double())
    expected, seen, real = imani.examine(phi, y, **how), [], module.spectrum

    def slips(phi, y):
        seen.append(phi)
        if len(seen) == 1:
            raise torch.linalg.LinAlgError("the algorithm failed to converge")
        return real(phi, y)

    monkeypatch.setattr(module, "spectrum", slips)
    found = imani.examine(phi, y, **how)
    assert torch.allclose(seen[0][:, :-1].flip(1), seen[1][:, :-1])  # the constant stays behind
    assert [row["what"] for row in found] == [row["what"] for row in expected]
    assert [row["value"] for row in found] == pytest.approx([row["value"] for row in expected], abs=1e-12)


def test_a_run_learns_on_one_half_and_is_examined_on_both():
    slices = data.load("ct_phantom", n=40, seed=3)
    sizes = dict(units=12, epochs=2, passes=2, bandwidth=1.0, alpha=0.05, seed=3)
    asked = dict(etas=(0.1, 1.0), steps=torch.tensor([0, 5]), tau=torch.tensor([0.0, 1.0]).double())
    y = slices.y - slices.y.min()
    x, y = unit_rows(slices.x), 2 * y / y.max() - 1
    for kind in imani.KINDS:
        own = imani.learn(kind, x[:20], y[:20], **sizes)
        expected = imani.examine(own(x), y, trained=20, **asked)
        found = imani.learn_and_examine(slices, kind=kind, **sizes, **asked)
        numbers = [[row["value"] for row in rows] for rows in (found, expected)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-6)
