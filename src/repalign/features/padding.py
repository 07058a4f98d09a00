"""Sequences of different length are padded to one: which tokens count, and pooling over those alone."""

from __future__ import annotations

import inspect
import warnings

import torch
from torch import Tensor, nn

from repalign.features.inputs import Batch

# Arguments that tell real tokens from padding, and what stands for a real one.
MASKS = {"attention_mask": 1, "src_key_padding_mask": 0, "key_padding_mask": 0}


def real_tokens(model: nn.Module, batch: Batch) -> Tensor | None:
    """(n, tokens), true where a token is none of the padding; None where nothing tells, or all are real."""
    given = dict(batch.kwargs)
    if batch.args:
        try:
            given |= inspect.signature(model.forward).bind(*batch.args, **batch.kwargs).arguments
        except (TypeError, ValueError):  # a signature that says nothing
            return None
    for name, real in MASKS.items():
        if given.get(name) is None:
            continue
        mask = torch.as_tensor(given[name])
        if mask.ndim != 2 or len(mask) != batch.rows or not ((mask == 0) | (mask == 1)).all():
            warnings.warn(
                f"{name} should be (n, tokens) of 0 and 1 to tell padding from tokens, but is "
                f"{mask.dtype} {tuple(mask.shape)}: pooling counts all tokens.",
                stacklevel=5,
            )
            return None
        found = mask == real
        if not found.any(dim=1).all():
            raise ValueError(f"every sample should have a token to pool, but {name} leaves none of some.")
        return None if bool(found.all()) else found
    return None


def pooled(output: Tensor, pool: str, axes: tuple[int, ...], real: Tensor | None) -> Tensor:
    """One value per feature of (n, ...): over the positions on ``axes``, or those of ``real`` tokens."""
    if pool in ("token", "last"):
        rows = torch.arange(len(output), device=output.device)
        if real is None:
            return output[:, 0 if pool == "token" else -1]
        real = real.to(output.device).long()
        # The first of equal values is found: from the other end, for the last one.
        at = real.argmax(1) if pool == "token" else real.shape[1] - 1 - real.flip(1).argmax(1)
        return output[rows, at]
    if real is None:
        return output.mean(axes) if pool == "mean" else output.amax(axes)
    shape = [len(output)] + [1] * (output.ndim - 1)
    shape[axes[0]] = real.shape[1]
    here = real.to(output.device).view(shape)
    if pool == "max":
        least = torch.finfo(output.dtype).min if output.is_floating_point() else torch.iinfo(output.dtype).min
        return output.masked_fill(~here, least).amax(axes)
    # A mean over all, and then the share of what counts: a sum would overflow in half precision.
    share = here.to(output.dtype).mean(axes)
    return output.masked_fill(~here, 0).mean(axes) / share
