"""The three representations: what a reader of §3 relies on."""

import pytest
import torch

from repalign.alignment import spectrum, unit_rows
from repalign.features.learned import KINDS, learn


def task(n=40, d=8):
    g = torch.Generator().manual_seed(0)
    x = unit_rows(torch.rand(n, d, generator=g))
    return x, torch.sin(7 * x[:, 0])


def learned(kind, x, y, **change):
    how = {"units": 96, "epochs": 20, "passes": 3, "alpha": 0.001} | change
    return learn(kind, x, y, **how)


@pytest.mark.parametrize("kind", KINDS)
def test_a_linear_model_fits_the_labels_and_other_rows_have_the_same_features(kind):
    x, y = task()
    phi = learned(kind, x, y)
    assert phi(x).shape == (40, 96)
    found = spectrum(phi(x).double(), y.double())
    assert float(found.residual) < 0.05 * float(y.square().sum())
    torch.testing.assert_close(phi(x[:7]), phi(x)[:7], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_features(kind):
    x, y = task()
    first, again, other = (learned(kind, x, y, seed=seed)(x) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_only_the_dictionary_never_sees_the_labels():
    x, y = task()
    for kind in KINDS:
        same = torch.equal(learned(kind, x, y)(x), learned(kind, x, y.flip(0))(x))
        assert same == (kind == "dictionary")


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="network, rbf, dictionary, but is 'sparse'"):
        learn("sparse", *task(), units=4)
