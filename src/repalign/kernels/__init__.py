"""Kernels of representations and how similar they are (Canatar & Pehlevan §III; Sharon & Dar §3).

A representation X is (n, d), one row per sample; its kernel K = X Xᵀ is (n, n). Centered kernel
alignment is the cosine of the angle between two centered kernels: 1 for the same representation up to
rotation and scale, whatever the numbers of features.

>>> import torch
>>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [0.0, -2.0]])
>>> turned = 3 * x @ torch.tensor([[0.6, -0.8], [0.8, 0.6]])
>>> cka(x, turned), cka(x, x[:, :1])
(tensor(1.), tensor(0.2425))
"""

from repalign.kernels.floor import Floor, cka_floor
from repalign.kernels.measures import center, cka, cka_grid, gram, hsic, kta
from repalign.kernels.ranks import PowerLaw, effective_rank, power_law, stable_rank

__all__ = [
    "Floor",
    "PowerLaw",
    "center",
    "cka",
    "cka_floor",
    "cka_grid",
    "effective_rank",
    "gram",
    "hsic",
    "kta",
    "power_law",
    "stable_rank",
]
