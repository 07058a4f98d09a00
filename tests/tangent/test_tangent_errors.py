"""Bad input to the tangent measures: errors that say what to do."""

import math
import warnings

import pytest
import torch
from small_networks import Crossed, dense_kernels, draw, mlp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from repalign.tangent import (
    fisher_spectrum,
    hessian_top,
    hessian_vector,
    label_alignment,
    layer_energy,
    layer_kernels,
    ntk,
    pull,
    push,
)

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
    (lambda: layer_kernels(PLAIN, X, layers=["1"]), r"no layer '1'; the layers are '0', '2'"),
    (lambda: layer_kernels(PLAIN, X, batch_size=0), r"batch_size"),
    (lambda: layer_kernels(nn.ReLU(), X), r"no parameters"),
    (lambda: layer_kernels(Functional(lambda z: z[:, None]), X), r"one row of outputs per sample"),
    (lambda: layer_kernels(Functional(lambda z: (z, z)), X), r"returned a tuple of 0 .* is unclear"),
    (lambda: label_alignment(PLAIN, X, Y[:5]), r"6 and 5 rows"),
    (lambda: label_alignment(PLAIN, X, Y + 1), r"classes 0 to 2"),
    (lambda: label_alignment(PLAIN, X, Y.double()), r"as integers"),
    (lambda: label_alignment(PLAIN, X, draw(6, 2)), r"shape \(6,\) or \(6, 3\)"),
    (lambda: label_alignment(PLAIN, X, torch.ones(6, 3)), r"should differ from each other"),
    (lambda: label_alignment(PLAIN, X, Y * 0, center="examples"), r"should differ from each other"),
    (lambda: label_alignment(PLAIN, X, Y, center="none"), r"entries or examples"),
    (lambda: label_alignment(PLAIN, X[:1], Y[:1], "trace"), r"should differ"),
    (lambda: hessian_vector(PLAIN, X, draw(6, 2), draw(35)), r"w should have shape \(6, 3\)"),
    (lambda: hessian_vector(PLAIN, X, draw(5, 3), draw(35)), r"one row per sample"),
    (lambda: hessian_vector(PLAIN, X, draw(6, 3), draw(3)), r"35 entries"),
    (lambda: hessian_vector(PLAIN, X, draw(6, 3), {}), r"name every parameter"),
    (lambda: hessian_top(PLAIN, X, draw(6, 3), k=36), r"from 1 to the 35"),
    (lambda: layer_energy(PLAIN, draw(3)), r"35 entries"),
    (lambda: label_alignment(PLAIN, X, Y, create_graph=True, batch_size=2), r"leave batch_size out"),
    (lambda: pull(PLAIN, X, draw(6, 2)), r"v should have shape \(6, 3\)"),
    (lambda: push(PLAIN, X, {"0": draw(5, 4)}), r"names '0', which is no parameter; they are 0\.weight"),
    (lambda: push(PLAIN, X, {"0.weight": draw(4, 5)}), r"shape \(5, 4\), but has \(4, 5\)"),
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


def test_train_mode_without_randomness_is_no_reason_to_refuse():
    model = mlp(4, 5, 3).train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(ntk(model, X), ntk(model.eval(), X))


def test_layers_are_names():
    with pytest.raises(TypeError, match=r"should hold names, but holds 1, .*the layers are '0', '2'"):
        layer_kernels(PLAIN, X, layers=[1])
    torch.testing.assert_close(layer_kernels(PLAIN, X, layers="2"), layer_kernels(PLAIN, X, layers=["2"]))


def test_a_loader_is_no_input():
    loader = DataLoader(TensorDataset(X, Y), batch_size=4)
    with pytest.raises(TypeError, match=r"but is a DataLoader.*x, y = \(torch\.cat"):
        label_alignment(PLAIN, loader, Y)
    x, y = (torch.cat(parts) for parts in zip(*loader, strict=True))  # as the error says
    torch.testing.assert_close(label_alignment(PLAIN, x, y), label_alignment(PLAIN, X, Y))


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex128))

    def forward(self, x):
        return (x.to(self.weight.dtype) @ self.weight).abs()


def test_complex_parameters_are_refused():
    for measure in (layer_kernels, lambda m, x: hessian_vector(m, x, draw(6, 3), draw(12))):
        with pytest.raises(TypeError, match=r"real, but weight is torch\.complex128.*view_as_real"):
            measure(Waves(), X)


class Nodes(nn.Module):
    """A graph network on all nodes of one graph: each has the features of its neighbors too."""

    def __init__(self, n):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        ring = torch.arange(n)
        self.register_buffer("edges", torch.stack([ring, ring.roll(1)]))
        self.scale = nn.Parameter(torch.rand(n, 1))

    def forward(self, x):
        start, end = self.edges
        sent = torch.zeros(len(x), 5, dtype=x.dtype).index_add(0, end, self.first(x)[start])
        return self.last(torch.tanh(sent + self.first(x) * self.scale))


class OneGraph(nn.Module):
    def __init__(self, nodes):
        super().__init__()
        self.nodes = nodes

    def forward(self, x):
        assert len(x) == 1
        return self.nodes(x[0]).reshape(1, -1)


@pytest.mark.filterwarnings("ignore:no fast path")
def test_the_nodes_of_a_graph_are_one_sample():
    torch.manual_seed(0)
    model = Nodes(6).double()
    with pytest.raises(ValueError, match=r"takes all 6 rows of x, but not the first and the last.*x\[None\]"):
        ntk(model, X)
    found = layer_kernels(OneGraph(model), X[None])
    for layer, kernel in dense_kernels(model, X).items():
        name = "nodes" if layer == "model" else f"nodes.{layer}"
        torch.testing.assert_close(found[name], kernel)
    with pytest.raises(TypeError, match=r"but is a set.*one graph at a time"):
        ntk(model, {"a", "b"})


@pytest.mark.parametrize("made", ["within", "outside"])
def test_inference_mode_changes_nothing(made):
    def parts():
        model = nn.Sequential(mlp(4, 5, 3, bias=True), nn.BatchNorm1d(3)).double().eval()
        return model, draw(6, 4), draw(6, 3), draw(49)

    model, x, w, v = parts()
    expected = (
        layer_kernels(model, x, batch_size=4),
        label_alignment(model, x, Y),
        fisher_spectrum(model, x),
        fisher_spectrum(model, x, 2),
        pull(model, x, w),
        push(model, x, {"0.0.weight": draw(5, 4)}),
        hessian_vector(model, x, w, v),
    )
    with torch.inference_mode():
        if made == "within":
            model, x, w, v = parts()
        found = (
            layer_kernels(model, x, batch_size=4),
            label_alignment(model, x, Y),
            fisher_spectrum(model, x),
            fisher_spectrum(model, x, 2),
            pull(model, x, w),
            push(model, x, {"0.0.weight": draw(5, 4)}),
            hessian_vector(model, x, w, v),
        )
        with pytest.raises(ValueError, match=r"create_graph=True .* outside of torch\.no_grad"):
            label_alignment(model, x, Y, create_graph=True)
    torch.testing.assert_close(found, expected)
    # What was made there can be given here.
    torch.testing.assert_close(layer_kernels(model, x, batch_size=4), expected[0])
