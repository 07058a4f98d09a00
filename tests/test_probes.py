"""Sharon & Dar §4 and F.3: the batched probes are the loop's, agreement is counted exactly."""

import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from repalign.features import extract
from repalign.probes import decision_region_similarity, fit_probes, fitting, plane_batches, planes
from repalign.probes.agreement import BLOCK, by_products
from test_kernels import Held


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


def test_adam_is_the_paper_s_by_default():
    x, y = problem(e=2, n=300, d=20)
    weight, _ = loop(x, y, 4, epochs=10, lr=1e-4, batch_size=128, seed=0)
    for how in ({"method": "adam"}, {"epochs": 10}, {"lr": 1e-4}, {"batch_size": 128}):
        probes = fit_probes(x, y, **how)
        torch.testing.assert_close(probes.weight, weight, rtol=0, atol=1e-5)
        assert probes.converged is None


@pytest.fixture(scope="module")
def digits():
    found = pytest.importorskip("sklearn.datasets").load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    x, y = torch.from_numpy(found.data)[order], torch.from_numpy(found.target)[order]
    return x[:1200], y[:1200], x[1200:], y[1200:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_default_is_as_good_as_logistic_regression(digits, dtype):
    x, y, x_test, y_test = digits
    linear, scale = (pytest.importorskip(f"sklearn.{name}") for name in ("linear_model", "preprocessing"))
    scaler = scale.StandardScaler().fit(x.numpy())
    outside = linear.LogisticRegression(C=1 / (2 * len(x) * 1e-3), tol=1e-10, max_iter=10_000)
    outside.fit(scaler.transform(x.numpy()), y.numpy())
    expected = outside.score(scaler.transform(x_test.numpy()), y_test.numpy())
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    probes = fit_probes(x[None].to(dtype), y, tolerance=tolerance)
    assert bool(probes.converged.all())
    found = (probes.predict(x_test[None].to(dtype)) == y_test).double().mean()
    assert expected > 0.95
    assert float(found) == pytest.approx(expected, abs=0.003)
    weight, bias = outside.coef_ / scaler.scale_, outside.intercept_
    atol = 2e-2 if dtype == torch.float32 else 2e-5  # where scikit-learn stops
    np.testing.assert_allclose(probes.weight[0], weight, atol=atol)
    # The bias of each class, up to the common shift that softmax does not see.
    bias = bias - weight @ scaler.mean_
    mine = probes.bias[0].double().numpy()
    np.testing.assert_allclose(mine - mine.mean(), bias - bias.mean(), atol=10 * atol)

    def objective(w, b):
        w, b = torch.as_tensor(w), torch.as_tensor(b)
        fit = torch.nn.functional.cross_entropy(x @ w.double().mT + b, y)
        return float(fit + 1e-3 * (w * torch.from_numpy(scaler.scale_)).square().sum())

    above = objective(probes.weight[0], probes.bias[0]) - objective(weight, bias)
    assert above < (1e-6 if dtype == torch.float32 else 1e-13)


@pytest.mark.parametrize("ridge", [1e-3, 0.1])
def test_softmax_is_at_the_minimum_of_its_loss(ridge):
    """Features of very different scale, one of them constant, one class that never occurs."""
    x, y = problem(e=4, n=80, d=7, dtype=torch.float64)
    x = x * torch.logspace(-4, 4, 7, dtype=torch.float64) + 3
    x[:, :, 2] = 5.0
    probes = fit_probes(x, y, classes=5, ridge=ridge, tolerance=1e-10, chunk=3)
    assert probes.converged.tolist() == [True] * 4
    mean, spread = x.mean(1, keepdim=True), x.std(1, correction=0, keepdim=True)
    scaled = ((x - mean) / spread).nan_to_num(0.0)
    weight = (probes.weight * spread).requires_grad_()
    shift = probes.bias + (probes.weight @ mean.mT)[..., 0]
    bias = shift.clone().requires_grad_()
    scores = torch.einsum("end,ecd->enc", scaled, weight) + bias[:, None]
    torch.testing.assert_close(scores, probes.scores(x), rtol=1e-6, atol=1e-6)
    fit = torch.nn.functional.cross_entropy(scores.flatten(0, 1), y.repeat(4)) * 4
    for gradient in torch.autograd.grad(fit + ridge * weight.square().sum(), (weight, bias)):
        assert float(gradient.abs().max()) < 1e-9
    assert not probes.weight[:, :, 2].any()


def test_softmax_does_not_see_the_scale_of_features():
    x, y = problem(dtype=torch.float64)
    a, b = (fit_probes(features, y, tolerance=1e-10) for features in (x, 1e3 * x + 7))
    torch.testing.assert_close(a.scores(x), b.scores(1e3 * x + 7), rtol=1e-6, atol=1e-6)


def test_a_descent_that_is_cut_short_says_so():
    x, y = problem()
    with pytest.warns(UserWarning, match=r"3 probes have not converged in 2 steps .* raise max_steps"):
        probes = fit_probes(x, y, max_steps=2)
    assert probes.converged.tolist() == [False] * 3
    assert bool(fit_probes(x, y, method="ridge").converged.all())


@pytest.mark.parametrize("how", [{"tolerance": 1e-9}, {"lr": 0.01}, {"method": "ridge"}])
def test_a_dict_of_layers_of_different_width(how):
    x, y = problem(e=4, d=6, dtype=torch.float64)
    layers = {"a": x[0], "b": x[1], "narrow": x[2, :, :3], "c": x[3]}
    probes = fit_probes(layers, y, **how)
    assert list(probes) == list(layers)
    for name, features in layers.items():
        alone = fit_probes(features[None], y, **how)
        torch.testing.assert_close(probes[name].weight, alone.weight[0], rtol=1e-5, atol=1e-6)
        assert torch.equal(probes[name].predict(features), alone.predict(features[None])[0])
    arrays = fit_probes({name: part.numpy() for name, part in layers.items()}, y.numpy(), **how)
    assert isinstance(arrays["a"].weight, np.ndarray)
    assert isinstance(arrays["a"].predict(x[0].numpy()), np.ndarray)


def test_the_output_of_extract_goes_in_from_memory_and_from_disk(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4), torch.nn.ReLU())
    x, y = problem(e=1)
    here, there = extract(net, x[0]), extract(net, x[0], out=tmp_path)
    for kept, label in ((here, y), (there, y), (there, y.numpy())):
        probes = fit_probes(kept, label)
        assert {name: tuple(probe.weight.shape) for name, probe in probes.items()} == {
            "1": (4, 9),
            "3": (4, 4),
        }
        np.testing.assert_allclose(probes["1"].weight, fit_probes(here, y)["1"].weight, atol=1e-6)


@pytest.mark.parametrize("how", [{"lr": 0.01}, {}])
def test_no_more_is_loaded_than_the_memory_allows(how):
    """Each snapshot is read once, and only as many as fit are there at a time."""
    x, y = problem(e=6, n=1000, d=40)
    read, together = [], []
    whole = fit_probes(x, y, **how)

    def load(e):
        read.append(e)
        return x[e]

    fits = {}
    for name in ("_adam", "softmax"):
        fits[name] = getattr(fitting, name)

    def watched(name):
        def fit(rows, *args):
            together.append((rows.shape[1], len(read)))
            return fits[name](rows, *args)

        return fit

    with pytest.MonkeyPatch.context() as patch:
        for name in fits:
            patch.setattr(fitting, name, watched(name))
        method = "adam" if how else "softmax"
        one = fitting._held(method, 1000, 40, 4, classes=4, batch_size=128)
        probes = fit_probes([partial(load, e) for e in range(6)], y, max_bytes=2 * one + 1, **how)
    assert read == list(range(6))
    # What does not fit is read after those before it have been trained.
    assert together == [(2, 2), (2, 4), (2, 6)]
    torch.testing.assert_close(probes.weight, whole.weight, rtol=1e-3, atol=1e-4)


METHODS = pytest.mark.parametrize("method", fitting.METHODS)


def size(probes):
    return sum(part.nbytes for part in probes if part is not None)


@METHODS
@pytest.mark.parametrize("made", [False, True], ids=["tensors", "functions"])
def test_no_more_is_held_than_asked_for(method, made):
    """Measured: no group takes more than one of its kind alone says, and none is there with the next."""
    n, widths = 1000, [60] * 7 + [100] * 7 + [60] * 7
    g = torch.Generator().manual_seed(0)
    layers = {f"{i}": torch.randn(n, d, generator=g) for i, d in enumerate(widths)}
    y, how = torch.arange(n) % 2, dict(method=method, ridge=0.1)
    with Held() as alone:
        one = fit_probes({"7": layers["7"]}, y, **how)["7"]
    given = {name: x.clone for name, x in layers.items()} if made else layers
    max_bytes = int(3.5 * alone.most)
    with Held() as held:
        probes = fit_probes(given, y, max_bytes=max_bytes, **how)
    read = 4 * n * max(widths) if made else 0
    assert held.most <= max_bytes + read + sum(size(probe) for probe in probes.values())
    assert held.most > 2.5 * alone.most  # and what there is, is used
    torch.testing.assert_close(probes["7"].weight, one.weight, rtol=1e-3, atol=1e-4)


@METHODS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n, d, c", [(400, 5, 2), (500, 3, 40), (300, 100, 3), (30, 300, 3), (60, 90, 50)])
def test_a_probe_holds_what_is_reckoned(method, dtype, n, d, c):
    """Also where the line is searched more than once: features of very different size, hardly a penalty."""
    x, y = problem(e=2, n=n, d=d, c=c, dtype=dtype)
    x, options = (3 * x).exp(), dict(method=method, ridge=1e-5, classes=c, max_steps=100)
    with Held() as held, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*have not converged")
        fit_probes(x, y, **options)
    one = fitting._held(method, n, d, dtype.itemsize, classes=c, batch_size=128)
    assert held.most <= 2 * one


def test_one_probe_alone_on_planes():
    """The planes of a checkpoint pass through its network one by one."""
    x, y = problem(n=40)
    probes = fit_probes(x, y)
    triplets = torch.tensor([[0, 1, 2], [3, 4, 5]])
    at_once = torch.stack([planes(one, triplets, resolution=5).flatten(0, 2) for one in x])
    expected = probes.predict(at_once)
    for e, features in enumerate(x):
        one = probes.one(e)
        streamed = [one.predict(points) for points in plane_batches(features, triplets, resolution=5)]
        assert torch.equal(torch.cat(streamed), expected[e])
        torch.testing.assert_close(one.scores(features), probes.scores(x)[e])
    assert bool(probes.one(0).converged)
    with pytest.raises(ValueError, match="for 6 features, but these rows have 3"):
        probes.one(0).predict(x[0, :, :3])


def test_features_come_from_files_and_functions(tmp_path):
    x, y = problem()
    np.save(tmp_path / "a.npy", x[0].numpy())
    mixed = [tmp_path / "a.npy", lambda: x[1], x[2]]
    from_files, at_once = (fit_probes(f, y, lr=0.01, chunk=2) for f in (mixed, x))
    torch.testing.assert_close(from_files.weight, at_once.weight, rtol=0, atol=1e-6)
    assert torch.equal(from_files.predict(mixed), at_once.predict(x))


@pytest.mark.parametrize("n, d", [(40, 6), (10, 25)])
def test_ridge_is_the_least_of_its_loss(n, d):
    x, y = problem(n=n, d=d, dtype=torch.float64)
    probes = fit_probes(x, y, method="ridge", ridge=0.1)
    weight, bias = (p.clone().requires_grad_() for p in probes[:2])
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


def test_long_descent_against_scikit_learn():
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
        (lambda: fit_probes(X, Y, method="sgd"), r"softmax, adam or ridge"),
        (lambda: fit_probes(X, Y, method="ridge", epochs=3), r"epochs should be left to method='adam'"),
        (lambda: fit_probes({"a": X[0], "b": X[0, :5]}, Y), r"5 and 70 rows"),
        (lambda: fit_probes({"a": X[0] * math.nan}, Y), r"features\['a'\] should be finite"),
        (lambda: fit_probes({}, Y), r"at least one representation"),
        (lambda: fit_probes(X, Y, max_bytes=0), r"max_bytes should be positive"),
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


def held_out():
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 3
    x = torch.randn(4, 120, 40, generator=g) + 2 * torch.eye(40)[labels]
    return x[:, :60], labels[:60], x[:, 60:], labels[60:]


@pytest.mark.parametrize("how", [dict(), dict(method="ridge"), dict(method="adam", lr=0.01), dict(chunk=1)])
def test_accuracy_is_that_of_the_test_samples(how, tmp_path):
    x, y, new, new_y = held_out()
    probes = fit_probes(x, y, test=(new, new_y), **how)
    expected = (probes.predict(new) == new_y).float().mean(dim=1)
    assert torch.equal(probes.accuracy, expected)
    assert float(probes.one(2).accuracy) == float(expected[2])
    # Layers of a dict, in another order, of arrays on disk or in memory.
    np.save(tmp_path / "b.npy", new[1].numpy())
    found = fit_probes({"a": x[0], "b": x[1]}, y, test=({"b": tmp_path / "b.npy", "a": new[0]}, new_y), **how)
    assert [float(probe.accuracy) for probe in found.values()] == pytest.approx(expected[:2].tolist())
    arrays = fit_probes(x.numpy(), y.numpy(), test=(new.numpy(), new_y.numpy()), **how)
    np.testing.assert_allclose(arrays.accuracy, expected)
    assert fit_probes(x, y, **how).accuracy is None


def test_random_labels_are_learned_and_not_held_out():
    g = torch.Generator().manual_seed(1)
    y, new_y = (torch.randint(0, 3, (60,), generator=g) for _ in range(2))
    wide = torch.randn(1, 120, 200, generator=g)
    probes = fit_probes(wide[:, :60], y, test=(wide[:, 60:], new_y))
    assert float((probes.predict(wide[:, :60]) == y).double().mean()) == 1
    assert float(probes.accuracy) < 0.6


@pytest.mark.parametrize(
    "test, error, message",
    [
        (lambda x, y: ({"a": x[0]}, y), ValueError, r"of \['a'\], and those of the fit of Tensor"),
        (lambda x, y: (x[:2], y), ValueError, "of 4 representations, but has those of 2"),
        (lambda x, y: (x, y[:5]), ValueError, "has 60 rows and there are 5 labels"),
        (lambda x, y: (x, y + 1), ValueError, "the labels of test should be from 0 to 2"),
        (
            lambda x, y: (x, ["cat"] * 60),
            TypeError,
            r"the labels of test should hold numbers, but holds words.*numpy\.unique",
        ),
        (lambda x, y: (x[:, :, :3], y), ValueError, "the probe is for 40 features, but these rows have 3"),
    ],
)
def test_what_cannot_be_tested_is_told(test, error, message):
    x, y, new, new_y = held_out()
    with pytest.raises(error, match=message):
        fit_probes(x, y, test=test(new, new_y))
    with pytest.raises(TypeError, match="labels should hold numbers, but holds words"):
        fit_probes(x, np.array(["cat", "dog"] * 30))
