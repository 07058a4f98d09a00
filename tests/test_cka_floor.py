"""The floor of CKA: moments over all pairings of samples, against all of them one by one."""

import itertools

import pytest
import torch

from repalign.kernels import cka, cka_floor


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("n, d, e", [(4, 2, 3), (5, 2, 1), (6, 3, 9), (7, 9, 3)])
def test_moments_are_those_of_all_permutations(n, d, e):
    x, y = normal(n, d, seed=n) ** 3 + 5, normal(n, e, seed=n + 1)
    values = torch.stack([cka(x, y[list(order)]) for order in itertools.permutations(range(n))])
    floor = cka_floor(x, y, draws=0)
    assert floor.mean == pytest.approx(float(values.mean()), abs=1e-12)
    assert floor.sd == pytest.approx(float(values.std(correction=0)), abs=1e-12)


def test_kernels_without_preference_have_one_cka_whatever_the_pairing():
    x, y = torch.eye(6, dtype=torch.float64), normal(6, 2)
    floor = cka_floor(x, y)
    assert floor.mean == pytest.approx(float(cka(x, y)), abs=1e-12)
    assert floor.sd == pytest.approx(0, abs=1e-7)
    assert floor.pvalue == 1


def test_random_pairings_have_these_moments_at_larger_size():
    x, y = normal(60, 5), normal(60, 40, seed=1)
    generator = torch.Generator().manual_seed(2)
    drawn = torch.stack([cka(x, y[torch.randperm(60, generator=generator)]) for _ in range(2000)])
    floor = cka_floor(x, y, draws=0)
    assert float(drawn.mean()) == pytest.approx(floor.mean, abs=5 * floor.sd / 2000**0.5)
    assert float(drawn.std()) == pytest.approx(floor.sd, rel=0.1)


def test_what_is_related_is_told_from_what_is_not():
    x = normal(50, 5)
    related, unrelated = x @ normal(5, 5, seed=1) + normal(50, 5, seed=2), normal(50, 5, seed=3)
    assert cka_floor(x, related).pvalue == 1 / 1000
    assert cka_floor(x, unrelated).pvalue > 0.01


def test_rotation_scale_and_a_shift_change_nothing():
    x, y = normal(20, 4), normal(20, 3, seed=1)
    turned = 7 * x @ torch.linalg.qr(normal(4, 4, seed=2)).Q + 3
    one, other = cka_floor(x, y), cka_floor(turned, y)
    assert (one.mean, one.sd, one.pvalue) == pytest.approx((other.mean, other.sd, other.pvalue))


def test_numpy_and_float32_are_taken():
    x, y = normal(20, 4), normal(20, 3, seed=1)
    wanted = cka_floor(x, y)
    assert cka_floor(x.numpy(), y.numpy()) == wanted
    assert cka_floor(x.float(), y.float()).mean == pytest.approx(wanted.mean, rel=1e-6)


def test_what_has_no_floor_is_refused():
    x = normal(5, 2)
    with pytest.raises(ValueError, match="should vary over samples"):
        cka_floor(x, torch.ones(5, 2))
    with pytest.raises(ValueError, match="at least 2 samples"):
        cka_floor(x[:1], x[:1])
    with pytest.raises(ValueError, match="one row per sample"):
        cka_floor(x, x[:4])
