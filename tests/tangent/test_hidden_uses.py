"""Weights that are used where no call shows it: gradients in the forward pass, own backward passes."""

import warnings

import pytest
import torch
from small_networks import draw, mlp, plain_kernels, whole
from torch import nn
from torch.autograd import forward_ad

from repalign.tangent import fisher_spectrum, hessian_vector, label_alignment, layer_kernels, ntk, pull, push

pytestmark = [
    pytest.mark.filterwarnings("ignore:no fast path"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),  # by torch's own forward mode
]


class Energy(nn.Module):
    """An energy of the state, by a network that is smooth."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 5), nn.Softplus(), nn.Linear(5, 1)
        )


class Forces(Energy):
    def forward(self, x):
        x = x.detach().requires_grad_()
        return -torch.autograd.grad(self.net(x).sum(), x, create_graph=True)[0]


class EnergyAndForces(Energy):
    def forward(self, x):
        x.requires_grad_()
        energy = self.net(x)
        return torch.cat([energy, torch.autograd.grad(energy.sum(), x, create_graph=True)[0]], dim=1)


class Residual(Energy):
    """What a physics-informed network is trained on: u·∂u + ∂²u."""

    def forward(self, x):
        x = x.clone().requires_grad_()
        u = self.net(x)
        first = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)[0]
        return u * first[:, :1] + second[:, :1]


class Hamiltonian(Energy):
    def forward(self, x):
        flow = torch.vmap(torch.func.grad(lambda z: self.net(z).squeeze()))(x)
        return torch.cat([flow[:, 2:], -flow[:, :2]], dim=1)


class Directional(Energy):
    """A derivative along one direction, in forward mode."""

    def forward(self, x):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(self.net(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.mT

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.mT @ x


class Twice(nn.Module):
    """A weight used in a linear layer, and again in a function with a backward pass of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(torch.tanh(Own.apply(torch.tanh(self.first(x)), self.first.weight)))


class Normed(Forces):
    """With a weight that is itself computed."""

    def __init__(self):
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.net[0])


HIDDEN = [Normed, Forces, EnergyAndForces, Residual, Hamiltonian, Directional, Twice]


def hidden(kind):
    torch.manual_seed(0)
    return kind().double()


@pytest.mark.parametrize("kind", HIDDEN)
def test_kernels_of_models_that_differentiate(kind):
    model, x = hidden(kind), draw(5, 4)
    expected = plain_kernels(model, x)
    found = layer_kernels(model, x)
    assert found.keys() == expected.keys()
    for layer, kernel in found.items():
        torch.testing.assert_close(kernel, expected[layer], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ntk(model, x, batch_size=2), sum(expected.values()), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [Forces, Hamiltonian])
def test_all_measures_of_models_that_differentiate(kind):
    model, x, y = hidden(kind), draw(5, 4), draw(5, 4, seed=1)
    expected = plain_kernels(model, x)
    weighted = fisher_spectrum(model, x, loss="mse")
    squares = {layer: (f**2).sum() for layer, f in push(model, x, pull(model, x, y)).items()}
    for layer, kernel in expected.items():
        torch.testing.assert_close(weighted[layer].sum(), kernel.trace(), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(
            squares[layer], (kernel @ y.flatten()).square().sum(), rtol=1e-9, atol=1e-12
        )
    assert all(values.isfinite().all() for values in fisher_spectrum(model, x).values())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the kernel of .* is constant or zero")
        values = label_alignment(model, x, y)
        graphed = label_alignment(model, x, y, create_graph=True)
    c = torch.eye(20, dtype=y.dtype) - 1 / 20
    labels = c @ torch.outer(y.flatten(), y.flatten()) @ c
    for layer in ("net.0", "net.3"):
        kernel = c @ expected[layer] @ c
        value = (kernel * labels).sum() / kernel.norm() / labels.norm()
        torch.testing.assert_close(values[layer], value)
        torch.testing.assert_close(graphed[layer].detach(), value)


def test_what_only_the_energy_uses_keeps_its_fast_path():
    # The last bias moves the energy and no force: no gradient in the model passes by it.
    model, x = hidden(EnergyAndForces), draw(5, 4)
    with pytest.warns(UserWarning, match="no fast path") as caught:
        layer_kernels(model, x, bias="apart")
    assert "net.5.bias" not in str(caught[0].message)


def test_a_network_called_under_vmap():
    model, x = mlp(4, 5, 3, bias=True), draw(6, 4)

    class Each(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return torch.vmap(self.inner)(x)

    torch.testing.assert_close(ntk(Each(), x), ntk(model, x))


def test_a_kernel_behind_an_embedding_holds_no_graph():
    torch.manual_seed(0)
    model, ids = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3)).double(), whole(7, 6)
    kernels = layer_kernels(model, ids)
    assert not any(kernel.requires_grad for kernel in kernels.values())
    for layer, kernel in plain_kernels(model, ids).items():
        torch.testing.assert_close(kernels[layer], kernel)


class Counted(nn.Module):
    """An embedding whose gradients are for an optimizer: divided by how often a word is in the batch."""

    def __init__(self, table):
        super().__init__()
        self.table, self.last = table, nn.Linear(4, 3)

    def forward(self, ids):
        found = self.table(ids)
        pooled = found.sum(dim=1) if found.ndim == 3 else found
        return self.last(torch.tanh(pooled))


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("options", [{"scale_grad_by_freq": True}, {"sparse": True}])
def test_what_an_embedding_does_for_optimizers_is_no_derivative(kind, options):
    torch.manual_seed(0)
    more = {"mode": "sum"} if kind is nn.EmbeddingBag else {}
    model = Counted(kind(5, 4, **more, **options)).double()
    plain = Counted(kind(5, 4, **more)).double()
    plain.load_state_dict(model.state_dict())
    ids = whole(5, 6, 7)  # seven words of five: every text repeats some
    found = layer_kernels(model, ids)
    for layer, kernel in plain_kernels(plain, ids).items():
        torch.testing.assert_close(found[layer], kernel)


@pytest.mark.parametrize("options", [{"scale_grad_by_freq": True}, {"sparse": True}])
def test_curvature_behind_such_an_embedding(options):
    torch.manual_seed(0)
    model, plain = Counted(nn.Embedding(5, 4, **options)).double(), Counted(nn.Embedding(5, 4)).double()
    plain.load_state_dict(model.state_dict())
    ids, w, v = whole(5, 6, 7), draw(6, 3), draw(35)
    expected = hessian_vector(plain, ids, w, v)
    torch.testing.assert_close(hessian_vector(model, ids, w, v), expected)
    torch.testing.assert_close(hessian_vector(model, ids, w, v, batch_size=2), expected)
