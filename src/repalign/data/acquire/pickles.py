"""Reading the pickles in which CIFAR and some weights are published, without unpickling them.

A pickle is a program: it names functions and says what to call them with. Python's unpickler runs it, and
one that knows only numpy's constructors can still be made to write where it should not: they trust their
arguments. So nothing here is called because a file says so. A reader of its own follows the few operations
that write numbers, text, lists, dicts and arrays; a name is a mark that stands for nothing, and an array is
made from bytes only when dtype, shape and length agree.
"""

from __future__ import annotations

import io
import math
import pickletools
import re
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from repalign.data.errors import UnavailableError

# CIFAR-100's training images are 155 MB and a quarter of a million operations.
LARGEST = 512 << 20
OPERATIONS = 2_000_000
AXES = 8
LONGEST = 1 << 31

_MARK = object()
_PLAIN = re.compile(r"b1|[iu][1248]|f[248]")


class _BrokenError(Exception):
    """What is wrong with a pickle."""


class _Name(Enum):
    """The names that a pickle of arrays needs. They are marks: none of them can be called."""

    RECONSTRUCT = auto()
    FROM_BUFFER = auto()
    ARRAY = auto()
    DTYPE = auto()
    DICT = auto()
    BYTES = auto()
    ENCODE = auto()


_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _Name.RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _Name.RECONSTRUCT,
    ("numpy.core.numeric", "_frombuffer"): _Name.FROM_BUFFER,
    ("numpy._core.numeric", "_frombuffer"): _Name.FROM_BUFFER,
    ("numpy", "ndarray"): _Name.ARRAY,
    ("numpy", "dtype"): _Name.DTYPE,
    ("collections", "OrderedDict"): _Name.DICT,
    ("__builtin__", "bytes"): _Name.BYTES,
    ("_codecs", "encode"): _Name.ENCODE,
}


@dataclass(eq=False)
class _Dtype:
    """A plain dtype that is being described: first its letters, then its byte order."""

    letters: str
    order: str = ""


@dataclass(eq=False)
class _Shell:
    """An array that is announced, and filled by what follows."""

    array: np.ndarray[Any, Any] | None = None


def load_arrays(source: Path | BinaryIO) -> Any:
    """The arrays, numbers, texts, lists, tuples and dicts in a pickle; one that holds more is refused."""
    if isinstance(source, Path):
        with open(source, "rb") as file:
            return load_arrays(file)
    name = getattr(source, "name", "the pickle")
    raw = source.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise UnavailableError(f"{name} has more than the {LARGEST >> 20} MB of the largest pickle of arrays")
    try:
        return _Reader(raw).read()
    except (_BrokenError, ValueError, IndexError) as error:
        raise UnavailableError(f"{name} is not a plain pickle of arrays: {error}") from error


class _Reader:
    """Follows the operations of one pickle."""

    def __init__(self, raw: bytes) -> None:
        self.stream = io.BytesIO(raw)
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        # Arrays are copies of bytes in the file, which Python 2's pickles hold as text that is encoded first.
        self.left = 2 * len(raw)

    def read(self) -> Any:
        for _ in range(OPERATIONS):
            operation = _BY_CODE.get(self.stream.read(1))
            if operation is None:
                raise _BrokenError("it is cut short, or does more than protocols 2 to 5 need for arrays")
            if operation.name == "STOP":
                return self.pop()
            argument = None
            if operation.arg is not None:
                argument = operation.arg.reader(self.stream)
            self.follow(operation.name, argument)
        raise _BrokenError(f"it has more than {OPERATIONS:,} operations")

    def follow(self, operation: str, argument: Any) -> None:
        """One operation: a value of the file, an empty container, or one of the methods below."""
        if operation in _VALUES:
            self.stack.append(argument)
        elif operation in _FIXED:
            self.stack.append(_FIXED[operation])
        elif operation == "EMPTY_LIST":
            self.stack.append([])
        elif operation == "EMPTY_DICT":
            self.stack.append({})
        else:
            _METHODS[operation](self, argument)

    def spend(self, size: int) -> None:
        """Count bytes that are made: a file may refer to the same ones again and again."""
        self.left -= size
        if self.left < 0:
            raise _BrokenError("it makes more arrays than it has bytes for")

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise _BrokenError("a value is missing")
        if type(value) is not _Shell:
            return value
        if value.array is None:
            raise _BrokenError("an array is announced, but has no content")
        return value.array

    def popped(self, count: int) -> tuple[Any, ...]:
        values = [self.pop() for _ in range(count)]
        return tuple(reversed(values))

    def to_mark(self) -> list[Any]:
        """What was put on the stack since the last mark."""
        values: list[Any] = []
        while self.stack[-1] is not _MARK:
            values.append(self.pop())
        self.stack.pop()
        return values[::-1]

    def skip(self, argument: Any) -> None:
        """The protocol and the frames say nothing about the content."""

    def mark(self, argument: Any) -> None:
        self.stack.append(_MARK)

    def remember(self, argument: Any) -> None:
        # A dict, not a list: the number is the file's, and a list that long would take all memory.
        self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]

    def recall(self, argument: Any) -> None:
        if argument not in self.memo:
            raise _BrokenError(f"it refers to value {argument}, which is not there")
        self.stack.append(self.memo[argument])

    def tuple_of_1(self, argument: Any) -> None:
        self.stack.append(self.popped(1))

    def tuple_of_2(self, argument: Any) -> None:
        self.stack.append(self.popped(2))

    def tuple_of_3(self, argument: Any) -> None:
        self.stack.append(self.popped(3))

    def tuple_to_mark(self, argument: Any) -> None:
        self.stack.append(tuple(self.to_mark()))

    def append(self, argument: Any) -> None:
        self.extend_by(list(self.popped(1)))

    def extend(self, argument: Any) -> None:
        self.extend_by(self.to_mark())

    def extend_by(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise _BrokenError("it appends to what is no list")
        target.extend(values)

    def set_item(self, argument: Any) -> None:
        self.update_by(list(self.popped(2)))

    def set_items(self, argument: Any) -> None:
        self.update_by(self.to_mark())

    def update_by(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(values) % 2:
            raise _BrokenError("it sets items of what is no dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            # Hashing a tuple of tuples of … has no bound.
            if type(key) not in (str, bytes, int):
                raise _BrokenError("a key of a dict is neither text nor a number")
            target[key] = value

    def name(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(_known(module, name))

    def name_on_stack(self, argument: Any) -> None:
        module, name = self.popped(2)
        self.stack.append(_known(module, name))

    def reduce(self, argument: Any) -> None:
        """What stands for the result of a call. The arguments are compared, never passed on."""
        name, given = self.popped(2)
        if type(name) is not _Name or type(given) is not tuple:
            raise _BrokenError("it calls what is no function")
        kinds = [type(part) for part in given]
        if name is _Name.DICT and kinds == []:
            self.stack.append({})
        elif name is _Name.BYTES and kinds == []:
            self.stack.append(b"")
        elif name is _Name.ENCODE and kinds in ([str], [str, str]):
            self.stack.append(self.encoded(*given))
        elif name is _Name.DTYPE and kinds[:1] == [str] and set(kinds[1:]) <= {int, bool}:
            self.stack.append(_dtype(given[0]))
        elif name is _Name.RECONSTRUCT and kinds[:2] == [_Name, tuple] and given[0] is _Name.ARRAY:
            self.stack.append(_Shell())
        elif name is _Name.FROM_BUFFER and len(given) == 4 and kinds[3] is str:
            self.stack.append(self.array(*given[:3], fortran=given[3] == "F"))
        else:
            raise _BrokenError(f"it calls {name.name.lower()} with other arguments than numpy does")

    def build(self, argument: Any) -> None:
        """The state of what was made last: the byte order of a dtype, or the content of an array."""
        state = self.pop()
        target = self.stack[-1]
        if type(state) is not tuple:
            raise _BrokenError("a state is no tuple")
        if type(target) is _Dtype and not target.order:
            target.order = _byte_order(state)
        elif type(target) is _Shell and target.array is None:
            target.array = self.filled(state)
        else:
            raise _BrokenError("it sets the state of what has none")

    def filled(self, state: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        """The array of the state (version, shape, dtype, whether columns come first, bytes)."""
        if len(state) != 5 or type(state[3]) not in (bool, int):
            raise _BrokenError("the state of an array has other entries than numpy's own")
        _, shape, dtype, fortran, raw = state
        if type(raw) is str:
            raw = self.encoded(raw)
        return self.array(raw, dtype, shape, fortran=bool(fortran))

    def encoded(self, text: str, encoding: str = "latin1") -> bytes:
        """How Python 2 wrote bytes; nothing but latin1 is ever needed."""
        if encoding not in ("latin1", "latin-1"):
            raise _BrokenError("its bytes are encoded in another way than numpy's")
        self.spend(len(text))
        return text.encode("latin1")

    def array(self, raw: Any, dtype: Any, shape: Any, *, fortran: bool) -> np.ndarray[Any, Any]:
        """A copy of the bytes as an array, when they are as many as dtype and shape say."""
        if type(raw) not in (bytes, bytearray) or type(dtype) is not _Dtype or type(shape) is not tuple:
            raise _BrokenError("an array has no bytes, dtype or shape")
        if len(shape) > AXES or any(type(length) is not int or not 0 <= length < LONGEST for length in shape):
            raise _BrokenError("an array has an impossible shape")
        plain = np.dtype(f"{dtype.order}{dtype.letters}")
        needed = math.prod(shape) * plain.itemsize
        if needed != len(raw):
            raise _BrokenError(f"an array of shape {shape} needs {needed} bytes, but has {len(raw)}")
        self.spend(needed)
        return np.frombuffer(raw, plain).reshape(shape, order="F" if fortran else "C").copy()


def _known(module: Any, name: Any) -> _Name:
    if type(module) is not str or type(name) is not str:
        raise _BrokenError("a name is no text")
    if (module, name) not in _NAMES:
        shown = "".join(letter for letter in f"{module}.{name}"[:80] if letter.isprintable())
        raise _BrokenError(f"it asks for {shown}")
    return _NAMES[module, name]


def _dtype(letters: str) -> _Dtype:
    if not _PLAIN.fullmatch(letters):
        raise _BrokenError(f"it asks for an array of dtype {letters[:20]!r}: numbers and booleans are read")
    return _Dtype(letters)


def _byte_order(state: tuple[Any, ...]) -> str:
    """The second entry of the state of a dtype; a plain one has no subarray, names or fields after it."""
    if len(state) != 8 or type(state[1]) is not str or state[1] not in ("|", "<", ">", "="):
        raise _BrokenError("the state of a dtype has other entries than numpy's own")
    if any(part is not None for part in state[2:5]):
        raise _BrokenError("an array has a dtype with parts")
    return state[1]


# Numbers, texts and bytes: none is longer than the file.
_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINSTRING", "SHORT_BINSTRING"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}
_FIXED = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_METHODS = {
    "PROTO": _Reader.skip,
    "FRAME": _Reader.skip,
    "MARK": _Reader.mark,
    "BINPUT": _Reader.remember,
    "LONG_BINPUT": _Reader.remember,
    "MEMOIZE": _Reader.remember,
    "BINGET": _Reader.recall,
    "LONG_BINGET": _Reader.recall,
    "TUPLE": _Reader.tuple_to_mark,
    "TUPLE1": _Reader.tuple_of_1,
    "TUPLE2": _Reader.tuple_of_2,
    "TUPLE3": _Reader.tuple_of_3,
    "APPEND": _Reader.append,
    "APPENDS": _Reader.extend,
    "SETITEM": _Reader.set_item,
    "SETITEMS": _Reader.set_items,
    "GLOBAL": _Reader.name,
    "STACK_GLOBAL": _Reader.name_on_stack,
    "REDUCE": _Reader.reduce,
    "BUILD": _Reader.build,
}
_FOLLOWED = {*_VALUES, *_FIXED, *_METHODS, "EMPTY_LIST", "EMPTY_DICT", "STOP"}
_BY_CODE = {one.code.encode("latin1"): one for one in pickletools.opcodes if one.name in _FOLLOWED}
