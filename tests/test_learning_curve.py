"""The learning curve of kernel regression: properties at float64, and regression on Gaussian data."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from repalign.alignment import predicted_error, spectrum


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def problems(draw):
    """Eigenvalues over several orders, some of them 0, power, samples, ridge (0 at times), noise."""
    k = draw(st.integers(1, 30))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    eta = 10.0 ** (-5 * torch.rand(k, generator=g, dtype=torch.float64))
    eta[torch.rand(k, generator=g) < draw(st.sampled_from([0.0, 0.3]))] = 0
    power = torch.rand(k, generator=g, dtype=torch.float64)
    samples, ridge = draw(st.integers(1, 60)), draw(st.sampled_from([0.0, 1e-8, 1e-3, 0.1, 10.0]))
    if ridge == 0 and samples == int((eta > 0).sum()):
        samples += 1  # the peak: a test of its own
    return eta, power, samples, ridge, draw(st.sampled_from([0.0, 0.5]))


def by_bracketing(eta, power, p, ridge, noise):
    """The same formula in its textbook form, its equation solved between two bounds."""
    eta, power = eta.numpy(), power.numpy()
    modes = eta[eta > 0]

    def equation(kappa):
        return ridge / kappa + (modes / (kappa + p * modes)).sum() - 1

    low, high = 1e-30, 1.01 * (ridge + modes.sum()) + 1e-300
    kappa = brentq(equation, low, high, xtol=1e-300, rtol=1e-14, maxiter=1000) if equation(low) > 0 else 0.0
    gamma = (p * modes**2 / (kappa + p * modes) ** 2).sum()
    left = np.divide(kappa, kappa + p * eta, out=np.ones_like(eta), where=eta > 0)
    return ((power * left**2).sum() + gamma * noise) / (1 - gamma)


@given(problems())
def test_the_equation_solved_in_two_ways(problem):
    eta, power, p, ridge, noise = problem
    found = float(predicted_error(eta, power, p, ridge=ridge, noise=noise))
    wanted = by_bracketing(eta, power, p, ridge, noise)
    assert found == pytest.approx(wanted, rel=1e-7, abs=1e-9 * float(power.sum()))


@given(problems())
def test_without_samples_nothing_is_learned(problem):
    eta, power, _, ridge, noise = problem
    found = predicted_error(eta, power, 0, ridge=ridge, noise=noise, outside=0.25)
    torch.testing.assert_close(found, power.sum() + 0.25, rtol=1e-12, atol=0)


@given(problems(), st.floats(1e-6, 1e6))
def test_eigenvalues_and_ridge_have_no_scale(problem, scale):
    eta, power, p, ridge, noise = problem
    found = predicted_error(scale * eta, power, p, ridge=scale * ridge, noise=noise)
    wanted = predicted_error(eta, power, p, ridge=ridge, noise=noise)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9 * float(power.sum()))


@given(problems())
def test_power_outside_is_a_mode_without_eigenvalue(problem):
    eta, power, p, ridge, noise = problem
    zero, more = torch.cat([eta, double(0.0)]), torch.cat([power, double(0.7)])
    found = predicted_error(eta, power, p, ridge=ridge, noise=noise, outside=0.7)
    torch.testing.assert_close(found, predicted_error(zero, more, p, ridge=ridge, noise=noise))


@given(problems())
def test_a_stronger_mode_is_learned_before_a_weaker_one(problem):
    eta, _, p, ridge, _ = problem
    each = predicted_error(eta, torch.eye(len(eta), dtype=torch.float64), p, ridge=ridge)
    ordered = each[eta.argsort(descending=True)]
    assert (ordered.diff() >= -1e-12 * ordered[:-1]).all()


@given(problems())
def test_targets_are_independent_of_each_other(problem):
    eta, power, p, ridge, noise = problem
    two = torch.stack([power, power.flip(0)], dim=1)
    level, samples = double(noise, 2 * noise), torch.tensor([0, p, 100])
    found = predicted_error(eta, two, samples, ridge=ridge, noise=level, outside=double(0.1, 0.0))
    assert found.shape == (3, 2)
    for k, outside in enumerate((0.1, 0.0)):
        alone = [
            predicted_error(eta, two[:, k], int(n), ridge=ridge, noise=float(level[k]), outside=outside)
            for n in samples
        ]
        torch.testing.assert_close(found[:, k], torch.stack(alone), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("eta", [1e-3, 1.0, 50.0])
def test_equal_modes_have_a_closed_form(eta):
    """P samples in general position fix P of N directions: the share 1 − P/N is left, then nothing."""
    n, p = 40, torch.arange(60)
    found = predicted_error(torch.full((n,), eta).double(), torch.ones(n).double(), p)
    torch.testing.assert_close(found, (n - p).clamp(min=0).double(), rtol=1e-10, atol=1e-10)
    assert (found[n:] == 0).all()
    assert (found.diff() <= 0).all()


@pytest.mark.parametrize("ridge", [1e-6, 0.3, 20.0])
def test_equal_modes_with_a_ridge_need_a_quadratic_equation(ridge):
    n, eta, p = 40, 0.5, torch.tensor([1.0, 20.0, 40.0, 400.0]).double()
    b = p * eta - ridge - n * eta
    kappa = (-b + (b**2 + 4 * ridge * p * eta).sqrt()) / 2
    gamma = n * p * eta**2 / (kappa + p * eta) ** 2
    wanted = (n * (kappa / (kappa + p * eta)) ** 2 + 0.2 * gamma) / (1 - gamma)
    equal = torch.full((n,), eta).double()
    found = predicted_error(equal, torch.ones(n).double(), p, ridge=ridge, noise=0.2)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-12)
    assert (predicted_error(equal, equal, p, ridge=ridge).diff() < 0).all()


def test_more_samples_than_modes_leave_the_noise():
    """Least squares: N/(P − N) of the noise for large N; what no mode reaches is noise that stays."""
    eta, power = double(3.0, 1.0, 0.1, 0.0), double(1.0, 1.0, 1.0, 0.0)
    p = torch.tensor([4, 6, 30])
    torch.testing.assert_close(predicted_error(eta, power, p, noise=0.5), 0.5 * 3 / (p - 3).double())
    torch.testing.assert_close(predicted_error(eta, power, p, outside=0.5), 0.5 * p / (p - 3).double())


def test_as_many_samples_as_modes():
    eta, power = double(3.0, 1.0, 0.1), double(1.0, 1.0, 1.0)
    assert predicted_error(eta, power, 3) == 0
    assert predicted_error(eta, power, 3, noise=1e-9) == math.inf
    assert predicted_error(eta, power, 3, outside=1e-9) == math.inf
    assert math.isfinite(predicted_error(eta, power, 3, ridge=1e-6, noise=1.0))
    # The formula runs into its limits from both sides.
    near = predicted_error(eta, power, double(3 - 1e-6, 3 + 1e-6))
    torch.testing.assert_close(near, double(0.0, 0.0), rtol=0, atol=1e-5)


def test_more_samples_may_hurt_where_weak_modes_act_as_noise():
    eta, power = torch.cat([torch.ones(10), torch.full((1000,), 1e-6)]).double(), torch.ones(1010).double()
    before, peak, after = predicted_error(eta, power, torch.tensor([2, 10, 100]))
    assert peak > before
    assert peak > 5 * after


def test_what_a_large_ridge_or_many_samples_leave():
    eta, power = double(1.0, 0.1), double(2.0, 1.0)
    torch.testing.assert_close(predicted_error(eta, power, 10, ridge=1e12), double(3.0)[0])
    assert predicted_error(eta, power, 10**12, ridge=1.0, noise=1.0) < 1e-9
    assert predicted_error(0 * eta, power, 10) == 3  # a kernel without modes learns nothing


# With a few hundred draws of each, theory and regression differ by some percent.
CASES = [(30, 0.0, 0.0), (30, 0.01, 0.3), (80, 0.01, 0.0), (80, 0.3, 0.3), (150, 0.0, 0.3), (300, 1.0, 0.0)]


@pytest.mark.parametrize("p,ridge,noise", CASES)
def test_kernel_regression_on_gaussian_data(p, ridge, noise):
    k, draws = 100, 200
    rank = torch.arange(1, k + 1).double()
    eta, power = rank**-1.2, rank**-1.0
    g = torch.Generator().manual_seed(p)
    phi = torch.randn(draws, p, k, generator=g, dtype=torch.float64)
    y = phi @ power.sqrt() + math.sqrt(noise) * torch.randn(draws, p, generator=g, dtype=torch.float64)
    kernel = (phi * eta) @ phi.mT + ridge * torch.eye(p).double()
    alpha = torch.linalg.lstsq(kernel, y[:, :, None], driver="gelsd").solution
    learned = eta * (phi.mT @ alpha)[:, :, 0]  # coefficients of the prediction
    measured = (learned - power.sqrt()).square().sum(1).mean()
    predicted = predicted_error(eta, power, p, ridge=ridge, noise=noise)
    assert float(predicted / measured) == pytest.approx(1, abs=0.06)


def test_from_the_spectrum_of_a_pool():
    """A pool of inputs as the distribution: eigenvalues and power over n, and probes on a few of them."""
    g = torch.Generator().manual_seed(0)
    features = torch.randn(600, 40, generator=g, dtype=torch.float64) * torch.arange(1, 41) ** -0.7
    y = torch.tanh(features[:, :3].sum(1, keepdim=True) + features[:, 3:5])
    s = spectrum(features, y)
    predicted = predicted_error(s.eigenvalues / 600, s.power / 600, 100, ridge=1.0, outside=s.residual / 600)
    kernel, errors = features @ features.mT, []
    for _ in range(50):
        order = torch.randperm(600, generator=g)
        some, rest = order[:100], order[100:]
        alpha = torch.linalg.solve(kernel[some][:, some] + torch.eye(100), y[some])
        errors.append((kernel[rest][:, some] @ alpha - y[rest]).square().mean(0))
    torch.testing.assert_close(torch.stack(errors).mean(0), predicted, rtol=0.1, atol=0)


def test_arrays_shapes_and_precision():
    eta, power = np.array([1.0, 0.5]), np.ones((2, 3))
    found = predicted_error(eta, power, np.array([1, 2, 5]), ridge=0.1)
    assert isinstance(found, np.ndarray)
    assert found.shape == (3, 3)
    assert predicted_error(torch.ones(2), torch.ones(2), 1).dtype == torch.float32
    assert predicted_error(torch.ones(2), torch.ones(2, 3), 1).shape == (3,)


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda: predicted_error(torch.ones(3), torch.ones(2), 5), r"eigenvalues and power"),
        (lambda: predicted_error(-torch.ones(3), torch.ones(3), 5), r"eigenvalues.*not negative"),
        (lambda: predicted_error(torch.ones(3), -torch.ones(3), 5), r"power.*not negative"),
        (lambda: predicted_error(torch.ones(3), torch.ones(3), -5), r"samples"),
        (lambda: predicted_error(torch.ones(3), torch.ones(3), 5, ridge=-1.0), r"ridge"),
        (lambda: predicted_error(torch.ones(3), torch.ones(3), 5, ridge=math.inf), r"ridge"),
        (lambda: predicted_error(torch.ones(3), torch.ones(3), 5, noise=-1.0), r"noise"),
        (lambda: predicted_error(torch.ones(3), torch.ones(3), 5, outside=math.nan), r"outside"),
        (lambda: predicted_error(torch.ones(3, 2), torch.ones(3), 5), r"eigenvalues should have shape"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()
