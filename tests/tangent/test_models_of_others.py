"""Models as they come: dicts and tuples of outputs, compiled and parallel wrappers, dead layers."""

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from small_networks import draw, mlp
from torch import nn

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
    pull,
    push,
)

X, Y = draw(6, 4), torch.arange(6) % 3


@dataclass
class Fields:
    logits: torch.Tensor
    hidden: torch.Tensor


class Named(NamedTuple):
    logits: torch.Tensor
    hidden: torch.Tensor


class Plain:
    def __init__(self, logits, hidden):
        self.logits, self.hidden = logits, hidden


class Many(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.inner, self.form = mlp(4, 5, 3), form

    def forward(self, x):
        return self.form(self.inner(x), x)


FORMS = {
    "dict": (lambda z, x: {"logits": z, "hidden": x}, ["logits", 0, lambda out: out["logits"]]),
    "dataclass": (Fields, ["logits", 0, lambda out: out.logits]),
    "named tuple": (Named, ["logits", 0]),
    "object": (Plain, ["logits"]),
    "tuple": (lambda z, x: (x, z), [1, -1]),
    "list": (lambda z, x: [x, z], [-1]),
    "nothing else": (lambda z, x: {"logits": z, "loss": None, "ids": Y}, [None, "logits"]),
    "tokens": (lambda z, x: torch.stack([x[:, :3], z], dim=1), [lambda out: out[:, -1]]),
}


@pytest.mark.parametrize("name", FORMS)
def test_one_output_of_many(name):
    form, picks = FORMS[name]
    model = Many(form)
    for pick in picks:
        kernels = layer_kernels(model, X, output=pick)
        for layer, kernel in layer_kernels(model.inner, X).items():
            torch.testing.assert_close(kernels[f"inner.{layer}"], kernel)


def test_every_measure_takes_an_output():
    model = Many(FORMS["dict"][0])
    inner, w = model.inner, draw(6, 3)
    o = {"output": "logits"}
    torch.testing.assert_close(ntk(model, X, **o), ntk(inner, X))
    v = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(hessian_vector(model, X, w, v, **o), hessian_vector(inner, X, w, v))
    torch.testing.assert_close(hessian_top(model, X, w, 2, **o).values, hessian_top(inner, X, w, 2).values)
    moved = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    pairs = [
        (forward_backward(model, X, **o), dict(forward_backward(inner, X).items())),
        (label_alignment(model, X, Y, **o), label_alignment(inner, X, Y)),
        (alignment_terms(model, X, Y, **o), alignment_terms(inner, X, Y)),
        (fisher_spectrum(model, X, **o), fisher_spectrum(inner, X)),
        (fisher_correlation(model, X, Y, **o), fisher_correlation(inner, X, Y)),
        (push(model, X, moved, **o), push(inner, X, {k[6:]: v for k, v in moved.items()})),
    ]
    for ours, theirs in pairs:
        for layer, value in theirs.items():
            torch.testing.assert_close(ours[f"inner.{layer}"], value)
    torch.testing.assert_close(
        pull(model, X, w, **o)["inner.0"]["inner.0.weight"], pull(inner, X, w)["0"]["0.weight"]
    )


UNCLEAR = [
    ("dict", None, r"a dict of 'logits' \(2, 3\), 'hidden' \(2, 4\).*unclear.*output='logits'"),
    ("tuple", None, r"a tuple of 0 \(2, 4\), 1 \(2, 3\).*output=0"),
    ("dict", "scores", r"no output 'scores': the model returned a dict of 'logits'"),
    ("tuple", 2, r"no output 2"),
    ("tokens", "logits", r"no output 'logits': the model returned a single tensor"),
    (
        "tokens",
        None,
        r"should return one row of outputs per sample, \(2, o\), but returned shape \(2, 2, 3\)",
    ),
    ("dict", lambda out: out, r"output=<lambda> should pick .* but picked a dict"),
]


@pytest.mark.parametrize("name, pick, message", UNCLEAR)
def test_an_unclear_output_is_refused(name, pick, message):
    with pytest.raises(ValueError, match=message):
        layer_kernels(Many(FORMS[name][0]), X, output=pick)


@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        lambda m: torch.compile(m, backend="eager"),
        lambda m: nn.DataParallel(torch.compile(m, backend="eager")),
    ],
    ids=["parallel", "compiled", "both"],
)
def test_wrappers_are_looked_through(wrap):
    model = mlp(4, 5, 3)
    wrapped = wrap(model)
    for layer, kernel in layer_kernels(model, X).items():
        torch.testing.assert_close(layer_kernels(wrapped, X)[layer], kernel)
    w, v = draw(6, 3), draw(35)
    torch.testing.assert_close(hessian_vector(wrapped, X, w, v), hessian_vector(model, X, w, v))
    assert layer_energy(wrapped, v) == layer_energy(model, v)


class Dying(nn.Module):
    """Two branches of which one does nothing, and a layer that is not used at all."""

    def __init__(self):
        super().__init__()
        self.alive, self.dead, self.unused = (nn.Linear(4, 3).double() for _ in range(3))

    def forward(self, x):
        return self.alive(x) + torch.relu(self.dead(x) - 100)


@pytest.mark.parametrize("outputs", ["all", "trace"])
@pytest.mark.parametrize("graph", [False, True])
def test_a_dead_layer_does_not_take_the_others_with_it(outputs, graph):
    torch.manual_seed(0)
    model = Dying()
    with pytest.warns(UserWarning, match=r"kernel of dead, unused is constant or zero.*NaN"):
        found = label_alignment(model, X, Y, outputs, create_graph=graph)
    torch.testing.assert_close(found["alive"], label_alignment(model.alive, X, Y, outputs)["model"])
    assert found["dead"].isnan()
    assert found["unused"].isnan()
    with pytest.warns(UserWarning, match=r"kernel of dead, unused"):
        terms = alignment_terms(model, X, Y, outputs)
    assert all(part.isnan() for part in terms["dead"])
    assert not any(part.isnan() for part in terms["alive"])


def test_a_dead_layer_has_no_fisher_correlation():
    torch.manual_seed(0)
    model = Dying()
    with pytest.warns(UserWarning, match=r"Fisher information of dead, unused is 0.*NaN"):
        found = fisher_correlation(model, X, Y)
    torch.testing.assert_close(
        found["alive"], fisher_correlation(model.alive, X, Y, loss="cross_entropy")["model"]
    )
    assert found["dead"].isnan()
    assert found["unused"].isnan()


@pytest.mark.parametrize("outputs", ["all", "trace"])
def test_the_same_sample_again_and_again_has_no_alignment(outputs):
    with pytest.warns(UserWarning, match="constant or zero"):
        found = label_alignment(mlp(4, 5, 3), torch.ones(6, 4), Y, "trace")
    assert all(value.isnan() for value in found.values())


def test_a_softmax_at_the_end():
    # The sum of its outputs has no gradient, which must not be taken for a dead network.
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Softmax(dim=1)).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = pull(model, X, torch.ones(6, 3))
    torch.testing.assert_close(rows["0"]["0.weight"], torch.zeros(5, 4).double(), atol=1e-12, rtol=0)
