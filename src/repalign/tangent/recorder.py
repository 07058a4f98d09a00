"""Watch a network run: which calls take which parameter.

The recorder sees every torch function and knows the parameters by identity. A call it can read
(``uses.READERS``) is noted, with what it saw and the place in the graph where it returned. A parameter
that goes into any other call is ``unread``, and gets explicit Jacobian rows later. So a weight that is
used twice, shared by two modules or touched by hand is never taken for less than it is. What is cut out
of a parameter before it meets a sample, as positions are, is followed to where it does. What no torch
function tells, such as a gradient taken inside of the model, ``paths`` finds in the graph.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

from repalign.tangent.uses import READERS, VIEWS, Lookup, Product, Through, Use

Key = tuple[str, int]  # a parameter's name, and which third of it (0 is all of it)


class Call(NamedTuple):
    """One use of a parameter, and the number of the gradient edge behind it."""

    use: Use
    edge: int


class Cut(NamedTuple):
    """A tensor that was made from one parameter alone: moved, sliced, or looked up.

    ``lookup`` is the edge of the lookup it comes from. Whether its indices are those of the samples or the
    same for all is not known before the model has been differentiated.
    """

    name: str
    of: Callable[[Tensor], Tensor]
    isometric: bool = True
    lookup: int | None = None


class Recorder(TorchFunctionMode):
    """Notes every call that takes a parameter; with ``graph``, so that it can be differentiated."""

    def __init__(self, parameters: dict[str, Tensor], graph: bool = False) -> None:
        super().__init__()
        self.parameters, self.graph = parameters, graph
        self.names = {id(p): name for name, p in parameters.items()}
        self.edges: list[GradientEdge] = []
        self.before: list[set[Node]] = []  # what each of them follows in the graph, besides parameters
        self.calls: dict[Key, list[Call]] = defaultdict(list)
        self.unread: set[str] = set()
        self.cuts: dict[int, Cut] = {}
        self.alive: list[Tensor] = []  # the cuts themselves: a number is no name once its tensor is gone
        self.after: dict[int, list[Call]] = defaultdict(list)  # uses of what a lookup found, by its edge
        self.opaque: set[int] = set()  # lookups with a use that cannot be read
        self.differentiates = False  # whether the model itself takes gradients
        self.decides = False  # whether the model makes indices, masks or choices out of numbers

    def owners(self) -> list[set[str]]:
        """The parameters behind every edge."""
        found: list[set[str]] = [set() for _ in self.edges]
        for (name, _), calls in self.calls.items():
            for call in calls:
                found[call.edge].add(name)
        for lookup, calls in self.after.items():
            for call in calls:
                found[call.edge] |= found[lookup]
        return found

    def reading(self, key: Key, shared: Collection[int]) -> list[Call]:
        """The calls of a parameter, with those after it in place of a lookup that all samples share."""
        found: list[Call] = []
        for call in self.calls[key]:
            found += self.after[call.edge] if call.edge in shared else [call]
        return found

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = _differentiated(func, args, kwargs or {})
        _refuse_randomness(func, args, kwargs)
        if func is nnf.multi_head_attention_forward:
            return self._attention(args, kwargs)
        self.differentiates = self.differentiates or func is torch.autograd.grad
        used = {id(t): t for t in _leaves((args, kwargs)) if id(t) in self.names or id(t) in self.cuts}
        versions = [t._version for t in used.values()]
        before = _nodes(args, kwargs, used) if used else set()
        out = func(*args, **kwargs)
        self.decides = self.decides or _decides(func, out, (args, kwargs))
        for t, version in zip(used.values(), versions, strict=True):
            if t._version != version:
                self._lost(id(t))  # written to, in place
        same = id(out) in used  # as weight.to(x.dtype) where there is nothing to do
        if used and not same and any(isinstance(t, Tensor) and t.requires_grad for t in _leaves(out)):
            self._read(func, out, args, kwargs, used, before)
        return out

    def _read(
        self,
        func: Any,
        out: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        used: dict[int, Tensor],
        before: set[Node],
    ) -> None:
        tensors = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if func in VIEWS and len(tensors) == 1 and isinstance(out, Tensor):
            return self._cut(out, tensors[0], lambda t: func(t, *args[1:], **kwargs))
        given: dict[int, Tensor] = {}

        def shown(leaf: Any) -> Any:
            """What a reader may keep: nothing that holds on to the graph, where that is not asked for."""
            if self.graph or not isinstance(leaf, Tensor):
                return leaf
            bare = leaf.detach()
            given[id(bare)] = leaf
            return bare

        bare_args = [shown(a) for a in args]
        bare_kwargs = {k: shown(a) for k, a in kwargs.items()}
        found = READERS[func](out, *bare_args, **bare_kwargs) if _readable(func, kwargs) else ()
        pairs = [(given.get(id(p), p), use) for p, use in found if p is not None]
        read = [(p, use) for p, use in pairs if id(p) in used]
        if read:
            self._note(out, read, before)
            for p, use in read:
                if isinstance(use, Lookup):
                    pick = partial(_lookup, use.indices)
                    once = len(torch.unique(use.indices)) == use.indices.numel()
                    self._cut(out, p, pick, isometric=once, lookup=len(self.edges) - 1)
        for i in used.keys() - {id(p) for p, _ in read}:
            self._lost(i)
        return None

    def _cut(
        self,
        out: Tensor,
        tensor: Tensor,
        cut: Callable[[Tensor], Tensor],
        isometric: bool = True,
        lookup: int | None = None,
    ) -> None:
        """Remember a tensor made from a parameter, or from what was made from one before."""
        before = self.cuts.get(id(tensor))
        if before is None:
            self.cuts[id(out)] = Cut(self.names[id(tensor)], cut, isometric, lookup)
        elif lookup is None:
            self.cuts[id(out)] = before._replace(of=lambda t: cut(before.of(t)))
        else:  # a lookup in what is itself only a part
            return
        self.alive.append(out)

    def _lost(self, i: int) -> None:
        """A parameter, or what was cut from it, goes where it cannot be followed."""
        if i in self.names:
            self.unread.add(self.names[i])
        elif (lookup := self.cuts[i].lookup) is not None:
            self.opaque.add(lookup)
        else:
            self.unread.add(self.cuts[i].name)

    def _note(self, out: Tensor, uses: Sequence[tuple[Tensor | Key, Any]], before: set[Node]) -> None:
        for where, use in uses:
            edge = len(self.edges)
            if isinstance(where, tuple):
                self.calls[where].append(Call(use, edge))
            elif id(where) in self.names:
                self.calls[self.names[id(where)], 0].append(Call(use, edge))
            else:
                cut = self.cuts[id(where)]
                call = Call(_through(use, cut, self.parameters[cut.name], where.numel()), edge)
                calls = self.calls[cut.name, 0] if cut.lookup is None else self.after[cut.lookup]
                calls.append(call)
        # The edge, not the tensor: an in-place ReLU would make the tensor another one.
        self.edges.append(get_gradient_edge(out))
        self.before.append(before)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, keys: Sequence[Key | None]) -> Tensor:
        out = nnf.linear(x, weight, bias)
        found = READERS[nnf.linear](out, x if self.graph else x.detach(), weight, bias)
        uses = [(key, use) for key, (_, use) in zip(keys, found, strict=True) if key]
        if uses:  # none where the weights are themselves computed, as under a parametrization
            self._note(out, uses, _nodes((x,), {}, {}))
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
        out_weight, out_bias = a["out_proj_weight"], a["out_proj_bias"]
        if q.ndim == 3 and not a["need_weights"] and not any(_given(a[name]) for name in _EXTRAS):
            attended = _attend(q, k, v, a["num_heads"])
            return self._linear(attended, out_weight, out_bias, [key(out_weight), key(out_bias)]), None
        same = torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)
        a |= {"query": q, "key": k, "value": v, "in_proj_weight": None, "in_proj_bias": None}
        a |= {f"{name}_proj_weight": same for name in "qkv"} | {"use_separate_proj_weight": True}
        a |= {"out_proj_weight": same, "out_proj_bias": None}
        self.unread |= {self.names[id(a[b])] for b in ("bias_k", "bias_v") if id(a[b]) in self.names}
        attended, weights_out = nnf.multi_head_attention_forward(**a)
        out = self._linear(attended, out_weight, out_bias, [key(out_weight), key(out_bias)])
        return out, weights_out


class Derivatives(TorchFunctionMode):
    """Within, every backward pass is a derivative; within a :class:`Recorder` too."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = _differentiated(func, args, kwargs or {})
        return func(*args, **kwargs)


def _differentiated(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Embeddings without what only an optimizer wants: gradients over counts in the batch, or sparse ones."""
    if func not in (nnf.embedding, nnf.embedding_bag):
        return args, kwargs
    bound = inspect.signature(func).bind(*args, **kwargs)
    bound.arguments |= {"scale_grad_by_freq": False, "sparse": False}
    return bound.args, bound.kwargs


# What attention may have besides queries, keys and values.
_MASKS = ("attn_mask", "key_padding_mask", "is_causal")
_EXTRAS = (*_MASKS, "bias_k", "bias_v", "static_k", "static_v", "add_zero_attn")


def _given(extra: Any) -> bool:
    return isinstance(extra, Tensor) or bool(extra)


def _attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Attention between projections of shape (tokens, n, d), for the usual case without any extras."""
    split = (t.unflatten(2, (heads, -1)).permute(1, 2, 0, 3) for t in (q, k, v))
    return nnf.scaled_dot_product_attention(*split).permute(2, 0, 1, 3).flatten(2)


def _readable(func: Any, kwargs: dict[str, Any]) -> bool:
    # add(…, alpha=2) and mul(…, out=…) mean something else.
    return func in READERS and not kwargs.keys() & {"alpha", "beta", "out"}


def _nodes(args: tuple[Any, ...], kwargs: dict[str, Any], used: Collection[int]) -> set[Node]:
    """Where in the graph the arguments come from, without parameters and what was cut from them."""
    tensors = [t for t in _leaves((args, kwargs)) if isinstance(t, Tensor) and id(t) not in used]
    return {get_gradient_edge(t).node for t in tensors if t.requires_grad}


def _decides(func: Any, out: Any, given: Any) -> bool:
    """Whether a call may send samples different ways: by a mask, by numbers of places, or by Python's if."""
    if func in _SCALARS:
        return True
    kinds = {t.dtype for t in _leaves(out) if isinstance(t, Tensor)}
    if kinds <= _NUMBERS:
        return False
    met = [t for t in _leaves(given) if isinstance(t, Tensor)]
    return any(torch.bool in kinds or t.is_floating_point() for t in met)


_NUMBERS = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}
_SCALARS = {Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__}


def _lookup(indices: Tensor, table: Tensor) -> Tensor:
    return table[indices]


def _through(use: Any, cut: Cut, parameter: Tensor, numel: int) -> Use:
    if isinstance(use, Product) and use.shape[0] == 1 and parameter.ndim == 2:
        # A transposed weight is a weight.
        made, turned = cut.of(parameter.detach()), parameter.detach().mT
        if made.is_set_to(turned):
            return replace(use, transposed=not use.transposed)
    return Through(use, cut.of, parameter, cut.isometric, numel)


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


def _refuse_randomness(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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
    """An error when the model is in train mode with layers that then depend on randomness or on the batch."""
    random = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm, nn.RReLU)
    guilty = [
        f"{name or 'the model'} ({type(m).__name__})"
        for name, m in model.named_modules()
        if m.training and isinstance(m, random) and getattr(m, "p", 1) > 0
    ]
    if guilty:
        shown = ", ".join(guilty[:3]) + (f" and {len(guilty) - 3} more" if len(guilty) > 3 else "")
        raise ValueError(f"the model is in train mode, with {shown}. {_NOT_A_FUNCTION}")
