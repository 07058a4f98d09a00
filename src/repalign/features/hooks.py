"""The outputs of named layers, batch after batch, by forward hooks: kept as rows, or counted on the way."""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor, nn

from repalign._arrays import working
from repalign.features.inputs import Batch, Batches, leaves
from repalign.features.layout import CHANNELS
from repalign.features.padding import pooled, real_tokens
from repalign.features.storing import Keep, Memory, as_numpy, files
from repalign.features.survey import Place, look, modules, pick, ready, unwrapped

POOLS = ("flatten", "mean", "max", "token", "last")
# Bytes of a sample's rows from which on a word is said before memory fills with them.
LARGE = 5 * 10**6
# How far rows may differ between batches of different size, by rounding and by other ways to multiply.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2}
Channels = str | Mapping[str, str] | None
Names = str | int | Sequence[str | int] | None


@overload
def extract(
    model: nn.Module,
    x: Any,
    layers: Names = ...,
    batch_size: int = ...,
    *,
    pool: str = ...,
    channels: Channels = ...,
    out: str | Path | None = ...,
    inputs: int | None = ...,
    return_labels: Literal[False] = ...,
) -> dict[str, Any]: ...


@overload
def extract(
    model: nn.Module,
    x: Any,
    layers: Names = ...,
    batch_size: int = ...,
    *,
    pool: str = ...,
    channels: Channels = ...,
    out: str | Path | None = ...,
    inputs: int | None = ...,
    return_labels: Literal[True],
) -> tuple[dict[str, Any], Any]: ...


def extract(
    model: nn.Module,
    x: Any,
    layers: Names = None,
    batch_size: int = 256,
    *,
    pool: str = "flatten",
    channels: Channels = None,
    out: str | Path | None = None,
    inputs: int | None = None,
    return_labels: bool = False,
) -> dict[str, Any] | tuple[dict[str, Any], Any]:
    """The output of each of ``layers`` for every sample: {layer: (n, d)}, in the order of ``layers``.

    ``x`` is a tensor or array (n, ...), a tuple of them for ``model(*x)``, a dict for ``model(**x)``, or an
    iterable of batches such as a DataLoader, each a tensor, a pair (input, labels) or a dict; rows then come
    in its order, and ``return_labels=True`` returns (layers, labels) in that order; a loader that draws its
    order at random is told without it. ``inputs=2`` gives the first two things of every batch to the model,
    as of ``TensorDataset(ids, mask)``. Integers stay integers, floats come to the model's precision.

    ``layers`` are module names, also as numbers (of an ``nn.Sequential``); ``output`` is the model's own.
    :func:`layers` lists them all. Without names it is ``model.probed``, or else the blocks, activations and
    recurrent layers that are met when lists of modules are opened, and attributes that have lists of blocks
    inside. Of a layer that runs several times per pass name one call, ``"relu#2"`` for the second, or
    ``"relu#mean"``. Of an output that is several tensors the first with a row per sample counts.

    The model runs in eval mode, without gradients, where its parameters are, also one that is compiled or
    in parallel; results come to the CPU, numpy if ``x`` was. Everything of a sample becomes one row;
    ``pool="mean"`` or ``"max"`` first pools over positions of an image or over tokens, ``"token"`` takes the
    first token and ``"last"`` the last one; padding does not count where an ``attention_mask`` or a
    ``key_padding_mask`` among the inputs tells it. Where the features of a map are, on the first axis of a
    sample or on the last, is told by the modules; where they do not tell, say ``channels="first"`` or
    ``"last"``, or {layer: ...} for some.

    A warning says when rows depend on the batch they come in, as where a layer normalizes over the batch or
    draws random numbers: some samples of the first batch are computed once more.

    With ``out``, a directory, each layer goes to ``out/<layer>.npy`` as batches finish and comes back as a
    read-only memory map; the files appear when all are complete.
    """
    model, source = unwrapped(model), Batches(x, batch_size, inputs=inputs, labeled=return_labels)
    _check(pool, channels)
    if source.shuffled and not return_labels:
        warnings.warn(
            "x draws its samples in random order, so nobody knows which row is whose: use a loader with "
            "shuffle=False, or return_labels=True.",
            stacklevel=2,
        )
    with ready(model):
        wanted = _wanted(model, source, layers, pool, channels)
        names = [want.name for want in wanted]
        if out is not None:
            with files(Path(out), names) as (paths, write):
                _run(model, source, wanted, write, repeat=True)
            found: dict[str, Any] = {name: np.load(path, mmap_mode="r") for name, path in paths.items()}
        else:
            _warn_of_size(wanted, source.n)
            memory = Memory(source.n)
            _run(model, source, wanted, memory.keep, repeat=True)
            rows = {name: memory.take(name) for name in names}
            found = {name: as_numpy(row) for name, row in rows.items()} if source.numpy else rows
    return (found, source.joined_labels()) if return_labels else found


def activation_rates(
    model: nn.Module,
    x: Any,
    layers: Names = None,
    batch_size: int = 256,
    *,
    above: float = 0.0,
    pool: str = "flatten",
    channels: Channels = None,
    inputs: int | None = None,
) -> dict[str, Any]:
    """The share of inputs on which each unit's output is above ``above``: {layer: (units,)}, in float64.

    Counted batch by batch, nothing is kept; ``x``, ``layers``, ``channels`` and ``inputs`` as for
    :func:`extract`.
    Every entry of an output is a unit; with ``pool="mean"`` a channel is, over inputs and positions alike;
    with ``"max"`` a channel counts for an input if it is active anywhere.

    >>> net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU())
    >>> _ = net[0].weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
    >>> activation_rates(net, torch.tensor([[1.0], [2.0], [3.0], [-1.0]]))
    {'1': tensor([0.7500, 0.2500], dtype=torch.float64)}
    """
    model, source = unwrapped(model), Batches(x, batch_size, inputs=inputs)
    _check(pool, channels)
    counts: dict[str, Tensor] = {}
    seen: dict[str, int] = {}

    def count(name: str, rows: Tensor) -> None:
        active = rows.sum(0, dtype=torch.float64)
        counts[name] = counts[name] + active if name in counts else active
        seen[name] = seen.get(name, 0) + len(rows)

    with ready(model):
        wanted = _wanted(model, source, layers, pool, channels)
        _run(model, source, wanted, count, lambda output: (output > above).float(), repeat=False)
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
        raise ValueError(f"pool should be flatten, mean, max, token or last, but is {pool!r}.")
    for value in channels.values() if isinstance(channels, Mapping) else (channels,):
        if value is not None and value not in CHANNELS:
            raise ValueError(f"channels should be 'first' or 'last', but is {value!r}.")


def _warn_of_size(wanted: list[_Want], n: int | None) -> None:
    """A word before memory fills with whole maps."""
    maps = [want for want in wanted if want.pool == "flatten" and len(want.place.shape) > 1]
    size = 4 * sum(math.prod(want.place.shape) for want in maps)
    if size > LARGE:
        total = "" if n is None else f", {n * size / 2**30:.1f} GB for {n} samples"
        warnings.warn(
            f"every position of {len(maps)} layers is kept, {size / 2**20:.0f} MB for a sample{total}: "
            "pool='mean' makes short rows, out=... writes to disk, fewer layers take less.",
            stacklevel=3,
        )


def _wanted(model: nn.Module, source: Batches, layers: Names, pool: str, channels: Channels) -> list[_Want]:
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


def _known(
    model: nn.Module, inside: dict[str, nn.Module], layers: str | int | Sequence[str | int]
) -> list[str]:
    asked = [layers] if isinstance(layers, (str, int)) else list(layers)
    wrong = [type(name).__name__ for name in asked if not isinstance(name, (str, int))]
    if wrong:
        raise TypeError(f"layers should be names of modules, or their numbers, but one is a {wrong[0]}.")
    names = [str(name) for name in asked]
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
    if pool in ("token", "last") and (ndim != 3 or where == "first"):
        raise ValueError(
            f"pool={pool!r} takes one of the tokens (n, tokens, features), but layer {name!r} gives "
            f"{place.shape} for a sample, channels {where}: use mean or max."
        )
    return tuple(range(2, ndim)) if where == "first" else tuple(range(1, ndim - 1))


def _run(
    model: nn.Module,
    source: Batches,
    wanted: list[_Want],
    keep: Keep,
    change: Callable[[Tensor], Tensor] = lambda output: output,
    *,
    repeat: bool,
) -> None:
    """Hand the rows of every layer, batch after batch, to ``keep``.

    With ``repeat`` some samples of the first batch run a second time, and a warning names a layer whose rows
    are then others.
    """
    ran: dict[str, int] = {}
    real: Tensor | None = None
    unclear: set[str] = set()
    sums: dict[str, Tensor] = {}
    widths: dict[str, int] = {}
    start = expected = 0
    sink = keep

    def hook(want: _Want) -> Callable[[nn.Module, Any, Any], None]:
        def save(module: nn.Module, _: Any, output: Any) -> None:
            call = ran[want.name]
            ran[want.name] += 1
            if want.call is not None and call != want.call:
                return
            # Used at once: a later layer may work in place.
            rows = _rows(change(_samples(want, output, expected)), want, real, unclear)
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
        sink(name, rows)

    def one_pass(batch: Batch, into: Keep) -> None:
        nonlocal expected, real, sink
        expected, sink = batch.rows, into
        real = real_tokens(model, batch) if pools else None
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

    def alone(batch: Batch) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        one_pass(batch, _also(None, found, [0, 1]))
        return found

    def twice(batch: Batch) -> None:
        """The rows of a batch; and of two of its samples, once more in other company."""
        # Two, since some layers need company; where there are but two, the first one twice.
        places = [batch.rows - 1, 0] if batch.rows > 2 else [0, 0]
        seen: dict[str, Tensor] = {}
        one_pass(batch, _also(keep, seen, places))
        again = alone(batch.take(places))
        if _differing(seen, again) is not None:
            _warn_of_company(seen, again, alone(batch.take(places)))

    pools = any(want.axes for want in wanted)
    with ExitStack() as undo:
        for want in wanted:
            undo.callback(want.module.register_forward_hook(hook(want)).remove)
        for batch in source:
            if repeat and start == 0:
                twice(batch)
            else:
                one_pass(batch, keep)
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


def _rows(output: Tensor, want: _Want, real: Tensor | None, unclear: set[str]) -> Tensor:
    if want.axes:
        if real is not None and [output.shape[axis] for axis in want.axes] != [real.shape[1]]:
            if want.name not in unclear:
                unclear.add(want.name)
                warnings.warn(
                    f"layer {want.name!r} gives {want.place.shape} for a sample of {real.shape[1]} tokens, "
                    "so it is not known which positions are padding: pool counts all of them.",
                    stacklevel=2,
                )
            real = None
        output = pooled(output, want.pool, want.axes, real)
    return output.reshape(len(output), -1)


def _also(keep: Keep | None, into: dict[str, Tensor], places: list[int]) -> Keep:
    """Keep the rows, and beside that those at ``places``."""

    def both(name: str, rows: Tensor) -> None:
        into[name] = rows[places].clone()
        if keep is not None:
            keep(name, rows)

    return both


def _differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> str | None:
    """The first layer, in the order in which they ran, whose rows are not the same up to rounding."""
    for name, rows in one.items():
        a, b = (working(part).nan_to_num() for part in (rows, other[name]))
        tolerance = TOLERANCE.get(rows.dtype, 0.1)
        if float((a - b).norm()) > tolerance * float(a.norm()):
            return name
    return None


def _warn_of_company(seen: dict[str, Tensor], again: dict[str, Tensor], once_more: dict[str, Tensor]) -> None:
    drawn = _differing(again, once_more)
    name = drawn or _differing(seen, again)
    why = (
        "draws random numbers, also in eval mode: its rows are others in every call"
        if drawn
        else "depends on the other samples of the batch (does it normalize over them, or compare them?): its "
        "rows change with batch_size and order"
    )
    warnings.warn(f"layer {name!r} {why}.", stacklevel=5)
