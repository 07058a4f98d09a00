"""Many networks in one batch, each on its own samples: the steps of training them one by one."""

import copy

import pytest
import torch

from repalign import models
from repalign.papers import imani
from repalign.train import fit


def three(n=40, **shape):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, n, 4, generator=g)
    y = torch.randn(3, n, 1, generator=g)
    nets = [models.MLP(4, 1, depth=1, width=5, init="torch", seed=k, **shape) for k in range(3)]
    return nets, list(zip(x, y, strict=True))


def test_each_takes_the_steps_of_fit():
    nets, samples = three()
    alone, how = copy.deepcopy(nets), dict(loss="squared", epochs=3, batch_size=16, lr=0.01)
    histories = imani.fit_apart(nets, samples, seeds=[5, 6, 7], **how)
    for net, other, (x, y), seed, history in zip(nets, alone, samples, [5, 6, 7], histories, strict=True):
        assert fit(other, x, y, seed=seed, **how).loss == pytest.approx(history.loss, rel=1e-4)
        for a, b in zip(net.parameters(), other.parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-5)


def test_one_that_stops_leaves_the_others_to_their_own_samples():
    nets, samples = three()
    samples[0] = (samples[0][0], torch.zeros(40, 1))
    alone, how = copy.deepcopy(nets), dict(loss="squared", epochs=20, batch_size=8, lr=0.02, stop_loss=0.01)
    histories = imani.fit_apart(nets, samples, seeds=[1, 2, 3], **how)
    assert [history.stopped for history in histories[:2]] == ["loss", "epochs"]
    x, y = samples[2]
    assert fit(alone[2], x, y, seed=3, **how).loss == pytest.approx(histories[2].loss, rel=1e-3)


def test_what_it_refuses():
    nets, samples = three()
    how = dict(seeds=[1, 2, 3], epochs=1, loss="squared")
    with pytest.raises(ValueError, match="no measure"):
        imani.fit_apart(nets, samples, measure=lambda model, epoch: 0, **how)
    with pytest.raises(ValueError, match="2 for 3 models"):
        imani.fit_apart(nets, samples[:2], **how)
    with pytest.raises(ValueError, match="one shape"):
        imani.fit_apart(nets, [*samples[:2], (torch.zeros(9, 4), torch.zeros(9, 1))], **how)
