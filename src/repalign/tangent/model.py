"""What comes in, a model and its input, and what the model gives back, as one row of outputs per sample."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from repalign._arrays import at_least_single, check
from repalign.tangent.recorder import refuse_training

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
    """What a model computes with: its parameters, and the buffers that replace its own."""

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]

    @property
    def all(self) -> dict[str, Tensor]:
        return self.parameters | self.buffers


def as_input(model: nn.Module, x: Any, graph: bool = False) -> tuple[Tensor, State]:
    """The input on the model's device and in its precision, and the parameters, detached.

    With ``graph`` the parameters that are trained are the model's own, so that gradients reach them. A model
    in half precision is computed in float32, with the same numbers: sums of squares overflow float16.
    """
    refuse_training(model)
    parameters = {
        name: single(p) if graph and p.requires_grad else single(p.detach()).requires_grad_()
        for name, p in model.named_parameters()
    }
    if not parameters:
        raise ValueError("the model has no parameters, so it has no tangent kernel.")
    # Others stay the model's own.
    buffers = {name: new for name, b in model.named_buffers() if (new := single(b)) is not b}
    state, like = State(parameters, buffers), next(iter(parameters.values()))
    integers = isinstance(x, Tensor) and not x.is_floating_point() and not x.is_complex()
    if integers and x.ndim and len(x):
        return x.to(like.device), state
    return check(x, "x", "n *d").to(like.device, like.dtype).detach(), state


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
