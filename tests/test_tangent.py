"""Tangent kernels and what follows from them, against autograd Jacobians at float64 tolerance."""

import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

from repalign.tangent import (
    alignment_terms,
    fisher_correlation,
    fisher_spectrum,
    forward_backward,
    hessian_top,
    hessian_vector,
    label_alignment,
    layer_energy,
    layer_kernels,
    ntk,
    plan,
)

F64 = torch.float64


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def whole(high, *shape, seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def jacobians(model, x):
    """The textbook: one row per sample and output, for every parameter, by reverse mode."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*batching rule")
        rows = jacrev(lambda p: functional_call(model, p, (x,)).reshape(-1))(parameters)
    return {name: row.flatten(1) for name, row in rows.items()}


def dense_kernels(model, x, bias=True):
    kernels = {}
    for name, row in jacobians(model, x).items():
        layer = name.rpartition(".")[0] or "model"
        if bias or "bias" not in name:
            kernels[layer] = kernels.get(layer, 0) + row @ row.mT
    return kernels


def dense_trace(kernel, n):
    return torch.einsum("ikjk->ij", kernel.reshape(n, len(kernel) // n, n, -1))


def mlp(*widths, bias=False, activation=nn.ReLU, seed=0):
    torch.manual_seed(seed)
    layers = []
    for a, b in pairwise(widths[:-1]):
        layers += [nn.Linear(a, b, bias=bias), activation()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1], bias=bias)).double()


def settled(norm):
    """A batch-norm with running statistics of its own."""
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    nn.init.normal_(norm.weight)
    return norm


class Recurrent(nn.Module):
    """One layer called twice, a weight used by hand, a scale, a table tied to the last layer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.twice = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.scale = nn.Parameter(torch.randn(4))
        self.unused = nn.Linear(3, 2)
        self.last = nn.Linear(4, 6, bias=False)
        self.last.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens).mean(dim=1)
        x = self.twice(torch.tanh(self.twice(x)))
        return self.last(x @ self.weight * self.scale + torch.tanh(x @ self.weight))


class Reader(nn.Module):
    """Tokens through a transformer layer, in both orders of axes, with a class token and positions."""

    def __init__(self, batch_first):
        super().__init__()
        self.batch_first = batch_first
        self.table = nn.Embedding(9, 6, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(1, 5, 6))
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.encoder = nn.TransformerEncoderLayer(6, 2, 12, batch_first=batch_first)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens):
        x = torch.cat([self.token.expand(len(tokens), -1, -1), self.table(tokens) + self.positions], dim=1)
        x = self.encoder(x if self.batch_first else x.transpose(0, 1))
        return self.head(x[:, 0] if self.batch_first else x[0])


class Crossed(nn.Module):
    """Queries from one projection, keys and values from another, attended to twice."""

    def __init__(self, **options):
        super().__init__()
        self.queries = nn.Linear(6, 6)
        self.keys = nn.Linear(6, options.get("kdim", 6))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True, **options)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        keys = self.keys(x)
        once, _ = self.attention(self.queries(x), keys, keys)
        return self.head(self.attention(once, keys, keys)[0]).mean(dim=1)


class Handmade(nn.Module):
    """Attention written out with linear layers on (n, tokens, d), and images folded into the batch."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(1, 4, 2, stride=2)
        self.q, self.k, self.v = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.norm = nn.RMSNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.patch(x.flatten(0, 1)[:, None]).flatten(2).mT.reshape(len(x), -1, 4)
        x = x + (self.q(x) @ self.k(x).mT).softmax(dim=-1) @ self.v(x)
        return self.head(self.norm(x)).amax(dim=1)


CASES = {
    "mlp": lambda: (mlp(4, 6, 5, 3, bias=True), draw(7, 4)),
    "inplace": lambda: (
        nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
        draw(7, 4),
    ),
    "one output": lambda: (
        nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1), nn.Flatten(0)),
        draw(5, 4),
    ),
    "one sample": lambda: (mlp(4, 5, 2), draw(1, 4)),
    "cnn": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, padding="same"),
            settled(nn.BatchNorm2d(4)),
            nn.ReLU(inplace=True),
            nn.GroupNorm(2, 4),
            nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular", groups=2),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 20, 3, stride=2, dilation=(1, 2), padding=(1, 2)),
            nn.Flatten(),
            nn.Linear(80, 3),
        ),
        draw(5, 3, 8, 8),
    ),
    "signals": lambda: (
        nn.Sequential(
            nn.Conv1d(3, 4, 3, dilation=2, stride=2),
            nn.InstanceNorm1d(4, affine=True),
            nn.Tanh(),
            nn.Conv1d(4, 9, 2, bias=False),
            nn.Flatten(),
            nn.Linear(18, 3),
        ),
        draw(6, 3, 10),
    ),
    "volumes": lambda: (
        nn.Sequential(nn.Conv3d(1, 3, 2), nn.Flatten(), nn.Linear(24, 2)),
        draw(4, 1, 3, 3, 3),
    ),
    "shared": lambda: (Recurrent(), whole(6, 7, 3)),
    "transformer": lambda: (Reader(True), whole(9, 6, 5)),
    "tokens first": lambda: (Reader(False), whole(9, 6, 5)),
    "attention": lambda: (Crossed(), draw(5, 4, 6)),
    "attention of other sizes": lambda: (Crossed(kdim=4, vdim=4), draw(5, 4, 6)),
    "handmade attention": lambda: (Handmade(), draw(4, 3, 4, 4)),
}


def case(name):
    torch.manual_seed(0)
    model, x = CASES[name]()
    return model.double().eval(), x


@pytest.mark.parametrize("name", CASES)
def test_layer_kernels_are_those_of_the_jacobian(name):
    model, x = case(name)
    kernels, dense = layer_kernels(model, x), dense_kernels(model, x)
    assert list(kernels) == list(dense)
    for layer, kernel in kernels.items():
        torch.testing.assert_close(kernel, dense[layer], rtol=1e-11, atol=1e-12)
    total = sum(dense.values())
    torch.testing.assert_close(ntk(model, x), total, rtol=1e-11, atol=1e-12)
    traces = layer_kernels(model, x, outputs="trace")
    for layer, kernel in traces.items():
        torch.testing.assert_close(kernel, dense_trace(dense[layer], len(x)), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(ntk(model, x, "trace"), dense_trace(total, len(x)), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("outputs", ["all", "trace"])
def test_batches_of_samples_and_outputs_change_nothing(name, outputs, monkeypatch):
    model, x = case(name)
    once = layer_kernels(model, x, outputs)
    for again in (layer_kernels(model, x, outputs, batch_size=2), None):
        if again is None:
            monkeypatch.setattr(plan, "BUDGET", 500)  # a few samples, and not all of their outputs
            assert len(plan.watch(model, x, outputs).batches) > 1 or len(x) == 1
            again = layer_kernels(model, x, outputs)
        for layer, kernel in once.items():
            torch.testing.assert_close(again[layer], kernel, rtol=1e-11, atol=1e-12)


def test_uneven_batches_of_outputs(monkeypatch):
    # Whether a and b stay apart is a matter of the number of outputs: all batches must decide alike.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 8, 3), nn.Conv2d(8, 12, 2), nn.Flatten(), nn.Linear(12, 5)).double()
    x, y = draw(6, 2, 4, 4), torch.arange(6) % 5
    once, aligned = layer_kernels(model, x), label_alignment(model, x, y)
    splits = set()
    for budget in (4_000, 12_000, 20_000, 30_000, 60_000):
        monkeypatch.setattr(plan, "BUDGET", budget)
        splits.add(plan.watch(model, x).batches[0][1].stop)
        for layer, kernel in layer_kernels(model, x).items():
            torch.testing.assert_close(kernel, once[layer], rtol=1e-11, atol=1e-12)
        for layer, value in label_alignment(model, x, y).items():
            torch.testing.assert_close(value, aligned[layer], rtol=1e-10, atol=0)
    assert len(splits) > 2


@given(
    st.lists(st.integers(1, 9), min_size=3, max_size=5),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([nn.ReLU, nn.Tanh]),
    st.integers(0, 1000),
)
@settings(max_examples=25)
def test_equation_9_for_any_multilayer_perceptron(widths, n, bias, activation, seed):
    model = mlp(*widths, bias=bias, activation=activation, seed=seed)
    x, o = draw(n, widths[0], seed=seed), widths[-1]
    dense = dense_kernels(model, x, bias=False)
    without = layer_kernels(model, x, bias="without")
    parts, traced = forward_backward(model, x), forward_backward(model, x, "trace")
    assert list(parts) == list(dense) == list(without)
    for layer, kernel in dense.items():
        m, d = model[int(layer)].weight.shape
        spread = parts[layer].forward.repeat_interleave(o, 0).repeat_interleave(o, 1)
        torch.testing.assert_close(d * m * spread * parts[layer].backward, kernel)
        torch.testing.assert_close(without[layer], kernel)
        trace = d * m * traced[layer].forward * traced[layer].backward
        torch.testing.assert_close(trace, dense_trace(kernel, n))


def test_canatar_equations_7_and_8():
    # K_NTK = K⁽ᴸ⁾ ⊗ I + gradient kernel: the last layer's part does not mix outputs.
    model, x = mlp(5, 8, 7, 3), draw(6, 5)
    hidden = model[:-1](x)
    last = torch.kron(hidden @ hidden.mT, torch.eye(3, dtype=F64))
    torch.testing.assert_close(layer_kernels(model, x)["4"], last)
    inner = sum(row @ row.mT for row in jacobians(model[:-1], x).values()).reshape(6, 7, 6, 7)
    weight = model[-1].weight
    gradient = torch.einsum("ka,iajb,mb->ikjm", weight, inner, weight).reshape(18, 18)
    torch.testing.assert_close(ntk(model, x), (last + gradient).detach())
    eq8 = hidden @ hidden.mT + dense_trace(gradient, 6) / 3
    torch.testing.assert_close(ntk(model, x, outputs="trace") / 3, eq8.detach())


def test_kernels_are_symmetric_and_positive():
    model, x = case("cnn")
    for kernel in layer_kernels(model, x).values():
        torch.testing.assert_close(kernel, kernel.mT)
        assert torch.linalg.eigvalsh(kernel)[0] > -1e-10 * kernel.trace()


def test_biases_with_apart_without():
    model, x = case("transformer")
    rows = jacobians(model, x)
    apart = layer_kernels(model, x, bias="apart")
    without = layer_kernels(model, x, bias="without")
    for name, row in rows.items():
        if "bias" in name:
            torch.testing.assert_close(apart[name], row @ row.mT, rtol=1e-11, atol=1e-12)
    for layer, kernel in dense_kernels(model, x, bias=False).items():
        torch.testing.assert_close(apart[layer], kernel, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(without[layer], kernel, rtol=1e-11, atol=1e-12)
    assert not any("bias" in layer for layer in without)


def test_some_layers_by_name():
    model, x = case("mlp")
    assert list(layer_kernels(model, x, layers=["4", "0"])) == ["4", "0"]
    torch.testing.assert_close(layer_kernels(model, x, layers=["2"])["2"], layer_kernels(model, x)["2"])


UNREAD = {
    "lstm": lambda: nn.LSTM(3, 4, batch_first=True),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose1d(5, 4, 2), nn.Flatten()),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)),
    "bilinear": lambda: nn.Bilinear(3, 3, 4),
}


class Unread(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.first = kind, UNREAD[kind]()
        self.last = nn.LazyLinear(2)

    def forward(self, x):
        if self.kind == "bilinear":
            return self.last(self.first(x, x).flatten(1))
        x = self.first(x)
        return self.last((x[0] if isinstance(x, tuple) else x).flatten(1))


@pytest.mark.parametrize("kind", UNREAD)
def test_anything_else_has_explicit_rows_and_says_so_once(kind):
    torch.manual_seed(0)
    x = draw(4, 5, 3)
    model = Unread(kind).double().eval()
    model(x)
    with pytest.warns(UserWarning, match="no fast path for first") as caught:
        kernels = layer_kernels(model, x)
    assert len(caught) == 1
    for layer, kernel in dense_kernels(model, x).items():
        torch.testing.assert_close(kernels[layer], kernel, rtol=1e-11, atol=1e-12)


def test_a_bias_of_the_keys_has_explicit_rows():
    torch.manual_seed(0)
    model, x = Crossed(add_bias_kv=True).double(), draw(4, 4, 6)
    with pytest.warns(UserWarning, match=r"attention\.bias_k, attention\.bias_v"):
        kernels = layer_kernels(model, x)
    for layer, kernel in dense_kernels(model, x).items():
        torch.testing.assert_close(kernels[layer], kernel, rtol=1e-11, atol=1e-12)


def test_a_weight_touched_by_hand_is_not_taken_for_less_than_it_is():
    class Decayed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(x) * self.linear.weight.norm()

    torch.manual_seed(0)
    model, x = Decayed().double(), draw(4, 3)
    with pytest.warns(UserWarning, match=r"linear\.weight"):
        kernels = layer_kernels(model, x)
    torch.testing.assert_close(kernels["linear"], dense_kernels(model, x)["linear"])


class Turned(nn.Module):
    """Tokens first, an even number of them, in a network that may be dead."""

    def __init__(self, shift):
        super().__init__()
        self.inner, self.head, self.shift = nn.Linear(3, 3), nn.Linear(3, 2), shift

    def forward(self, x):
        z = self.inner(x.transpose(0, 1))
        return self.head(torch.relu(z + self.shift).sum(dim=0))


def test_where_the_samples_are_is_never_guessed():
    torch.manual_seed(0)
    x = draw(6, 2, 3)
    alive = Turned(0.0).double()
    torch.testing.assert_close(layer_kernels(alive, x)["inner"], dense_kernels(alive, x)["inner"])
    # Both samples that are looked at are dead here, and the gradient says nothing about the axes.
    x[0] = x[-1] = 0
    dying = Turned(-0.7).double()
    with pytest.warns(UserWarning, match=r"inner\.weight"):
        kernels = layer_kernels(dying, x)
    dense = dense_kernels(dying, x)
    assert dense["inner"].any()
    torch.testing.assert_close(kernels["inner"], dense["inner"])


def test_the_model_is_left_as_it_was():
    model, x = case("cnn")
    model[0].requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        kernels = layer_kernels(model, x)
    torch.testing.assert_close(kernels["0"], dense_kernels(model, x)["0"])  # frozen counts like any other
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [p.requires_grad for p in model[0].parameters()] == [False, False]
    assert all(p.grad is None for p in model.parameters())
    assert not any(kernel.requires_grad for kernel in kernels.values())


def test_numpy_and_precision():
    model, x = case("mlp")
    kernels = layer_kernels(model, x.numpy())
    assert all(isinstance(kernel, np.ndarray) for kernel in kernels.values())
    np.testing.assert_array_equal(kernels["0"], layer_kernels(model, x)["0"])
    aligned = label_alignment(model, x.numpy(), np.arange(7) % 3)
    assert all(isinstance(value, np.ndarray) for value in aligned.values())
    single = layer_kernels(model.float(), x.numpy())
    assert single["0"].dtype == np.float32
    np.testing.assert_allclose(single["0"], kernels["0"], rtol=1e-4, atol=1e-5)


def dense_alignment(kernel, y, o, outputs, center):
    """Equation 6 as it is written, with all matrices formed; stable rank and correlation beside it."""
    n = len(y)
    targets = nn.functional.one_hot(y, o).double() if y.ndim == 1 else y
    identity, ones = torch.eye(n, dtype=F64), torch.ones(n, n, dtype=F64)
    if outputs == "trace":
        kernel, labels, c = dense_trace(kernel, n), targets @ targets.mT, identity - ones / n
    else:
        labels = torch.outer(targets.flatten(), targets.flatten())
        c = torch.eye(n * o, dtype=F64) - 1 / (n * o)
        if center == "examples":
            c = torch.kron(identity - ones / n, torch.eye(o, dtype=F64))
    k, labels = c @ kernel @ c, c @ labels @ c
    values, vectors = torch.linalg.eigh(k)
    power = (vectors * (labels / labels.norm() @ vectors)).sum(dim=0)
    correlation = (values / values[-1] * power).sum()
    return (k * labels).sum() / k.norm() / labels.norm(), correlation, (values / values[-1]).square().sum()


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


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_theorem_a(depth):
    # Ψᵢ(x) = Hᵢ(x) θ / (L−1) for piecewise-linear networks without bias.
    model, x = mlp(5, *[8] * (depth - 1), 3, seed=depth), draw(4, 5, seed=depth)
    theta = nn.utils.parameters_to_vector(model.parameters()).detach()
    rows = torch.cat(list(jacobians(model, x).values()), dim=1)
    for place in range(12):
        w = torch.zeros(12, dtype=F64)
        w[place] = 1
        product = hessian_vector(model, x, w.reshape(4, 3), theta)
        torch.testing.assert_close(product / (depth - 1), rows[place], rtol=1e-11, atol=1e-12)
    w = draw(4, 3, seed=1)
    torch.testing.assert_close(hessian_vector(model, x, w, theta), (depth - 1) * rows.mT @ w.flatten())


def dense_hessian(model, x, w):
    shapes = {name: p.shape for name, p in model.named_parameters()}

    def f(theta):
        pieces = theta.split([shape.numel() for shape in shapes.values()])
        named = {n: p.reshape(s) for (n, s), p in zip(shapes.items(), pieces, strict=True)}
        return (functional_call(model, named, (x,)) * w).sum()

    theta = nn.utils.parameters_to_vector(model.parameters()).detach()
    return torch.autograd.functional.hessian(f, theta)


def test_hessian_products_and_top_eigenpairs():
    model, x, w = mlp(4, 6, 5, 3, bias=True, activation=nn.Tanh), draw(7, 4), draw(7, 3, seed=1)
    hessian = dense_hessian(model, x, w)
    v = draw(len(hessian), seed=2)
    torch.testing.assert_close(hessian_vector(model, x, w, v), hessian @ v)
    torch.testing.assert_close(hessian_vector(model, x, w, v, batch_size=3), hessian @ v)
    named = dict(zip((n for n, _ in model.named_parameters()), _pieces(model, v), strict=True))
    by_name = hessian_vector(model, x, w, named)
    flat = torch.cat([by_name[name].flatten() for name in named])
    torch.testing.assert_close(flat, hessian @ v)
    values = torch.linalg.eigvalsh(hessian)
    values = values[values.abs().argsort(descending=True)]
    for size in (None, 3):
        top = hessian_top(model, x, w, k=4, batch_size=size)
        torch.testing.assert_close(top.values, values[:4])
        scaled = top.values[:, None] * top.vectors
        torch.testing.assert_close(top.vectors @ hessian, scaled, atol=1e-8, rtol=0)
        torch.testing.assert_close(sum(top.energy.values()), torch.ones(4, dtype=F64))
    first = top.vectors[:, : 4 * 6 + 6].square().sum(dim=1)
    torch.testing.assert_close(top.energy["0"], first)
    torch.testing.assert_close(layer_energy(model, top.vectors[0])["0"], first[0])


def _pieces(model, v):
    sizes = [p.numel() for p in model.parameters()]
    return [piece.reshape(p.shape) for piece, p in zip(v.split(sizes), model.parameters(), strict=True)]


def test_a_linear_model_has_no_curvature():
    model = nn.Linear(3, 2).double()
    assert not hessian_vector(model, draw(4, 3), draw(4, 2), draw(8)).any()


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_fisher_is_that_of_the_parameters(loss):
    model, x, y = mlp(4, 6, 5, 3, bias=True), draw(30, 4), torch.arange(30) % 3
    rows = jacobians(model, x)
    p = model(x).detach().softmax(dim=1)
    blocks = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    curvature = torch.block_diag(*blocks) if loss == "cross_entropy" else torch.eye(90, dtype=F64)
    spectra, top = fisher_spectrum(model, x, loss=loss), fisher_spectrum(model, x, 3, loss=loss)
    correlations = fisher_correlation(model, x, y, loss=loss)
    targets = nn.functional.one_hot(y, 3).double().flatten()
    targets = targets - targets.mean()
    values, vectors = torch.linalg.eigh(curvature)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.mT
    for layer in spectra:
        psi = torch.cat([row for name, row in rows.items() if name.startswith(f"{layer}.")], dim=1).mT
        dense = torch.linalg.eigvalsh(psi @ curvature @ psi.mT).flip(0)
        size = min(len(dense), 90)
        torch.testing.assert_close(spectra[layer][:size], dense[:size], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(top[layer], dense[:3], rtol=1e-8, atol=1e-10)
        along = (psi @ root @ targets).square().sum() / targets.square().sum()
        assert float(correlations[layer]) == pytest.approx(float(along / dense[0]), rel=1e-8)


def test_against_nngeometry():
    gram = pytest.importorskip("nngeometry.gram")
    model, x = mlp(5, 8, 7, 3, bias=True), draw(6, 5)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=6)
    theirs = gram.GramMatrix(model, loader).to_torch()
    ours = ntk(model, x).reshape(6, 3, 6, 3)
    torch.testing.assert_close(ours.permute(1, 0, 3, 2), theirs)


TRAIN = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.1), nn.Linear(5, 3)).double()
PLAIN = mlp(4, 5, 3)
BATCH = nn.Sequential(PLAIN, nn.BatchNorm1d(3, track_running_stats=False).double()).eval()
X, Y = draw(6, 4), torch.arange(6) % 3


class Functional(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.linear, self.f = nn.Linear(4, 3).double(), f

    def forward(self, x):
        return self.f(self.linear(x))


BAD = [
    (lambda: layer_kernels(TRAIN, X), r"1 \(BatchNorm1d\), 2 \(Dropout\).*model\.eval\(\)"),
    (lambda: label_alignment(TRAIN, X, Y), r"train mode"),
    (lambda: hessian_vector(TRAIN, X, draw(6, 3), draw(53)), r"train mode"),
    (lambda: ntk(Functional(nn.functional.dropout), X), r"applies dropout in training mode"),
    (lambda: ntk(Functional(lambda z: z - z.mean(dim=0)), X), r"depends on the other samples"),
    (lambda: ntk(BATCH, X), r"statistics of the batch"),
    (lambda: ntk(Crossed(dropout=0.1).double(), draw(3, 4, 6)), r"drops weights at random"),
    (lambda: layer_kernels(PLAIN, X * math.nan), r"x should be finite"),
    (lambda: layer_kernels(PLAIN, X[:0]), r"no empty axis"),
    (lambda: layer_kernels(PLAIN, X, outputs="sum"), r"all or trace"),
    (lambda: layer_kernels(PLAIN, X, bias="no"), r"with, apart, without"),
    (lambda: layer_kernels(PLAIN, X, layers=["1"]), r"no layer '1'; the layers are 0, 2"),
    (lambda: layer_kernels(PLAIN, X, batch_size=0), r"batch_size"),
    (lambda: layer_kernels(nn.ReLU(), X), r"no parameters"),
    (lambda: layer_kernels(Functional(lambda z: z[:, None]), X), r"one row of outputs per sample"),
    (lambda: layer_kernels(Functional(lambda z: (z, z)), X), r"returned a tuple"),
    (lambda: label_alignment(PLAIN, X, Y[:5]), r"6 and 5 rows"),
    (lambda: label_alignment(PLAIN, X, Y + 1), r"classes 0 to 2"),
    (lambda: label_alignment(PLAIN, X, Y.double()), r"as integers"),
    (lambda: label_alignment(PLAIN, X, draw(6, 2)), r"shape \(6,\) or \(6, 3\)"),
    (lambda: label_alignment(PLAIN, X, torch.ones(6, 3)), r"should differ from each other"),
    (lambda: label_alignment(PLAIN, X, Y * 0, center="examples"), r"should differ from each other"),
    (lambda: label_alignment(PLAIN, X, Y, center="none"), r"entries or examples"),
    (lambda: label_alignment(PLAIN, X[:1], Y[:1], "trace"), r"should differ"),
    (lambda: label_alignment(PLAIN, torch.ones(6, 4), Y, "trace"), r"kernel of 0, 2 is constant"),
    (lambda: label_alignment(Functional(lambda z: z * 0), X, Y), r"kernel of linear is constant or zero"),
    (lambda: hessian_vector(PLAIN, X, draw(6, 2), draw(35)), r"w should have shape \(6, 3\)"),
    (lambda: hessian_vector(PLAIN, X, draw(5, 3), draw(35)), r"one row per sample"),
    (lambda: hessian_vector(PLAIN, X, draw(6, 3), draw(3)), r"35 entries"),
    (lambda: hessian_vector(PLAIN, X, draw(6, 3), {}), r"name every parameter"),
    (lambda: hessian_top(PLAIN, X, draw(6, 3), k=36), r"from 1 to the 35"),
    (lambda: layer_energy(PLAIN, draw(3)), r"35 entries"),
    (lambda: fisher_spectrum(PLAIN, X, 19), r"from 1 to the 18"),
    (lambda: fisher_spectrum(PLAIN, X, loss="hinge"), r"cross_entropy or mse"),
]


@pytest.mark.parametrize("call, message", BAD)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_function_is_not_a_model():
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        ntk(lambda x: x, X)


def test_train_mode_without_chance_is_no_reason_to_refuse():
    model = mlp(4, 5, 3).train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(ntk(model, X), ntk(model.eval(), X))
