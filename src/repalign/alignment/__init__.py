"""Alignment of a representation with labels (Imani, Hu, White), and what it says about descent.

A representation Φ is (n, d), one row per sample, with Φ = U Σ Vᵀ. Labels y are (n,), or (n, c) for
several targets at once. Everything here follows from two vectors: the singular values σᵢ and the
power (uᵢᵀy)² that y has along each left singular vector.

>>> import torch
>>> phi = unit_rows(torch.tensor([[2.0, 1.0], [3.0, -2.0], [-1.0, 1.0]]))
>>> y = torch.tensor([1.0, 1.0, -1.0])
>>> s = spectrum(phi, y)
>>> s.power / y.square().sum()          # nearly all of y lies along the first direction
tensor([0.9669, 0.0305])
"""

from repalign.alignment.descent import gd_loss, iteration_bound
from repalign.alignment.generalization import predicted_error
from repalign.alignment.modes import cumulative_power, kernel_spectrum, pair_spectra
from repalign.alignment.spectra import Curve, Spectrum, alignment, alignment_curve, spectrum, unit_rows

__all__ = [
    "Curve",
    "Spectrum",
    "alignment",
    "alignment_curve",
    "cumulative_power",
    "gd_loss",
    "iteration_bound",
    "kernel_spectrum",
    "pair_spectra",
    "predicted_error",
    "spectrum",
    "unit_rows",
]
