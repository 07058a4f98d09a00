"""Products of matrices by the faster of torch's two libraries.

torch multiplies float32 matrices with MKL, which is slow on processors with AVX-512 that Intel did not
make: oneDNN, with which torch convolves, takes half the time there. torch's compiler reaches it by the
operation used here. That has no gradient, and is very slow for a matrix whose rows lie apart in memory.
"""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from repalign.machine.onednn import processor


def rows_by_rows(
    a: Float[Tensor, "n d"], b: Float[Tensor, "m d"], room: Float[Tensor, "n m"] | None = None
) -> Float[Tensor, "n m"]:
    """a bᵀ: every row of ``a`` by every row of ``b``; in ``room`` where the library can be told a place.

    >>> rows_by_rows(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]))
    tensor([[11., 17.]])
    """
    if not _by_onednn(a, b):
        return torch.mm(a, b.mT, out=room)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(a.contiguous(), b.contiguous(), None, "none", [], "")
    return found


def _by_onednn(a: Tensor, b: Tensor) -> bool:
    single = all(t.dtype == torch.float32 and t.device.type == "cpu" and t.numel() for t in (a, b))
    graph = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    return single and not graph and faster(processor())


@cache
def faster(processor: str) -> bool:
    """Is oneDNN faster than MKL on ``processor``, a part of /proc/cpuinfo?"""
    foreign = "vendor_id" in processor and "GenuineIntel" not in processor
    both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return foreign and both and wide and hasattr(torch.ops.mkldnn, "_linear_pointwise")
