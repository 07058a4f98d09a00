"""Models as they come: dicts and tuples of outputs, compiled and parallel wrappers, dead layers."""

import os
import socket
import subprocess
import sys
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from small_networks import dense_alignment, dense_kernels, draw, mlp
from torch import nn

from repalign.features import extract, layers
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
from repalign.tangent.model import unwrapped

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
    features = extract(model, X)
    assert list(features) == ["1"]
    torch.testing.assert_close(extract(wrapped, X), features)
    assert unwrapped(wrapped) is model


class Alike(nn.Module):
    """Not a wrapper, whatever its attributes are called."""

    def __init__(self):
        super().__init__()
        self.module, self._orig_mod = mlp(4, 5), mlp(5, 3)

    def forward(self, x):
        return self._orig_mod(torch.tanh(self.module(x)))


def test_what_only_looks_like_a_wrapper_is_none():
    model = Alike()
    assert unwrapped(model) is model
    assert list(layer_kernels(model, X)) == ["module.0", "_orig_mod.0"]
    assert "_orig_mod.0" in {layer.name for layer in layers(model, X)}
    with pytest.raises(TypeError, match=r"should be a torch\.nn\.Module, but is a function"):
        extract(lambda x: x, X)


DISTRIBUTED = """
import sys
import torch
from torch import nn
from repalign.features import extract
from repalign.tangent import hessian_vector, label_alignment, layer_kernels
from repalign.tangent.model import unwrapped

torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
x, y = torch.randn(6, 4).double(), torch.arange(6) % 3
v, w = torch.randn(43).double(), torch.randn(6, 3).double()
parallel = nn.parallel.DistributedDataParallel(model)
for wrapped in (parallel, torch.compile(parallel, backend="eager"), nn.DataParallel(parallel)):
    assert unwrapped(wrapped) is model
    for measure in (layer_kernels, lambda m, x: label_alignment(m, x, y), extract):
        torch.testing.assert_close(measure(wrapped, x), measure(model, x), rtol=0, atol=0)
    torch.testing.assert_close(hessian_vector(wrapped, x, w, v), hessian_vector(model, x, w, v))
assert all(p.grad is None for p in model.parameters())
torch.distributed.destroy_process_group()
print("the same")
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_distributed_wrappers_are_looked_through(tmp_path):
    # In a process of its own: a group of processes is set up once, and stays.
    command = [sys.executable, "-c", DISTRIBUTED, str(tmp_path / "group")]
    # By the loopback interface (lo, or lo0 on a Mac): a machine need not know its own name.
    loop = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    place = os.environ | {"GLOO_SOCKET_IFNAME": loop, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=place, check=False)
    assert done.stdout.split() == ["the", "same"], done.stderr


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


# Over all entries at once, a kernel that is the same for every pair of samples still differs by output.
@pytest.mark.parametrize(
    "outputs, center", [("all", "examples"), ("trace", "examples"), ("trace", "entries")]
)
@pytest.mark.parametrize("graph", [False, True])
def test_the_same_sample_again_and_again_has_no_alignment(outputs, center, graph):
    model, x = mlp(4, 5, 3), torch.ones(6, 4)
    with pytest.warns(UserWarning, match="kernel of 0, 2 is constant or zero"):
        found = label_alignment(model, x, Y, outputs, center=center, create_graph=graph)
    assert found.keys() == {"0", "2"}
    assert all(value.isnan() for value in found.values())


@pytest.mark.parametrize("graph", [False, True])
def test_the_same_sample_with_different_labels_is_aligned_with_none(graph):
    model, x = mlp(4, 5, 3), torch.ones(6, 4)
    for value in label_alignment(model, x, Y, create_graph=graph).values():
        assert value.detach().abs() < 1e-12
    # All samples of one class: the outputs differ as the labels do, and that is all there is to align.
    for layer, value in label_alignment(model, x, 0 * Y, create_graph=graph).items():
        dense = dense_alignment(dense_kernels(model, x.double())[layer], 0 * Y, 3, "all", "entries")[0]
        torch.testing.assert_close(value.detach(), dense, rtol=1e-10, atol=0)
        assert value > 0.01


def test_a_softmax_at_the_end():
    # The sum of its outputs has no gradient, which must not be taken for a dead network.
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Softmax(dim=1)).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = pull(model, X, torch.ones(6, 3))
    torch.testing.assert_close(rows["0"]["0.weight"], torch.zeros(5, 4).double(), atol=1e-12, rtol=0)


class TwoInputs(nn.Module):
    """Tokens with a mask, and a number for each sample: a layer that is taken apart, and one that is not."""

    def __init__(self):
        super().__init__()
        self.tokens, self.scale = nn.Embedding(7, 4), nn.Parameter(torch.tensor([0.3, -0.2, 0.5, 1.1]))
        self.last = nn.Linear(4, 3)

    def forward(self, ids, mask=None, shift=None, twice=False):
        seen = self.tokens(ids) if mask is None else self.tokens(ids) * mask[:, :, None]
        pooled = seen.sum(dim=1) + (0 if shift is None else shift)
        out = self.last(torch.tanh(pooled) * torch.exp(self.scale))
        return 2 * out if twice else out


class Bound(nn.Module):
    """The same with all but the tokens inside, as dummies that belong to each sample's number."""

    def __init__(self, model, mask, shift):
        super().__init__()
        self.model = model
        self.register_buffer("mask", mask)
        self.register_buffer("shift", shift)

    def forward(self, numbered):
        ids, number = numbered[:, :-1], numbered[:, -1]
        return self.model(ids, self.mask[number], self.shift[number])


def two_inputs(n=5):
    torch.manual_seed(3)
    model = TwoInputs().double().eval()
    ids, mask = torch.randint(0, 7, (n, 6)), (torch.rand(n, 6) > 0.3).long()
    return model, ids, mask, torch.randn(n, 4, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:no fast path")
@pytest.mark.parametrize("form", ["dict", "tuple", "numpy"])
def test_several_inputs(form):
    model, ids, mask, shift = two_inputs()
    numbered = torch.cat([ids, torch.arange(5)[:, None]], dim=1)
    expected = layer_kernels(Bound(model, mask, shift), numbered)
    x = {"ids": ids, "mask": mask, "shift": shift}
    given = {"dict": x, "tuple": tuple(x.values()), "numpy": {k: v.numpy() for k, v in x.items()}}[form]
    found = layer_kernels(model, given)
    assert list(found) == ["model", "tokens", "last"]
    for layer, kernel in found.items():
        name = "model.scale" if layer == "model" else f"model.{layer}"
        same = expected["model" if layer == "model" else name]
        torch.testing.assert_close(torch.as_tensor(kernel), same, msg=name)


@pytest.mark.filterwarnings("ignore:no fast path")
def test_several_inputs_everywhere():
    model, ids, mask, shift = two_inputs()
    x, y = {"ids": ids, "mask": mask, "shift": shift}, torch.arange(5) % 3
    numbered = torch.cat([ids, torch.arange(5)[:, None]], dim=1)
    bound = Bound(model, mask, shift)
    for measure in (label_alignment, fisher_correlation):
        mine, theirs = measure(model, x, y), measure(bound, numbered, y)
        torch.testing.assert_close(list(mine.values()), list(theirs.values()))
    v = torch.randn(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    w = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(hessian_vector(model, x, w, v), hessian_vector(bound, numbered, w, v))
    small = layer_kernels(model, x, batch_size=2)
    for layer, kernel in layer_kernels(model, x).items():
        torch.testing.assert_close(small[layer], kernel)
    # What is no tensor is passed on as it is.
    twice = layer_kernels(model, {**x, "twice": True})["last"]
    torch.testing.assert_close(twice, 4 * layer_kernels(model, x)["last"])


def test_several_inputs_that_do_not_fit():
    model, ids, mask, shift = two_inputs()
    with pytest.raises(ValueError, match="'ids' 5, 'mask' 4"):
        layer_kernels(model, {"ids": ids, "mask": mask[:4]})
    with pytest.raises(ValueError, match="no tensor"):
        layer_kernels(model, {"twice": True})
    with pytest.raises(ValueError, match=r"x\['shift'\] should be numbers"):
        layer_kernels(model, {"ids": ids, "shift": shift / 0 * 0})


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.last = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, ids):
        seen = self.tokens(ids).sum(dim=1)
        return self.last(seen - seen.mean(dim=0))


@pytest.mark.parametrize("wrap", [lambda ids: ids, lambda ids: {"ids": ids}])
def test_samples_that_mix_are_refused_without_gradients_at_the_input_too(wrap):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="depends on the other samples"):
        layer_kernels(Mixing().eval(), wrap(torch.randint(0, 7, (5, 6))))


def test_bytes_in_place_of_numbers_are_explained():
    with pytest.raises(RuntimeError) as error:
        layer_kernels(mlp(4, 5, 3), torch.ones(6, 4, dtype=torch.uint8))
    assert "pass x.float()" in error.value.__notes__[0]
