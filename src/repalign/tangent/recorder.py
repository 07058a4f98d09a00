"""Watch a network run: which calls take which parameter.

The recorder sees every torch function and knows the parameters by identity. A call it can read
(``uses.READERS``) is noted, with what it saw and the place in the graph where it returned. A parameter
that goes into any other call is ``unread``, and gets explicit Jacobian rows later. So a weight that is
used twice, shared by two modules or touched by hand is never taken for less than it is.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from repalign.tangent.uses import READERS, Use

Key = tuple[str, int]  # a parameter's name, and which third of it (0 is all of it)


class Call(NamedTuple):
    """One use of a parameter, and the number of the gradient edge behind it."""

    use: Use
    edge: int


class Recorder(TorchFunctionMode):
    """Notes every call that takes a parameter."""

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self.names = {id(p): name for name, p in parameters.items()}
        self.edges: list[GradientEdge] = []
        self.shapes: list[torch.Size] = []
        self.calls: dict[Key, list[Call]] = defaultdict(list)
        self.unread: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        _refuse_chance(func, args, kwargs)
        if func is nnf.multi_head_attention_forward:
            return self._attention(args, kwargs)
        out = func(*args, **kwargs)
        used = {id(leaf) for leaf in _leaves((args, kwargs)) if id(leaf) in self.names}
        if used and any(isinstance(t, Tensor) and t.requires_grad for t in _leaves(out)):
            found = READERS[func](out, *args, **kwargs) if _readable(func, kwargs) else ()
            read = [(p, use) for p, use in found if id(p) in used]
            if read:
                self._note(out, [((self.names[id(p)], 0), use) for p, use in read])
            self.unread |= {self.names[i] for i in used - {id(p) for p, _ in read}}
        return out

    def _note(self, out: Tensor, uses: Sequence[tuple[Key, Use]]) -> None:
        for key, use in uses:
            self.calls[key].append(Call(use, len(self.edges)))
        # The edge, not the tensor: an in-place ReLU would make the tensor another one.
        self.edges.append(get_gradient_edge(out))
        self.shapes.append(out.shape)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, keys: Sequence[Key | None]) -> Tensor:
        out = nnf.linear(x, weight, bias)
        found = READERS[nnf.linear](out, x, weight, bias)
        uses = [(key, use) for key, (_, use) in zip(keys, found, strict=True) if key]
        if uses:  # none where the weights are themselves computed, as under a parametrisation
            self._note(out, uses)
        return out

    def _attention(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Project here, where it is seen, and let torch attend between projections by the identity."""
        bound = inspect.signature(nnf.multi_head_attention_forward).bind(*args, **kwargs)
        bound.apply_defaults()
        a = bound.arguments
        q, k, v = a["query"], a["key"], a["value"]

        def key(parameter: Tensor | None, third: int = 0) -> Key | None:
            name = self.names.get(id(parameter))
            return (name, third) if name else None

        weight, bias = a["in_proj_weight"], a["in_proj_bias"]
        if q is k and k is v and not a["use_separate_proj_weight"]:
            q, k, v = self._linear(q, weight, bias, [key(weight), key(bias)]).chunk(3, dim=-1)
        else:
            biases = [None] * 3 if bias is None else bias.chunk(3)
            if a["use_separate_proj_weight"]:
                weights = [a[f"{name}_proj_weight"] for name in "qkv"]
                keys = [key(w) for w in weights]
            else:
                weights = weight.chunk(3)
                keys = [key(weight, third) for third in (1, 2, 3)]
            q, k, v = (
                self._linear(x, w, b, [kw, key(bias, third)])
                for x, w, b, kw, third in zip((q, k, v), weights, biases, keys, (1, 2, 3), strict=True)
            )
        same = torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)
        out_weight, out_bias = a["out_proj_weight"], a["out_proj_bias"]
        a |= {"query": q, "key": k, "value": v, "in_proj_weight": None, "in_proj_bias": None}
        a |= {f"{name}_proj_weight": same for name in "qkv"} | {"use_separate_proj_weight": True}
        a |= {"out_proj_weight": same, "out_proj_bias": None}
        self.unread |= {self.names[id(a[b])] for b in ("bias_k", "bias_v") if id(a[b]) in self.names}
        attended, weights_out = nnf.multi_head_attention_forward(**a)
        out = self._linear(attended, out_weight, out_bias, [key(out_weight), key(out_bias)])
        return out, weights_out


def _readable(func: Any, kwargs: dict[str, Any]) -> bool:
    # add(…, alpha=2) and mul(…, out=…) mean something else.
    return func in READERS and not kwargs.keys() & {"alpha", "out"}


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (tuple, list)):
        for branch in tree:
            yield from _leaves(branch)
    else:
        yield tree


_DROPOUT = {
    nnf.dropout,
    nnf.dropout1d,
    nnf.dropout2d,
    nnf.dropout3d,
    nnf.alpha_dropout,
    nnf.feature_alpha_dropout,
}
_NOT_A_FUNCTION = "Its tangent kernel would not be that of a function: call model.eval() first."


def _refuse_chance(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Dropout that is called as a function, or batch statistics without running ones."""
    if func in _DROPOUT:
        bound = inspect.signature(func).bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.arguments["training"] and bound.arguments["p"] > 0:
            raise ValueError(f"the model applies {func.__name__} in training mode. {_NOT_A_FUNCTION}")
    if func is nnf.batch_norm and (kwargs.get("training") or (len(args) > 5 and args[5])):
        raise ValueError(
            "the model normalizes by the statistics of the batch, so the output of one sample depends on "
            "the others. Call model.eval(), and keep track_running_stats=True."
        )
    if func is nnf.multi_head_attention_forward:
        bound = inspect.signature(func).bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.arguments["training"] and bound.arguments["dropout_p"] > 0:
            raise ValueError(f"the model's attention drops weights at random. {_NOT_A_FUNCTION}")


def refuse_training(model: nn.Module) -> None:
    """An error when the model is in train mode with layers that then depend on chance or on the batch."""
    random = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm, nn.RReLU)
    guilty = [
        f"{name or 'the model'} ({type(m).__name__})"
        for name, m in model.named_modules()
        if m.training and isinstance(m, random) and getattr(m, "p", 1) > 0
    ]
    if guilty:
        shown = ", ".join(guilty[:3]) + (f" and {len(guilty) - 3} more" if len(guilty) > 3 else "")
        raise ValueError(f"the model is in train mode, with {shown}. {_NOT_A_FUNCTION}")
