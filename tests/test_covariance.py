"""Maennel et al., proposition 2 and appendix D, as properties at float64 tolerance."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import wishart

from repalign.covariance import (
    TransferFunction,
    eigenvector_agreement,
    filter_covariance,
    misalignment,
    misalignment_floor,
    misalignment_in,
    misalignment_scores,
    overlap,
    patch_covariance,
    random_basis,
    rotation_error,
    tilt,
    transfer_function,
)


def rotation(d, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64)).Q


@st.composite
def problems(draw):
    """A with repeated eigenvalues or not, its eigenspaces, and any positive definite B."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    seed, d = draw(st.integers(0, 2**31)), sum(sizes)
    q = rotation(d, seed)
    values = torch.repeat_interleave(
        torch.arange(1.0, len(sizes) + 1, dtype=torch.float64), torch.tensor(sizes)
    )
    spread = torch.randn(d, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    v = rotation(d, seed + 2)
    return (q * values) @ q.mT, list(q.split(sizes, dim=1)), (v * spread.exp()) @ v.mT


def divergence(S, B):
    """D(Σ₁, Σ₂) of D.4, as it is printed."""
    return float(torch.trace(torch.linalg.solve(S, B) + torch.linalg.solve(B, S))) / 2 - len(B)


def closest(spaces, B):
    """The aligned matrix of the proof: √(tr B|V / tr B⁻¹|V) on each eigenspace V."""
    inverse = torch.linalg.inv(B)
    ratio = [torch.trace(v.mT @ B @ v) / torch.trace(v.mT @ inverse @ v) for v in spaces]
    return sum(r.sqrt() * v @ v.mT for r, v in zip(ratio, spaces, strict=True))


@settings(max_examples=30)
@given(problems())
def test_the_closed_form_is_the_least_divergence(problem):
    A, spaces, B = problem
    m = float(misalignment(A, B))
    assert m >= 0  # property 1
    assert m == pytest.approx(divergence(closest(spaces, B), B), abs=1e-9)
    dense = sum(
        math.sqrt(float(torch.trace(v.mT @ B @ v) * torch.trace(v.mT @ torch.linalg.inv(B) @ v)))
        for v in spaces
    )
    assert m == pytest.approx(dense - len(B), abs=1e-9)  # property 7

    # No aligned matrix is closer: a numerical search over its eigenvalues ends at the same value.
    def aligned(logs):
        S = sum(math.exp(t) * v @ v.mT for t, v in zip(logs, spaces, strict=True))
        return divergence(S, B)

    found = minimize(
        aligned, np.zeros(len(spaces)), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10}
    )
    assert found.fun == pytest.approx(m, abs=1e-4)
    assert found.fun >= m - 1e-9


@given(problems(), st.floats(0.01, 100), st.integers(0, 2**31))
def test_what_misalignment_sees_and_what_not(problem, scale, seed):
    A, spaces, B = problem
    m = misalignment(A, B)
    close = {"rtol": 1e-8, "atol": 1e-9}
    u = rotation(len(B), seed)
    torch.testing.assert_close(misalignment(u @ A @ u.mT, u @ B @ u.mT), m, **close)  # property 4
    torch.testing.assert_close(misalignment(A, scale * B), m, **close)  # 5
    other = sum((3.0 + 2.0**i) * v @ v.mT for i, v in enumerate(reversed(spaces)))
    torch.testing.assert_close(misalignment(other, B), m, **close)  # 6
    # 2: aligned, and only then, 0.
    values = torch.rand(len(spaces), generator=torch.Generator().manual_seed(seed)).double() + 0.1
    aligned = sum(t * v @ v.mT for t, v in zip(values, spaces, strict=True))
    assert float(misalignment(A, aligned)) < 1e-12
    apart = float((A @ B - B @ A).norm() / (A.norm() * B.norm()))
    if apart > 1e-3:
        assert m > 1e-9
    # 3: continuous in B.
    step = 1e-7 * (aligned / aligned.norm()) * float(torch.linalg.eigvalsh(B)[0])
    assert abs(float(misalignment(A, B + step) - m)) < 1e-5 * (1 + float(m))


@given(problems(), st.integers(0, 2**31))
def test_it_is_continuous_in_b_in_every_direction(problem, seed):
    """Property 3: with any small symmetric step the score moves as little, also from an aligned B."""
    A, spaces, B = problem
    g = torch.Generator().manual_seed(seed)
    step = torch.randn(B.shape, generator=g, dtype=torch.float64)
    step = (step + step.mT) / (step + step.mT).norm()
    values = torch.rand(len(spaces), generator=g).double() + 0.1
    aligned = sum(t * v @ v.mT for t, v in zip(values, spaces, strict=True))
    for start in (B, aligned):
        low, m = float(torch.linalg.eigvalsh(start)[0]), float(misalignment(A, start))
        moved = [abs(float(misalignment(A, start + t * low * step)) - m) for t in (1e-2, 1e-4, 1e-6)]
        # A step of t times B's least eigenvalue changes tr B|V and tr B⁻¹|V by a share of about t at most.
        for t, value in zip((1e-2, 1e-4, 1e-6), moved, strict=True):
            assert value <= 2 * t * (m + len(B)) + 1e-12


@given(problems(), st.integers(0, 2**31))
def test_only_aligned_matrices_score_zero(problem, seed):
    """Property 2 where eigenvalues repeat: B may join eigenspaces of A, but not split one."""
    A, spaces, _ = problem
    d = len(A)
    assert float(misalignment(A, 3 * torch.eye(d).double())) < 1e-12
    joined = sum((1.0 + (i > 0)) * v @ v.mT for i, v in enumerate(spaces))
    assert float(misalignment(A, joined)) < 1e-12
    # The same eigenvectors, so that A and B commute, but two eigenvalues within each eigenspace.
    basis, sizes = torch.cat(spaces, dim=1), [v.shape[1] for v in spaces]
    split = (basis * torch.cat([1.0 + (torch.arange(k) > 0).double() for k in sizes])) @ basis.mT
    # By hand: on a space of dimension k, tr B = 2k − 1 and tr B⁻¹ = (k + 1)/2.
    wanted = sum(math.sqrt((2 * k - 1) * (k + 1) / 2) - k for k in sizes)
    assert float(misalignment(A, split)) == pytest.approx(wanted, abs=1e-9)
    assert (wanted > 0.1) == (max(sizes) > 1)


def test_it_jumps_with_the_eigenspaces_of_a_and_says_at_which_tolerance():
    B = torch.diag(torch.tensor([1.0, 2.0])).double()
    together = misalignment(torch.eye(2).double(), B)
    assert float(together) == pytest.approx(math.sqrt(3 * 1.5) - 2)
    for gap, joined in ((1e-12, True), (1e-8, False)):
        A = torch.diag(torch.tensor([1.0, 1.0 + gap], dtype=torch.float64))
        assert float(misalignment(A, B)) == pytest.approx(float(together) if joined else 0, abs=1e-12)
        assert float(misalignment(A, B, rtol=1e-7)) == pytest.approx(float(together))


def test_a_simple_spectrum_gives_the_sum_of_appendix_a6():
    q, B = rotation(6, 0), torch.cov(torch.randn(6, 50, generator=torch.Generator().manual_seed(1)).double())
    inverse = torch.linalg.inv(B)
    wanted = sum(math.sqrt(float((v @ B @ v) * (v @ inverse @ v))) - 1 for v in q.mT)
    A = (q * torch.arange(1.0, 7.0, dtype=torch.float64)) @ q.mT
    assert float(misalignment(A, B)) == pytest.approx(wanted, rel=1e-10)
    assert float(misalignment_in(q, B)) == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("d, m", [(27, 64), (27, 256), (27, 1024), (27, 4096), (3, 8)])
def test_the_floor_is_what_aligned_filters_score(d, m):
    rng = np.random.default_rng(m)
    tau = rng.uniform(0.5, 2, d)  # aligned, not isotropic: the floor does not depend on it
    sampled = wishart.rvs(m, np.diag(tau), size=60, random_state=rng) / m
    A = torch.diag(torch.arange(1.0, d + 1).double())
    scores = [float(misalignment(A, torch.from_numpy(B))) for B in sampled]
    error = np.std(scores) / math.sqrt(len(scores))
    assert abs(np.mean(scores) - misalignment_floor(d, m)) < 4 * error
    if m > 20 * d:
        assert misalignment_floor(d, m) == pytest.approx(d * (d - 1) / (2 * m), rel=0.03)


@given(problems())
def test_transfer_function(problem):
    A, spaces, B = problem
    f = transfer_function(A, B)
    sizes = [v.shape[1] for v in spaces]
    sigma = torch.arange(1.0, len(sizes) + 1).double().sqrt().repeat_interleave(torch.tensor(sizes)).flip(0)
    torch.testing.assert_close(f.sigma, sigma)
    tau = torch.cat(
        [(torch.trace(v.mT @ B @ v) / v.shape[1]).sqrt().expand(v.shape[1]) for v in spaces]
    ).flip(0)
    torch.testing.assert_close(f.tau, tau)
    # E.1: the mean squared output of a neuron is Σ τ²σ².
    assert float((f.sigma * f.tau).square().sum()) == pytest.approx(float(torch.trace(A @ B)))


@st.composite
def pictures(draw):
    n, c = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    h, w = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    size, stride = draw(st.integers(1, min(h, w))), draw(st.integers(1, 4))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(n, c, h, w, generator=g, dtype=torch.float64)
    return x.cumsum(dim=3) + 5, size, stride


@given(pictures(), st.booleans(), st.integers(1, 4))
def test_patch_covariance_is_that_of_the_patches(picture, center, batch_size):
    x, size, stride = picture
    patches = torch.nn.functional.unfold(x, size, stride=stride).mT.reshape(-1, x.shape[1] * size**2)
    if center:
        patches = patches - patches.mean(0)
    wanted = patches.mT @ patches / len(patches)
    cov = patch_covariance(x, size, stride=stride, center=center, batch_size=batch_size)
    torch.testing.assert_close(cov, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size, stride", [(3, 1), (3, 2), (5, 3), (7, 1)])
def test_wide_images_are_cut_into_tiles(size, stride):
    x = torch.randn(2, 2, 9, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    patches = torch.nn.functional.unfold(x, size, stride=stride).mT.reshape(-1, 2 * size**2)
    torch.testing.assert_close(patch_covariance(x, size, stride=stride), torch.cov(patches.mT, correction=0))


def test_patches_of_bytes_and_float32():
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (5, 3, 8, 8), generator=g, dtype=torch.uint8)
    cov = patch_covariance(x, 3)
    assert cov.dtype == torch.float64
    small = patch_covariance(x.float() / 255 + 1000, 3)
    assert small.dtype == torch.float32
    torch.testing.assert_close(small.double() * 255**2, cov, rtol=0, atol=float(cov.max()) * 1e-2)
    assert isinstance(patch_covariance(x.numpy(), 3), np.ndarray)


@pytest.mark.parametrize("center", [True, False])
def test_filters_and_patches_are_centered_the_same_way(center):
    """Filters that are patches have the covariance of the patches, by either default and either choice."""
    g = torch.Generator().manual_seed(0)
    x = 3 + torch.randn(50, 2, 3, 3, generator=g, dtype=torch.float64)
    patches = torch.nn.functional.unfold(x, 2).mT.reshape(-1, 2, 2, 2)
    options = {} if center else {"center": False}  # centered by default
    filters = filter_covariance(patches, **options)
    torch.testing.assert_close(filters, patch_covariance(x, 2, **options))
    rows = patches.flatten(1)
    wanted = torch.cov(rows.mT, correction=0) if center else rows.mT @ rows / len(rows)
    torch.testing.assert_close(filters, wanted)
    torch.testing.assert_close(filter_covariance(rows, **options), filters)
    assert isinstance(filter_covariance(rows.numpy()), np.ndarray)


def test_the_floor_of_centered_filters():
    """Removing the mean costs one filter, exactly: the score of m of them is that of m − 1."""
    d, m, runs = 4, 12, 3000
    g = torch.Generator().manual_seed(0)
    A = torch.diag(torch.arange(1.0, d + 1).double())
    draws = 5 + torch.randn(runs, m, d, generator=g, dtype=torch.float64) * A.diagonal()
    scores = torch.stack([misalignment(A, filter_covariance(w)) for w in draws])
    error = float(scores.std()) / math.sqrt(runs)
    assert abs(float(scores.mean()) - misalignment_floor(d, m - 1)) < 4 * error
    assert abs(float(scores.mean()) - misalignment_floor(d, m)) > 4 * error


def test_patch_covariance_against_scikit_learn():
    image = pytest.importorskip("sklearn.feature_extraction.image")
    x = np.random.default_rng(0).normal(size=(4, 10, 11))
    patches = np.concatenate([image.extract_patches_2d(one, (3, 3)) for one in x]).reshape(-1, 9)
    np.testing.assert_allclose(patch_covariance(x[:, None], 3), np.cov(patches.T, bias=True), rtol=1e-10)


@given(problems())
def test_misalignment_against_pyriemann(problem):
    distance = pytest.importorskip("pyriemann.utils.distance")
    A, spaces, B = problem
    outside = distance.distance_kullback_sym(closest(spaces, B).numpy(), B.numpy(), squared=False)
    assert float(misalignment(A, B)) == pytest.approx(float(outside), abs=1e-9)


@given(problems(), st.integers(0, 2**31))
def test_agreement_is_of_eigenspaces(problem, seed):
    A, spaces, B = problem
    assert eigenvector_agreement(A, 2 * A).tolist() == pytest.approx([1] * len(A))
    agreement = eigenvector_agreement(A, B)
    assert ((agreement >= 0) & (agreement <= 1 + 1e-12)).all()
    # The textbook, when every eigenvalue is simple: cosines of eigenvectors, strongest first.
    assume(len(spaces) == len(A))
    a, b = (np.linalg.eigh(m.numpy())[1][:, ::-1] for m in (A, B))
    np.testing.assert_allclose(agreement, abs((a * b).sum(0)), atol=1e-9)


def test_a_near_equal_pair_is_compared_as_a_plane():
    turn = torch.eye(3).double()
    turn[:2, :2] = torch.tensor([[0.86, -0.51], [0.51, 0.86]])
    turn = torch.linalg.qr(turn).Q
    values = torch.tensor([0.37, 0.32, 0.1]).double()
    A, B = torch.diag(values), (turn * values) @ turn.mT
    assert eigenvector_agreement(A, B)[0] < 0.9
    assert eigenvector_agreement(A, B, rtol=0.2).tolist() == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("n, lam", [(100, 11.0), (10_000, 1.35), (100_000, 1.1)])
def test_figure_19_the_angle_has_the_predicted_error(n, lam):
    assert 900 < n * (lam - 1) ** 2 / lam < 910
    sampled = wishart.rvs(n, np.diag([1.0, lam]), size=4000, random_state=0) / n
    vectors = np.linalg.eigh(sampled)[1][:, :, 1]
    angle = np.arctan(vectors[:, 0] / vectors[:, 1])
    predicted = float(rotation_error(torch.tensor([1.0, lam]).double(), n)[0, 1])
    assert predicted == pytest.approx(1 / 30, rel=0.01)
    assert angle.std() == pytest.approx(predicted, rel=0.1)


def test_numpy_in_numpy_out_and_dtype_kept():
    A, B = np.diag([1.0, 2.0]).astype(np.float32), np.array([[2, 1], [1, 2]], dtype=np.float32)
    for value in (misalignment(A, B), *transfer_function(A, B), eigenvector_agreement(A, B)):
        assert isinstance(value, np.ndarray)
        assert value.dtype == np.float32


EYE = torch.eye(3)
SKEW = torch.tensor([[1.0, 2.0], [0.0, 1.0]])


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: misalignment(EYE, torch.diag(torch.tensor([1.0, 1.0, 0.0]))),
            r"B should be positive definite",
        ),
        (lambda: misalignment(EYE, torch.ones(3, 3)), r"Take more filters than dimensions \(3\)"),
        (lambda: misalignment(EYE, -EYE), r"B should be positive definite"),
        (lambda: misalignment(torch.randn(3, 5), EYE), r"A should be square and symmetric"),
        (lambda: misalignment(SKEW, EYE[:2, :2]), r"filter_covariance\(weight\)"),
        (lambda: misalignment(EYE, EYE[:2, :2]), r"\(3, 3\) and \(2, 2\)"),
        (lambda: misalignment(EYE * math.nan, EYE), r"A should be finite"),
        (lambda: misalignment(EYE[0], EYE), r"A should have shape \(d, d\)"),
        (lambda: misalignment(EYE, EYE, rtol=1.5), r"rtol should be in"),
        (lambda: misalignment_in(SKEW, EYE[:2, :2]), r"basis should be orthonormal"),
        (lambda: misalignment_floor(27, 27), r"m > d"),
        (lambda: misalignment_scores(EYE, torch.randn(9, 3), bases=0), r"bases should be at least 1"),
        (lambda: overlap(EYE, EYE, 4), r"k should be from 1 to 3"),
        (lambda: overlap(EYE, EYE[:2, :2], 1), r"\(3, 3\) and \(2, 2\)"),
        (lambda: random_basis(0, seed=0), r"d should be at least 1"),
        (lambda: transfer_function(-EYE, EYE), r"data_cov should have no negative eigenvalue"),
        (lambda: transfer_function(EYE, -EYE), r"weight_cov should have no negative"),
        (lambda: patch_covariance(torch.ones(2, 3, 8), 3), r"images should have shape \(n, c, h, w\)"),
        (lambda: patch_covariance(torch.ones(2, 3, 8, 8), 9), r"size should be from 1 to 8"),
        (lambda: patch_covariance(torch.ones(2, 3, 8, 8), 3, stride=0), r"stride and batch_size"),
        (lambda: patch_covariance(torch.full((2, 1, 4, 4), math.inf), 2), r"images should be finite"),
        (lambda: patch_covariance(torch.ones(0, 1, 4, 4), 2), r"no empty axis"),
        (lambda: rotation_error(torch.tensor([1.0, 0.0]), 10), r"should be positive"),
        (lambda: eigenvector_agreement(EYE, SKEW), r"B should be square and symmetric"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_overlap_sees_spaces_and_not_their_bases():
    values = torch.arange(1, 9, dtype=torch.float64)
    q = rotation(8, 0)
    inside = torch.block_diag(rotation(5, 1), rotation(3, 2))  # the first 3 eigenvectors are the last columns
    A, B = (q @ v @ torch.diag(values) @ v.mT @ q.mT for v in (torch.eye(8).double(), inside))
    assert torch.allclose(overlap(A, B, 3), torch.tensor(1.0, dtype=torch.float64))
    assert overlap(A, B, 1) < 0.999
    assert torch.allclose(overlap(A, B, 8), torch.tensor(1.0, dtype=torch.float64))
    turned = [overlap(A, r @ B @ r.mT, 2) for r in (random_basis(8, seed=s) for s in range(300))]
    assert abs(float(torch.stack(turned).mean()) - 2 / 8) < 0.03


def test_scores_of_isotropic_filters_are_the_floor_in_every_basis_and_of_aligned_ones_in_their_own():
    A = torch.diag(torch.arange(1, 7.0))
    drawn = [torch.randn(120, 6, generator=torch.Generator().manual_seed(k)) for k in range(60)]
    isotropic = torch.tensor([misalignment_scores(A, w, bases=3, seed=k) for k, w in enumerate(drawn)])
    aligned = torch.tensor(
        [misalignment_scores(A, w * A.diag(), bases=3, seed=k) for k, w in enumerate(drawn)]
    )
    floor = misalignment_floor(6, 119)
    assert torch.allclose(isotropic.mean(dim=0), torch.tensor(floor), atol=0.02)
    assert abs(float(aligned[:, 0].mean()) - floor) < 0.02
    assert float(aligned[:, 1].min()) > 2 * floor
    with_shape = misalignment_scores(np.eye(12), torch.randn(40, 3, 2, 2))
    assert with_shape.floor == misalignment_floor(12, 39)


def test_the_tilt_knows_which_end_is_strong_and_no_scale():
    sigma = torch.linspace(3, 1, 9)
    rising = TransferFunction(sigma, sigma.square())
    assert tilt(rising) > 0 > tilt(TransferFunction(sigma, 1 / sigma))
    assert tilt(TransferFunction(sigma, 7 * sigma.square())) == pytest.approx(tilt(rising), rel=1e-6)
    assert tilt(TransferFunction(sigma, torch.ones(9))) == 0
    with pytest.raises(ValueError, match="three directions"):
        tilt(TransferFunction(sigma[:2], sigma[:2]))


@pytest.mark.parametrize("padding, stride", [(0, 1), (1, 1), (2, 2)])
def test_patches_are_those_that_a_padded_convolution_sees(padding, stride):
    x = torch.randn(6, 2, 5, 7, generator=torch.Generator().manual_seed(0)).double() + 3
    conv = torch.nn.Conv2d(2, 4, 3, stride=stride, padding=padding, bias=False).double()
    found = patch_covariance(x, 3, stride=stride, padding=padding)
    weight = conv.weight.detach().flatten(1)
    outputs = conv(x).detach().transpose(0, 1).flatten(1)
    expected = torch.cov(outputs, correction=0)
    torch.testing.assert_close(weight @ found @ weight.mT, expected)


def test_too_few_filters_are_told_the_way_out():
    filters = torch.randn(9, 12, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"more than .* 13, but there are 9.*several runs.*overlap"):
        misalignment_scores(torch.eye(12), filters)
    # The way out works.
    assert 0 <= float(overlap(torch.eye(12), filter_covariance(filters), 3)) <= 1
    with pytest.raises(ValueError, match=r"positive definite.*several runs.*overlap"):
        misalignment(torch.eye(12), filter_covariance(filters))
    with pytest.raises(ValueError, match="padding should be"):
        patch_covariance(torch.ones(1, 1, 4, 4), 2, padding=-1)
