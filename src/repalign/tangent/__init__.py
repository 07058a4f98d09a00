"""Tangent features and kernels of every layer of a network (Lou, Mingard, Hayou; Canatar & Pehlevan).

The tangent features of layer l are Ψ_l = ∂f/∂θ_l, one column per sample and output; its tangent kernel
is K_l = Ψ_lᵀ Ψ_l. Neither Ψ nor, where it is not asked for, K is ever formed.

>>> import torch
>>> from torch import nn
>>> _ = torch.manual_seed(0)
>>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
>>> x, y = torch.randn(30, 4), torch.arange(30) % 3
>>> kernels = layer_kernels(model, x)                     # {layer: (on, on)}
>>> torch.allclose(sum(kernels.values()), ntk(model, x), atol=1e-4)
True
>>> sorted(label_alignment(model, x, y))                  # {layer: A_l}
['0', '2']
"""

from repalign.tangent.alignments import AlignmentTerms, alignment_terms, label_alignment
from repalign.tangent.directions import pull, push
from repalign.tangent.fisher import fisher_correlation, fisher_spectrum
from repalign.tangent.gram import ForwardBackward, forward_backward, layer_kernels, ntk
from repalign.tangent.hessian import HessianTop, hessian_top, hessian_vector, layer_energy

__all__ = [
    "AlignmentTerms",
    "ForwardBackward",
    "HessianTop",
    "alignment_terms",
    "fisher_correlation",
    "fisher_spectrum",
    "forward_backward",
    "hessian_top",
    "hessian_vector",
    "label_alignment",
    "layer_energy",
    "layer_kernels",
    "ntk",
    "pull",
    "push",
]
