"""The outputs of named layers, batch after batch, by forward hooks: kept as rows, or counted on the way."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from repalign.features.inputs import Batches, leaves
from repalign.features.layout import CHANNELS
from repalign.features.storing import Keep, Memory, as_numpy, files
from repalign.features.survey import Place, look, modules, pick, ready, unwrapped

POOLS = ("flatten", "mean", "max", "token")
Channels = str | Mapping[str, str] | None


def extract(
    model: nn.Module,
    x: Any,
    layers: str | Sequence[str] | None = None,
    batch_size: int = 256,
    *,
    pool: str = "flatten",
    channels: Channels = None,
    out: str | Path | None = None,
) -> dict[str, Any]:
    """The output of each of ``layers`` for every sample: {layer: (n, d)}, in the order of ``layers``.

    ``x`` is a tensor or array (n, ...), a tuple of them for ``model(*x)``, a dict for ``model(**x)``, or an
    iterable of batches such as a DataLoader, each a tensor, a pair (input, labels) or a dict; rows then come
    in its order. Integers stay integers, floats come to the model's precision.

    ``layers`` are module names; ``output`` is the model's own. :func:`layers` lists them all. Without names
    it is ``model.probed``, or else the blocks, activations and recurrent layers that are met when lists of
    modules are opened, and attributes that have lists of blocks inside. Of a layer that runs several times
    per pass name one call, ``"relu#2"`` for the second, or ``"relu#mean"``. Of an output that is several
    tensors the first with a row per sample counts.

    The model runs in eval mode, without gradients, where its parameters are, also one that is compiled or
    in parallel; results come to the CPU, numpy if ``x`` was. Everything of a sample becomes one row;
    ``pool="mean"`` or ``"max"`` first pools over positions of an image or over tokens (padding included),
    ``"token"`` takes the first token. Where the features of a map are, on the first axis of a sample or on
    the last, is told by the modules; where they do not tell, say ``channels="first"`` or ``"last"``, or
    {layer: ...} for some.

    With ``out``, a directory, each layer goes to ``out/<layer>.npy`` as batches finish and comes back as a
    read-only memory map; the files appear when all are complete.
    """
    model, source = unwrapped(model), Batches(x, batch_size)
    _check(pool, channels)
    with ready(model):
        wanted = _wanted(model, source, layers, pool, channels)
        names = [want.name for want in wanted]
        if out is not None:
            with files(Path(out), names) as (paths, write):
                _run(model, source, wanted, write)
            return {name: np.load(path, mmap_mode="r") for name, path in paths.items()}
        memory = Memory(source.n)
        _run(model, source, wanted, memory.keep)
    return {name: as_numpy(memory.take(name)) if source.numpy else memory.take(name) for name in names}


def activation_rates(
    model: nn.Module,
    x: Any,
    layers: str | Sequence[str] | None = None,
    batch_size: int = 256,
    *,
    above: float = 0.0,
    pool: str = "flatten",
    channels: Channels = None,
) -> dict[str, Any]:
    """The share of inputs on which each unit's output is above ``above``: {layer: (units,)}, in float64.

    Counted batch by batch, nothing is kept; ``x``, ``layers`` and ``channels`` as for :func:`extract`.
    Every entry of an output is a unit; with ``pool="mean"`` a channel is, over inputs and positions alike;
    with ``"max"`` a channel counts for an input if it is active anywhere.

    >>> net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU())
    >>> _ = net[0].weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
    >>> activation_rates(net, torch.tensor([[1.0], [2.0], [3.0], [-1.0]]))
    {'1': tensor([0.7500, 0.2500], dtype=torch.float64)}
    """
    model, source = unwrapped(model), Batches(x, batch_size)
    _check(pool, channels)
    counts: dict[str, Tensor] = {}
    seen: dict[str, int] = {}

    def count(name: str, rows: Tensor) -> None:
        active = rows.sum(0, dtype=torch.float64)
        counts[name] = counts[name] + active if name in counts else active
        seen[name] = seen.get(name, 0) + len(rows)

    with ready(model):
        wanted = _wanted(model, source, layers, pool, channels)
        _run(model, source, wanted, count, lambda output: (output > above).float())
    rates = {want.name: (counts[want.name] / seen[want.name]).cpu() for want in wanted}
    return {name: rate.numpy() if source.numpy else rate for name, rate in rates.items()}


class _Want(NamedTuple):
    """A layer asked for: which call of which module, where its output has the samples, how it is pooled."""

    name: str
    module: nn.Module
    call: int | None  # None: the mean over calls
    calls: int
    place: Place
    axes: tuple[int, ...]
    pool: str


def _check(pool: str, channels: Channels) -> None:
    if pool not in POOLS:
        raise ValueError(f"pool should be flatten, mean, max or token, but is {pool!r}.")
    for value in channels.values() if isinstance(channels, Mapping) else (channels,):
        if value is not None and value not in CHANNELS:
            raise ValueError(f"channels should be 'first' or 'last', but is {value!r}.")


def _wanted(
    model: nn.Module, source: Batches, layers: str | Sequence[str] | None, pool: str, channels: Channels
) -> list[_Want]:
    """Look at the model once, and settle what to take from each layer."""
    inside = modules(model)
    asked = None if layers is None else _known(model, inside, layers)
    seen = look(model, source.first)
    names = pick(model, seen) if asked is None else asked
    if not names:
        raise ValueError(
            f"no layer of {type(model).__name__} runs once per pass and gives a row per sample: name layers, "
            "or set model.probed. features.layers(model, x) lists them."
        )
    other = [name for name in channels if name not in names] if isinstance(channels, Mapping) else []
    if other:
        raise ValueError(f"channels should be of layers that are taken, but names {', '.join(other)}.")
    return [_want(name, inside, seen, pool, channels) for name in _known(model, inside, names)]


def _known(model: nn.Module, inside: dict[str, nn.Module], layers: str | Sequence[str]) -> list[str]:
    names = [layers] if isinstance(layers, str) else list(layers)
    for name in names:
        if _split(name, inside)[0] not in inside:
            near = difflib.get_close_matches(name, inside, n=3) or list(inside)[:10]
            raise ValueError(f"no layer {name!r} in {type(model).__name__}: did you mean {', '.join(near)}?")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"layers should be names, each once, but are {names}.")
    return names


def _split(name: str, inside: dict[str, nn.Module]) -> tuple[str, str]:
    """A module's name and which of its calls."""
    module, _, call = (name, "", "") if name in inside else name.rpartition("#")
    return module, call


def _want(
    name: str,
    inside: dict[str, nn.Module],
    seen: dict[nn.Module, list[Place | None]],
    pool: str,
    channels: Channels,
) -> _Want:
    base, call = _split(name, inside)
    module = inside[base]
    places = seen[module]
    calls = len(places)
    if calls == 0:
        raise ValueError(f"the model does not run these layers: {name}. Choose others.")
    if calls > 1 and not call:
        raise ValueError(
            f"layer {name!r} runs more than once per pass, {calls} times: name one call, from '{name}#1' to "
            f"'{name}#{calls}', or '{name}#mean'."
        )
    if call not in ("", "mean") and not (call.isdigit() and 1 <= int(call) <= calls):
        raise ValueError(
            f"layer {base!r} runs {calls} times per pass: calls are '{base}#1' to '{base}#{calls}', or "
            f"'{base}#mean', but not {name!r}."
        )
    which = None if call == "mean" else int(call or 1) - 1
    place = places[which or 0]
    if place is None or (which is None and any(p is None or p.shape != place.shape for p in places)):
        what = "a row per sample" if place is None else "the same shape in every call"
        raise ValueError(
            f"layer {name!r} should give a tensor with {what}, but does not: choose another. "
            "features.layers(model, x) lists what every layer gives."
        )
    told = channels.get(name) if isinstance(channels, Mapping) else channels
    return _Want(name, module, which, calls, place, _axes(name, place, pool, told), pool)


def _axes(name: str, place: Place, pool: str, told: str | None) -> tuple[int, ...]:
    """The axes to pool over, of (n, *shape)."""
    ndim = 1 + len(place.shape)
    if pool == "flatten" or ndim < 3:
        return ()
    where = told or place.channels
    if where is None:
        raise ValueError(
            f"layer {name!r} gives {place.shape} for a sample, and no module tells which axis holds the "
            f"features: pass channels='first' or 'last', or channels={{{name!r}: ...}} for this layer alone."
        )
    if pool == "token" and (ndim != 3 or where == "first"):
        raise ValueError(
            f"pool='token' takes the first of tokens (n, tokens, features), but layer {name!r} gives "
            f"{place.shape} for a sample, channels {where}: use mean or max."
        )
    return tuple(range(2, ndim)) if where == "first" else tuple(range(1, ndim - 1))


def _run(
    model: nn.Module,
    source: Batches,
    wanted: list[_Want],
    keep: Keep,
    change: Callable[[Tensor], Tensor] = lambda output: output,
) -> None:
    """Hand the rows of every layer, batch after batch, to ``keep``."""
    ran: dict[str, int] = {}
    sums: dict[str, Tensor] = {}
    widths: dict[str, int] = {}
    start = expected = 0

    def hook(want: _Want) -> Callable[[nn.Module, Any, Any], None]:
        def save(module: nn.Module, _: Any, output: Any) -> None:
            call = ran[want.name]
            ran[want.name] += 1
            if want.call is not None and call != want.call:
                return
            # Used at once: a later layer may work in place.
            rows = _rows(change(_samples(want, output, expected)), want)
            if want.call is None:
                sums[want.name] = sums[want.name] + rows if call else rows.clone()
            else:
                give(want.name, rows)

        return save

    def give(name: str, rows: Tensor) -> None:
        if widths.setdefault(name, rows.shape[1]) != rows.shape[1]:
            raise ValueError(
                f"layer {name!r} gives {widths[name]} numbers per sample in one batch and {rows.shape[1]} in "
                "another: bring all samples to one length, or pool."
            )
        keep(name, rows)

    with ExitStack() as undo:
        for want in wanted:
            undo.callback(want.module.register_forward_hook(hook(want)).remove)
        for batch in source:
            expected = batch.rows
            ran.update((want.name, 0) for want in wanted)
            batch.call(model, start)
            for want in wanted:
                if ran[want.name] != want.calls:
                    raise ValueError(
                        f"layer {want.name!r} ran {ran[want.name]} times in a batch, but {want.calls} times "
                        "in another: choose a layer that runs equally often for all samples."
                    )
                if want.call is None:
                    give(want.name, sums.pop(want.name) / want.calls)
            start += batch.rows


def _samples(want: _Want, output: Any, expected: int) -> Tensor:
    """The tensor of a layer's output that has the samples, with them first."""
    tensors = leaves(output)
    place = want.place
    if len(tensors) > place.tensor and tensors[place.tensor].ndim == len(place.shape) + 1:
        found = tensors[place.tensor].movedim(place.axis, 0)
        if len(found) == expected:
            return found
    got = [tuple(tensor.shape) for tensor in tensors]
    raise ValueError(f"layer {want.name!r} should give a tensor of {expected} rows, but gives {got}.")


def _rows(output: Tensor, want: _Want) -> Tensor:
    if want.axes:
        if want.pool == "token":
            output = output[:, 0]
        else:
            output = output.mean(want.axes) if want.pool == "mean" else output.amax(want.axes)
    return output.reshape(len(output), -1)
