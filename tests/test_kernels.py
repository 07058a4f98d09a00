"""Canatar eq. 4, Sharon eq. 1, 2 and F.2, Lou G.1, as properties at float64 tolerance."""

import math
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from repalign.kernels import (
    center,
    cka,
    cka_floor,
    cka_grid,
    effective_rank,
    gram,
    grid,
    hsic,
    kta,
    power_law,
    ranks,
    stable_rank,
)
from repalign.kernels.loaders import sources


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@st.composite
def pairs(draw):
    """Two representations of the same samples: tall or wide, correlated, far from 0 or not."""
    n, d, e = draw(st.integers(4, 20)), draw(st.integers(1, 25)), draw(st.integers(1, 25))
    seed = draw(st.integers(0, 2**31))
    x = normal(n, d, seed=seed)
    y = normal(n, e, seed=seed + 1) + draw(st.sampled_from([0.0, 2.0])) * x @ normal(d, e, seed=seed + 2)
    return x + draw(st.sampled_from([0.0, 30.0])), y


def dense_hsic(K, L, debiased):
    """The textbook: the centering matrix written out; the estimate of Song et al. with its three terms."""
    n = len(K)
    one = torch.ones(n, dtype=K.dtype)
    if not debiased:
        H = torch.eye(n, dtype=K.dtype) - torch.ones(n, n, dtype=K.dtype) / n
        return torch.trace(K @ H @ L @ H) / (n - 1) ** 2
    K, L = K - torch.diag(K.diag()), L - torch.diag(L.diag())
    sums = (one @ K @ one) * (one @ L @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (one @ K @ L @ one)
    return (torch.trace(K @ L) + sums) / (n * (n - 3))


def dense_cka(x, y, debiased=False):
    x, y = x.double() - x.double().mean(0), y.double() - y.double().mean(0)
    K, L = x @ x.mT, y @ y.mT
    h = [dense_hsic(a, b, debiased) for a, b in ((K, L), (K, K), (L, L))]
    return h[0] / (h[1] * h[2]).sqrt()


@given(pairs(), st.booleans())
def test_equations_1_and_2(pair, debiased):
    x, y = pair
    K, L = gram(x), gram(y)
    scale = float(K.norm() * L.norm())
    torch.testing.assert_close(
        hsic(K, L, debiased=debiased), dense_hsic(K, L, debiased), rtol=0, atol=1e-12 * scale
    )
    wanted = dense_cka(x, y, debiased)
    torch.testing.assert_close(cka(x, y, debiased), wanted, rtol=0, atol=1e-9)
    centered = [center(m, debiased=debiased) for m in (K, L)]
    torch.testing.assert_close(kta(*centered), wanted, rtol=0, atol=1e-9)
    # Both ways to compute a grid, whichever would be the faster.
    for side in ("gram", "features"):
        both = cka_grid([x, y], debiased=debiased, side=side)
        torch.testing.assert_close(both[0, 1], wanted, rtol=0, atol=1e-9)
        torch.testing.assert_close(both.diagonal(), torch.ones(2, dtype=torch.float64))


@given(pairs(), st.booleans(), st.integers(0, 2**31))
def test_cka_knows_neither_rotation_nor_scale_nor_mean(pair, debiased, seed):
    x, y = pair
    q = torch.linalg.qr(normal(x.shape[1], x.shape[1], seed=seed)).Q
    value = cka(x, y, debiased)
    assert -1 - 1e-12 <= float(value) <= 1 + 1e-12
    assert debiased or value >= 0
    torch.testing.assert_close(cka(y, x, debiased), value)
    torch.testing.assert_close(cka(x @ q, 7 * y, debiased), value, rtol=0, atol=1e-9)
    torch.testing.assert_close(cka(x + normal(x.shape[1], seed=seed), y, debiased), value, rtol=0, atol=1e-9)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(cka(x[order], y[order], debiased), value, rtol=0, atol=1e-9)
    torch.testing.assert_close(cka(x, -2 * x, debiased), torch.ones((), dtype=torch.float64))


@given(pairs())
def test_no_kernel_aligns_better_with_a_target_than_its_own(pair):
    x, y = pair
    target = gram(y[:, :1])
    assert float(kta(target, 5 * target)) == pytest.approx(1)
    assert kta(gram(x), target) <= 1 + 1e-12
    torch.testing.assert_close(
        center(gram(x)).sum(0), torch.zeros(len(x), dtype=torch.float64), atol=1e-9, rtol=0
    )
    u = center(gram(x), debiased=True)
    assert (u.diagonal() == 0).all()
    torch.testing.assert_close(u.sum(0), torch.zeros(len(x), dtype=torch.float64), atol=1e-9, rtol=0)


def test_debiased_is_unbiased_and_not_clamped():
    values = [
        float(cka(normal(30, 60, seed=2 * i), normal(30, 60, seed=2 * i + 1), True)) for i in range(200)
    ]
    assert min(values) < 0
    assert abs(np.mean(values)) < 4 * np.std(values) / math.sqrt(len(values))
    assert cka(normal(30, 60, seed=1), normal(30, 60, seed=2)) > 0.6


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("mean", [0.0, 5.0])
def test_float32_loses_little(debiased, mean):
    reps = normal(4, 512, 300, dtype=torch.float32) + mean
    reps[1:] += reps[0]
    wanted = torch.tensor([[float(dense_cka(a, b, debiased)) for a in reps] for b in reps])
    for side in ("gram", "features"):
        torch.testing.assert_close(cka_grid(reps, debiased=debiased, side=side), wanted, rtol=0, atol=5e-6)
    torch.testing.assert_close(cka(reps[0], reps[1], debiased), wanted[0, 1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("side", ["gram", "features", "auto"])
@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("max_bytes", [1, 20_000, 2**30])
def test_a_grid_is_its_pairs_however_it_is_cut(side, debiased, max_bytes):
    reps = [normal(24, d, seed=d) for d in (3, 5, 30, 4, 7, 9, 2)]
    other = [normal(24, d, seed=50 + d) for d in (6, 40)]
    options = {"debiased": debiased, "side": side, "max_bytes": max_bytes}
    square = torch.stack([torch.stack([cka(a, b, debiased) for b in reps]) for a in reps])
    torch.testing.assert_close(cka_grid(reps, **options), square, rtol=0, atol=1e-9)
    oblong = torch.stack([torch.stack([cka(a, b, debiased) for b in other]) for a in reps])
    torch.testing.assert_close(cka_grid(reps, other, **options), oblong, rtol=0, atol=1e-9)


@pytest.mark.parametrize("side", ["gram", "features"])
@pytest.mark.parametrize("debiased", [False, True])
def test_average_over_batches(side, debiased):
    """Sharon F.2: the mean of the batches' CKA; or the ratio of the batches' mean HSIC."""
    reps = normal(3, 40, 6)
    parts = [cka_grid(part, debiased=debiased) for part in reps.split(10, dim=1)]
    batched = cka_grid(reps, debiased=debiased, batch_size=10, side=side)
    torch.testing.assert_close(batched, torch.stack(parts).mean(0))
    h = torch.zeros(3, 3, dtype=torch.float64)
    for part in reps.split(10, dim=1):
        h += torch.tensor([[hsic(gram(a), gram(b), debiased=debiased) for a in part] for b in part])
    ratio = h / (h.diagonal()[:, None] * h.diagonal()).sqrt()
    batched = cka_grid(reps, debiased=debiased, batch_size=10, side=side, average="hsic")
    torch.testing.assert_close(batched, ratio)


def test_representations_come_from_files_and_functions_when_needed(tmp_path):
    reps = normal(5, 12, 4)
    np.save(tmp_path / "a.npy", reps[0].numpy())
    torch.save(reps[1], tmp_path / "b.pt")
    calls = []

    def load():
        calls.append(1)
        return reps[2]

    mixed = [tmp_path / "a.npy", str(tmp_path / "b.pt"), load, reps[3], lambda: reps[4].numpy()]
    torch.testing.assert_close(cka_grid(mixed), cka_grid(reps))
    assert len(calls) == 1
    # With room for one kernel at a time, a representation is made again for each block before it.
    torch.testing.assert_close(cka_grid(mixed, max_bytes=1), cka_grid(reps))
    assert len(calls) == 1 + 3


class Held(TorchDispatchMode):
    """Counts the bytes that torch holds of what was made since this began; ``most`` is the peak."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {
            t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)
        }
        for tensor in tree_leaves(out):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in self.known | given:
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self.gone, storage._cdata, storage.nbytes())
        return out

    def gone(self, key, size):
        self.known.discard(key)
        self.now -= size


def storage(leaf):
    return leaf.untyped_storage() if isinstance(leaf, torch.Tensor) else None


def test_what_is_held_is_counted():
    with Held() as held:
        a = torch.zeros(1000)
        b = a[:500].view(5, 100)
        assert held.now == 4000
        c = b + 1
        assert held.now == 6000
        del a, b
        assert held.now == 2000
        c.mul_(2)
    assert (held.now, held.most) == (2000, 6000)


def grid_and_peak(reps, **options):
    with Held() as held:
        return cka_grid(reps, **options), held.most


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("side", ["auto", "gram", "features"])
@pytest.mark.parametrize("made", [False, True], ids=["tensors", "functions"])
def test_no_more_is_held_than_asked_for(side, debiased, made):
    """A narrow representation first says nothing about those that follow."""
    n, widths = 100, [3] * 6 + [300] * 3 + [3] * 3 + [800]
    reps = [normal(n, d, seed=i) for i, d in enumerate(widths)]
    wanted = torch.tensor([[float(cka(a, b, debiased)) for b in reps] for a in reps], dtype=torch.float64)
    one = 8 * n * max(widths)
    loads = [lambda x=x: x for x in reps] if made else reps
    for max_bytes in (4 * one, 20 * one):
        got, most = grid_and_peak(loads, debiased=debiased, side=side, max_bytes=max_bytes)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)
        # Beside that, the widest is centered and scaled, and its own products are taken.
        assert most <= max_bytes + 2 * one


def test_a_function_is_called_once_where_all_fits():
    calls = []

    def load(i, d):
        calls.append(i)
        return normal(20, d, seed=i)

    widths = [2, 50, 3, 30]
    loads = [lambda i=i, d=d: load(i, d) for i, d in enumerate(widths)]
    for side in ("auto", "gram", "features"):
        calls.clear()
        cka_grid(loads, side=side)
        assert sorted(calls) == [0, 1, 2, 3]


def test_widths_are_read_without_the_numbers(tmp_path):
    x = normal(6, 5)
    np.save(tmp_path / "a.npy", x.numpy())
    torch.save(x, tmp_path / "b.pt")
    torch.save(x, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"x": x}, tmp_path / "dict.pt")
    files = [tmp_path / name for name in ("a.npy", "b.pt", "old.pt", "dict.pt")]
    loads = sources([*files, x, x.numpy(), lambda: x], "reps")
    assert [load.width() for load in loads] == [5, 5, None, None, 5, 5, None]
    assert cka_grid(files[:3]).shape == (3, 3)


def test_which_side_is_cheaper():
    assert grid._cheaper_side(512, [4096] * 60, None, fits=True) == "gram"
    assert grid._cheaper_side(512, [256] * 60, None, fits=True) == "gram"
    assert grid._cheaper_side(10_000, [10] * 60, None, fits=True) == "features"
    assert grid._cheaper_side(4200, [10] * 30, [4096] * 30, fits=True) == "gram"
    assert grid._cheaper_side(10_000, [10] * 50 + [4096] * 10, None, fits=True) == "gram"
    assert grid._cheaper_side(100_000, [512] * 60, None, fits=False) == "features"
    assert grid._cheaper_side(100, [200], None, fits=False) == "gram"  # the features would be larger
    assert grid._cheaper_side(10_000, [10, None], None, fits=True) == "gram"  # a function: who knows


@given(pairs())
def test_ranks(pair):
    x, y = pair
    K = center(gram(x))
    rank = int(torch.linalg.matrix_rank(K))
    values = torch.linalg.svdvals(K)
    stable, effective = float(stable_rank(K)), float(effective_rank(K))
    assert stable == pytest.approx(float(values.square().sum() / values[0] ** 2))
    share = (values / values.sum()).numpy()
    assert effective == pytest.approx(math.exp(-sum(p * math.log(p) for p in share if p > 0)))
    assert 1 - 1e-9 <= stable <= rank + 1e-9
    assert 1 - 1e-9 <= effective <= rank + 1e-6
    assert float(stable_rank(9 * K)) == pytest.approx(stable)
    # Lou G.1: alignment with labels = correlation term / √stable rank, exactly.
    label = y[:, 0] - y[:, 0].mean()
    label = label / label.norm()
    eigenvalues, vectors = torch.linalg.eigh(K)
    correlation = float((eigenvalues / eigenvalues[-1] * (vectors.mT @ label).square()).sum())
    aligned = float(kta(K, label[:, None] * label))
    assert correlation / math.sqrt(stable) == pytest.approx(aligned, abs=1e-9)


def with_spectrum(values, n, d, seed=0):
    u, v = (torch.linalg.qr(normal(m, len(values), seed=seed + m)).Q for m in (n, d))
    return (u * values) @ v.mT


@pytest.mark.parametrize("n, d", [(300, 300), (200, 500), (700, 100)])
@pytest.mark.parametrize("kind", ["steep", "flat", "equal", "low rank", "two"])
def test_stable_rank_without_the_rest_of_the_spectrum(n, d, kind, monkeypatch):
    k = min(n, d)
    values = {
        "steep": torch.arange(1.0, k + 1).double() ** -1,
        "flat": torch.linspace(1, 0.99, k).double(),
        "equal": torch.ones(k).double(),
        "low rank": torch.tensor([3.0, 2.0, 2.0]).double(),
        "two": torch.tensor([1.0, 1 - 1e-9] + [0.5] * 20).double(),
    }[kind]
    x = with_spectrum(values, n, d)
    whole = []
    decompose = ranks._singular_values
    monkeypatch.setattr(ranks, "_singular_values", lambda k: whole.append(1) or decompose(k))
    share = values / values[0]
    assert float(stable_rank(x)) == pytest.approx(float(share.square().sum()), rel=1e-9)
    assert float(stable_rank(x, features=True)) == pytest.approx(float(share.pow(4).sum()), rel=1e-9)
    assert float(stable_rank(x.float())) == pytest.approx(float(share.square().sum()), rel=1e-5)
    if kind != "flat":
        assert not whole  # and only there it may be needed


def test_stable_rank_of_features_is_that_of_their_kernel():
    for n, d in ((20, 5), (100, 80), (80, 300)):
        x = normal(n, d)
        assert float(stable_rank(x, features=True)) == pytest.approx(float(stable_rank(gram(x))), rel=1e-9)
        for scale in (1e-120, 1e120):
            assert float(stable_rank(scale * x)) == pytest.approx(float(stable_rank(x)), rel=1e-9)
    indefinite = with_spectrum(torch.linspace(1, 0, 100).double(), 100, 100)
    indefinite = indefinite - indefinite.mT
    symmetric = indefinite @ indefinite - 0.2 * torch.eye(100).double()
    values = torch.linalg.eigvalsh(symmetric).abs()
    wanted = float((values / values.max()).square().sum())
    assert float(stable_rank(symmetric)) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("features", [False, True])
def test_stable_rank_can_be_differentiated(features):
    x = with_spectrum(torch.arange(1.0, 81).double() ** -0.5, 90, 80).requires_grad_()
    stable_rank(x, features=features).backward()
    z = x.detach().clone().requires_grad_()
    values = torch.linalg.svdvals(z)
    (values / values[0]).pow(4 if features else 2).sum().backward()
    torch.testing.assert_close(x.grad, z.grad, rtol=1e-6, atol=1e-8)


def test_ranks_of_matrices_that_are_not_square():
    assert float(stable_rank(torch.diag(torch.tensor([2.0, 1.0]))[:, [0, 1, 1]])) == pytest.approx(1.5)
    assert float(effective_rank(torch.eye(4)[:, :3])) == pytest.approx(3)
    assert float(effective_rank(np.eye(3, dtype=int))) == pytest.approx(3)


def test_numpy_in_numpy_out_and_dtype_kept():
    x = normal(10, 3, dtype=torch.float32).numpy()
    for value in (
        gram(x),
        center(gram(x)),
        kta(gram(x), gram(x)),
        cka(x, x),
        cka_grid([x, x]),
        stable_rank(gram(x)),
    ):
        assert isinstance(value, np.ndarray | np.float32)
        assert value.dtype == np.float32
    half = normal(10, 3).bfloat16()
    assert cka_grid([half, half]).dtype == torch.float32


def test_against_torch_cka():
    """The package Sharon & Dar used: the unbiased HSIC of kernels without diagonal."""
    torch_cka = pytest.importorskip("torch_cka")
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6))
    data = normal(40, 5, dtype=torch.float32)
    layers = ["0", "1", "2"]
    names = {"model1_name": "one", "model2_name": "other"}
    outside = torch_cka.CKA(model, model, **names, model1_layers=layers, model2_layers=layers, device="cpu")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=40)
    outside.compare(loader, loader)
    with torch.no_grad():
        reps = [model[:i](data) for i in (1, 2, 3)]
    torch.testing.assert_close(cka_grid(reps, debiased=True), outside.export()["CKA"], rtol=0, atol=1e-4)


def test_against_ckatorch_and_pytorch_cka():
    ckatorch = pytest.importorskip("ckatorch.core")
    x, y = normal(30, 8), normal(30, 5, seed=1)
    for debiased in (False, True):
        outside = ckatorch.cka_base(x, y, unbiased=debiased)
        assert float(cka(x, y, debiased)) == pytest.approx(float(outside), abs=1e-9)
    pytorch_cka = pytest.importorskip("cka")
    reps = normal(4, 30, 8) + normal(30, 8, seed=5)
    torch.testing.assert_close(cka_grid(reps, debiased=True), pytorch_cka.cka_from_features(reps, reps))


GOOD = normal(6, 2)
CONSTANT = torch.full((6, 2), 0.1)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: cka(GOOD, GOOD[:5]), r"6 and 5 rows"),
        (lambda: cka(GOOD[0], GOOD), r"X should have shape \(n, d\)"),
        (lambda: cka(GOOD.reshape(6, 1, 2), GOOD), r"Flatten each sample first"),
        (lambda: cka(GOOD * math.nan, GOOD), r"12 of 12 entries are NaN"),
        (lambda: cka(GOOD[:1], GOOD[:1]), r"at least 2 samples"),
        (lambda: cka(GOOD[:3], GOOD[:3], debiased=True), r"at least 4 samples"),
        (lambda: cka(CONSTANT, GOOD), r"X should vary over the samples"),
        (lambda: cka(GOOD, torch.zeros(6, 2)), r"Y should vary"),
        (lambda: cka(GOOD, CONSTANT.bfloat16() + 100), r"Y should vary"),
        (lambda: cka(torch.eye(6), GOOD, debiased=True), r"equally far apart"),
        (lambda: cka_grid([GOOD, torch.eye(6)], side="gram", debiased=True), r"reps\[1\] is zero"),
        (lambda: cka_grid([GOOD, CONSTANT]), r"reps\[1\] should vary"),
        (lambda: cka_grid([GOOD], [GOOD[:4]]), r"reps\[0\] and other\[0\].*6 and 4 rows"),
        (lambda: cka_grid([GOOD, GOOD[0]]), r"reps\[1\] should have shape"),
        (lambda: cka_grid([]), r"at least one representation"),
        (lambda: cka_grid(GOOD), r"reps should have shape \(E, n, d\)"),
        (lambda: cka_grid([GOOD], batch_size=4), r"multiple of batch_size"),
        (lambda: cka_grid([GOOD], batch_size=3, debiased=True), r"at least 4 samples \(per batch\)"),
        (lambda: cka_grid([GOOD], side="left"), r"auto, gram or features"),
        (lambda: cka_grid([GOOD], average="mean"), r"cka or hsic"),
        (lambda: kta(GOOD, GOOD), r"From features X take gram\(X\)"),
        (lambda: kta(torch.zeros(2, 2), torch.eye(2)), r"K should not be zero"),
        (lambda: kta(torch.eye(2), torch.eye(3)), r"2 and 3 rows"),
        (lambda: center(torch.eye(3), debiased=True), r"at least 4 samples"),
        (lambda: hsic(torch.eye(3), torch.eye(3) * math.inf), r"L should be finite"),
        (lambda: stable_rank(torch.zeros(2, 2)), r"K should not be zero"),
        (lambda: effective_rank(torch.ones(2)), r"K should have shape"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_iterator_is_refused():
    with pytest.raises(TypeError, match="make it a list"):
        cka_grid(GOOD for _ in range(3))


@pytest.mark.parametrize(
    "measure", [lambda x, y: cka(x, y), lambda x, y: cka_grid([x, y]), lambda x, y: cka_floor(x, y, draws=0)]
)
def test_class_numbers_are_told_before_they_count_as_numbers(measure):
    x, y = normal(12, 4), torch.arange(12) % 3
    with pytest.warns(UserWarning, match=r"count as numbers.*one_hot"):
        measure(x, y[:, None])
    # Two classes are the same up to shift and scale, and floats are meant as numbers.
    measure(x, y[:, None].clamp(max=1))
    measure(x, y[:, None].double())
    with pytest.raises(ValueError, match=r"Class numbers\? Give repalign\.data\.one_hot"):
        measure(x, y)


def test_class_numbers_in_arrays_are_told():
    with pytest.warns(UserWarning, match=r"Y is a column of whole numbers"):
        cka(normal(12, 4).numpy(), np.arange(12)[:, None])


@given(st.floats(0.1, 3), st.integers(4, 60), st.integers(0, 2**31))
def test_the_exponent_of_a_power_law_is_found(alpha, n, seed):
    values = 3.0 * torch.arange(1, n + 1, dtype=torch.float64) ** -alpha
    turn = torch.linalg.qr(normal(n, n, seed=seed)).Q
    law = power_law((turn * values) @ turn.mT)
    assert (law.first, law.last) == (1, n)
    assert float(law.exponent) == pytest.approx(alpha, rel=1e-6)
    assert float(law.r2) == pytest.approx(1)
    # The same of features, whatever their scale; the kernel of (n, d) has singular values squared.
    of_features = power_law(1e-3 * (turn * values.sqrt()), features=True, first=2, last=n)
    assert float(of_features.exponent) == pytest.approx(alpha, rel=1e-6)
    assert of_features.first == 2


def test_a_power_law_is_the_weighted_regression_in_its_range():
    x = normal(40, 12)
    law = power_law(x, features=True, first=2, last=9)
    values = torch.linalg.svdvals(x)[1:9].square().log().numpy()
    rank = np.arange(2, 10)
    # numpy squares its weights.
    slope, at_one = np.polyfit(np.log(rank), values, 1, w=rank**-0.5)
    mean = np.average(values, weights=1 / rank)
    left = np.average((values - at_one - slope * np.log(rank)) ** 2, weights=1 / rank)
    assert float(law.exponent) == pytest.approx(-slope)
    assert float(law.r2) == pytest.approx(1 - left / np.average((values - mean) ** 2, weights=1 / rank))
    # What lies beyond the rank is rounding, and is left out.
    assert power_law(gram(x)).last == 12
    assert power_law(gram(x.float())).last == 12
    torch.testing.assert_close(power_law(gram(x)).exponent, power_law(x, features=True).exponent)
    flat = power_law(torch.eye(5))
    assert (float(flat.exponent), float(flat.r2)) == (0, 1)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: power_law(normal(5, 4)), r"power_law\(X, features=True\)"),
        (lambda: power_law(torch.eye(5), first=4), "three eigenvalues or more of the 5"),
        (lambda: power_law(torch.eye(5), last=6), "but are 1 and 6"),
        (lambda: power_law(torch.zeros(5, 5)), "should not be zero"),
        (lambda: power_law(torch.zeros(5, 3), features=True), "should not be zero"),
    ],
)
def test_what_has_no_power_law_is_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()
