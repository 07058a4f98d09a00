"""Ψ v, Ψᵀ u, and the gradient of the label alignment: against dense Jacobians and finite differences."""

from copy import deepcopy

import pytest
import torch
from small_networks import (
    CASES,
    F64,
    case,
    dense_alignment,
    draw,
    jacobians,
    mlp,
)
from test_layer_kernels import Unread
from test_token_models import WAYS, made
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from repalign.tangent import factors, label_alignment, layer_kernels, plan, pull, push


def check_products(model, x):
    rows = jacobians(model, x)
    n = len(x)
    o = len(next(iter(rows.values()))) // n
    v = draw(n, o, seed=3)
    u = {name: draw(*p.shape, seed=i) for i, (name, p) in enumerate(model.named_parameters())}
    pulled, pushed = pull(model, x, v), push(model, x, u)
    assert list(pulled) == list(pushed) == list(layer_kernels(model, x))
    for layer, parts in pulled.items():
        for name, part in parts.items():
            dense = (rows[name].mT @ v.flatten()).reshape(part.shape)
            torch.testing.assert_close(part, dense, rtol=1e-10, atol=1e-11)
        change = sum(rows[name] @ u[name].flatten() for name in parts).reshape(n, o)
        torch.testing.assert_close(pushed[layer], change, rtol=1e-10, atol=1e-11)
    assert {name for parts in pulled.values() for name in parts} == set(u)


@pytest.mark.parametrize("name", CASES)
def test_products_are_those_of_the_jacobian(name):
    check_products(*case(name))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("small", [0.0, 1e9])
def test_products_of_token_models(way, small, monkeypatch):
    monkeypatch.setattr(factors, "_SMALL", {False: small, True: small})
    check_products(*made(way))


def test_products_in_batches_and_of_some_layers(monkeypatch):
    model, x = case("mlp")
    v = draw(7, 3)
    whole = pull(model, x, v)
    some = pull(model, x, v, layers=["2"], batch_size=2)
    assert list(some) == ["2"]
    torch.testing.assert_close(some["2"]["2.weight"], whole["2"]["2.weight"])
    # What pull returns, push takes; and both are one: vᵀ K v = ‖Ψ v‖².
    kernels = layer_kernels(model, x)
    for layer, change in push(model, x, whole).items():
        torch.testing.assert_close(change.flatten(), kernels[layer] @ v.flatten())
    monkeypatch.setattr(plan, "BUDGET", 500)
    only = push(model, x, {"4.bias": torch.tensor([1.0, 2.0, 3.0])})
    torch.testing.assert_close(only, {"4": torch.tensor([[1.0, 2, 3]], dtype=F64).expand(7, 3)})


def dense_value(model, x, y, layer, outputs, center, parameters):
    """A_l as a function of the parameters, with the kernel formed from one backward pass per output.

    Not from jacrev: what it returns for the weights of normalization layers has no right gradient.
    """
    with sdpa_kernel(SDPBackend.MATH):
        f = functional_call(model, parameters, (x,)).reshape(-1)
    chosen = [p for name, p in parameters.items() if (name.rpartition(".")[0] or "model") == layer]
    options = {"create_graph": True, "allow_unused": True, "materialize_grads": True}
    rows = [torch.cat([g.flatten() for g in torch.autograd.grad(one, chosen, **options)]) for one in f]
    psi = torch.stack(rows)
    return dense_alignment(psi @ psi.mT, y, len(f) // len(x), outputs, center)[0]


@pytest.mark.parametrize("outputs", ["all", "trace"])
@pytest.mark.parametrize("center", ["entries", "examples"])
@pytest.mark.parametrize(
    "name", ["mlp", "cnn", "signals", "handmade attention", "transformer", "positions", "columns"]
)
def test_the_gradient_of_the_alignment(name, outputs, center, monkeypatch):
    if name in ("positions", "columns"):
        monkeypatch.setattr(
            factors, "_SMALL", dict.fromkeys((False, True), 0.0 if name == "positions" else 1e9)
        )
        model, x = made("one type for all", n=4)
    else:
        model, x = case(name)
    model.requires_grad_()
    x = x[:5]
    y = torch.arange(len(x)) % 3
    found = label_alignment(model, x, y, outputs, center=center, create_graph=True)
    plain = label_alignment(model, x, y, outputs, center=center)
    some = [layer for layer in found if layer.rpartition(".")[2] not in ("types",)][
        :: max(1, len(found) // 4)
    ]
    named = dict(model.named_parameters())
    for layer in some:
        torch.testing.assert_close(found[layer].detach(), plain[layer], rtol=1e-9, atol=0)
        ours = torch.autograd.grad(
            found[layer], list(named.values()), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        own = {k: p.detach().clone().requires_grad_() for k, p in named.items()}
        value = dense_value(model, x, y, layer, outputs, center, own)
        theirs = torch.autograd.grad(value, list(own.values()), allow_unused=True, materialize_grads=True)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("outputs", ["all", "trace"])
def test_the_gradient_against_finite_differences(outputs):
    model, x, y = mlp(4, 6, 5, 3, bias=True, activation=nn.Tanh), draw(7, 4), torch.arange(7) % 3
    found = label_alignment(model, x, y, outputs, create_graph=True)
    direction = [draw(*p.shape, seed=i) for i, p in enumerate(model.parameters())]
    step = 1e-5
    for layer in ("0", "2", "4"):
        grads = torch.autograd.grad(
            found[layer],
            list(model.parameters()),
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        slope = sum((g * d).sum() for g, d in zip(grads, direction, strict=True))
        values = []
        for sign in (1, -1):
            moved = deepcopy(model)
            with torch.no_grad():
                for p, d in zip(moved.parameters(), direction, strict=True):
                    p += sign * step * d
            values.append(label_alignment(moved, x, y, outputs)[layer])
        assert float(slope) == pytest.approx(float(values[0] - values[1]) / (2 * step), rel=1e-6)


def test_features_can_be_maximized():
    # Lou et al., appendix F, with the alignment of what the first layer makes as the loss.
    model, x, y = mlp(4, 16, 3, seed=1), draw(30, 4), torch.arange(30) % 3
    model[2].requires_grad_(False)
    before = label_alignment(model, x, y, "trace")["2"]
    optimizer = torch.optim.Adam(model[0].parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        (-label_alignment(model, x, y, "trace", layers=["2"], create_graph=True)["2"]).backward()
        optimizer.step()
    assert label_alignment(model, x, y, "trace")["2"] > before + 0.1
    assert model[2].weight.grad is None


@pytest.mark.parametrize("kind", ["weight norm", "bilinear"])
def test_the_gradient_through_explicit_rows(kind):
    torch.manual_seed(0)
    x, y = draw(4, 5, 3), torch.arange(4) % 2
    model = Unread(kind).double().eval()
    model(x)
    with pytest.warns(UserWarning, match="no fast path for first"):
        found = label_alignment(model, x, y, create_graph=True)
    named = dict(model.named_parameters())
    for layer, value in found.items():
        own = {k: p.detach().clone().requires_grad_() for k, p in named.items()}
        dense = dense_value(model, x, y, layer, "all", "entries", own)
        torch.testing.assert_close(value, dense)
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        ours = torch.autograd.grad(value, list(named.values()), **options)
        theirs = torch.autograd.grad(dense, list(own.values()), **options)
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)
