"""A two-layer network of radial basis functions whose centers are trained (Imani et al., §3)."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from jaxtyping import Float
from torch import Tensor, nn

from repalign.models.initialization import Seed, generator, initialize, normal, own_randomness


class RBF(nn.Module):
    """exp(−‖x − cⱼ‖² / (2 bandwidth²)) for every center cⱼ, a parameter."""

    def __init__(self, inputs: int, units: int, bandwidth: float = 1.0) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.zeros(units, inputs))
        self.bandwidth = bandwidth

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n units"]:
        # Expanding the square keeps memory at n × units; rounding must not make it negative.
        square = x.square().sum(1, keepdim=True) + self.centers.square().sum(1) - 2 * x @ self.centers.mT
        return torch.exp(-square.clamp(min=0) / (2 * self.bandwidth**2))

    def extra_repr(self) -> str:
        units, inputs = self.centers.shape
        return f"{inputs}, {units}, bandwidth={self.bandwidth}"


class RBFNetwork(nn.Sequential):
    """``units`` radial basis functions, then a linear layer: flatten, rbf, head.

    Give ``centers`` (units, inputs), some training points say, to start from them; otherwise they are
    normal with a length of about one. The paper names 1024 units and trained centers, and nothing
    else: the bandwidth is the one of its §7.2.

    >>> net = RBFNetwork(384, 1, units=1024)
    >>> net.probed, sum(p.numel() for p in net.parameters())
    (('rbf',), 394241)
    """

    def __init__(
        self,
        inputs: int,
        outputs: int = 1,
        *,
        units: int = 1024,
        bandwidth: float = 1.0,
        centers: Float[Tensor, "units inputs"] | None = None,
        seed: Seed = 0,
    ) -> None:
        if bandwidth <= 0:
            raise ValueError(f"bandwidth should be above 0, but is {bandwidth}.")
        if centers is not None and tuple(centers.shape) != (units, inputs):
            raise ValueError(
                f"centers should have shape (units, inputs) = {(units, inputs)}, "
                f"but have {tuple(centers.shape)}."
            )
        with own_randomness():
            layers = OrderedDict(
                flatten=nn.Flatten(), rbf=RBF(inputs, units, bandwidth), head=nn.Linear(units, outputs)
            )
        super().__init__(layers)
        self.probed = ("rbf",)
        g = generator(seed)
        start = normal((units, inputs), g) / math.sqrt(inputs) if centers is None else centers
        with torch.no_grad():
            layers["rbf"].get_parameter("centers").copy_(start)
        initialize(self, "lecun", seed=g)
