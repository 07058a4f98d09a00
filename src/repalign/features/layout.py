"""Which axis of a layer's output holds its features? What the modules around it tell.

A convolution's output is (n, channels, height, width), a linear layer's (n, ..., features), and both kinds
meet in one network. Sums and concatenations between modules leave no trace, so a layer's own class is asked
first, then what takes its very output, then the number of features of the last module inside it, and last
whether all modules of the network agree.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

CHANNELS = ("first", "last")
_FIRST: tuple[type, ...] = (
    *(nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm),
    *(nn.GroupNorm, nn.LocalResponseNorm, nn.Upsample, nn.PixelShuffle, nn.PixelUnshuffle),
)
_LAST: tuple[type, ...] = (
    *(nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding, nn.RNNBase, nn.MultiheadAttention),
    *(nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
)
_SAME: tuple[type, ...] = (nn.Identity, nn.modules.dropout._DropoutNd)


def activation(module: nn.Module) -> bool:
    """Does torch keep this module among its activations (ReLU, GELU, ...)?"""
    kept = type(module).__module__ == nn.modules.activation.__name__
    return kept and not isinstance(module, nn.MultiheadAttention)


def layout(module: nn.Module) -> str | None:
    """Where modules of this class have the channels of their input and output."""
    pools = type(module).__module__ == nn.modules.pooling.__name__
    if pools or (isinstance(module, _FIRST) and _plain(module)):
        return "first"
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and len(module.normalized_shape) > 1:
        return None
    return "last" if isinstance(module, _LAST) and _plain(module) else None


def _plain(module: nn.Module) -> bool:
    """Not a subclass that computes something else: some transpose before and after."""
    own = next(kind for kind in type(module).__mro__ if kind.__module__.startswith("torch.nn."))
    return bool(type(module).forward is own.forward)  # type: ignore[attr-defined]


def width(module: nn.Module) -> int | None:
    """How many features a module of torch puts out, by its own attributes."""
    if isinstance(module, nn.RNNBase):
        return int((module.proj_size or module.hidden_size) * (2 if module.bidirectional else 1))
    if isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        return module.self_attn.embed_dim
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return module.normalized_shape[-1]
    names = ("out_channels", "out_features", "num_features", "num_channels", "embedding_dim", "embed_dim")
    if isinstance(module, (*_FIRST, *_LAST)):
        return next((getattr(module, name) for name in names if hasattr(module, name)), None)
    return None


class Evidence:
    """What is known about the channels of the tensors of one pass, by the tensors themselves."""

    def __init__(self) -> None:
        self.made: dict[int, str] = {}
        self.taken: dict[int, str] = {}
        self.kinds: dict[int, set[str]] = {}
        # Alive, so that no two tensors of a pass have the same id.
        self.alive: list[Tensor] = []

    def note(self, module: nn.Module, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """A module has run."""
        self.alive += inputs[:1] + outputs
        if not outputs:
            return
        kind, out = layout(module), id(outputs[0])
        if kind is not None:
            if inputs and inputs[0].ndim > 2:
                self.taken.setdefault(id(inputs[0]), kind)
            self.kinds.setdefault(outputs[0].ndim, set()).add(kind)
            self.made[out] = kind
        elif inputs and (activation(module) or isinstance(module, _SAME)):
            if id(inputs[0]) in self.made:
                self.made[out] = self.made[id(inputs[0])]
        elif inputs and type(module).__name__ == "Permute":
            turned = _turned(self.made.get(id(inputs[0])), getattr(module, "dims", ()))
            if turned is not None:
                self.made[out] = turned

    def channels(self, tensor: int, shape: tuple[int, ...], features: int | None) -> str | None:
        """Where the channels of a layer's output are, by its id; ``shape`` is that of one sample.

        ``features`` is the width of the last module inside the layer: it decides where no other axis is as
        long. Where nothing else is known, what all modules with as many axes have in common decides.
        """
        known = self.made.get(tensor) or self.taken.get(tensor)
        if known is None and features is not None and shape.count(features) == 1:
            known = {0: "first", len(shape) - 1: "last"}.get(shape.index(features))
        others = self.kinds.get(len(shape) + 1, set())
        return next(iter(others)) if known is None and len(others) == 1 else known


def _turned(kind: str | None, dims: Any) -> str | None:
    """The layout behind a permutation, where it only moves the channels from one end to the other."""
    axes = list(dims)
    end = len(axes) - 1
    if kind == "first" and axes == [0, *range(2, end + 1), 1]:
        return "last"
    if kind == "last" and axes == [0, end, *range(1, end)]:
        return "first"
    return None
