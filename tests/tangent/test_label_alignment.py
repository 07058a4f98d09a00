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
