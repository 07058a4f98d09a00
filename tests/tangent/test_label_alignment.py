"""Label alignment against its dense definition."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_networks import case, dense_alignment, dense_kernels, draw, mlp
from torch import nn

from repalign.tangent import alignment_terms, label_alignment, plan


@pytest.mark.parametrize(
    "name, budget",
    [("mlp", 2**28), ("mlp", 1000), ("cnn", 2**28), ("transformer", 2**28), ("one output", 2**28)],
)
@pytest.mark.parametrize("outputs", ["all", "trace"])
@pytest.mark.parametrize("center", ["entries", "examples"])
def test_alignment_and_its_two_terms_are_the_dense_definition(name, outputs, center, budget, monkeypatch):
    monkeypatch.setattr(plan, "BUDGET", budget)
    model, x = case(name)
    n, o = len(x), len(model(x).reshape(len(x), -1)[0])
    y = torch.arange(n) % o if o > 1 else draw(n, 1, seed=9)
    found = label_alignment(model, x, y, outputs, center=center)
    terms = alignment_terms(model, x, y, outputs, center=center)
    for layer, kernel in dense_kernels(model, x).items():
        value, correlation, rank = dense_alignment(kernel, y, o, outputs, center)
        assert float(found[layer]) == pytest.approx(float(value), rel=1e-10)
        assert float(terms[layer].correlation) == pytest.approx(float(correlation), rel=1e-8)
        assert float(terms[layer].stable_rank) == pytest.approx(float(rank), rel=1e-8)
        # Appendix G.1: exact.
        assert float(terms[layer].alignment) == pytest.approx(float(correlation / rank.sqrt()), rel=1e-8)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("seed", range(3))
def test_a_last_linear_layer_cannot_pass_its_bound(classes, seed):
    # The kernel I ⊗ K_a holds the same K_a o times, and the labels lie across all of them.
    model, x = mlp(6, 32, classes, seed=seed), draw(20 * classes, 6, seed=seed)
    y = torch.arange(20 * classes) % classes
    bound = 1 / math.sqrt(classes * (classes - 1))
    assert 0 < label_alignment(model, x, y)["2"] <= bound + 1e-12
    # Features that are the labels reach the bound, and the traced kernel is then perfectly aligned.
    linear = nn.Linear(classes, classes, bias=False).double()
    features = nn.functional.one_hot(y, classes).double()
    exact = label_alignment(linear, features - 1 / classes, y)["model"]
    assert float(exact) == pytest.approx(bound, rel=1e-10)
    traced = label_alignment(linear, features, y, outputs="trace")["model"]
    assert float(traced) == pytest.approx(1, rel=1e-10)


@given(st.integers(2, 10), st.integers(1, 5), st.integers(1, 12), st.floats(0, 100), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_the_cap_of_a_last_linear_layer(classes, each, width, strength, seed):
    """lou.eq7.cap: at most 1/√(o(o−1)) for any features, reached by the codes of the classes."""
    y = torch.arange(classes).repeat(each)
    codes = nn.functional.one_hot(y, classes).double()
    cap = 1 / math.sqrt(classes * (classes - 1))
    # From pure noise to features in which the classes drown it.
    features = draw(len(y), width, seed=seed) + strength * codes @ draw(classes, width, seed=seed + 1)
    last = nn.Linear(width, classes, bias=False).double()
    for center in ("entries", "examples"):
        assert label_alignment(last, features, y, center=center)["model"] <= cap + 1e-10
    last = nn.Linear(classes, classes, bias=False).double()
    turned = (codes - 1 / classes) @ torch.linalg.qr(draw(classes, classes, seed=seed))[0]
    assert float(label_alignment(last, turned, y)["model"]) == pytest.approx(cap, abs=1e-8)
    by_output = label_alignment(last, codes, y, center="examples")["model"]
    assert float(by_output) == pytest.approx(cap, abs=1e-8)
    # Not centered, they also have a mean over examples, which the labels have not: they fall short of it.
    short = label_alignment(last, codes, y)["model"]
    assert float(short) == pytest.approx(1 / math.sqrt(classes**2 - 1), abs=1e-8)


@given(st.integers(0, 1000), st.floats(0.1, 10), st.floats(-5, 5))
@settings(max_examples=15)
def test_alignment_knows_no_scale_or_offset_of_labels(seed, scale, offset):
    model, x = mlp(4, 6, 3, seed=seed), draw(8, 4, seed=seed)
    y = draw(8, 3, seed=seed + 1)
    for outputs in ("all", "trace"):
        before = label_alignment(model, x, y, outputs)
        after = label_alignment(model, x, scale * y + offset, outputs)
        for layer, value in before.items():
            assert 0 <= value <= 1 + 1e-12
            assert float(after[layer]) == pytest.approx(float(value), rel=1e-8)


def test_alignment_stays_accurate_in_float32():
    # Deep and barely initialized: kernels nearly constant, where centering loses digits.
    torch.manual_seed(0)
    model = mlp(20, *[64] * 20, 10)
    x, y = draw(100, 20) * 0.1 + 1, torch.arange(100) % 10
    exact = label_alignment(model, x, y)
    single = label_alignment(model.float(), x.float(), y)
    for layer, value in exact.items():
        assert float(single[layer]) == pytest.approx(float(value), rel=2e-4)


def test_no_large_matrix_is_formed(monkeypatch):
    model, x = mlp(5, 16, 4).float(), draw(1500, 5).float()
    y = torch.arange(1500) % 4
    largest = [0]

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest[0] = max(largest[0], out.numel())
            return out

    with Largest():
        label_alignment(model, x, y)
    assert largest[0] < 6000**2 / 20


def test_the_terms_of_the_trace_in_float32():
    model, x, y = mlp(5, 8, 3), draw(9, 5), torch.arange(9) % 3
    exact = alignment_terms(model, x, y, "trace")
    single = alignment_terms(model.float(), x.float(), y, "trace")
    for layer, terms in exact.items():
        for ours, theirs in zip(single[layer], terms, strict=True):
            assert float(ours) == pytest.approx(float(theirs), rel=1e-4)
