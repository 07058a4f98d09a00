"""Labels of classes given as a representation: their numbers would count."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def warn_of_class_numbers(representations: Mapping[str, Any], *, stacklevel: int) -> None:
    """Say which of these are one column of whole numbers, more than two different ones.

    Two classes are the same up to shift and scale whatever their numbers are, which CKA does not see; of
    three, class 2 would lie twice as far from class 0 as class 1 does.
    """
    for name, value in representations.items():
        if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex():
            continue
        if value.ndim == 2 and value.shape[1] == 1 and len(value.unique()) > 2:
            warnings.warn(
                f"{name} is a column of whole numbers, and they count as numbers: class 2 as twice class 1. "
                "For classes give repalign.data.one_hot(y); for numbers y.float().",
                stacklevel=stacklevel + 1,
            )
