"""How many cores there are for this process."""

from __future__ import annotations


def count() -> int:
    """How many cores this process may use: of the machine, or of the share that a container has."""
    from joblib import cpu_count

    return int(cpu_count())
