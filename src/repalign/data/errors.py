"""What can go wrong with data, in two kinds."""


class DataError(RuntimeError):
    """The data cannot be had; the message lists what was tried and what would help."""


class UnavailableError(Exception):
    """One source cannot serve; its message is the line shown for it. The next source is tried."""
