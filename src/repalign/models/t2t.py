"""Tokens-to-Token ViT (Yuan et al., 2021), the transformer of Imani et al. §7.2.

An image becomes tokens in three soft splits: overlapping patches are laid side by side, and between
splits a small transformer with linear attention mixes them. A deep and narrow transformer follows.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, unfold

from repalign.models.initialization import Seed, generator, normal, orthogonal, own_randomness

# Blocks → width, width of the hidden layer relative to it. A head is 64 wide in all of them.
SIZES = {7: (256, 2), 10: (256, 2), 12: (256, 2), 14: (384, 3), 19: (448, 3), 24: (512, 3)}
HEAD = 64
# Kernel, stride and padding of the three soft splits: together they shrink an image 16 times.
SPLITS = ((7, 4, 2), (3, 2, 1), (3, 2, 1))
TOKEN = 64


class LinearAttention(nn.Module):
    """One transformer layer on many tokens; its attention is estimated by positive random features.

    With φ(x) = exp(Wx − ‖x‖²/2), the mean of φ(q)ᵀφ(k) over random W is exp(qᵀk): attention becomes a
    product of thin matrices and costs as much as there are tokens, not its square. W stays fixed.
    """

    random: Tensor

    def __init__(self, inputs: int, width: int = TOKEN, features: int = TOKEN // 2) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(inputs)
        self.kqv = nn.Linear(inputs, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.register_buffer("random", torch.zeros(features, width))

    def forward(self, x: Float[Tensor, "n t d"]) -> Float[Tensor, "n t e"]:
        k, q, v = self.kqv(self.norm1(x)).chunk(3, dim=-1)
        k, q = self.phi(k), self.phi(q)
        attended = q @ (k.mT @ v) / (q @ k.sum(dim=1).unsqueeze(-1) + 1e-8)
        # The input is wider than a token, so the skip carries the values instead.
        x = v + self.project(attended)
        return x + self.mlp(self.norm2(x))

    def phi(self, x: Tensor) -> Tensor:
        """The random features of every token."""
        exponent = x @ self.random.mT - x.square().sum(dim=-1, keepdim=True) / 2
        return torch.exp(exponent) / math.sqrt(len(self.random))


class Block(nn.Module):
    """Attention, then a two-layer network, each with normalization before and a skip around."""

    def __init__(self, width: int, heads: int, ratio: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        hidden = ratio * width
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Float[Tensor, "n t d"]) -> Float[Tensor, "n t d"]:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v)
        x = x + self.project(attended.transpose(1, 2).reshape(n, t, d))
        return x + self.mlp(self.norm2(x))


class T2TViT(nn.Module):
    """T2T-ViT-``depth``, as wide as in Yuan et al. or ``width``; the layers worth probing are the blocks.

    Imani et al. do not say which size they took; 14 is the one the authors compare with ResNet50.

    >>> with torch.device("meta"):
    ...     net = T2TViT(1000, depth=14)
    >>> round(sum(p.numel() for p in net.parameters()) / 1e6, 1), net.probed[-1]
    (21.5, 'blocks.13')
    """

    positions: Tensor

    def __init__(
        self,
        outputs: int = 1000,
        *,
        depth: int = 14,
        width: int | None = None,
        image_size: int = 224,
        channels: int = 3,
        seed: Seed = 0,
    ) -> None:
        super().__init__()
        if depth not in SIZES:
            raise ValueError(f"depth should be one of {', '.join(map(str, SIZES))}, but is {depth}.")
        if image_size % 16:
            raise ValueError(f"image_size should be a multiple of 16, but is {image_size}: resize.")
        if width is not None and (width < HEAD or width % HEAD):
            raise ValueError(f"width should be a multiple of {HEAD}, but is {width}.")
        usual, ratio = SIZES[depth]
        width = width or usual
        tokens = 1 + (image_size // 16) ** 2
        patches = [channels * SPLITS[0][0] ** 2, *(TOKEN * kernel**2 for kernel, _, _ in SPLITS[1:])]
        with own_randomness():
            self.mix1 = LinearAttention(patches[0])
            self.mix2 = LinearAttention(patches[1])
            self.embed = nn.Linear(patches[2], width)
            self.class_token = nn.Parameter(torch.zeros(1, 1, width))
            self.register_buffer("positions", _waves(tokens, width))
            self.blocks = nn.Sequential(*(Block(width, width // HEAD, ratio) for _ in range(depth)))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, outputs)
        self.probed = tuple(f"blocks.{i}" for i in range(depth))
        if not self.class_token.is_meta:
            self._start(generator(seed))

    @torch.no_grad()
    def _start(self, g: torch.Generator) -> None:
        self.class_token.copy_(0.02 * normal(tuple(self.class_token.shape), g))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.weight.copy_(0.02 * normal(tuple(module.weight.shape), g))
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, LinearAttention):
                features, width = module.random.shape
                # Orthogonal directions of the length that normal ones have estimate with less variance.
                module.random.copy_(orthogonal(features, width, g) * math.sqrt(width))

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n outputs"]:
        for split, mix in zip(SPLITS, (self.mix1, self.mix2, self.embed), strict=True):
            kernel, stride, padding = split
            side = (x.shape[-1] + 2 * padding - kernel) // stride + 1
            tokens = mix(unfold(x, kernel, padding=padding, stride=stride).mT)
            x = tokens.mT.unflatten(2, (-1, side))
        x = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def _waves(tokens: int, width: int) -> Float[Tensor, "1 tokens width"]:
    """Positions as sines and cosines of falling frequency; not trained."""
    frequency = 10_000.0 ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)
    angle = torch.arange(tokens, dtype=torch.float64)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()[None]
