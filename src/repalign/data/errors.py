"""The two kinds of errors about data."""


class DataError(RuntimeError):
    """The data is not available; the message lists what was tried and what would help."""


class UnavailableError(Exception):
    """One source does not have the data; the message says why. The next source is tried."""
