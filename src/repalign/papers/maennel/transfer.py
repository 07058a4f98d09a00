"""What Maennel et al. do to a network between two tasks. Every function returns a new network.

A layer is a module with a weight matrix or filters, or a residual block as a whole; a normalization
or an activation with parameters belongs to the layer before it.

>>> from repalign.models import MLP
>>> before, trained = MLP(5, 3, width=(8, 8), seed=0), MLP(5, 3, width=(8, 8), seed=1)
>>> list(layers(trained))
['fc1', 'fc2', 'head']
>>> moved = copy_layers(trained, before, 2)
>>> torch.equal(moved.fc2.weight, trained.fc2.weight), torch.equal(moved.head.weight, before.head.weight)
(True, True)
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from repalign._arrays import check
from repalign.covariance import TransferFunction, patch_covariance, transfer_function
from repalign.covariance import filter_covariance as covariance_of
from repalign.models.initialization import Seed, generator, normal

M = TypeVar("M", bound=nn.Module)
Matrix = Float[Tensor, "d d"] | Float[np.ndarray, "d d"]


def layers(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """The layers from input to output, each with the names of its tensors in ``model.state_dict()``.

    >>> from repalign.models import resnet18_v2
    >>> list(layers(resnet18_v2()))[:4]
    ['stem', 'stage1.0', 'stage1.1', 'stage2.0']
    """
    found: dict[str, list[str]] = {}
    early: list[str] = []  # tensors before the first layer belong to it

    def visit(module: nn.Module, prefix: str) -> None:
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        (found[next(reversed(found))] if found else early).extend(prefix + name for name, _ in own)
        for name, child in module.named_children():
            full = prefix + name
            if isinstance(child, nn.Sequential):
                visit(child, f"{full}.")
            elif any(p.ndim > 1 for p in child.parameters()):
                found[full] = [f"{full}.{key}" for key in child.state_dict()]
            else:
                rest = [f"{full}.{key}" for key in child.state_dict()]
                (found[next(reversed(found))] if found else early).extend(rest)

    visit(model, "")
    if not found:
        raise ValueError(f"{type(model).__name__} has no layer with weights.")
    first, stored = next(iter(found)), model.state_dict()
    found[first] = early + found[first]
    return {name: tuple(key for key in keys if key in stored) for name, keys in found.items()}


def copy_layers(source: nn.Module, target: M, k: int) -> M:
    """``target`` with its first ``k`` layers taken from ``source``, with running averages (figure 6)."""
    ours, theirs = layers(target), layers(source)
    if not 0 <= k <= len(ours):
        raise ValueError(f"k should be from 0 to {len(ours)}, the number of layers, but is {k}.")
    keys = [key for name in list(ours)[:k] for key in ours[name]]
    new, old = target.state_dict(), source.state_dict()
    for key in keys:
        if key not in old or old[key].shape != new[key].shape:
            there = f"shape {tuple(old[key].shape)}" if key in old else f"not there, but {', '.join(theirs)}"
            raise ValueError(
                f"the first {k} layers should have the same shapes in both networks, but {key} has shape "
                f"{tuple(new[key].shape)} in the target and is {there} in the source."
            )
    model = copy.deepcopy(target)
    model.load_state_dict({**new, **{key: old[key] for key in keys}})
    return model


@torch.no_grad()
def zero_bias(model: M, names: Sequence[str]) -> M:
    """The biases of the layers ``names`` set to zero (figure 5, "no bias")."""
    model = copy.deepcopy(model)
    for name in names:
        bias = _get(model, name).bias
        if isinstance(bias, Tensor):
            bias.zero_()
    return model


def norms(model: nn.Module) -> dict[str, float]:
    """The ℓ₂ norm of all parameters of each layer; take it at initialization, for :func:`rescale`."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    groups = {
        layer: [parameters[key] for key in keys if key in parameters] for layer, keys in layers(model).items()
    }
    return {
        layer: float(torch.stack([p.double().square().sum() for p in group]).sum().sqrt())
        for layer, group in groups.items()
    }


@torch.no_grad()
def rescale(model: M, to: Mapping[str, float], *, biases: str = "layer") -> M:
    """Every layer scaled so that its norm is ``to[layer]``, the one at initialization (A.4).

    Do this before :func:`repalign.models.replace_head`: a fresh head has its own norm.
    ``biases="layer"`` is what the paper says: all parameters of a layer times one positive number. It
    says too that this changes no prediction, which holds without biases only: behind a layer scaled
    by a, a bias would have to be scaled by a as well. ``biases="network"`` does so, with the norms of
    the weights alone; then all outputs of a ReLU network are scaled by one positive number.

    >>> from repalign.models import MLP
    >>> first = MLP(5, 3, width=(8, 8), seed=0)
    >>> louder = rescale(first, {name: 2 * norm for name, norm in norms(first).items()})
    >>> torch.equal(louder.fc2.weight, 2 * first.fc2.weight)
    True
    """
    if biases not in ("layer", "network"):
        raise ValueError(f"biases should be layer or network, but is {biases!r}.")
    groups = layers(model)
    if not isinstance(model, nn.Sequential) or any(
        not isinstance(model.get_submodule(name), (nn.Linear, nn.Conv2d))
        or any(key.rpartition(".")[0] != name for key in keys)
        for name, keys in groups.items()
    ):
        raise ValueError(
            "rescaling is for chains of dense and convolutional layers without normalization: in a residual "
            "network it would change the predictions. Maennel et al. do not rescale those; leave it out."
        )
    if list(to) != list(groups):
        raise ValueError(f"the norms should be of layers {', '.join(groups)}, but are of {', '.join(to)}.")
    model, total = copy.deepcopy(model), 1.0
    for name in groups:
        layer = _get(model, name)
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        parts = [weight] if biases == "network" or bias is None else [weight, bias]
        norm = float(sum(p.double().square().sum() for p in parts if isinstance(p, Tensor)) ** 0.5)
        if not (norm > 0 and to[name] > 0):
            raise ValueError(f"layer {name} has norm {norm} and should get {to[name]}: both must be above 0.")
        factor = to[name] / norm
        total *= factor
        weight.mul_(factor)
        if isinstance(bias, Tensor):
            bias.mul_(total if biases == "network" else factor)
    return model


def filters(model: nn.Module, layer: str) -> Float[Tensor, "n d"]:
    """The filters of a layer as rows: d = channels · height · width of a filter, in that order."""
    weight = _get(model, layer).weight
    assert isinstance(weight, Tensor)
    return weight.detach().flatten(1).clone()


def filter_covariance(
    models: nn.Module | Sequence[nn.Module], layer: str, *, center: bool = True
) -> Float[Tensor, "d d"]:
    """Covariance of a layer's filters, of several runs if given: see ``repalign.covariance``.

    >>> from repalign.models import SimpleCNN
    >>> filter_covariance([SimpleCNN(units=4, seed=s) for s in range(3)], "conv0").shape
    torch.Size([27, 27])
    """
    runs = [models] if isinstance(models, nn.Module) else list(models)
    return covariance_of(torch.cat([filters(run, layer) for run in runs]).double(), center=center)


def first_transfer_function(
    model: nn.Module, images: Float[Tensor, "n c h w"], *, center: bool = False
) -> TransferFunction:
    """σᵢ ↦ τᵢ of the first layer, a convolution, on the patches of ``images`` that it sees (A.8).

    Patches are those inside the image, at the layer's stride. The filters' mean is left in by default: a
    narrow network has few of them.

    >>> from repalign.models import SimpleCNN
    >>> first_transfer_function(SimpleCNN(units=4), torch.randn(5, 3, 32, 32)).tau.shape
    torch.Size([27])
    """
    name = next(iter(layers(model)))
    conv = _get(model, name)
    if not isinstance(conv, nn.Conv2d):
        raise ValueError(f"the first layer should be a convolution, but {name} is {type(conv).__name__}.")
    patches = patch_covariance(images.detach().double().cpu(), conv.kernel_size[0], stride=conv.stride[0])
    return transfer_function(patches, filter_covariance(model, name, center=center).cpu())


def sample_filters(model: M, layer: str, covariance: Matrix, *, seed: Seed = 0) -> M:
    """A layer's filters drawn from N(0, ``covariance``), its bias zero (figure 5, "covariance").

    >>> from repalign.models import SimpleCNN
    >>> net = sample_filters(SimpleCNN(filters=4, units=8), "conv0", torch.diag(torch.eye(27)[0]), seed=1)
    >>> net.conv0.weight[:, 0, 0, 1:].abs().sum().item()
    0.0
    """
    count, d = filters(model, layer).shape
    value, vector = _eigen(covariance, layer, d)
    # The symmetric root does not depend on the signs of eigenvectors, so neither does the sample.
    root = (vector * value.sqrt()) @ vector.mT
    return _with_filters(model, layer, normal((count, d), generator(seed), torch.float64) @ root)


def eigenvector_filters(
    model: M,
    layer: str,
    covariance: Matrix,
    *,
    which: str = "top",
    shift: int = 0,
    tau: float | Sequence[float] = 1.0,
    seed: Seed | None = None,
) -> M:
    """A layer's filters set to τᵢeᵢ, eigenvectors of ``covariance``, its bias zero (tables 1 to 6).

    ``which="top"`` takes the largest eigenvalues, ``"bottom"`` the smallest; ``shift`` leaves out that many
    first: ``shift=3`` gives e₄, e₅, ... of table 6. An eigenvector has no sign of its own: its entry of
    largest size is made positive, or a ``seed`` draws the signs.

    >>> from repalign.models import SimpleCNN
    >>> spread = torch.diag(torch.arange(27.0, 0, -1))
    >>> net = eigenvector_filters(SimpleCNN(filters=4, units=8), "conv0", spread, shift=3, tau=2)
    >>> filters(net, "conv0").argmax(1).tolist()
    [3, 4, 5, 6]
    """
    if which not in ("top", "bottom"):
        raise ValueError(f"which should be top or bottom, but is {which!r}. Use shift for others.")
    count, d = filters(model, layer).shape
    if not 0 <= shift <= d - count:
        raise ValueError(
            f"{layer} has {count} filters of dimension {d}: with shift={shift} there are "
            f"{d - shift} eigenvectors. Use fewer filters, or sample_filters."
        )
    weights = torch.as_tensor(tau, dtype=torch.float64)
    if weights.shape not in ((), (count,)):
        raise ValueError(
            f"tau should be one number or one for each of {count} filters, but has {len(weights)}."
        )
    _, vector = _eigen(covariance, layer, d)
    vector = vector.flip(1) if which == "top" else vector
    e = vector[:, shift : shift + count].mT
    e = e * e.gather(1, e.abs().argmax(dim=1, keepdim=True)).sign()
    if seed is not None:
        e = e * normal((count, 1), generator(seed), torch.float64).sign()
    return _with_filters(model, layer, e * weights.reshape(-1, 1))


def _get(model: nn.Module, name: str) -> nn.Module:
    modules = dict(model.named_modules())
    if name not in modules:
        raise ValueError(f"no layer {name!r}: the layers are {', '.join(layers(model))}.")
    return modules[name]


def _eigen(covariance: Matrix, layer: str, d: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors of a covariance that fits the layer."""
    matrix = check(covariance, "covariance", "d d").cpu().double()
    if matrix.shape != (d, d):
        raise ValueError(
            f"covariance should be {d} × {d}, the dimension of a filter of {layer}, but is "
            f"{matrix.shape[0]} × {matrix.shape[1]}: take patches of the filter's size and channels."
        )
    value, vector = torch.linalg.eigh((matrix + matrix.mT) / 2)
    size = float(value.abs().max())
    if float((matrix - matrix.mT).abs().max()) > 1e-4 * size or float(value[0]) < -1e-4 * size:
        raise ValueError("covariance should be symmetric without negative eigenvalues, but is not.")
    return value.clamp(min=0), vector


@torch.no_grad()
def _with_filters(model: M, layer: str, rows: Tensor) -> M:
    model = zero_bias(model, [layer])
    weight = _get(model, layer).weight
    assert isinstance(weight, Tensor)
    weight.copy_(rows.reshape(weight.shape))
    return model
