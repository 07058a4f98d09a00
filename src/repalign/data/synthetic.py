"""Data sets that are drawn: the peaks functions of Imani et al., the Gaussians of Maennel et al."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from repalign.data.acquire.formats import Read

PEAKS = tuple("".join(p) for p in permutations("ABCDEF", 3))  # the 120 functions, P_ABC to P_FED
_STREAMS = {"train": 0, "test": 1, "left": 2, "middle": 3, "right": 4}

# Variances of the inputs and number of samples in the three plots of Maennel's figure 20 (E.1).
GAUSSIANS = {
    "left": (np.arange(10, 20) / 10, 10_000),
    "middle": (np.arange(1, 31) / 10, 10_000),
    "right": (np.arange(1, 31) / 10, 2_000),
}


def peaks(n: int = 10_000, functions: Sequence[str] = PEAKS, seed: int = 0, split: str = "train") -> Read:
    """Samples of peaks functions (Imani §7.1): P_XYZ is Y where X > 0.5, else Z.

    Six variables are uniform on [0, 1); each becomes ten bumps of height 0.5 and standard deviation
    0.1, centered at 0, 0.1, … 0.9. Rows of x (n, 60) have length one; columns of y, one per function,
    have mean zero over the sample.

    >>> peaks(4, ["ABC", "BAC"]).y.shape
    (4, 2)
    """
    if wrong := [f for f in functions if f not in PEAKS]:
        raise ValueError(
            f"a peaks function is three different letters of A to F, as ABC, but one is {wrong[0]!r}."
        )
    variables = _rng(seed, split).random((n, 6))
    centers = np.arange(10) / 10
    x = 0.5 * np.exp(-(((variables[:, :, None] - centers) / 0.1) ** 2) / 2)
    x = x.reshape(n, 60)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    which = np.array([["ABCDEF".index(letter) for letter in f] for f in functions])
    test, then, other = (variables[:, which[:, i]] for i in range(3))
    y = np.where(test > 0.5, then, other)
    return Read(x, y - y.mean(0), tuple(functions))


def gaussian(n: int | None = None, setting: str = "middle", seed: int = 0) -> Read:
    """Centered Gaussian inputs with a diagonal covariance, labels uniform on ten classes (Maennel E.1).

    ``setting`` is left (10 inputs, variances 1 to 1.9), middle or right (30 inputs, 0.1 to 3); without
    n there are as many samples as in the paper.
    """
    variances, size = GAUSSIANS[setting]
    n = size if n is None else n
    rng = _rng(seed, setting)
    x = rng.standard_normal((n, len(variances))) * np.sqrt(variances)
    return Read(x, rng.integers(0, 10, n), tuple("0123456789"))


def _rng(seed: int, stream: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, _STREAMS[stream]]))


def draw(name: str, split: str, n: int | None, names: Sequence[str] | None, seed: int) -> tuple[Read, str]:
    """A synthetic set as ``load`` asks for it, and a line that says how it was made."""
    if name == "peaks":
        read = peaks(10_000 if n is None else n, PEAKS if names is None else names, seed, split)
        return read, "drawn by repalign.data.peaks (Imani et al., §7.1)"
    setting = "middle" if split == "train" else split
    read = gaussian(n, setting, seed)
    return read, f"drawn by repalign.data.gaussian, setting {setting} (Maennel et al., E.1)"
