"""Hessian products and Fisher spectra against matrices formed whole."""

import pytest
import torch
from small_networks import F64, draw, jacobians, mlp
from torch import nn
from torch.func import functional_call

from repalign.tangent import (
    fisher_correlation,
    fisher_spectrum,
    hessian_top,
    hessian_vector,
    layer_energy,
)


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
