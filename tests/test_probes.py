"""Sharon & Dar §4 and F.3: the batched probes are the loop's, agreement is counted exactly."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from repalign.probes import decision_region_similarity, fit_probes, plane_batches, planes
from repalign.probes.agreement import BLOCK, by_products


def problem(e=3, n=70, d=6, c=4, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(e, n, d, generator=g, dtype=dtype), torch.randint(0, c, (n,), generator=g)


def loop(features, labels, classes, epochs, lr, batch_size, seed):
    """What one would write: a module, autograd and an optimizer for each representation."""
    out = []
    for x in features:
        g = torch.Generator().manual_seed(seed)
        model = torch.nn.Linear(x.shape[1], classes, dtype=x.dtype)
        with torch.no_grad():
            for parameter in (model.weight, model.bias):
                drawn = 2 * torch.rand(*parameter.shape, generator=g, dtype=torch.float64) - 1
                parameter.copy_(drawn / math.sqrt(x.shape[1]))
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        for _ in range(epochs):
            for index in torch.randperm(len(x), generator=g).split(batch_size):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[index]), labels[index]).backward()
                optimizer.step()
        out.append((model.weight.detach(), model.bias.detach()))
    return [torch.stack(part) for part in zip(*out, strict=True)]


@pytest.mark.parametrize("batch_size, chunk", [(32, 20), (70, 2), (1000, 1), (7, 3)])
@pytest.mark.parametrize("dtype, atol", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_weights_are_those_of_the_loop(batch_size, chunk, dtype, atol):
    x, y = problem(dtype=dtype)
    options = {"epochs": 5, "lr": 1e-2, "batch_size": batch_size, "seed": 3}
    probes = fit_probes(x, y, chunk=chunk, **options)
    weight, bias = loop(x, y, 4, **options)
    torch.testing.assert_close(probes.weight, weight, rtol=0, atol=atol)
    torch.testing.assert_close(probes.bias, bias, rtol=0, atol=atol)
    scores = torch.einsum("end,ecd->enc", x, weight) + bias[:, None]
    torch.testing.assert_close(probes.scores(x), scores, rtol=1e-4, atol=1e-4)
    assert torch.equal(probes.predict(x), probes.scores(x).argmax(-1))


def test_the_paper_s_settings_are_the_defaults():
    x, y = problem(e=2, n=300, d=20)
    weight, _ = loop(x, y, 4, epochs=10, lr=1e-4, batch_size=128, seed=0)
    torch.testing.assert_close(fit_probes(x, y).weight, weight, rtol=0, atol=1e-5)


def test_features_come_from_files_and_functions(tmp_path):
    x, y = problem()
    np.save(tmp_path / "a.npy", x[0].numpy())
    mixed = [tmp_path / "a.npy", lambda: x[1], x[2]]
    from_files, at_once = (fit_probes(f, y, chunk=2) for f in (mixed, x))
    torch.testing.assert_close(from_files.weight, at_once.weight, rtol=0, atol=1e-6)
    assert torch.equal(from_files.predict(mixed), at_once.predict(x))


@pytest.mark.parametrize("n, d", [(40, 6), (10, 25)])
def test_ridge_is_the_least_of_its_loss(n, d):
    x, y = problem(n=n, d=d, dtype=torch.float64)
    probes = fit_probes(x, y, method="ridge", ridge=0.1)
    weight, bias = (p.clone().requires_grad_() for p in probes)
    target = torch.nn.functional.one_hot(y, 4).double()
    fitted = torch.einsum("end,ecd->enc", x, weight) + bias[:, None]
    loss = (fitted - target).square().sum(2).mean(1) + 0.1 * weight.square().sum((1, 2))
    for gradient in torch.autograd.grad(loss.sum(), (weight, bias)):
        assert float(gradient.abs().max()) < 1e-12


def test_ridge_against_scikit_learn():
    linear = pytest.importorskip("sklearn.linear_model")
    x, y = problem(dtype=torch.float64)
    probes = fit_probes(x, y, method="ridge", ridge=0.05)
    target = torch.nn.functional.one_hot(y, 4).double().numpy()
    for i, one in enumerate(x.numpy()):
        outside = linear.Ridge(alpha=0.05 * len(one)).fit(one, target)
        np.testing.assert_allclose(probes.weight[i], outside.coef_, atol=1e-10)
        np.testing.assert_allclose(probes.bias[i], outside.intercept_, atol=1e-10)


def test_softmax_against_scikit_learn():
    """Long descent ends where the convex problem has its minimum."""
    linear = pytest.importorskip("sklearn.linear_model")
    x, y = problem(e=1, n=200, d=3, c=3, dtype=torch.float64)
    probes = fit_probes(x, y, lr=0.02, epochs=400, batch_size=200)
    outside = linear.LogisticRegression(C=1e8, tol=1e-10, max_iter=1000).fit(x[0].numpy(), y.numpy())
    centered = probes.weight[0] - probes.weight[0].mean(0)  # softmax does not see a common shift
    np.testing.assert_allclose(centered, outside.coef_ - outside.coef_.mean(0), atol=1e-3)


@st.composite
def points(draw):
    n, d = draw(st.integers(3, 6)), draw(st.integers(2, 5))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    return x, torch.stack([torch.randperm(n, generator=g)[:3] for _ in range(draw(st.integers(1, 3)))])


@given(points(), st.integers(2, 9), st.floats(0, 1))
def test_planes_hold_their_samples(problem, resolution, margin):
    x, triplets = problem
    grid = planes(x, triplets, resolution=resolution, margin=margin)
    assert grid.shape == (len(triplets), resolution, resolution, x.shape[1])
    for plane, triplet in zip(grid, triplets, strict=True):
        base, a, b = x[triplet[0]], x[triplet[1]] - x[triplet[0]], x[triplet[2]] - x[triplet[0]]
        away = (plane - base).reshape(-1, x.shape[1])
        # In the plane: nothing is left after projecting on its two directions.
        basis = torch.linalg.qr(torch.stack([a, b], dim=1)).Q
        scale = float(plane.abs().max()) + 1
        assert float((away - away @ basis @ basis.mT).abs().max()) < 1e-9 * scale
        across, up = plane[0].diff(dim=0), plane[:, 0].diff(dim=0)
        # Evenly spaced, axes at right angles, the first along the first two samples.
        assert float((across - across[0]).abs().max()) < 1e-9 * scale
        assert abs(float(across[0] @ up[0])) < 1e-9 * scale**2
        assert float(across[0] @ a) == pytest.approx(float(across[0].norm() * a.norm()))
        # The box reaches as far as the samples, and the margin beyond.
        for axis, line in ((across[0], plane[0]), (up[0], plane[:, 0])):
            axis = axis / axis.norm()
            reached, samples = (line - base) @ axis, (x[triplet] - base) @ axis
            beyond = margin * (samples.max() - samples.min())
            assert float(reached.min()) == pytest.approx(float(samples.min() - beyond), abs=1e-8 * scale)
            assert float(reached.max()) == pytest.approx(float(samples.max() + beyond), abs=1e-8 * scale)
    flat = torch.cat(list(plane_batches(x, triplets, resolution=resolution, margin=margin)))
    torch.testing.assert_close(flat, grid.flatten(0, 2))


def test_planes_of_images_keep_their_shape_and_dtype():
    images = torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    grid = planes(images, torch.tensor([[0, 1, 2], [3, 4, 0]]), resolution=4)
    assert grid.shape == (2, 4, 4, 3, 4, 4)
    assert grid.dtype == torch.float32
    assert isinstance(planes(images.numpy(), np.array([[0, 1, 2]])), np.ndarray)


@st.composite
def decisions(draw):
    e, f, m = draw(st.integers(1, 7)), draw(st.integers(1, 4)), draw(st.integers(1, 300))
    low, classes = draw(st.integers(-3, 3)), draw(st.integers(1, 40))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return (torch.randint(low, low + classes, (k, m), generator=g) for k in (e, f))


@given(decisions())
def test_equation_5(pair):
    a, b = pair
    square = (a[:, None] == a).double().mean(-1)
    oblong = (a[:, None] == b).double().mean(-1)
    assert torch.equal(decision_region_similarity(a), square)
    assert torch.equal(decision_region_similarity(a, b), oblong)
    assert isinstance(decision_region_similarity(a.numpy()), np.ndarray)
    # What a GPU would do.
    low, top = int(min(a.min(), b.min())), int(max(a.max(), b.max()))
    assert torch.equal(by_products(a, b, low, top).double() / a.shape[1], oblong)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64])
def test_agreement_over_several_blocks(dtype):
    g = torch.Generator().manual_seed(0)
    p = torch.randint(0, 2, (5, 3 * BLOCK + 17), generator=g).to(dtype)
    assert torch.equal(decision_region_similarity(p), (p[:, None] == p).double().mean(-1))


def test_agreement_against_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    p = np.random.default_rng(0).integers(0, 10, (4, 500))
    outside = 1 - metrics.pairwise_distances(p, metric="hamming")
    np.testing.assert_allclose(decision_region_similarity(p), outside, atol=1e-12)


X, Y = problem()
LINE = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
ONE = torch.tensor([[0, 1, 2]])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: fit_probes(X, Y[:5]), r"70 and 5 rows"),
        (lambda: fit_probes(X[0], Y), r"features should have shape \(E, n, d\)"),
        (lambda: fit_probes(X * math.nan, Y), r"features should be finite"),
        (lambda: fit_probes([X[0], X[1, :, :3]], Y), r"features\[1\] has \(70, 3\)"),
        (lambda: fit_probes([X[0], X[1, :, :3]], Y, chunk=1), r"all have the same shape"),
        (lambda: fit_probes(X, Y.float()), r"class numbers"),
        (lambda: fit_probes(X, Y - 1), r"from 0 to 2, but reach from -1"),
        (lambda: fit_probes(X, Y, classes=3), r"from 0 to 2, but reach from 0 to 3"),
        (lambda: fit_probes(X, Y, method="sgd"), r"adam or ridge"),
        (lambda: fit_probes(X, Y, lr=0.0), r"lr should be positive"),
        (lambda: fit_probes(X, Y, method="ridge", ridge=-1.0), r"ridge should not be negative"),
        (
            lambda: fit_probes(torch.ones(1, 5, 2), Y[:5], method="ridge", ridge=0.0),
            r"ridge should be larger",
        ),
        (lambda: fit_probes(X, Y).predict(X[:2]), r"3 probes, but features of 2"),
        (lambda: planes(LINE, ONE), r"should not lie on a line"),
        (lambda: planes(torch.eye(3), torch.tensor([[0, 0, 1]])), r"should not lie on a line"),
        (lambda: planes(torch.eye(3), ONE[0]), r"shape \(t, 3\), but have shape \(3,\)"),
        (lambda: planes(torch.eye(3), torch.tensor([[0, 1, 3]])), r"from 0 to 2"),
        (lambda: planes(torch.eye(3), ONE, resolution=1), r"resolution should be at least 2"),
        (lambda: planes(torch.eye(3) * math.inf, ONE), r"x should be finite"),
        (lambda: decision_region_similarity(torch.rand(2, 3)), r"take scores.argmax\(-1\)"),
        (lambda: decision_region_similarity(torch.arange(3)), r"shape \(E, m\)"),
        (lambda: decision_region_similarity(ONE, torch.zeros(1, 2, dtype=torch.long)), r"have 3 and 2"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()
