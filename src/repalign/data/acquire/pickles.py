"""Reading pickles of arrays, and refusing pickles that would run anything else.

CIFAR's home publishes pickles, and so do some packages of weights. A pickle names the functions to
call when it is read; here only the few that build numpy arrays and plain containers are known, and
any other name is refused before it is called.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import numpy as np

from repalign.data.errors import UnavailableError


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """How Python 2 wrote bytes; nothing but latin1 is ever needed."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return text.encode("latin1")


def _from_buffer(buffer: bytes | bytearray, dtype: np.dtype[Any], shape: tuple[int, ...], order: str) -> Any:
    """How pickles of protocol 5 carry an array."""
    return np.frombuffer(buffer, dtype).reshape(shape, order="F" if order == "F" else "C")


# numpy's own rebuilding function, under the names it has had.
_rebuild = np.empty(0).__reduce__()[0]
_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _rebuild,
    ("numpy._core.multiarray", "_reconstruct"): _rebuild,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): _encode,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _KNOWN[module, name]


def load_arrays(source: Path | BufferedIOBase, *, encoding: str = "latin1") -> Any:
    """The arrays and containers in a pickle; refuses one that asks for anything else."""
    if isinstance(source, Path):
        with open(source, "rb") as file:
            return load_arrays(file, encoding=encoding)
    try:
        return _ArraysOnly(source, encoding=encoding).load()
    except (pickle.UnpicklingError, EOFError, ValueError, LookupError, AttributeError, TypeError) as error:
        name = getattr(source, "name", "the pickle")
        raise UnavailableError(f"{name} is not a plain pickle of arrays: {error or 'cut short'}") from error
