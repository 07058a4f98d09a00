"""Tangent kernels against autograd Jacobians at float64 tolerance."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_networks import CASES, F64, Crossed, case, dense_kernels, dense_trace, draw, jacobians, mlp
from torch import nn

from repalign.tangent import forward_backward, label_alignment, layer_kernels, ntk, plan


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


def test_against_nngeometry():
    gram = pytest.importorskip("nngeometry.gram")
    model, x = mlp(5, 8, 7, 3, bias=True), draw(6, 5)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=6)
    theirs = gram.GramMatrix(model, loader).to_torch()
    ours = ntk(model, x).reshape(6, 3, 6, 3)
    torch.testing.assert_close(ours.permute(1, 0, 3, 2), theirs)
