"""Imani et al., section 4 and 6, as properties at float64 tolerance."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from repalign.alignment import (
    alignment,
    alignment_curve,
    cumulative_power,
    gd_loss,
    iteration_bound,
    kernel_spectrum,
    pair_spectra,
    spectrum,
    unit_rows,
)

EPS = torch.finfo(torch.float64).eps


@st.composite
def problems(draw, targets=True):
    """A representation and labels: tall, wide, rank-deficient, with repeated singular values or not."""
    n, d = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    rank = draw(st.integers(1, min(n, d)))
    repeated = draw(st.booleans())
    columns = draw(st.sampled_from([(), (1,), (3,)])) if targets else ()
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    u = torch.linalg.qr(torch.randn(n, rank, generator=g, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(d, rank, generator=g, dtype=torch.float64)).Q
    sigma = 10.0 ** (2 * torch.rand(rank, generator=g, dtype=torch.float64) - 1)
    if repeated:
        sigma = sigma.round().clamp(min=1)
    y = torch.randn(n, *columns, generator=g, dtype=torch.float64)
    return (u * sigma) @ v.mT, y


def dense(phi, y):
    """The textbook: a full SVD, every left singular vector formed."""
    u, sigma, _ = np.linalg.svd(phi.numpy(), full_matrices=False)
    rank = np.linalg.matrix_rank(phi.numpy())
    power = np.square(np.tensordot(u.T, y.numpy(), axes=1))
    power[rank:] = 0
    return sigma, power


@given(problems())
def test_spectrum_is_the_svd(problem):
    phi, y = problem
    s, (sigma, _) = spectrum(phi, y), dense(phi, y)
    np.testing.assert_allclose(s.sigma, sigma, atol=1e-12 * sigma[0])
    assert (s.sigma.diff() <= 0).all()
    assert s.power.shape == s.sigma.shape + y.shape[1:]
    # eq. (1), last term: Pythagoras, for every target.
    torch.testing.assert_close(s.power.sum(0) + s.residual, y.square().sum(0))
    # The projection on range(Φ), by least squares: another way to the same number.
    fitted = phi.numpy() @ np.linalg.lstsq(phi.numpy(), y.numpy(), rcond=None)[0]
    np.testing.assert_allclose(s.power.sum(0), np.square(fitted).sum(0), rtol=1e-10, atol=1e-12)


@given(problems(targets=False), st.floats(0, 12))
def test_alignment_is_equation_2(problem, tau):
    phi, y = problem
    sigma, power = dense(phi, y)
    if np.abs(sigma - tau).min() < 1e-9:
        tau += 1e-6  # exactly at a singular value: see the test of repeated ones
    expected = power[sigma >= tau].sum()
    assert float(alignment(phi, y, tau)) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@given(problems())
def test_curve_falls_from_the_projection_and_is_complete(problem):
    phi, y = problem
    curve = alignment_curve(phi, y)
    fitted = phi.numpy() @ np.linalg.lstsq(phi.numpy(), y.numpy(), rcond=None)[0]
    np.testing.assert_allclose(curve.value[0], np.square(fitted).sum(0), rtol=1e-10, atol=1e-12)
    assert (curve.tau.diff() >= 0).all()
    assert (curve.value.diff(dim=0) <= 1e-12).all()
    # Piecewise constant: between two breakpoints nothing happens.
    middle = (curve.tau[1:] + curve.tau[:-1]) / 2
    apart = curve.tau.diff() > 1e-6
    torch.testing.assert_close(alignment(phi, y, middle)[apart], curve.value[1:][apart])
    assert (alignment(phi, y, curve.tau[-1] * 1.001) == 0).all()


@given(problems(), st.integers(0, 2**31))
def test_alignment_does_not_know_the_basis_of_the_features(problem, seed):
    phi, y = problem
    d = phi.shape[1]
    g = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64)).Q
    tau = torch.linspace(0, 10, 7, dtype=torch.float64) + 0.0137
    torch.testing.assert_close(alignment(phi @ q, y, tau), alignment(phi, y, tau))
    torch.testing.assert_close(alignment(phi, 3 * y, tau), 9 * alignment(phi, y, tau))
    torch.testing.assert_close(alignment(4 * phi, y, 4 * tau), alignment(phi, y, tau))


def test_equal_singular_values_count_together():
    # With σ = (2, 2, 1) the first two directions are arbitrary; only their sum means something.
    g = torch.Generator().manual_seed(0)
    u = torch.linalg.qr(torch.randn(50, 3, generator=g, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(3, 3, generator=g, dtype=torch.float64)).Q
    phi = (u * torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64)) @ v.mT
    y = u @ torch.tensor([3.0, 4.0, 5.0], dtype=torch.float64)
    for tau in spectrum(phi, y).sigma[:2]:
        assert float(alignment(phi, y, tau)) == pytest.approx(25.0)
        assert float(alignment(phi.float(), y.float(), tau.float())) == pytest.approx(25.0, rel=1e-5)


def test_much_taller_than_wide_with_labels_constant_or_zero():
    g = torch.Generator().manual_seed(1)
    phi = unit_rows(torch.randn(20_000, 5, generator=g, dtype=torch.float64), constant=True)
    ones = torch.ones(20_000, dtype=torch.float64)
    s = spectrum(phi, ones)
    fitted = phi @ torch.linalg.lstsq(phi, ones[:, None]).solution
    assert float(s.power.sum()) == pytest.approx(float(fitted.square().sum()), rel=1e-12)
    zero = spectrum(phi, torch.zeros(20_000))
    assert zero.power.sum() == 0
    assert zero.residual == 0


def test_a_zero_representation_explains_nothing():
    s = spectrum(torch.zeros(4, 3), torch.ones(4))
    assert s.sigma.tolist() == [0, 0, 0]
    assert s.residual == 4
    assert alignment(torch.zeros(4, 3), torch.ones(4), 0.0) == 0


def test_small_singular_values_are_accurate():
    # Nine decades: a Gram matrix loses everything below the square root of ε.
    g = torch.Generator().manual_seed(2)
    sigma = torch.logspace(0, -9, 10, dtype=torch.float64)
    u = torch.linalg.qr(torch.randn(200, 10, generator=g, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(10, 10, generator=g, dtype=torch.float64)).Q
    weights = torch.arange(1.0, 11.0, dtype=torch.float64)
    s = spectrum((u * sigma) @ v.mT, u @ weights)
    torch.testing.assert_close(s.sigma, sigma, rtol=1e-5, atol=0)
    torch.testing.assert_close(s.power, weights.square(), rtol=1e-5, atol=0)


@given(problems(), st.integers(1, 9))
def test_row_blocks_give_the_same_spectrum(problem, size):
    phi, y = problem
    blocks, whole = spectrum(zip(phi.split(size), y.split(size), strict=True)), spectrum(phi, y)
    k = min(len(blocks.sigma), len(whole.sigma))
    torch.testing.assert_close(blocks.sigma[:k], whole.sigma[:k], rtol=0, atol=1e-12 * float(whole.sigma[0]))
    assert (blocks.sigma[k:] == 0).all()
    torch.testing.assert_close(blocks.residual, whole.residual, rtol=1e-9, atol=1e-11)
    tau = torch.linspace(0.0137, 9, 7, dtype=torch.float64)
    torch.testing.assert_close(blocks.alignment(tau), whole.alignment(tau), rtol=1e-9, atol=1e-11)


@given(problems(), st.integers(1, 30))
def test_a_truncated_spectrum_is_the_start_of_the_whole(problem, top):
    phi, y = problem
    part, whole = spectrum(phi, y, top=top), spectrum(phi, y)
    torch.testing.assert_close(part.sigma, whole.sigma[:top])
    torch.testing.assert_close(part.power.sum(0) + part.residual, y.square().sum(0))
    assert part.power.shape == part.sigma.shape + y.shape[1:]


@pytest.mark.parametrize("n, d", [(300, 200), (150, 400)])
@pytest.mark.parametrize("decay", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_top_directions_are_found_without_the_rest(n, d, decay, dtype):
    g = torch.Generator().manual_seed(n)
    k = min(n, d)
    u, v = (torch.linalg.qr(torch.randn(m, k, generator=g, dtype=torch.float64)).Q for m in (n, d))
    sigma = torch.arange(1.0, k + 1, dtype=torch.float64) ** -decay
    phi, y = ((u * sigma) @ v.mT).to(dtype), torch.randn(n, 2, generator=g).to(dtype)
    part, whole = spectrum(phi, y, top=12), spectrum(phi, y)
    tight = {"rtol": 1e-8, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(part.sigma, whole.sigma[:12], **tight)
    torch.testing.assert_close(part.power, whole.power[:12], **tight)
    torch.testing.assert_close(part.residual, whole.residual + whole.power[12:].sum(0), **tight)


def test_the_top_of_a_matrix_of_low_rank_or_equal_values():
    g = torch.Generator().manual_seed(0)
    low = torch.randn(100, 3, generator=g).double() @ torch.randn(3, 90, generator=g).double()
    y = torch.randn(100, generator=g).double()
    part, whole = spectrum(low, y, top=5), spectrum(low, y)
    torch.testing.assert_close(part.sigma, whole.sigma[:5])
    torch.testing.assert_close(part.power.sum(), whole.power.sum())
    noise = torch.randn(100, 100, generator=g).double()
    torch.testing.assert_close(spectrum(noise, y, top=4).sigma, spectrum(noise, y).sigma[:4])
    flat = spectrum(torch.eye(100).double(), y, top=4)
    torch.testing.assert_close(flat.sigma, torch.ones(4).double())
    zero = spectrum(torch.zeros(100, 90), y.float(), top=4)
    assert zero.sigma.tolist() == [0, 0, 0, 0]
    assert float(zero.residual) == pytest.approx(float(y.square().sum()))


def test_row_blocks_from_numpy():
    rng = np.random.default_rng(0)
    phi, y = rng.normal(size=(50, 4)), rng.normal(size=50)
    blocks = [(phi[:20], y[:20]), (phi[20:], y[20:])]
    np.testing.assert_allclose(spectrum(blocks).power, spectrum(phi, y).power)
    assert isinstance(spectrum(blocks).sigma, np.ndarray)
    streamed = spectrum(iter(blocks))
    assert isinstance(streamed.sigma, np.ndarray)
    np.testing.assert_allclose(streamed.power, spectrum(phi, y).power)
    np.testing.assert_allclose(spectrum(iter(blocks), top=2).sigma, spectrum(phi, y).sigma[:2])


def test_against_scikit_learn():
    """The truncated decomposition of another package, from another algorithm."""
    decomposition = pytest.importorskip("sklearn.decomposition")
    phi, y = np.random.default_rng(0).normal(size=(200, 120)), np.random.default_rng(1).normal(size=200)
    outside = decomposition.TruncatedSVD(5, algorithm="arpack", random_state=0)
    u = outside.fit_transform(phi) / outside.singular_values_
    s = spectrum(phi, y, top=5)
    np.testing.assert_allclose(s.sigma, outside.singular_values_, rtol=1e-9)
    np.testing.assert_allclose(s.power, np.square(u.T @ y), rtol=1e-6)


@given(problems(targets=False), st.integers(0, 2**31))
def test_equation_1(problem, seed):
    """‖Φw − y‖² = Σ_{i≤r} (σᵢ wᵢ^V − yᵢ^U)² + Σ_{i>r} (yᵢ^U)², with a full U."""
    phi, y = problem
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(phi.shape[1], generator=g, dtype=torch.float64)
    u, sigma, vh = torch.linalg.svd(phi, full_matrices=True)
    k = len(sigma)
    y_u, w_v = u.mT @ y, vh @ w
    right = (sigma * w_v[:k] - y_u[:k]).square().sum() + y_u[k:].square().sum()
    torch.testing.assert_close((phi @ w - y).square().sum(), right, rtol=1e-11, atol=1e-11)


def test_two_labelings_of_points_on_a_circle():
    """Figure 4: clusters at π/4 and −3π/4; labels along v₁ align, labels along v₂ do not."""
    g = torch.Generator().manual_seed(3)
    angle = torch.cat([torch.full((500,), math.pi / 4), torch.full((500,), -3 * math.pi / 4)])
    angle = angle.double() + 0.3 * torch.randn(1000, generator=g, dtype=torch.float64)
    phi = torch.stack([angle.cos(), angle.sin()], dim=1)
    left = torch.sign(phi.sum(1))
    right = torch.sign(phi[:, 0] - phi[:, 1])
    sigma = spectrum(phi, left).sigma
    assert float(sigma.square().sum()) == pytest.approx(1000)  # unit rows leave no other choice
    for share in (0.01, 0.5, 1.0):
        tau = sigma[1] + share * (sigma[0] - sigma[1])
        assert alignment(phi, left, tau) > 950
        assert alignment(phi, right, tau) < 50


@given(problems(targets=False), st.floats(0.01, 0.99))
def test_proposition_1_against_iterated_descent(problem, share):
    phi, y = problem
    s = spectrum(phi, y)
    eta = share / float(s.sigma[0]) ** 2
    w = torch.zeros(phi.shape[1], dtype=torch.float64)
    losses = []
    for _ in range(60):
        losses.append((phi @ w - y).square().sum())
        w = w - eta * phi.mT @ (phi @ w - y)
    closed = gd_loss(s, eta, torch.arange(60))
    scale = float(y.square().sum()) + 1e-30
    torch.testing.assert_close(closed, torch.stack(losses), rtol=0, atol=1e-10 * scale)


@pytest.mark.parametrize("n,d", [(60, 20), (20, 60), (40, 40)])
def test_proposition_1_over_ten_thousand_steps(n, d):
    g = torch.Generator().manual_seed(n)
    phi = unit_rows(torch.randn(n, d, generator=g, dtype=torch.float64))
    y = torch.randn(n, generator=g, dtype=torch.float64)
    s = spectrum(phi, y)
    eta = 0.9 / float(s.sigma[0]) ** 2
    w, wanted, losses = torch.zeros(d, dtype=torch.float64), {1, 10, 100, 1000, 9999, 10_000}, {}
    for step in range(10_001):
        gap = phi @ w - y
        if step in wanted:
            losses[step] = gap.square().sum()
        w -= eta * (phi.mT @ gap)
    closed = gd_loss(s, eta, torch.tensor(sorted(losses)))
    iterated = torch.stack([losses[step] for step in sorted(losses)])
    torch.testing.assert_close(closed, iterated, rtol=0, atol=1e-10 * float(y.square().sum()))


def test_gd_loss_at_the_edges():
    s = spectrum(torch.eye(2, dtype=torch.float64), torch.tensor([3.0, 4.0]).double())
    assert gd_loss(s, 1.0, 0) == 25  # η σ² = 1: 0 · log 0 at step zero
    assert gd_loss(s, 1.0, 1) == 0
    assert gd_loss(s, 3.0, 1) == 100  # too large a step grows, as descent itself would
    assert gd_loss(s, 3.0, 10_000) == math.inf
    assert gd_loss(s, 1e-9, 10**9) == pytest.approx(25 * math.exp(-2), rel=1e-7)
    two = spectrum(torch.eye(2), torch.ones(2, 3))
    assert gd_loss(two, 0.5, torch.arange(4)).shape == (4, 3)
    assert gd_loss(two, 0.5, 3).shape == (3,)


def test_a_diverging_direction_without_power_changes_nothing():
    phi = torch.diag(torch.tensor([10.0, 0.5])).double()
    steps = torch.tensor([0, 1, 5000])
    quiet = torch.tensor([0.0, 1.0]).double()
    wanted = (1 - 0.25) ** (2 * steps.double())
    torch.testing.assert_close(gd_loss(spectrum(phi, quiet), 1.0, steps), wanted, rtol=1e-10, atol=0)
    both = gd_loss(spectrum(phi, torch.stack([quiet, 1 - quiet, 1 + quiet], dim=1)), 1.0, steps)
    torch.testing.assert_close(both[:, 0], wanted, rtol=1e-10, atol=0)
    assert both[2, 1:].tolist() == [math.inf, math.inf]
    torch.testing.assert_close(both[:2, 1], torch.tensor([1.0, 99.0**2]).double())


@given(problems(targets=False), st.floats(0.01, 0.99), st.floats(0, 1), st.floats(0, 0.999999))
def test_proposition_2_is_never_violated(problem, share, where, removed):
    phi, y = problem
    s = spectrum(phi, y)
    eta = share / float(s.sigma[0]) ** 2
    positive = s.sigma[s.sigma > 0]
    tau = float(positive[-1] + where * (positive[0] - positive[-1]))
    delta = float(s.alignment(tau))
    omega = removed * delta
    if not omega < delta:
        return
    steps = math.ceil(float(iteration_bound(delta, omega, eta, tau)))
    reduction = float(gd_loss(s, eta, 0) - gd_loss(s, eta, steps))
    assert reduction >= omega - 1e-10 * float(y.square().sum())


@given(problems())
def test_cumulative_power_is_the_alignment_curve_reindexed(problem):
    phi, y = problem
    if float(spectrum(phi, y).power.sum()) < 1e-6:
        return
    c = cumulative_power(phi, y, kind="features")
    assert (c.diff() >= -1e-14).all()
    assert float(c[-1]) == pytest.approx(1)
    power = spectrum(phi, y).power.reshape(len(c), -1).sum(1)
    torch.testing.assert_close(c, power.cumsum(0) / power.sum())
    # The same curve from the kernel, at the ends of groups of equal eigenvalues.
    from_kernel = cumulative_power(phi @ phi.mT, y, kind="kernel")
    sigma = spectrum(phi, y).sigma
    ends = [i for i in range(len(c) - 1) if sigma[i] - sigma[i + 1] > 1e-2 * sigma[0]]
    torch.testing.assert_close(from_kernel[ends], c[ends], rtol=1e-6, atol=1e-6)


@given(problems())
def test_the_spectrum_of_a_kernel_is_that_of_its_features(problem):
    phi, y = problem
    whole, kernel = spectrum(phi, y), kernel_spectrum(phi @ phi.mT, y)
    assert kernel.sigma.shape == (len(phi),)
    torch.testing.assert_close(kernel.power.sum(0) + kernel.residual, y.square().sum(0))
    k, scale = min(phi.shape), float(whole.eigenvalues[0])
    torch.testing.assert_close(kernel.eigenvalues[:k], whole.eigenvalues, rtol=0, atol=1e-12 * scale)
    assert (kernel.eigenvalues[k:] == 0).all()
    torch.testing.assert_close(kernel.eigenvalues.sum(), phi.square().sum(), rtol=1e-9, atol=0)
    # Descent on any features with this kernel.
    steps = torch.tensor([0, 1, 7])
    eta = 0.5 / scale
    torch.testing.assert_close(
        gd_loss(kernel, eta, steps),
        gd_loss(whole, eta, steps),
        rtol=0,
        atol=1e-8 * float(y.square().sum() + 1),
    )


def test_the_spectra_of_all_pairs_of_classes_are_those_of_their_own_features():
    g = torch.Generator().manual_seed(8)
    phi, y = torch.randn(15, 4, generator=g, dtype=torch.float64), torch.tensor([4, 1, 7] * 5)
    found = pair_spectra(phi @ phi.mT, y)
    assert list(found) == [(1, 4), (1, 7), (4, 7)]
    for (a, b), pair in found.items():
        rows = [i for i in range(15) if y[i] in (a, b)]
        signs = torch.tensor([1.0 if y[i] == b else -1.0 for i in rows], dtype=torch.float64)
        alone = spectrum(phi[rows], signs)
        torch.testing.assert_close(pair.sigma[:4], alone.sigma)
        torch.testing.assert_close(pair.power[:4], alone.power)
        torch.testing.assert_close(pair.residual, alone.residual)
    as_arrays = pair_spectra((phi @ phi.mT).numpy(), y.numpy())
    assert isinstance(as_arrays[1, 7].power, np.ndarray)


def test_one_decomposition_gives_spectrum_and_cumulative_power():
    g = torch.Generator().manual_seed(6)
    phi, y = (torch.randn(12, d, generator=g, dtype=torch.float64) for d in (5, 3))
    u = torch.linalg.svd(phi, full_matrices=False).U
    along = (u.mT @ y).square().cumsum(0)
    for s, kind in ((spectrum(phi, y), "features"), (kernel_spectrum(phi @ phi.mT, y), "kernel")):
        torch.testing.assert_close(s.cumulative()[:5], along.sum(1) / along[-1].sum())
        torch.testing.assert_close(s.cumulative(each=True)[:5], along / along[-1])
        m = phi if kind == "features" else phi @ phi.mT
        assert torch.equal(s.cumulative(), cumulative_power(m, y, kind=kind))
        assert torch.equal(s.cumulative()[5:], torch.ones(len(s.sigma) - 5).double())


def test_numpy_in_numpy_out_and_dtype_kept():
    rng = np.random.default_rng(0)
    phi, y = rng.normal(size=(30, 4)).astype(np.float32), rng.normal(size=30).astype(np.float32)
    s = spectrum(phi, y)
    assert all(isinstance(part, np.ndarray) and part.dtype == np.float32 for part in s)
    assert isinstance(s.alignment(1.0), np.ndarray)
    assert isinstance(s.curve().tau, np.ndarray)
    assert isinstance(s.cumulative(), np.ndarray)
    assert kernel_spectrum(phi @ phi.T, y).eigenvalues.dtype == np.float32
    assert isinstance(gd_loss(s, 0.01, 5), np.ndarray)
    tensors = spectrum(torch.from_numpy(phi), torch.from_numpy(y))
    assert all(isinstance(part, torch.Tensor) for part in tensors)
    np.testing.assert_array_equal(tensors.power, s.power)
    # Whole ±1, a read-only and a reversed array are ordinary input.
    phi.flags.writeable = False
    np.testing.assert_allclose(spectrum(phi[::-1], y[::-1]).sigma, s.sigma, rtol=1e-6)
    assert spectrum(phi, 2 * (y > 0) - 1).power.dtype == np.float32


def test_unit_rows():
    g = torch.Generator().manual_seed(4)
    phi = torch.randn(10, 3, generator=g) * torch.logspace(-30, 18, 10)[:, None]
    torch.testing.assert_close(unit_rows(phi).norm(dim=1), torch.ones(10))
    assert unit_rows(phi, constant=True).shape == (10, 4)
    zero = torch.zeros(1, 3)
    assert torch.equal(unit_rows(zero), zero)
    assert unit_rows(zero, constant=True).tolist() == [[0, 0, 0, 1]]


GOOD = torch.randn(6, 2, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: spectrum(GOOD, torch.ones(5)), r"6 and 5 rows"),
        (lambda: spectrum(torch.ones(6, 2, 2), torch.ones(6)), r"Flatten each sample first"),
        (lambda: spectrum(torch.ones(6), torch.ones(6)), r"shape \(n, d\), but has shape \(6,\)"),
        (lambda: spectrum(torch.ones(0, 2), torch.ones(0)), r"no empty axis"),
        (lambda: spectrum(GOOD * math.nan, torch.ones(6)), r"12 of 12 entries are NaN"),
        (lambda: spectrum(GOOD, torch.tensor([1, 2, math.inf, 4, 5, 6])), r"first at \(2,\)"),
        (lambda: spectrum(GOOD), r"y should be given with phi"),
        (lambda: spectrum(GOOD, torch.ones(6), top=0), r"top should be a number of directions"),
        (lambda: spectrum([]), r"at least one block"),
        (
            lambda: spectrum([(GOOD, torch.ones(6)), (GOOD[:, :1], torch.ones(6))]),
            r"same number of features as the first",
        ),
        (lambda: spectrum([(GOOD, torch.ones(5))]), r"phi and y of block 0.*6 and 5 rows"),
        (lambda: spectrum([(GOOD, torch.full((6,), math.nan))]), r"y of block 0 should be finite"),
        (lambda: alignment(GOOD, torch.ones(6), math.nan), r"tau"),
        (lambda: alignment_curve(GOOD, torch.ones(6), torch.ones(2, 2)), r"tau should have shape"),
        (lambda: gd_loss(spectrum(GOOD, torch.ones(6)), -1.0, 3), r"eta"),
        (lambda: gd_loss(spectrum(GOOD, torch.ones(6)), 1.0, -3), r"steps"),
        (lambda: iteration_bound(1.0, 1.0, 0.1, 1.0), r"omega"),
        (lambda: iteration_bound(1.0, 0.5, 0.1, 0.0), r"tau"),
        (lambda: iteration_bound(1.0, 0.5, 0.0, 1.0), r"eta"),
        (lambda: cumulative_power(GOOD, torch.zeros(6)), r"Are all targets zero"),
        (lambda: cumulative_power(GOOD, torch.ones(6), kind="kernel"), r"square and symmetric"),
        (lambda: cumulative_power(-torch.eye(3), torch.ones(3)), r"negative eigenvalue"),
        (lambda: cumulative_power(GOOD, torch.ones(6), kind="gram"), r"auto, kernel or features"),
        (lambda: kernel_spectrum(GOOD, torch.ones(6)), r"Of features take spectrum"),
        (lambda: kernel_spectrum(-torch.eye(3), torch.ones(3)), r"negative eigenvalue"),
        (lambda: pair_spectra(torch.eye(3), torch.ones(3).long()), r"two classes or more, but holds \[1\]"),
        (lambda: pair_spectra(torch.eye(3), torch.rand(3)), r"numbers of two classes"),
        (lambda: kernel_spectrum(torch.eye(3), torch.ones(4)), r"K and y.*3 and 4 rows"),
        (lambda: spectrum(GOOD, torch.eye(6)[:, :2] * 0).cumulative(), r"Are all targets zero"),
        (lambda: unit_rows(torch.ones(3)), r"x\[None\]"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_row_blocks_are_pairs():
    with pytest.raises(TypeError, match=r"pairs \(phi_block, y_block\), but block 0 is a Tensor"):
        spectrum([GOOD, GOOD])


def test_complex_features_are_refused():
    with pytest.raises(TypeError, match="should be real"):
        spectrum(torch.ones(3, 2, dtype=torch.complex64), torch.ones(3))


def test_a_threshold_equal_to_a_singular_value_up_to_rounding_includes_it():
    phi, _ = (torch.randn(60, 40, generator=torch.Generator().manual_seed(k)).double() for k in (0, 1))
    y = torch.ones(60, dtype=torch.float64)
    s = spectrum(phi, y)
    expected = s.power.cumsum(0)
    for i, sigma in enumerate(s.sigma.tolist()):
        for near in (sigma, math.nextafter(sigma, math.inf), math.nextafter(sigma, 0), np.float64(sigma)):
            assert float(s.alignment(near)) == float(expected[i])
        # A threshold in single precision is known to its own rounding only.
        for single in (torch.tensor(sigma, dtype=torch.float32), np.float32(sigma)):
            assert float(s.alignment(single)) == float(expected[i])
    singles = s.sigma.float()
    torch.testing.assert_close(alignment_curve(phi, y, singles).value, expected, rtol=1e-12, atol=0)
    # Far more apart than rounding: excluded.
    assert float(alignment(phi, y, float(s.sigma[3]) * (1 + 1e-9))) == float(expected[2])


def test_a_number_of_python_keeps_its_digits():
    phi = torch.diag(torch.tensor([2.0, 0.1 + 1e-10], dtype=torch.float64))
    y = torch.tensor([3.0, 4.0], dtype=torch.float64)
    # In float32 this threshold would be 0.1000000015, above the second singular value.
    assert float(alignment(phi, y, 0.1)) == pytest.approx(25.0)
    assert alignment(phi, y, [0.1, 0.2]).tolist() == pytest.approx([25.0, 9.0])
