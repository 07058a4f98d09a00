"""Label operations: exact shares, explicit seeds, no overlap."""

import pytest
import torch

from repalign import data

Y = torch.arange(1000) % 10


def test_signs_and_one_hot():
    assert data.signs(torch.tensor([1, 0])).tolist() == [1, -1]
    assert data.signs(torch.tensor([1, 0]), dtype=torch.float64).dtype == torch.float64
    hot = data.one_hot(Y, 12)
    assert hot.shape == (1000, 12)
    assert torch.equal(hot.argmax(1), Y)
    assert (hot.sum(1) == 1).all()


def test_shuffling_keeps_the_counts_and_needs_its_seed():
    a, b, c = (data.shuffled(Y, seed=s) for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(a.bincount(), Y.bincount())
    assert data.shuffled(torch.ones(5, 3), seed=0).shape == (5, 3)


def test_random_labels_are_uniform_and_the_same_everywhere():
    y = data.random_labels(100_000, 50, seed=3)
    counts = y.bincount(minlength=50).double()
    assert len(counts) == 50
    # Chi-squared with 49 degrees of freedom: mean 49, standard deviation 10.
    assert ((counts - 2000).square() / 2000).sum() < 49 + 5 * 10
    assert data.random_labels(5, 10, seed=0).tolist() == [8, 6, 5, 2, 3]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 1.0])
def test_noise_makes_exactly_its_share_wrong(share):
    noisy = data.noisy(Y, share, seed=0)
    assert (noisy != Y).sum() == round(1000 * share)
    assert noisy.min() >= 0
    assert noisy.max() < 10
    assert torch.equal(noisy, data.noisy(Y, share, seed=0))


def test_more_noise_spoils_the_same_samples_and_more():
    ten, twenty = data.noisy(Y, 0.1, seed=4), data.noisy(Y, 0.2, seed=4)
    wrong = ten != Y
    assert torch.equal(ten[wrong], twenty[wrong])
    # Wrong labels are spread over the other classes.
    steps = (data.noisy(Y, 1.0, seed=5) - Y).remainder(10)
    assert set(steps.tolist()) == set(range(1, 10))


def test_disjoint_samples_share_nothing():
    up, down = data.disjoint(torch.arange(100), 60, 30, seed=1)
    assert (len(up), len(down)) == (60, 30)
    assert not set(up.tolist()) & set(down.tolist())
    d = data.load("mnist", n=300)
    a, b = data.disjoint(d, 200, 100, seed=0)
    assert len({i.numpy().tobytes() for part in (a, b) for i in part.x}) == 300
    assert len({d.fingerprint, a.fingerprint, b.fingerprint}) == 3
    assert (a.name, a.classes, a.source) == (d.name, d.classes, d.source)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: data.signs(Y), "load two classes"),
        (lambda: data.one_hot(Y, 5), "from 0 to 4, but go from 0 to 9"),
        (lambda: data.one_hot(Y.float()), "int64"),
        (lambda: data.noisy(Y, 1.5, seed=0), "from 0 to 1"),
        (lambda: data.noisy(torch.zeros(4, dtype=torch.int64), 0.5, seed=0), "two classes"),
        (lambda: data.random_labels(0, 3, seed=0), "at least 1"),
        (lambda: data.disjoint(Y, 900, 200, seed=0), "at most 1000"),
        (lambda: data.disjoint(Y, seed=0), "positive"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()
