"""What a model is called with, batch by batch: a tensor, several, named ones, or a loader that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from repalign.machine import onednn


class Batch(NamedTuple):
    """The arguments of one call of a model, how many samples they hold, and the labels that came along."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: int
    labels: Any = None

    def take(self, rows: slice | list[int]) -> Batch:
        """The same arguments for some of the samples."""

        def some(leaf: Any) -> Any:
            return leaf[rows] if _has_rows(leaf) else leaf

        return _batch(_map(self.args, some), _map(self.kwargs, some))

    def call(self, model: nn.Module, start: int = 0) -> Any:
        """The model's output, computed where its parameters are; floats come in its precision.

        ``start`` is the place of the first row in all of x, for messages.
        """
        like = next((t for t in chain(model.parameters(), model.buffers()) if t.is_floating_point()), None)
        if like is not None and like.device.type == "cpu" and like.dtype in (torch.bfloat16, torch.float16):
            onednn.require()

        def ready(leaf: Any) -> Any:
            if isinstance(leaf, np.ndarray):
                leaf = torch.from_numpy(np.array(leaf))
            if not isinstance(leaf, Tensor) or like is None:
                return leaf
            return leaf.to(like.device, like.dtype if leaf.is_floating_point() else leaf.dtype)

        args, kwargs = _map(self.args, ready), _map(self.kwargs, ready)
        tensors = leaves((args, kwargs))
        # Attention masks may hold −∞: only an input that comes alone must be finite.
        alone = len(tensors) == 1
        for tensor in tensors:
            if tensor.is_floating_point() and bool((~tensor.isfinite() if alone else tensor.isnan()).any()):
                what = "NaN or infinity" if alone else "NaN"
                raise ValueError(f"x should be finite, but has {what} in rows from {start} on.")
        try:
            return model(*args, **kwargs)
        except Exception as error:
            whole = [str(t.dtype) for t in tensors if not t.is_floating_point() and not t.is_complex()]
            if whole:
                error.add_note(
                    f"x holds {', '.join(whole)}, and integers stay integers: pass x.float() if the model "
                    "wants numbers, not indices."
                )
            raise


class Batches:
    """All of ``x`` in batches, read once; ``n`` is the number of samples where it is known beforehand.

    ``inputs`` says how many things of a loader's batch go to the model. ``labels`` are those of the batches
    read so far, where ``labeled``.
    """

    def __init__(self, x: Any, batch_size: int, *, inputs: int | None = None, labeled: bool = False) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size should be at least 1, but is {batch_size}.")
        self.n: int | None = None
        self.shuffled = _draws(x)
        self.labels: list[Any] | None = [] if labeled else None
        whole = None
        if isinstance(x, (Tensor, np.ndarray)):
            # Whole numbers may come as (n,), one index each; other numbers in a row are one sample.
            whole_numbers = "int" in str(x.dtype)
            if x.ndim < (1 if whole_numbers else 2) or len(x) == 0:
                raise ValueError(
                    f"x should have shape (n, ...) with at least one row, but has {tuple(x.shape)}."
                )
            whole = _batch((x,), {})
        elif isinstance(x, Mapping):
            whole = _batch((), dict(x))
        elif isinstance(x, tuple):
            whole = _batch(x, {})
        elif not isinstance(x, Iterable):
            raise TypeError(
                "x should be a tensor, a tuple (for model(*x)), a dict (for model(**x)) or an iterable of "
                f"batches, but is {type(x).__name__}. A set of samples goes into a DataLoader first."
            )
        if whole is not None and (labeled or inputs is not None):
            raise ValueError(
                "return_labels and inputs are about the batches of a loader, but x is all samples at once: "
                "its labels are yours, and all of it goes to the model."
            )
        if whole is None:
            batches = (_of_loader(item, inputs) for item in x)
        else:
            self.n = whole.rows
            batches = (whole.take(slice(i, i + batch_size)) for i in range(0, whole.rows, batch_size))
        first = next(batches, None)
        if first is None:
            raise ValueError("x should hold at least one batch, but is empty.")
        self.first = first
        self._all = chain([first], batches)
        self.numpy = any(isinstance(leaf, np.ndarray) for leaf in _flat((first.args, first.kwargs)))

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._all:
            if self.labels is not None:
                if batch.labels is None:
                    raise ValueError(
                        "return_labels needs labels in every batch, (input, labels) or a dict with 'labels' "
                        "or 'label', but one has none."
                    )
                self.labels.append(batch.labels)
            yield batch

    def joined_labels(self) -> Any:
        """The labels of all batches, one after the other: a tensor or an array, or a list of other things."""
        parts = self.labels or []
        if all(isinstance(part, Tensor) for part in parts):
            return torch.cat([part.cpu() for part in parts])
        if all(isinstance(part, np.ndarray) for part in parts):
            return np.concatenate(parts)
        return [label for part in parts for label in part]


def _draws(x: Any) -> bool:
    """Does this loader visit its samples in an order drawn at random?"""
    kinds = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    samplers = (getattr(x, "sampler", None), getattr(getattr(x, "batch_sampler", None), "sampler", None))
    return any(isinstance(one, kinds) or getattr(one, "shuffle", False) is True for one in samplers)


def leaves(tree: Any) -> list[Tensor]:
    """Every tensor of nested tuples, lists, dicts and objects with fields, in their order."""
    return [leaf for leaf in _flat(tree) if isinstance(leaf, Tensor) and not leaf.is_nested]


def _flat(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        for value in tree.values():
            yield from _flat(value)
    elif isinstance(tree, (tuple, list)):
        for value in tree:
            yield from _flat(value)
    elif hasattr(tree, "__dataclass_fields__"):
        for name in tree.__dataclass_fields__:
            yield from _flat(getattr(tree, name))
    else:
        yield tree


def _map(tree: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(tree, Mapping):
        return {key: _map(value, change) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_map(value, change) for value in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(_map(value, change) for value in tree)
    return change(tree)


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, (Tensor, np.ndarray)) and leaf.ndim > 0


def _batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Batch:
    rows = {len(leaf) for leaf in _flat((args, kwargs)) if _has_rows(leaf)}
    if len(rows) != 1 or 0 in rows:
        got = " and ".join(str(n) for n in sorted(rows)) or "none"
        raise ValueError(
            f"every tensor of x should have a row per sample, the same number of rows, but they have {got}. "
            "What is the same for all samples belongs into the model: wrap it in a module."
        )
    return Batch(args, kwargs, rows.pop())


def _of_loader(item: Any, inputs: int | None) -> Batch:
    """The input of a batch from a loader: the batch itself, or the first of (input, labels)."""
    labels = None
    if isinstance(item, (tuple, list)):
        item, labels = _parted(item, inputs)
    if isinstance(item, Mapping):
        labels = item.get("labels", item.get("label")) if labels is None else labels
        found = _batch((), dict(item))
    elif isinstance(item, (tuple, list)):
        found = _batch(tuple(item), {})
    elif isinstance(item, (Tensor, np.ndarray)):
        found = _batch((item,), {})
    else:
        raise TypeError(
            f"a batch should be a tensor, a pair (input, labels) or a dict, but is {type(item).__name__}."
        )
    return found._replace(labels=labels)


def _parted(item: tuple[Any, ...] | list[Any], inputs: int | None) -> tuple[Any, Any]:
    """What of a loader's batch goes to the model, and the labels."""
    if inputs is not None:
        if not 1 <= inputs <= len(item):
            raise ValueError(
                f"inputs should be from 1 to {len(item)}, the things of a batch, but is {inputs}."
            )
        labels = item[inputs] if len(item) > inputs else None
        return (item[0] if inputs == 1 else tuple(item[:inputs])), labels
    if len(item) not in (1, 2):
        raise ValueError(
            f"a batch should be an input or a pair (input, labels), but is {len(item)} things. Several "
            "inputs come as ((a, b), labels), for model(a, b), or as a dict, for model(**batch); or say how "
            "many of the things go to the model: inputs=2."
        )
    if len(item) == 2 and _may_be_mask(*item):
        raise ValueError(
            "a batch is whole numbers beside as many zeros and ones: token ids with a mask for model(ids, "
            "mask), or with labels? Say inputs=2 for the mask, inputs=1 for labels."
        )
    return item[0], item[1] if len(item) == 2 else None


def _may_be_mask(ids: Any, other: Any) -> bool:
    """Could the second be the attention mask of the first?"""
    if not isinstance(ids, (Tensor, np.ndarray)) or not isinstance(other, (Tensor, np.ndarray)):
        return False
    ids, other = torch.as_tensor(ids), torch.as_tensor(other)
    whole = not ids.is_floating_point() and ids.dtype != torch.bool
    return whole and ids.ndim == 2 and ids.shape == other.shape and bool(((other == 0) | (other == 1)).all())
