"""Look at a network once, with two samples: what can be factored, where the samples are, what fits."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from repalign.tangent.capture import Part, Watched, as_input, backward
from repalign.tangent.factors import factored, size
from repalign.tangent.recorder import Call, Recorder
from repalign.tangent.uses import Elementwise, Product

# Bytes: the factors of one batch, or of all batches when they are kept and not made again.
BUDGET = 2**28

BIAS = ("with", "apart", "without")
OUTPUTS = ("all", "trace")


def grouped(
    model: nn.Module, bias: str = "with", layers: Sequence[str] | None = None
) -> dict[str, list[str]]:
    """Names of parameters by layer: the module that owns them, the first one where several do."""
    if bias not in BIAS:
        raise ValueError(f"bias should be one of {', '.join(BIAS)}, but is {bias!r}.")
    groups: dict[str, list[str]] = {}
    for name, _ in model.named_parameters():
        owner, _, own = name.rpartition(".")
        layer = owner or "model"
        if "bias" in own and bias == "without":
            continue
        if "bias" in own and bias == "apart":
            layer = f"{layer}.{own}"
        groups.setdefault(layer, []).append(name)
    if layers is None:
        return groups
    unknown = [layer for layer in layers if layer not in groups]
    if unknown:
        raise ValueError(f"there is no layer {unknown[0]!r}; the layers are {', '.join(groups)}.")
    return {layer: groups[layer] for layer in layers}


def watch(
    model: nn.Module,
    x: Any,
    outputs: str = "all",
    *,
    layers: Sequence[str] | None = None,
    bias: str = "with",
    batch_size: int | None = None,
    together: bool = False,
) -> Watched:
    """Look at the model once, with two samples, and plan how to capture all of them."""
    if outputs not in OUTPUTS:
        raise ValueError(f"outputs should be all or trace, but is {outputs!r}.")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size should be a positive number of samples, but is {batch_size}.")
    x, parameters = as_input(model, x)
    groups = grouped(model, bias, layers)
    if together:
        groups = {"model": [name for names in groups.values() for name in names]}
    watched = Watched(model, x, parameters, groups, outputs == "trace")
    two = x[[0, -1]].requires_grad_(x.is_floating_point())
    f, recorder = watched.run(two)
    watched.outputs = f.shape[1]
    unread = set(recorder.unread) | _look(watched, f, two, recorder)
    _plan(watched, recorder, unread)
    _split(watched, recorder, batch_size)
    return watched


def _look(watched: Watched, f: Tensor, two: Tensor, recorder: Recorder) -> set[str]:
    """Find the axis of the samples in every recorded call; return the parameters where there is none.

    The gradient of the first sample's outputs must vanish wherever a call worked on the second sample.
    """
    silent = [p for name, p in watched.parameters.items() if not _called(recorder, name)]
    seen: list[Any] = [*recorder.edges, *silent, *([two] if two.requires_grad else [])]
    each = torch.eye(2, dtype=f.dtype, device=f.device)[:, :, None].expand(-1, -1, f.shape[1])
    grads = backward(f, seen, each)
    if two.requires_grad and grads[-1] is not None and _axis(grads[-1], (0,)) is None:
        raise ValueError(
            "the output of one sample depends on the other samples of its batch, so the model is not a "
            "function of one sample. Does it normalize over the batch?"
        )
    lost = set()
    for edge, grad in enumerate(grads[: len(recorder.edges)]):
        uses = [(key, c.use) for key, calls in recorder.calls.items() for c in calls if c.edge == edge]
        allowed = [a for a in (0, 1) if all(a in use.axes for _, use in uses)]
        axis = None if grad is None else _axis(grad, allowed)
        watched.axes.append(axis)
        if grad is not None and axis is None:
            lost |= {key[0] for key, _ in uses}
        for key, use in uses:
            if isinstance(use, Elementwise) and axis is not None and use.aligned[axis] != 1:
                lost.add(key[0])
    # A parameter no call was seen with may still matter, as in a compiled module.
    hidden = zip(silent, grads[len(recorder.edges) :], strict=False)
    return lost | {recorder.names[id(p)] for p, grad in hidden if grad is not None}


def _called(recorder: Recorder, name: str) -> bool:
    return any(key[0] == name for key in recorder.calls) or name in recorder.unread


def _axis(grad: Tensor, allowed: Sequence[int]) -> int | None:
    """The axis of the two samples, or None where none fits, or where gradients of 0 leave two to choose."""
    shape, fitting = grad.shape[1:], []
    for axis in allowed:
        # Samples come first, perhaps with something folded in after them, or second, as in (tokens, n, d).
        if shape[0] % 2 == 0 if axis == 0 else len(shape) > 2 and shape[1] == 2:
            halves = grad.movedim(axis + 1, 1).reshape(2, 2, -1)
            if not halves[0, 1].any() and not halves[1, 0].any():
                fitting.append(axis)
    return fitting[0] if len(fitting) == 1 else None


def _plan(watched: Watched, recorder: Recorder, unread: set[str]) -> None:
    """Which parameters of each layer have a fast path, and which biases go with which weight."""
    calls = {key: watched.reached(c) for key, c in recorder.calls.items()}
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
            apart = factored(uses, _entries(recorder, edges), watched.outputs, watched.trace)
            bias = None
            if all(isinstance(use, Product) for use in uses):
                bias = next((b for b in biases if [c.edge for c in calls[b]] == edges), None)
                merged |= {bias}
            parts.append(Part(key, apart, bias))
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


def _entries(recorder: Recorder, edges: Sequence[int]) -> list[int]:
    """Numbers each call returned for one of the two samples."""
    return [recorder.shapes[edge].numel() // 2 for edge in edges]


def _shifts(call: Call) -> bool:
    return isinstance(call.use, Elementwise) and call.use.factor is None


def _split(watched: Watched, recorder: Recorder, batch_size: int | None) -> None:
    """Batches of samples, and of outputs where a few samples would be too much, within the budget."""

    def per_sample(k: int) -> int:
        numbers = sum(
            k * watched.parameters[name].numel() for names in watched.explicit.values() for name in names
        )
        for part in watched.every_part():
            uses = watched.reached(recorder.calls[part.key])
            entries = _entries(recorder, [c.edge for c in uses])
            parameter = watched.parameters[part.key[0]]
            numbers += size([c.use for c in uses], entries, parameter, k, part.apart)
        return max(numbers, 1) * watched.like.element_size()

    n, o = watched.n, watched.outputs
    few = min(n, batch_size or 16)
    k = max(1, min(o, o * BUDGET // (per_sample(o) * few)))
    samples = min(n, batch_size or max(1, BUDGET // per_sample(k)))
    watched.keep = per_sample(o) * n <= BUDGET
    watched.batches = [
        (slice(i, min(i + samples, n)), slice(j, min(j + k, o)))
        for j in range(0, o, k)
        for i in range(0, n, samples)
    ]
