"""Linear probes of many representations at once, and how alike their decisions are (Sharon & Dar §4, F.3).

>>> import torch
>>> g = torch.Generator().manual_seed(0)
>>> labels = torch.arange(60) % 3
>>> features = torch.randn(4, 60, 8, generator=g) + 3 * torch.eye(8)[labels]     # 4 checkpoints
>>> probes = fit_probes(features, labels)
>>> (probes.predict(features) == labels).float().mean(dim=1)
tensor([1., 1., 1., 1.])
"""

from repalign.probes.fitting import fit_probes
from repalign.probes.linear_probes import Probe, Probes
from repalign.probes.regions import decision_region_similarity, plane_batches, planes

__all__ = ["Probe", "Probes", "decision_region_similarity", "fit_probes", "plane_batches", "planes"]
