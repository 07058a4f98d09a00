"""Run a network batch by batch, and keep the gradients of every layer in factored form.

One forward pass under the recorder, then one backward pass for all outputs at once, to the places
where the recorded calls returned: that is all the differentiation a batch needs.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from repalign.tangent.factors import Factor, Rows, factor
from repalign.tangent.model import Output, State, as_outputs, single
from repalign.tangent.recorder import Call, Derivatives, Key, Recorder
from repalign.tangent.uses import Use


class Part(NamedTuple):
    """A parameter with a fast path, the form of its gradients, and the bias the same calls add."""

    key: Key
    way: str
    bias: Key | None
    use: Use  # the first
    only: bool  # whether it is the only one

    @property
    def ones(self) -> bool:
        """Whether the bias is part of the same factor."""
        return self.bias is not None and self.way in ("positions", "columns")


class Batch(NamedTuple):
    """The factors of some samples and outputs, by layer."""

    samples: slice
    outputs: slice
    layers: dict[str, list[Factor]]


@dataclass
class Watched:
    """A model and its input, looked at once with two samples, and ready to be captured in batches."""

    model: nn.Module
    x: Tensor
    state: State
    layers: dict[str, list[str]]
    trace: bool
    output: Output = None
    graph: bool = False
    outputs: int = 0
    axes: list[int | None] = field(default_factory=list)  # where the samples are, by recorded call
    shared: set[int] = field(default_factory=set)  # lookups whose indices are the same for all samples
    parts: dict[str, list[Part]] = field(default_factory=dict)
    explicit: dict[str, list[str]] = field(default_factory=dict)
    alone: bool = False  # whether explicit rows are formed by plain autograd, one sample at a time
    batches: list[tuple[slice, slice]] = field(default_factory=list)
    keep: bool = True
    kept: dict[int, Batch] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.x)

    @property
    def parameters(self) -> dict[str, Tensor]:
        return self.state.parameters

    @property
    def like(self) -> Tensor:
        """A tensor of the model's device and precision, which is float32 for a model in half precision."""
        return next(iter(self.parameters.values())).detach()

    @property
    def chunks(self) -> set[tuple[int, int]]:
        """The batches of outputs, as first and last."""
        return {(outputs.start, outputs.stop) for _, outputs in self.batches}

    def __iter__(self) -> Iterator[Batch]:
        return (self.batch(i) for i in range(len(self.batches)))

    def batch(self, i: int) -> Batch:
        """The i-th batch: the one made before where all fit in the budget, else made again."""
        if i in self.kept:
            return self.kept[i]
        with torch.inference_mode(False):
            made = self._capture(*self.batches[i])
        if self.keep:
            self.kept[i] = made
        return made

    def pairs(self) -> Iterator[tuple[Batch, Batch]]:
        """Every unordered pair of batches; for the trace, only those of the same outputs.

        The last of one round is the first of the next, so that it need not be made again.
        """
        left = list(range(len(self.batches)))
        last: tuple[int, Batch] | None = None
        while left:
            i = last[0] if last else left[0]
            first = last[1] if last else self.batch(i)
            last = None
            left.remove(i)
            yield first, first
            for j in left:
                if not self.trace or self.batches[j][1] == self.batches[i][1]:
                    last = j, self.batch(j)
                    yield first, last[1]

    def run(self, x: Tensor) -> tuple[Tensor, Recorder]:
        recorder = Recorder(self.parameters, self.graph)
        with torch.inference_mode(False), torch.enable_grad():
            arguments = self.state.arguments(x)
            # Attention in its plain form is the one whose backward pass can be batched.
            with sdpa_kernel(SDPBackend.MATH), recorder:
                out = functional_call(self.model, self.state.all, *arguments)
        return as_outputs(out, len(x), self.output), recorder

    def _capture(self, samples: slice, outputs: slice) -> Batch:
        x = self.x[samples]
        layers: dict[str, list[Factor]] = {layer: [] for layer in self.layers}
        if any(self.parts.values()):
            layers = self._factors(x, outputs)
        names = [name for names in self.explicit.values() for name in names]
        if names:
            rows = self._jacobian(names, x, outputs)
            for layer, owned in self.explicit.items():
                layers[layer] += [Rows(rows[name]) for name in owned]
        return Batch(samples, outputs, layers)

    def _factors(self, x: Tensor, outputs: slice) -> dict[str, list[Factor]]:
        """The factors of all parameters with a fast path, by layer."""
        n = len(x)
        f, recorder = self.run(x)
        if len(recorder.edges) != len(self.axes):
            raise ValueError(
                f"the model made {len(recorder.edges)} calls with parameters for {n} samples, but "
                f"{len(self.axes)} for two. Its path should not depend on the samples."
            )
        keys = [key for p in self.every_part() for key in (p.key, p.bias) if key]
        calls = {key: self.reached(recorder.reading(key, self.shared)) for key in keys}
        needed = sorted({call.edge for uses in calls.values() for call in uses})
        unit = torch.eye(self.outputs, dtype=f.dtype, device=f.device)[outputs]
        cotangents = unit[:, None].expand(-1, n, -1)
        edges = [recorder.edges[e] for e in needed]
        grads = dict(zip(needed, backward(f, edges, cotangents, self.graph), strict=True))
        waiting = Counter(call.edge for uses in calls.values() for call in uses)

        def made(key: Key, way: str = "rows", ones: bool = False) -> Factor:
            uses = calls[key]
            axes = [self.axes[c.edge] or 0 for c in uses]
            # Where the model itself casts to half precision, what is added up should not be in it.
            at = [single(grads[c.edge]) for c in uses]
            with torch.set_grad_enabled(self.graph):
                return factor([c.use for c in uses], at, axes, n, way=way, ones=ones)

        def release(key: Key) -> None:
            for call in calls[key]:
                waiting[call.edge] -= 1
                if not waiting[call.edge]:
                    del grads[call.edge]

        layers: dict[str, list[Factor]] = {}
        for layer, parts in self.parts.items():
            layers[layer] = []
            for part in parts:
                layers[layer].append(made(part.key, part.way, part.ones))
                release(part.key)
                if part.bias and not part.ones:
                    layers[layer].append(made(part.bias))
                if part.bias:
                    release(part.bias)
        return layers

    def every_part(self) -> Iterator[Part]:
        return (part for parts in self.parts.values() for part in parts)

    def reached(self, calls: Sequence[Call]) -> list[Call]:
        """Without the calls whose result does not matter for the output."""
        return [c for c in calls if self.axes[c.edge] is not None]

    def _jacobian(self, names: Sequence[str], x: Tensor, outputs: slice) -> dict[str, Tensor]:
        """Jacobian rows of the named parameters, (n, k, size), one sample at a time under vmap."""
        if self.graph:
            return self._differentiable_jacobian(names, x, outputs)
        if self.alone:
            return self._jacobian_alone(names, x, outputs)
        rest = {k: p.detach() for k, p in self.state.all.items() if k not in names}

        def f(chosen: dict[str, Tensor], sample: Tensor) -> Tensor:
            out = functional_call(self.model, rest | chosen, *self.state.arguments(sample[None]))
            return as_outputs(out, 1, self.output)[0, outputs]

        chosen = {name: self.parameters[name].detach() for name in names}
        with sdpa_kernel(SDPBackend.MATH), Derivatives(), quiet():
            try:
                rows = vmap(jacrev(f), in_dims=(None, 0))(chosen, x)
            except RuntimeError:  # an operation without a batching rule, such as an LSTM
                return self._jacobian_alone(names, x, outputs)
        return {name: row.detach().flatten(2) for name, row in rows.items()}

    def _jacobian_alone(self, names: Sequence[str], x: Tensor, outputs: slice) -> dict[str, Tensor]:
        """The same for a model that vmap may not take: one that differentiates, or sends samples apart."""
        chosen = [self.parameters[name] for name in names]
        unit = torch.eye(self.outputs, dtype=self.like.dtype, device=x.device)[outputs]
        rows: list[list[Tensor]] = [[] for _ in names]
        for i in range(len(x)):
            f, _ = self.run(x[i : i + 1])
            grads = backward(f, chosen, unit[:, None].to(f.dtype))
            for row, p, grad in zip(rows, chosen, grads, strict=True):
                row.append(p.new_zeros(len(unit), p.numel()) if grad is None else grad.detach().flatten(1))
        return {name: torch.stack(row).detach() for name, row in zip(names, rows, strict=True)}

    def _differentiable_jacobian(self, names: Sequence[str], x: Tensor, outputs: slice) -> dict[str, Tensor]:
        """The same, one backward pass each: what jacrev returns is not always differentiated rightly."""
        chosen = [self.parameters[name] for name in names]
        f, _ = self.run(x)
        options: dict[str, Any] = {"create_graph": True, "allow_unused": True, "materialize_grads": True}
        each = [torch.autograd.grad(one, chosen, **options) for one in f[:, outputs].flatten()]
        stacked = (torch.stack(rows) for rows in zip(*each, strict=True))
        return {name: r.reshape(len(x), -1, r[0].numel()) for name, r in zip(names, stacked, strict=True)}


@contextmanager
def quiet() -> Iterator[None]:
    """Some operations are batched by a loop inside torch, which says so every time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*batching rule")
        yield


def backward(f: Tensor, edges: Sequence[Any], cotangents: Tensor, graph: bool = False) -> list[Any]:
    """Gradients at the edges for each of the cotangents, stacked first; None where there is none."""
    if not edges:
        return []
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": False, "create_graph": graph}
    try:
        with quiet():
            grads = torch.autograd.grad(
                f, edges, cotangents, is_grads_batched=True, retain_graph=True, **options
            )
    except RuntimeError:  # an operation that cannot be batched at all
        each = [torch.autograd.grad(f, edges, c, retain_graph=True, **options) for c in cotangents]
        return [None if g[0] is None else torch.stack(g) for g in zip(*each, strict=True)]
    return list(grads)
