"""Linear models on fixed features: the closed form against descent itself."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from repalign.linear import logistic_descent, norm_at, squared_descent


def problem(seed, n, d, m=7):
    g = torch.Generator().manual_seed(seed)
    phi, test = (torch.randn(k, d, generator=g, dtype=torch.float64) for k in (n, m))
    w = torch.randn(d, generator=g, dtype=torch.float64)
    return phi, torch.sign(phi @ w), test, torch.sign(test @ w)


@given(st.integers(0, 2**31), st.integers(1, 15), st.integers(1, 15), st.floats(0.05, 1.9))
def test_squared_descent_is_descent(seed, n, d, share):
    phi, y, test, test_y = problem(seed, n, d)
    eta = share * n / float(torch.linalg.matrix_norm(phi, 2)) ** 2
    steps = torch.tensor([0, 1, 2, 3, 10, 41])
    found = squared_descent(phi, y, test, test_y, eta=eta, steps=steps)
    w = torch.zeros(d, dtype=torch.float64)
    for step in range(42):
        if step in steps:
            i = steps.tolist().index(step)
            assert float(found.train[i]) == pytest.approx(float((phi @ w - y).square().mean()), abs=1e-9)
            assert float(found.test[i]) == pytest.approx(float((test @ w - test_y).square().mean()), rel=1e-8)
            assert float(found.norm[i]) == pytest.approx(float(w.norm()), abs=1e-9)
            if step:
                assert found.test_error[i] == (torch.sign(test @ w) != test_y).double().mean()
        w = w - eta / n * phi.mT @ (phi @ w - y)


def test_a_million_steps_cost_one_decomposition():
    phi, y, test, test_y = problem(0, 30, 40)
    eta = 1.0 / float(torch.linalg.matrix_norm(phi, 2)) ** 2
    last = squared_descent(phi, y, test, test_y, eta=eta, steps=torch.tensor([10**9]))
    assert float(last.train[0]) < 1e-12
    closed = torch.linalg.pinv(phi) @ y  # descent from zero ends at the solution of least norm
    assert float(last.norm[0]) == pytest.approx(float(closed.norm()), rel=1e-6)


def test_logistic_descent_follows_autograd():
    phi, y, test, test_y = problem(1, 20, 5)
    found = logistic_descent(phi, y, test, test_y, eta=0.7, steps=torch.tensor([0, 1, 25]))
    w = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    for step in range(26):
        loss = torch.log1p(torch.exp(-(phi @ w) * y)).mean() / np.log(2)
        if step in (0, 1, 25):
            i = [0, 1, 25].index(step)
            assert float(found.train[i]) == pytest.approx(loss.item(), rel=1e-10)
            assert float(found.norm[i]) == pytest.approx(w.norm().item(), rel=1e-10)
        (g,) = torch.autograd.grad(loss, w)
        w = (w - 0.7 * g).detach().requires_grad_()
    assert float(found.train[0]) == pytest.approx(1.0)


def test_numpy_in_numpy_out():
    out = squared_descent(*(v.numpy() for v in problem(2, 9, 3)), eta=0.1, steps=np.arange(3))
    assert all(isinstance(part, np.ndarray) for part in out[:-1])
    assert out.eta == 0.1


@pytest.mark.parametrize("descent", [squared_descent, logistic_descent])
def test_of_several_step_sizes_the_one_with_the_lowest_final_loss_is_kept(descent):
    task, steps, etas = problem(4, 20, 6), torch.tensor([0, 1, 30]), (0.001, 0.3, 1e6, 0.1)
    alone = [descent(*task, eta=eta, steps=steps) for eta in etas]
    found = descent(*task, eta=etas, steps=steps)
    best = min(alone, key=lambda curve: curve.train[-1].nan_to_num(nan=torch.inf))
    assert found.eta == best.eta
    for mine, other in zip(found[:-1], best[:-1], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


def test_no_step_size_converges():
    task, steps = problem(5, 20, 6), torch.tensor([0, 10**6])
    with pytest.raises(ValueError, match="no step size converged"):
        squared_descent(*task, eta=(1e3, 1e4), steps=steps)
    assert not torch.isfinite(squared_descent(*task, eta=1e3, steps=steps).train[-1])


def test_bad_input():
    phi, y, test, test_y = problem(3, 9, 3)
    with pytest.raises(ValueError, match="1 and -1"):
        logistic_descent(phi, y * 2, test, test_y, eta=0.1, steps=torch.arange(2))
    with pytest.raises(ValueError, match="the same number of features"):
        squared_descent(phi, y, test[:, :2], test_y, eta=0.1, steps=torch.arange(2))
    with pytest.raises(ValueError, match="9 and 8 rows"):
        squared_descent(phi, y[:-1], test, test_y, eta=0.1, steps=torch.arange(2))
    with pytest.raises(ValueError, match="positive step size"):
        squared_descent(phi, y, test, test_y, eta=(), steps=torch.arange(2))
    with pytest.raises(ValueError, match="positive step size"):
        logistic_descent(phi, y, test, test_y, eta=-1.0, steps=torch.arange(2))


def test_divergence_is_infinite_and_stays_where_it_is():
    phi, steps = torch.diag(torch.tensor([10.0, 1.0])).double(), torch.tensor([0, 1000])
    quiet, loud = torch.tensor([0.0, 1.0]).double(), torch.tensor([1.0, 1.0]).double()
    fine = squared_descent(phi, quiet, phi, quiet, eta=1.0, steps=steps)
    torch.testing.assert_close(fine.train, torch.tensor([0.5, 0.0]).double())
    assert fine.norm.tolist() == [0, 1]
    lost = squared_descent(phi, loud, phi, loud, eta=1.0, steps=steps)
    assert lost.train.tolist() == [1.0, math.inf]
    assert lost.test[1] == lost.norm[1] == math.inf
    # One step that ends it all: η σ² / n = 1.
    exact = squared_descent(phi, quiet, phi, quiet, eta=2.0, steps=torch.tensor([0, 1, 2]))
    assert exact.train.tolist() == [0.5, 0.0, 0.0]


@given(st.integers(0, 2**31), st.floats(0.5, 3.0))
def test_norms_at_shares_of_the_loss(seed, sigma):
    """Where all singular values are the same, all weights grow in step."""
    q = torch.linalg.qr(problem(seed, 6, 6)[0]).Q
    y = problem(seed, 6, 6)[1]
    path = squared_descent(sigma * q, y, q, y, eta=0.01, steps=torch.arange(3000))
    shares = torch.tensor([0.1, 0.5, 0.9])
    expected = (1 - (1 - shares.double()).sqrt()) * y.norm() / sigma
    reached = shares <= 1 - path.train[-1] / path.train[0]
    found = norm_at(path, shares.tolist())
    assert torch.allclose(found[reached], expected[reached], rtol=1e-3)
    assert found[~reached].isnan().all()


def test_norms_need_the_whole_path():
    phi, y, test, test_y = problem(0, 9, 4)
    path = squared_descent(phi, y, test, test_y, eta=0.1, steps=torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="begin at step 0"):
        norm_at(path, [0.5])


def test_errors_of_labels_0_and_1_are_those_of_signs():
    phi, y, test, test_y = problem(3, 12, 4)
    ones, test_ones = ((v > 0).double() for v in (y, test_y))
    # With a constant feature the two tasks have the same solutions, up to shift and scale.
    phi, test = (torch.cat([v, torch.ones(len(v), 1).double()], dim=1) for v in (phi, test))
    steps, eta = torch.tensor([10**7]), 0.5
    signs = squared_descent(phi, y, test, test_y, eta=eta, steps=steps)
    found = squared_descent(phi, ones, test, test_ones, eta=eta, steps=steps)
    assert float(found.train_error) == float(signs.train_error)
    assert float(found.test_error) == float(signs.test_error)
    assert float(found.train_error) < 0.5
