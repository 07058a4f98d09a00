"""Pairs of classes: which are taken, and alignment with each."""

import numpy as np
import pytest
import torch

from repalign.alignment import spectrum, unit_rows
from repalign.papers import imani


def test_class_pairs_are_the_binary_tasks_one_by_one():
    g = torch.Generator().manual_seed(0)
    phi, y = unit_rows(torch.randn(31, 5, generator=g, dtype=torch.float64)), torch.arange(31) % 3 + 4
    tau = torch.linspace(0, 1, 7, dtype=torch.float64)
    got = imani.class_pairs(phi, y, tau)
    assert got.value.shape == (3, 7)
    for k, (a, b) in enumerate([(4, 5), (4, 6), (5, 6)]):
        rows = (y == a) | (y == b)
        n = int(rows.sum())
        s = spectrum(phi[rows], (2.0 * (y[rows] == b) - 1).double())
        torch.testing.assert_close(got.area[k], s.area() / n**1.5)
        torch.testing.assert_close(got.value[k], s.alignment(tau * n**0.5) / n)
    assert isinstance(imani.class_pairs(phi.numpy(), y.numpy(), tau.numpy()).area, np.ndarray)


def test_the_area_of_two_classes_that_each_share_a_row_is_known():
    got = imani.class_pairs(torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1]), torch.zeros(1))
    assert float(got.area) == pytest.approx(0.5**0.5)


def test_class_pairs_need_two_classes():
    with pytest.raises(ValueError, match="two classes or more, but holds"):
        imani.class_pairs(torch.eye(3), torch.zeros(3, dtype=torch.long), torch.zeros(1))
    with pytest.raises(ValueError, match="one row per sample"):
        imani.class_pairs(torch.eye(3), torch.arange(4), torch.zeros(1))


def test_pairs_of_classes_differ_until_all_were_had():
    pairs = [tuple(imani.class_pair("cifar10", number)) for number in range(100, 145)]
    assert len(set(pairs)) == 45
    assert all(0 <= a < b < 10 for a, b in pairs)
    with pytest.raises(ValueError, match="ct_position has no two classes"):
        imani.class_pair("ct_position", 0)
