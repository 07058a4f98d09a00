"""The best of several learning rates: what a page relies on."""

import pytest
import torch
from torch import nn

from repalign import train
from repalign.papers import imani

X = torch.linspace(-1, 1, 32)[:, None]
HOW = dict(loss="squared", optimizer="sgd", epochs=5, batch_size=8, seed=0)


def zero():
    line = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(line.weight)
    return line


def fit_best(rates):
    return imani.fit_best_rate(zero, X.double(), 3 * X.double(), rates=rates, **HOW)


@pytest.mark.parametrize("rates", [(0.001, 0.1, 0.01), (0.1,), (0.1, 1e300), (1e300, 0.1)])
def test_the_network_is_the_one_that_this_rate_alone_gives(rates):
    model, history = fit_best(rates)
    alone = zero()
    expected = train.fit(alone, X.double(), 3 * X.double(), lr=0.1, **HOW)
    assert torch.equal(model.weight, alone.weight)
    assert history.loss == expected.loss


def test_where_every_rate_diverges_the_error_names_them():
    with pytest.raises(train.DivergedError, match=r"each of the rates \[1e\+300, 1e\+301\]: try smaller"):
        fit_best((1e300, 1e301))


def test_no_rate_at_all_is_refused():
    with pytest.raises(ValueError, match="one learning rate or more"):
        fit_best(())
