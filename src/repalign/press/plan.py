"""What a page would cost at another profile: recorded seconds, scaled by the work that it says it has."""

from __future__ import annotations

from dataclasses import dataclass

from repalign.press import records
from repalign.press.tables import number

# Operations a second that one GPU sustains on networks as small as these; for larger ones it does better.
GPU = 1e13


@dataclass(frozen=True)
class Cost:
    """What a page would cost.

    seconds  of one core like those of the record
    factor   how many times the recorded run that is
    gpu      seconds of a GPU that sustains ``GPU`` operations a second
    """

    seconds: float
    factor: float
    gpu: float


def cost(record: records.Record, profile: str) -> Cost | None:
    """The cost of the recorded page at ``profile``; None where the page does not say what work it has."""
    work = record.run.get("work") or {}
    here, there = work.get(record.run["profile"]), work.get(profile)
    if not here or not there:
        return None
    return Cost(computing(record) * there / here, there / here, there / GPU)


def computing(record: records.Record) -> float:
    """Seconds of one core that the recorded cells took."""
    return sum(float(record.sweep(name)[1]["seconds"].sum()) for name in record.sweeps())


def _grouped(value: float) -> str:
    """Two digits, and thousands set apart."""
    return f"{float(number(value, 2)):,.10g}"


def in_words(found: Cost) -> str:
    """A cost as a sentence without its end.

    >>> in_words(Cost(seconds=7.2e6, factor=1000.0, gpu=36_000.0))
    'about 1,000 times the recorded computing: 2,000 hours of one core, or 10 hours of a GPU'
    """
    cores, gpu = (f"{_grouped(seconds / 3600)} hours" for seconds in (found.seconds, found.gpu))
    times = f"about {_grouped(found.factor)} times the recorded computing"
    return f"{times}: {cores} of one core, or {gpu} of a GPU"
