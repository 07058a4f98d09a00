"""What comes in, a model and its input, and what the model gives back, as one row of outputs per sample."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from repalign._arrays import at_least_single, check
from repalign.tangent.recorder import refuse_training

# What a model is called with: model(x), model(*x) or model(**x).
Inputs = Shaped[Tensor, "n *d"] | tuple[Any, ...] | Mapping[str, Any]
# Which of a model's outputs: a key or attribute, an index, or a function of what the model returned.
Output = str | int | Callable[[Any], Tensor] | None

_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of torch.compile, DataParallel and DistributedDataParallel, under its own names.

    Neither hooks nor a recorder see what is called inside of them.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model should be a torch.nn.Module, but is a {type(model).__name__}.")
    # Loading the compiler takes a second; where it is not loaded, nothing is compiled.
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    compiled = () if compiler is None else compiler.OptimizedModule
    while True:
        inner = model.module if isinstance(model, _PARALLEL) else None
        inner = model._orig_mod if isinstance(model, compiled) else inner
        if not isinstance(inner, nn.Module):
            return model
        model = inner


class State(NamedTuple):
    """What a model computes with: its parameters, the buffers that replace its own, several inputs."""

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    inputs: dict[Any, Any] | None = None

    @property
    def all(self) -> dict[str, Tensor]:
        return self.parameters | self.buffers

    def arguments(self, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the model is called with: x itself, or where there are several inputs, their rows x."""
        if self.inputs is None:
            return (x,), {}
        some = {name: part[x] if _has_rows(part) else part for name, part in self.inputs.items()}
        args = tuple(part for name, part in some.items() if isinstance(name, int))
        return args, {name: part for name, part in some.items() if isinstance(name, str)}


def as_input(model: nn.Module, x: Any, graph: bool = False) -> tuple[Tensor, State]:
    """The input on the model's device and in its precision, and the parameters, detached.

    Of several inputs, a tuple or a dict, the numbers of the samples: ``State.arguments`` has their rows.
    With ``graph`` the parameters that are trained are the model's own, so that gradients reach them. A model
    in half precision is computed in float32, with the same numbers: sums of squares overflow float16.
    """
    refuse_training(model)
    for name, p in model.named_parameters():
        if p.is_complex():
            raise TypeError(
                f"the parameters of the model should be real, but {name} is {p.dtype}. Hold it as "
                "torch.view_as_real(…), and make it complex in forward by torch.view_as_complex."
            )
    parameters = {
        name: single(p) if graph and p.requires_grad else single(usable(p.detach())).requires_grad_()
        for name, p in model.named_parameters()
    }
    if not parameters:
        raise ValueError("the model has no parameters, so it has no tangent kernel.")
    # Others stay the model's own.
    buffers = {name: new for name, b in model.named_buffers() if (new := single(usable(b))) is not b}
    state, like = State(parameters, buffers), next(iter(parameters.values()))
    if not isinstance(x, (Tensor, np.ndarray, tuple, list, Mapping)):
        raise TypeError(
            "x should be a tensor with one sample per row, or a tuple or dict of them for a model of several "
            f"inputs, but is a {type(x).__name__}. Of a loader, join the batches first: "
            "x, y = (torch.cat(parts) for parts in zip(*loader)). Of a batch of graphs, pass one graph at a "
            "time, as a single sample: x[None], to a module whose forward(x) calls the model with x[0]."
        )
    if isinstance(x, (tuple, Mapping)):
        inputs = _several(x, like)
        n = next(len(part) for part in inputs.values() if _has_rows(part))
        return torch.arange(n, device=like.device), state._replace(inputs=inputs)
    if isinstance(x, Tensor) and not x.is_floating_point() and not x.is_complex() and x.ndim and len(x):
        return usable(x).to(like.device), state
    numbers = usable(check(x, "x", "n *d"))
    return numbers.to(like.device, like.dtype).detach(), state


def _several(x: Any, like: Tensor) -> dict[Any, Any]:
    """Inputs by place or name, where the model is; floating ones in its precision."""
    given = dict(x) if isinstance(x, Mapping) else dict(enumerate(x))
    inputs: dict[Any, Any] = {}
    for name, part in given.items():
        if isinstance(part, Tensor):
            part = usable(part.detach()).to(
                like.device, like.dtype if part.is_floating_point() else part.dtype
            )
            # Attention masks may hold −∞.
            if part.is_floating_point() and bool(part.isnan().any()):
                raise ValueError(f"x[{name!r}] should be numbers, but has NaN.")
        inputs[name] = part
    rows = {name: len(part) for name, part in inputs.items() if _has_rows(part)}
    if len(set(rows.values())) != 1 or 0 in rows.values():
        came = ", ".join(f"{name!r} {n}" for name, n in rows.items()) or "no tensor"
        raise ValueError(
            f"every tensor of x should have one row per sample, but it holds {came}. What is the same for "
            "all samples belongs into the model: wrap it in a module."
        )
    return inputs


def _has_rows(part: Any) -> bool:
    return isinstance(part, Tensor) and part.ndim > 0


def usable(tensor: Tensor) -> Tensor:
    """The tensor, or a copy that gradients may pass by, where it was made under torch.inference_mode."""
    return tensor.clone() if tensor.is_inference() else tensor


def single(tensor: Tensor) -> Tensor:
    """At least float32 where it is floating; all else as it is."""
    return at_least_single(tensor) if tensor.is_floating_point() else tensor


def as_outputs(out: Any, n: int, output: Output = None) -> Tensor:
    """What the model returned, or what ``output`` picks of it, as (n, o)."""
    picked = _pick(out, output)
    if isinstance(picked, Tensor) and picked.shape == (n,):
        return picked[:, None]
    if isinstance(picked, Tensor) and picked.ndim == 2 and len(picked) == n:
        return picked
    came = f"shape {tuple(picked.shape)}" if isinstance(picked, Tensor) else f"a {type(picked).__name__}"
    what = "the model should return" if output is None else f"output={_shown(output)} should pick"
    was = "but returned" if output is None else "but picked"
    raise ValueError(
        f"{what} one row of outputs per sample, ({n}, o), {was} {came}. Pass output=…, a function of what "
        "the model returns that picks what should be differentiated, as in output=lambda out: out[:, -1]."
    )


def _pick(out: Any, output: Output) -> Any:
    parts = _parts(out)
    if callable(output):
        return output(out)
    if output is None:
        real = {k: v for k, v in parts.items() if isinstance(v, Tensor) and v.is_floating_point()}
        if not parts or len(real) == 1:
            return next(iter(real.values()), out)
        raise ValueError(
            f"the model returned a {type(out).__name__} of {_list(parts)}, and which of them should be "
            f"differentiated is unclear. Say so, as in output={next(iter(real or parts))!r}."
        )
    names = list(parts)
    if isinstance(output, int) and -len(names) <= output < len(names) and output not in parts:
        output = names[output]  # also of what has names
    if output not in parts:
        has = f"returned a {type(out).__name__} of {_list(parts)}" if parts else "returned a single tensor"
        raise ValueError(f"there is no output {output!r}: the model {has}.")
    return parts[output]


def _parts(out: Any) -> dict[Any, Any]:
    """What a container of outputs holds, by name or index; nothing for a tensor."""
    if isinstance(out, Mapping):
        return dict(out)
    if isinstance(out, tuple) and hasattr(out, "_fields"):
        return dict(zip(out._fields, out, strict=True))
    if isinstance(out, (tuple, list)):
        return dict(enumerate(out))
    if is_dataclass(out):
        return {field.name: getattr(out, field.name) for field in fields(out)}
    if isinstance(out, Tensor) or not hasattr(out, "__dict__"):
        return {}
    return dict(vars(out))


def _list(parts: dict[Any, Any]) -> str:
    def one(key: Any, value: Any) -> str:
        kind = str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
        return f"{key!r} {kind}"

    return ", ".join(one(*item) for item in parts.items()) or "nothing"


def _shown(output: Output) -> str:
    return getattr(output, "__name__", "a function") if callable(output) else repr(output)
