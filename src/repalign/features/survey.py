"""One look at a model before it runs for good: which layers it has, how often they run, what they give.

Two small passes, with two samples and with three: the axis of an output that grows is the one of the samples.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from repalign.features import layout
from repalign.features.inputs import Batch, Batches, leaves
from repalign.models import probed_layers
from repalign.tangent.model import unwrapped as unwrapped

OUTPUT = "output"


class Place(NamedTuple):
    """Where a layer's output has the samples: in which tensor, on which axis; and what one sample has."""

    tensor: int
    axis: int
    shape: tuple[int, ...]
    channels: str | None
    floating: bool
    # The tensor itself, as its id and how often it was written to.
    state: tuple[int, int]


class Layer(NamedTuple):
    """One module: its name and class, how often it runs in a pass, and what it gives for a sample.

    ``shape`` is None where the output has no row per sample; ``channels`` is ``"first"`` or ``"last"`` where
    the modules tell; ``picked`` says whether :func:`extract` takes this layer when none are named.
    """

    name: str
    kind: str
    calls: int
    shape: tuple[int, ...] | None
    channels: str | None
    parameters: int
    picked: bool


class Layers(list[Layer]):
    """All layers of a model in the order of its definition; prints as a table."""

    def __str__(self) -> str:
        head = ("", "layer", "class", "calls", "shape of a sample", "channels", "parameters")
        rows = [
            (
                "*" if row.picked else "",
                *(row.name, row.kind, str(row.calls)),
                "-" if row.shape is None else str(row.shape),
                *(row.channels or "", f"{row.parameters:,}"),
            )
            for row in self
        ]
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        lines = (
            "  ".join(text.rjust(w) if i in (3, 6) else text.ljust(w) for i, (text, w) in parts)
            for parts in (enumerate(zip(row, widths, strict=True)) for row in (head, *rows))
        )
        return "\n".join(
            [*(line.rstrip() for line in lines), "* what extract takes when no layers are named"]
        )

    __repr__ = __str__


def layers(model: nn.Module, x: Any, *, inputs: int | None = None) -> Layers:
    """Every layer of a model: how often it runs in a pass, what it gives, and which ones extract takes.

    ``x`` and ``inputs`` are what :func:`extract` takes; only the first samples are used.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> layers(net, torch.ones(5, 3))
       layer   class       calls  shape of a sample  channels  parameters
       0       Linear          1  (4,)               last              16
    *  1       ReLU            1  (4,)               last               0
       2       Linear          1  (2,)               last              10
       output  Sequential      1  (2,)               last              26
    * what extract takes when no layers are named
    """
    model = unwrapped(model)
    with ready(model):
        seen = look(model, Batches(x, 3, inputs=inputs).first)
    picked = set(pick(model, seen))
    rows = Layers()
    for name, module in modules(model).items():
        places = seen[module]
        one = next((place for place in places if place is not None), None)
        told = None if one is None else one.channels
        shape = None if one is None else one.shape
        rows.append(
            Layer(name, type(module).__name__, len(places), shape, told, _size(module), name in picked)
        )
    return rows


def modules(model: nn.Module) -> dict[str, nn.Module]:
    """Every module by name; the model itself, whose name is empty, is called ``output``."""
    named = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
    return named if OUTPUT in named else named | {OUTPUT: model}


@contextmanager
def ready(model: nn.Module) -> Iterator[None]:
    """In eval mode, without gradients, with hooks that are called; all as it was at the end."""
    with ExitStack() as undo:
        for module in model.modules():
            undo.callback(setattr, module, "training", module.training)
            if isinstance(module, nn.TransformerEncoder):
                # Its fast path packs padded sequences and passes over hooks.
                undo.callback(
                    torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()
                )
                torch.backends.mha.set_fastpath_enabled(False)
        if "torch._dynamo" in sys.modules:
            # Compiled parts do not call hooks that came after them.
            undo.enter_context(torch.compiler.set_stance("force_eager"))
        undo.enter_context(torch.no_grad())
        model.eval()
        yield


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    floating: bool
    state: tuple[int, int]


class _Call(NamedTuple):
    outputs: list[_Tensor]
    features: int | None
    seq_first: bool


def _noted(tensor: Tensor) -> _Tensor:
    version = 0 if tensor.is_inference() else tensor._version
    return _Tensor(tuple(tensor.shape), tensor.is_floating_point(), (id(tensor), version))


def look(model: nn.Module, batch: Batch) -> dict[nn.Module, list[Place | None]]:
    """For every module and each of its calls: where its output has the samples, None where nowhere."""
    # Samples are repeated when there are too few.
    small, large = (batch.take([i % batch.rows for i in range(n)]) for n in (2, 3))
    before = _watch(model, small)[0]
    after, evidence = _watch(model, large)
    found: dict[nn.Module, list[Place | None]] = {}
    for module, calls in after.items():
        found[module] = [None] * len(calls)
        # With another number of calls there is no telling which is which.
        if len(before[module]) == len(calls):
            found[module] = [_place(a, b, evidence) for a, b in zip(before[module], calls, strict=True)]
        if any(call.seq_first for call in calls) and any(p and p.axis == 0 for p in found[module]):
            warnings.warn(
                f"a {type(module).__name__} of the model has batch_first=False, but gets the samples on its "
                "first axis and takes them for time: samples depend on each other. Set batch_first=True, or "
                "transpose.",
                stacklevel=4,
            )
            found[module] = [None] * len(calls)
    return found


def _watch(model: nn.Module, batch: Batch) -> tuple[dict[nn.Module, list[_Call]], layout.Evidence]:
    """What every module gives in one pass."""
    calls: dict[nn.Module, list[_Call]] = {module: [] for module in model.modules()}
    evidence = layout.Evidence()
    widths: list[int] = []
    entered: list[int] = []

    def enter(module: nn.Module, args: Any) -> None:
        entered.append(len(widths))

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        inputs, outputs = leaves((args, kwargs)), leaves(output)
        evidence.note(module, inputs, outputs)
        own = layout.width(module)
        if own is not None:
            widths.append(own)
        first = entered.pop()
        features = widths[-1] if len(widths) > first else None
        timed = isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and not module.batch_first
        seq_first = timed and bool(inputs) and inputs[0].ndim == 3
        calls[module].append(_Call([_noted(tensor) for tensor in outputs], features, seq_first))

    with ExitStack() as undo:
        for module in calls:
            undo.callback(module.register_forward_pre_hook(enter).remove)
            undo.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
        batch.call(model)
    return calls, evidence


def _place(two: _Call, three: _Call, evidence: layout.Evidence) -> Place | None:
    """The first tensor of which an axis has as many entries as there are samples, in both passes."""
    for i, (a, b) in enumerate(zip(two.outputs, three.outputs, strict=False)):
        axes = [axis for axis, sizes in enumerate(zip(a.shape, b.shape, strict=False)) if sizes == (2, 3)]
        if len(a.shape) == len(b.shape) and axes:
            axis = axes[0]
            shape = (*b.shape[:axis], *b.shape[axis + 1 :])
            told = evidence.channels(b.state[0], shape, three.features)
            return Place(i, axis, shape, told, b.floating, b.state)
    return None


def pick(model: nn.Module, seen: dict[nn.Module, list[Place | None]]) -> list[str]:
    """The layers to take when none are named: ``model.probed`` where it is set, else by a rule.

    Lists of modules are opened, and so is an attribute that has a list of blocks inside, unless it is one
    of many: it should have a third of the parameters of all such. What is met then counts if it is a block
    (a module made of modules), an activation or a recurrent layer; where there is none of these, every
    module with parameters does. Each must run once per pass and give a row per sample; of two that give
    the same tensor the inner one is taken.
    """
    if getattr(model, "probed", None) is not None:
        return list(probed_layers(model))
    met = dict.fromkeys(_units(model, ""))
    inside = modules(model)

    def counts(module: nn.Module) -> bool:
        return _is_block(module) or isinstance(module, nn.RNNBase) or layout.activation(module)

    def parameters(module: nn.Module) -> bool:
        return any(True for _ in module.parameters(recurse=False))

    def once(names: Iterable[str]) -> list[str]:
        out: dict[tuple[int, int], str] = {}
        for name in names:
            places = seen[inside[name]]
            if len(places) == 1 and places[0] is not None and places[0].floating:
                out.setdefault(places[0].state, name)
        return list(out.values())

    return (
        once(name for name in met if counts(inside[name]))
        or once(name for name in met if parameters(inside[name]))
        or once([OUTPUT] if inside.get(OUTPUT) is model else [])
    )


_LISTS: tuple[type, ...] = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def _units(module: nn.Module, prefix: str) -> Iterator[str]:
    """The names of what is met when a module is opened, inner ones first."""
    attributes = [] if type(module) in _LISTS else list(module.children())
    bodies = {child: _size(child) for child in attributes if type(child) not in _LISTS and _has_blocks(child)}
    for name, child in module.named_children():
        is_list = type(child) in _LISTS
        if is_list or (child in bodies and bodies[child] >= sum(bodies.values()) / 3):
            yield from _units(child, f"{prefix}{name}.")
        if not is_list:
            yield f"{prefix}{name}"


def _is_block(module: nn.Module) -> bool:
    return type(module) not in _LISTS and any(True for _ in module.children())


def _has_blocks(module: nn.Module) -> bool:
    lists = (inner for inner in module.modules() if type(inner) in _LISTS)
    return any(_is_block(element) for inner in lists for element in inner.children())


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
