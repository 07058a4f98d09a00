"""Models in half precision: what comes out is float32, and that of the same numbers in float64."""

import warnings
from copy import deepcopy

import pytest
import torch
from small_networks import CASES, case, draw
from torch import nn

from repalign import tangent

HALVES = [torch.float16, torch.bfloat16]
Y = torch.arange(6) % 3


def large():
    """Kernels of 10⁵ and more, which overflow float16, and running statistics in half precision."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8)
    nn.init.normal_(norm.running_mean, std=100)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    return nn.Sequential(nn.Linear(4, 8), norm, nn.GELU(), nn.Linear(8, 3)), 1000 * draw(6, 4)


def positions():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))
    return model, 500 * draw(6, 2, 6, 6)


def explicit():
    torch.manual_seed(0)
    first = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    return nn.Sequential(first, nn.ReLU(), nn.Flatten(), nn.Linear(20, 3)), 300 * draw(6, 5, 3)


MODELS = {"large": large, "positions": positions, "explicit": explicit}


def directions(model):
    return {name: draw(*p.shape, seed=i) for i, (name, p) in enumerate(model.named_parameters())}


def flat(model):
    return torch.cat([v.flatten() for v in directions(model).values()])


# Vectors and labels have the numbers of half precision too.
CALLS = {
    "layer_kernels": lambda m, x, t: (tangent.layer_kernels(m, x), tangent.layer_kernels(m, x, "trace")),
    "ntk": lambda m, x, t: (tangent.ntk(m, x), tangent.ntk(m, x, "trace", batch_size=4)),
    "forward_backward": lambda m, x, t: (
        tangent.forward_backward(m, x),
        tangent.forward_backward(m, x, "trace"),
    ),
    "label_alignment": lambda m, x, t: [
        tangent.label_alignment(m, x, y, outputs, center=center)
        for y in (Y, t(500 * draw(6, 3)))
        for outputs in ("all", "trace")
        for center in ("entries", "examples")
    ],
    "alignment_terms": lambda m, x, t: [
        tangent.alignment_terms(m, x, Y, outputs) for outputs in ("all", "trace")
    ],
    "fisher_spectrum": lambda m, x, t: [
        {layer: value[:3] for layer, value in tangent.fisher_spectrum(m, z, k, loss=loss).items()}
        for k in (None, 3)
        for loss, z in (("mse", x), ("cross_entropy", x / 1024))
    ],
    "fisher_correlation": lambda m, x, t: [
        tangent.fisher_correlation(m, z, Y, loss=loss)
        for loss, z in (("mse", x), ("cross_entropy", x / 1024))
    ],
    "pull": lambda m, x, t: tangent.pull(m, x, t(300 * draw(6, 3))),
    "push": lambda m, x, t: tangent.push(m, x, {k: t(300 * v) for k, v in directions(m).items()}),
    "hessian_vector": lambda m, x, t: (
        tangent.hessian_vector(m, x, t(300 * draw(6, 3)), t(flat(m))),
        tangent.hessian_vector(m, x, t(300 * draw(6, 3)), {k: t(v) for k, v in directions(m).items()}),
    ),
    "hessian_top": lambda m, x, t: tangent.hessian_top(m, x, t(300 * draw(6, 3)), 2).values.abs(),
    "layer_energy": lambda m, x, t: tangent.layer_energy(m, t(500 * flat(m))),
}


def test_every_public_function_is_called():
    functions = {name for name in tangent.__all__ if not isinstance(getattr(tangent, name), type)}
    assert functions == CALLS.keys()


def tensors(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in tensors(part)]


def same(ours, exact, rtol=1e-4):
    for one, wanted in zip(tensors(ours), tensors(exact), strict=True):
        assert one.dtype == torch.float32
        assert one.isfinite().all()
        torch.testing.assert_close(one.double(), wanted, rtol=rtol, atol=rtol * float(wanted.abs().max()))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("model", MODELS)
def test_half_in_single_out(model, name, dtype):
    net, x = MODELS[model]()
    net, x = net.to(dtype).eval(), x.to(dtype)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="no fast path for 0.parametrizations")
        ours = CALLS[name](net, x, lambda v: v.to(dtype))
        exact = CALLS[name](deepcopy(net).double(), x.double(), lambda v: v.to(dtype).double())
    assert tensors(ours)
    same(ours, exact)
    # The model is not touched.
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert all(value.dtype == before[key].dtype for key, value in net.state_dict().items())


def test_the_kernels_are_beyond_half_precision():
    for made in (large, positions):
        net, x = made()
        kernels = tangent.layer_kernels(net.half().eval(), x.half())
        assert kernels["0"].max() > torch.finfo(torch.float16).max


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_networks_of_every_kind(name, dtype):
    model, x = case(name)
    model, x = model.to(dtype), x.to(dtype) if x.is_floating_point() else x
    exact = deepcopy(model).double()
    for outputs in ("all", "trace"):
        ours = tangent.layer_kernels(model, x, outputs)
        same(ours, tangent.layer_kernels(exact, x, outputs), rtol=1e-3)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("outputs", ["all", "trace"])
def test_the_gradient_of_the_alignment_reaches_the_model(outputs, dtype):
    net, x = large()
    net, x = net.to(dtype).eval(), x.to(dtype)
    net[0].bias.requires_grad_(False)
    exact = deepcopy(net).double()
    values = [tangent.label_alignment(model, x, Y, outputs, create_graph=True)["3"] for model in (net, exact)]
    assert values[0].dtype == torch.float32
    for value in values:
        value.backward()
    for ours, theirs in zip(net.parameters(), exact.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            assert ours.grad.dtype == dtype
            scale = 4 * torch.finfo(dtype).eps * float(theirs.grad.abs().max()) + 1e-7
            torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0, atol=scale)
    assert net[0].weight.grad.any()


def test_a_mixed_model_is_computed_in_single():
    net, x = large()
    net = net.half().eval()
    net[3].float()

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net[3](self.net[:3](x.to(self.net[0].weight.dtype)).to(self.net[3].weight.dtype))

    model = Mixed()
    exact = deepcopy(model).double()
    same(tangent.label_alignment(model, x, Y), tangent.label_alignment(exact, x, Y))


class Cast(nn.Module):
    """Float32 weights, and a forward pass that casts to bfloat16 by itself."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.net(x) * self.scale


@pytest.mark.parametrize("outputs", ["all", "trace"])
def test_what_a_model_casts_to_half_is_added_up_in_single(outputs):
    model, x = Cast(), draw(300, 4).float()
    kernels = tangent.layer_kernels(model, x, outputs)
    for layer, kernel in tangent.layer_kernels(deepcopy(model.net).double(), x, outputs).items():
        ours = kernels[f"net.{layer}"]
        assert ours.dtype == torch.float32
        # Two digits in each entry, but a sum over many entries has more.
        torch.testing.assert_close(ours.double().norm(), kernel.norm(), rtol=5e-3, atol=0)
        # Not rounded to bfloat16.
        assert not torch.equal(ours, ours.bfloat16().float())
