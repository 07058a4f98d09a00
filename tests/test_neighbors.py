"""Neighbors in common, against brute force, and what pairing at random leaves of them."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from repalign.covariance import random_basis
from repalign.neighbors import mutual_neighbors


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(x, y, k, cosine=False):
    """Sorted distances of one sample after the other; no ties."""
    shares = []
    for i in range(len(x)):
        near = []
        for part in (x, y):
            if cosine:
                distance = 1 - torch.nn.functional.cosine_similarity(part, part[i : i + 1])
            else:
                distance = torch.linalg.vector_norm(part - part[i], dim=1)
            order = [j for j in distance.argsort().tolist() if j != i]
            near.append(set(order[:k]))
        shares.append(len(near[0] & near[1]) / k)
    return sum(shares) / len(shares)


@given(st.integers(0, 2**31), st.integers(2, 25), st.data(), st.booleans())
def test_brute_force_whatever_the_blocks(seed, n, data, cosine):
    k = data.draw(st.integers(1, n - 1))
    x, y = normal(n, 3, seed=seed), normal(n, 4, seed=seed + 1)
    y[:, :3] += x
    x += data.draw(st.sampled_from([0.0, 100.0]))
    found = mutual_neighbors(x, y, k, cosine=cosine)
    assert float(found.share) == pytest.approx(by_hand(x, y, k, cosine), abs=1e-12)
    few = mutual_neighbors(x, y, k, cosine=cosine, max_bytes=1)  # one row at a time
    assert float(few.share) == pytest.approx(float(found.share), abs=1e-12)
    assert found.chance == k / (n - 1)


@pytest.mark.parametrize("cosine", [False, True])
def test_rotation_scale_and_shift_change_nothing(cosine):
    x, y = normal(40, 6), normal(40, 6, seed=1)
    moved = 0.3 * x @ random_basis(6, seed=2) + (0 if cosine else 7)
    assert float(mutual_neighbors(x, moved, 5, cosine=cosine).share) == 1
    one, other = (float(mutual_neighbors(part, y, 5, cosine=cosine).share) for part in (x, moved))
    assert one == pytest.approx(other)
    assert one < 0.5


@given(st.integers(0, 2**31), st.integers(1, 4))
def test_chance_is_the_mean_over_all_pairings(seed, k):
    g = torch.Generator().manual_seed(seed)
    # With ties, too.
    x, y = (torch.randint(0, 3, (5, 2), generator=g).double() for _ in range(2))
    shares = [mutual_neighbors(x, y[list(order)], k) for order in itertools.permutations(range(5))]
    assert float(torch.stack([one.share for one in shares]).mean()) == pytest.approx(shares[0].chance)


def test_ties_do_not_depend_on_the_order_of_samples():
    y = torch.eye(3, dtype=torch.float64)[torch.arange(30) % 3]
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    x = normal(30, 4) + y @ normal(3, 4)
    expected = float(mutual_neighbors(x, y, 5).share)
    assert float(mutual_neighbors(x[order], y[order], 5).share) == pytest.approx(expected)
    # All nine others of a class are equally near: each has 5/9 of a place.
    assert float(mutual_neighbors(y, y, 5).share) == pytest.approx(5 / 9)


def test_kinds_and_precision():
    x, y = normal(20, 3).float(), normal(20, 3, seed=1).float()
    found = mutual_neighbors(x, y, 3)
    assert found.share.dtype == torch.float32
    arrays = mutual_neighbors(x.numpy(), y.numpy(), 3)
    assert isinstance(arrays.share, np.ndarray)
    assert float(arrays.share) == float(found.share)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x: mutual_neighbors(x, x, 0), "k should be from 1 to 9, the other samples, but is 0"),
        (lambda x: mutual_neighbors(x, x), "but is 10"),
        (lambda x: mutual_neighbors(x, x[:4], 2), "10 and 4 rows"),
        (lambda x: mutual_neighbors(x, 0 * x, 2, cosine=True), "Y should have no row of zeros"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call(normal(10, 3))
