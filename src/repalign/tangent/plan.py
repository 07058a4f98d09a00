"""Look at a network once, with two samples: what can be factored, where the samples are, what fits."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from repalign.tangent.capture import Part, Watched, backward
from repalign.tangent.factors import choose, size
from repalign.tangent.model import Output, as_input, unwrapped
from repalign.tangent.paths import unseen
from repalign.tangent.recorder import Call, Key, Recorder
from repalign.tangent.uses import Elementwise, Lookup, Product, Through

# Bytes: the factors of one batch, or of all batches when they are kept and not made again.
BUDGET = 2**28

# Samples at once where it is tried whether a model that chooses keeps them in order.
TRIAL = 16

ONE_SAMPLE = (
    "Where the rows of x belong together, as the nodes of a graph, let them be one sample: pass x[None], and "
    "a module whose forward(x) returns model(x[0]).reshape(1, -1)."
)

BIAS = ("with", "apart", "without")
OUTPUTS = ("all", "trace")


def grouped(
    model: nn.Module, bias: str = "with", layers: Sequence[str] | None = None
) -> dict[str, list[str]]:
    """Names of parameters by layer: the module that owns them, the first one where several do."""
    if bias not in BIAS:
        raise ValueError(f"bias should be one of {', '.join(BIAS)}, but is {bias!r}.")
    groups: dict[str, list[str]] = {}
    for name, _ in unwrapped(model).named_parameters():
        owner, _, own = name.rpartition(".")
        layer = owner or "model"
        if "bias" in own and bias == "without":
            continue
        if "bias" in own and bias == "apart":
            layer = f"{layer}.{own}"
        groups.setdefault(layer, []).append(name)
    if layers is None:
        return groups
    layers = [layers] if isinstance(layers, str) else list(layers)
    shown = ", ".join(map(repr, groups))
    other = [layer for layer in layers if not isinstance(layer, str)]
    if other:
        raise TypeError(
            f"layers should hold names, but holds {other[0]!r}, which is no string; the layers are {shown}."
        )
    unknown = [layer for layer in layers if layer not in groups]
    if unknown:
        raise ValueError(f"there is no layer {unknown[0]!r}; the layers are {shown}.")
    return {layer: groups[layer] for layer in layers}


def watch(
    model: nn.Module,
    x: Any,
    outputs: str = "all",
    *,
    layers: Sequence[str] | None = None,
    bias: str = "with",
    batch_size: int | None = None,
    output: Output = None,
    together: bool = False,
    graph: bool = False,
) -> Watched:
    """Look at the model once, with two samples if there are, and plan how to capture all of them."""
    if outputs not in OUTPUTS:
        raise ValueError(f"outputs should be all or trace, but is {outputs!r}.")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size should be a positive number of samples, but is {batch_size}.")
    # Differentiation needs tensors that torch.inference_mode does not make.
    with torch.inference_mode(False):
        model = unwrapped(model)
        x, state = as_input(model, x, graph)
        groups = grouped(model, bias, layers)
        if together:
            groups = {"model": [name for names in groups.values() for name in names]}
        watched = Watched(model, x, state, groups, outputs == "trace", output, graph)
        two = x[[0, -1] if len(x) > 1 else [0]].requires_grad_(x.is_floating_point())
        try:
            f, recorder = watched.run(two)
        except Exception as error:
            if state.inputs is None and not two.is_floating_point():
                error.add_note(
                    f"x holds {two.dtype}, and integers stay integers: pass x.float() if the model wants "
                    "numbers, not indices."
                )
            if _takes_all(watched):
                raise ValueError(
                    f"the model takes all {watched.n} rows of x, but not the first and the last alone "
                    f"({error}). A sample should not need the others. {ONE_SAMPLE}"
                ) from error
            raise
        watched.outputs = f.shape[1]
        grads, hidden = _gradients(watched, f, two, recorder)
        unread = set(recorder.unread) | hidden | _look(watched, recorder, grads)
        apart = unseen(f, watched.parameters, recorder, watched.shared)
        if recorder.decides and watched.n > 1:
            apart |= _misplaced(watched, recorder, grads, batch_size or TRIAL)
        watched.alone = recorder.differentiates or bool(apart - unread)
        unread |= apart
        calls = {key: watched.reached(recorder.reading(key, watched.shared)) for key in recorder.calls}
        positions = {
            key: [_positions(c, grads[c.edge], watched.axes[c.edge]) for c in some]
            for key, some in calls.items()
        }
        _plan(watched, calls, positions, unread)
        _split(watched, calls, positions, batch_size)
        return watched


def _takes_all(watched: Watched) -> bool:
    """Does a model that failed for two samples run when it gets all of them?"""
    if watched.n <= 2:
        return False
    try:
        watched.run(watched.x)
    except Exception:
        return False
    return True


def _gradients(
    watched: Watched, f: Tensor, two: Tensor, recorder: Recorder
) -> tuple[list[Tensor | None], set[str]]:
    """Of each sample's outputs at every recorded call, and the parameters that matter without a call."""
    silent = [p for name, p in watched.parameters.items() if not _called(recorder, name)]
    seen: list[Any] = [*recorder.edges, *silent, *([two] if two.requires_grad else [])]
    each = torch.eye(len(two), dtype=f.dtype, device=f.device)[:, :, None] * _weights(f)
    grads = backward(f, seen, each)
    mixed = two.requires_grad and grads[-1] is not None and _axis(grads[-1], (0,)) is None
    if mixed or (not two.requires_grad and _differs_alone(watched, f, two)):
        raise ValueError(
            "the output of one sample depends on the other samples of its batch, so the model is not a "
            f"function of one sample. Does it normalize over the batch? {ONE_SAMPLE}"
        )
    # A parameter no call was seen with may still matter, as in a compiled module.
    hidden = zip(silent, grads[len(recorder.edges) :], strict=False)
    names = {recorder.names[id(p)] for p, grad in hidden if grad is not None}
    return grads[: len(recorder.edges)], names


def _differs_alone(watched: Watched, f: Tensor, two: Tensor) -> bool:
    """Has the first sample other outputs without the second? Asked where its input has no gradient."""
    with torch.no_grad():
        alone = watched.run(two[:1])[0]
    return bool((alone[0] - f[0]).abs().max() > 1e-3 * f.abs().max())


def _look(watched: Watched, recorder: Recorder, grads: Sequence[Tensor | None]) -> set[str]:
    """Find the axis of the samples in every recorded call; return the parameters where there is none.

    The gradient of the first sample's outputs must vanish wherever a call worked on the second sample.
    """
    every = [c for calls in (*recorder.calls.values(), *recorder.after.values()) for c in calls]
    for edge, grad in enumerate(grads):
        allowed = [a for a in (0, 1) if all(a in c.use.axes for c in every if c.edge == edge)]
        watched.axes.append(None if grad is None else _axis(grad, allowed))

    def nowhere(call: Call) -> bool:
        axis = watched.axes[call.edge]
        if axis is None:
            return grads[call.edge] is not None
        use: Any = call.use.use if isinstance(call.use, Through) else call.use
        return watched.n > 1 and isinstance(use, Elementwise) and use.aligned[axis] != 1

    # Indices without samples: positions, which the samples meet only in what is done with the rows found.
    watched.shared = {
        c.edge
        for calls in recorder.calls.values()
        for c in calls
        if isinstance(c.use, Lookup) and nowhere(c) and c.edge not in recorder.opaque
    }
    return {key[0] for key in recorder.calls if any(map(nowhere, recorder.reading(key, watched.shared)))}


def _misplaced(watched: Watched, recorder: Recorder, tried: Sequence[Tensor | None], step: int) -> set[str]:
    """Parameters of calls that do not work on the samples in their order, as experts with tokens of some.

    Each sample's outputs are weighted by a number of its own, and where the gradients in its place are not
    weighted by the same number, they are another's.
    """
    owners, found = recorder.owners(), set()
    for start in range(0, watched.n, step):
        x = watched.x[start : start + step]
        f, seen = watched.run(x)
        if seen.owners() != owners:
            return set(watched.parameters)
        weights = _weights(f).expand_as(f)
        numbers = torch.arange(1, len(x) + 1, dtype=f.dtype, device=f.device)
        grads = backward(f, seen.edges, torch.stack([weights, weights * numbers[:, None]]))
        for grad, before, axis, names in zip(grads, tried, watched.axes, owners, strict=True):
            axes = (0, 1) if axis is None else (axis,)
            if grad is None or any(_in_order(grad, a, numbers) for a in axes):
                continue
            # Of one shape for any samples: positions, which have a way of their own.
            if axis is not None or before is None or before.shape[1:] != grad.shape[1:]:
                found |= names
    return found


def _in_order(grad: Tensor, axis: int, numbers: Tensor) -> bool:
    """Is the second of two gradients the first, times the number of each sample?"""
    n = len(numbers)
    if grad.ndim < axis + 2 or grad.shape[axis + 1] % n or not grad.numel():
        return False
    one, numbered = (g.movedim(axis, 0).reshape(n, -1) for g in grad)
    return bool((numbered - one * numbers[:, None]).abs().max() <= 1e-3 * one.abs().max())


def _weights(f: Tensor) -> Tensor:
    """Of the outputs. Not all one: behind a softmax, say, their sum has no gradient."""
    return torch.linspace(1, 2, f.shape[1], dtype=f.dtype, device=f.device)


def _positions(call: Call, grad: Tensor | None, axis: int | None) -> int:
    """How many positions of a sample a call of a weight or a table has, without those that do not matter."""
    use = call.use
    if grad is None or axis is None or not isinstance(use, (Product, Lookup)):
        return 0
    b = use.returned(grad, len(grad), axis).flatten(3)
    return int((b.abs().amax(dim=(0, 1, 3)) != 0).count_nonzero()) or b.shape[2]


def _called(recorder: Recorder, name: str) -> bool:
    return any(key[0] == name for key in recorder.calls) or name in recorder.unread


def _axis(grad: Tensor, allowed: Sequence[int]) -> int | None:
    """The axis of the two samples, or None where none fits, or where gradients of 0 leave two to choose.

    ``grad`` has the gradients of the first sample's outputs and those of the second's. Of one sample alone,
    all that is there is its own.
    """
    shape, fitting = grad.shape[1:], []
    if not grad.numel():  # no sample came here, as to an expert that was not chosen
        return None
    if len(grad) == 1:
        return 0
    for axis in allowed:
        # Samples come first, perhaps with something folded in after them, or second, as in (tokens, n, d).
        if shape[0] % 2 == 0 if axis == 0 else len(shape) > 2 and shape[1] == 2:
            halves = grad.movedim(axis + 1, 1).reshape(2, 2, -1)
            if not halves[0, 1].any() and not halves[1, 0].any():
                fitting.append(axis)
    return fitting[0] if len(fitting) == 1 else None


def _plan(
    watched: Watched, calls: dict[Key, list[Call]], positions: dict[Key, list[int]], unread: set[str]
) -> None:
    """Which parameters of each layer have a fast path, and which biases go with which weight."""
    thirds = {name for name, third in calls if third}
    unread = unread | {name for name, third in calls if not third and name in thirds}
    explicit: dict[str, list[str]] = {}
    for layer, names in watched.layers.items():
        explicit[layer] = [name for name in names if name in unread]
        keys = [k for name in names if name not in unread for k in calls if k[0] == name and calls[k]]
        biases = [k for k in keys if all(_shifts(c) for c in calls[k])]
        parts, merged = [], set()
        for key in keys:
            uses, edges = [c.use for c in calls[key]], [c.edge for c in calls[key]]
            # Decided once, for all outputs, so that every batch has the same form.
            way = choose(uses, positions[key], watched.n, watched.outputs, watched.trace)
            bias = None
            if all(isinstance(use, Product) for use in uses):
                bias = next((b for b in biases if [c.edge for c in calls[b]] == edges), None)
                merged |= {bias}
            parts.append(Part(key, way, bias, uses[0], len(uses) == 1))
        watched.parts[layer] = [p for p in parts if p.key not in merged]
    watched.explicit = explicit
    slow = [name for names in explicit.values() for name in names]
    if slow:
        shown = ", ".join(slow[:5]) + (f" and {len(slow) - 5} more" if len(slow) > 5 else "")
        warnings.warn(
            f"no fast path for {shown}: used in an operation this package does not take apart. Their "
            "Jacobian rows are formed explicitly, which is exact, but slower and larger.",
            stacklevel=5,
        )


def _shifts(call: Call) -> bool:
    return isinstance(call.use, Elementwise) and call.use.factor is None


def _split(
    watched: Watched,
    calls: dict[Key, list[Call]],
    positions: dict[Key, list[int]],
    batch_size: int | None,
) -> None:
    """Batches of samples, and of outputs where a few samples would be too much, within the budget."""

    def per_sample(k: int) -> int:
        numbers = sum(
            k * watched.parameters[name].numel() for names in watched.explicit.values() for name in names
        )
        for part in watched.every_part():
            uses = [c.use for c in calls[part.key]]
            numbers += size(uses, positions[part.key], watched.parameters[part.key[0]], k, part.way)
        return max(numbers, 1) * watched.like.element_size()

    n, o = watched.n, watched.outputs
    few = min(n, batch_size or 16)
    k = max(1, min(o, o * BUDGET // (per_sample(o) * few)))
    samples = min(n, batch_size or max(1, BUDGET // per_sample(k)))
    watched.keep = watched.graph or per_sample(o) * n <= BUDGET
    if watched.graph:  # what is differentiated is formed at once
        samples, k = n, o
    watched.batches = [
        (slice(i, min(i + samples, n)), slice(j, min(j + k, o)))
        for j in range(0, o, k)
        for i in range(0, n, samples)
    ]
