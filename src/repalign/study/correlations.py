"""Correlations over models as effects, as the first edition's pages call them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repalign.press import effects
from repalign.press.effects import Effect

if TYPE_CHECKING:
    import pandas as pd


def correlation(table: pd.DataFrame, x: str, y: str, **how: Any) -> Effect:
    """Pearson's correlation of two columns: see :func:`repalign.press.effects.correlation`."""
    return effects.correlation("", table, x, y, **how)
