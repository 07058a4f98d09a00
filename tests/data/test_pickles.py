"""Pickles that mean harm, or that chance has changed: numbers and arrays come out, or one line."""

import io
import operator
import os
import pickle
import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from repalign import data
from repalign.data.acquire import formats, pickles
from repalign.data.acquire.pickles import load_arrays
from repalign.data.errors import UnavailableError

RECONSTRUCT = np.empty(0).__reduce__()[0]
FROM_BUFFER = np.arange(2).__reduce_ex__(5)[0]
RNG = np.random.default_rng(0)


class Call:
    """A value that is pickled as a call, with a state to be set on the result."""

    def __init__(self, function, *given, state=None):
        self.parts = (function, given) if state is None else (function, given, state)

    def __reduce__(self):
        return self.parts


def load(raw):
    return load_arrays(io.BytesIO(raw))


def state(raw, shape=(2,), dtype=np.dtype("u1"), fortran=False):  # noqa: B008
    return (1, shape, dtype, fortran, raw)


def shell(*parts, **options):
    return Call(RECONSTRUCT, np.ndarray, (0,), b"b", state=state(*parts, **options))


ADDRESS = struct.pack("<Q", id(None))
HOSTILE = {
    "an array of objects over bytes": Call(np.ndarray, (1,), "O", ADDRESS),
    "an array made by its class": Call(np.ndarray, (1 << 40,), "u1"),
    "objects from a buffer": Call(FROM_BUFFER, ADDRESS, np.dtype("O"), (1,), "C"),
    "objects in a state": shell(ADDRESS, (1,), np.dtype("O")),
    "a dtype of fields": shell(ADDRESS, (1,), np.dtype([("a", "O")])),
    "a dtype with a shape": shell(ADDRESS, (1,), np.dtype(("u1", 8))),
    "an inflated dtype": shell(b"", (0,), Call(np.dtype, "V2000000000")),
    "a dtype from a list": Call(np.dtype, [("a", "O")]),
    "a dtype that is changed twice": Call(
        np.dtype, "u1", state=(3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 63)
    ),
    "text": shell("\x00\x00\x00\x00\x00\x00\x11\x00", (1,), np.dtype("U2")),
    "dates": shell(ADDRESS, (1,), np.dtype("M8[s]")),
    "a subclass": Call(RECONSTRUCT, np.recarray, (0,), b"b", state=state(b"ab")),
    "an array that is announced only": Call(RECONSTRUCT, np.ndarray, (1 << 40,), b"b"),
    "fewer bytes than announced": shell(b"a"),
    "more bytes than announced": shell(b"abc"),
    "a list in place of bytes": shell([1, 2]),
    "an array in place of bytes": shell(np.zeros(2, np.uint8)),
    "a huge shape": shell(b"", (1 << 62, 0)),
    "a shape that overflows": shell(b"", (1 << 30, 1 << 30, 1 << 30, 1 << 30, 16)),
    "a negative length": shell(b"ab", (-2, -1)),
    "a boolean as a length": shell(b"a", (True,)),
    "an array as a length": shell(b"ab", (np.array(2),)),
    "65 axes": shell(b"a", (1,) * 65),
    "a text as a shape": shell(b"ab", "ab"),
    "too short a state": Call(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, (2,))),
    "a state of attributes": Call(RECONSTRUCT, np.ndarray, (0,), b"b", state={"shape": (1 << 40,)}),
    "a state of slots": Call(RECONSTRUCT, np.ndarray, (0,), b"b", state=(None, {"shape": (1 << 40,)})),
    "another encoding": Call(__import__("_codecs").encode, "a" * 9, "zlib"),
    "an error handler": Call(__import__("_codecs").encode, "a", "latin1", "xmlcharrefreplace"),
    "a function that is known elsewhere": Call(operator.attrgetter, "__class__"),
    "a command": Call(os.system, "touch evil"),
    "a dict of everything": Call(__import__("collections").OrderedDict, [(("a",), 1)]),
}


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_pickle_is_refused(what, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnavailableError, match="the pickle is not a plain pickle of arrays: ") as refusal:
        load(pickle.dumps({"data": HOSTILE[what]}, protocol=protocol))
    assert len(str(refusal.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


ARRAY = b"cnumpy\nndarray\n"
SHELL = b"cnumpy.core.multiarray\n_reconstruct\n(" + ARRAY + b"K\x00\x85C\x01btR"
DTYPE = b"cnumpy\ndtype\nU\x02u1\x85R"
FILLED = b"(K\x01K\x02\x85" + DTYPE + b"\x89C\x02abtb"
OPERATIONS = {
    "a state for a class": b"\x80\x02" + ARRAY + b"}U\x05shapeK\x00sb.",
    "a state for a dict": b"\x80\x02}(K\x01K\x02tb.",
    "a state for a list": b"\x80\x02]}b.",
    "an array that is filled twice": b"\x80\x02" + SHELL + FILLED + FILLED + b".",
    "an instance without a call": b"\x80\x02" + ARRAY + b"K\x01\x85\x85\x81.",
    "an instance of protocol 1": b"\x80\x02(" + ARRAY + b"K\x05o.",
    "an instance of protocol 0": b"\x80\x02(K\x05inumpy\nndarray\n.",
    "an extension": b"\x80\x02\x82\x01.",
    "something persistent": b"\x80\x02Pname\n.",
    "a name that is no text": b"\x80\x04K\x01K\x02\x93.",
    "a name with a line in it": b"\x80\x04\x8c\x02o\n\x8c\x06system\x93.",
    "a call of bytes": b"\x80\x02U\x01a)R.",
    "a value that is not there": b"\x80\x02h\x07.",
    "nothing to take": b"\x80\x02.",
    "a mark to take": b"\x80\x02(.",
    "no mark": b"\x80\x02t.",
    "a key without a value": b"\x80\x02}(K\x01u.",
    "no end": b"\x80\x02]",
    "nothing": b"",
    "bytes that are not there": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"ab.",
    "a buffer that is not there": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"ab.",
    "a text that is not there": b"\x80\x02T\xff\xff\xff\x7fab.",
    "a frame that is not there, and nothing after it": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62),
    # Hashing it would take for ever, or all of the processor's stack.
    "a key of tuples": b"\x80\x02})" + b"\x85" * 1_000 + b"K\x01s.",
}


@pytest.mark.parametrize("what", OPERATIONS)
def test_operations_that_no_pickle_of_arrays_has_are_refused(what):
    with pytest.raises(UnavailableError, match="the pickle is not a plain pickle of arrays: ") as refusal:
        load(OPERATIONS[what])
    assert len(str(refusal.value).splitlines()) == 1


def test_a_small_file_does_not_take_much_memory():
    """A number of a memo was a length of a list; one text was encoded, and one array filled, many times."""
    text = b"\x80\x02X" + struct.pack("<I", 10_000) + b"a" * 10_000 + b"q\x000](c_codecs\nencode\nq\x01"
    again = text.replace(b"q\x000]", b"q\x00") + b"h\x00\x85R" + b"h\x01h\x00\x85R" * 2_000 + b"t."
    tracemalloc.start()
    try:
        assert load(b"\x80\x02]r\xff\xff\xff\x7f.") == []
        with pytest.raises(UnavailableError, match="it makes more arrays than it has bytes for"):
            load(again)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


def test_a_long_file_is_refused_before_it_takes_long(monkeypatch, tmp_path):
    monkeypatch.setattr(pickles, "OPERATIONS", 1_000)
    with pytest.raises(UnavailableError, match="more than 1,000 operations"):
        load(b"\x80\x02](" + b"N" * 2_000 + b"e.")
    monkeypatch.setattr(pickles, "LARGEST", 1 << 20)
    (tmp_path / "data_batch_1").write_bytes(b"a" * (2 << 20))
    with pytest.raises(UnavailableError, match="data_batch_1 has more than the 1 MB"):
        load_arrays(tmp_path / "data_batch_1")


def batch_of_2009(x, labels):
    """A batch as Python 2 wrote it: texts for bytes, plain integers for booleans."""
    rows, columns = x.shape
    shape = b"M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", columns) + b"\x86"
    minus = b"J\xff\xff\xff\xff"
    dtype = b"cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNN" + minus + minus + b"K\x00tb"
    content = b"\x89T" + struct.pack("<i", x.size) + x.tobytes()
    return (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04"
        b"K\x00\x85U\x01b\x87Rq\x05(K\x01" + shape + dtype + content
        + b"tbU\x06labelsq\x08](" + b"".join(b"K" + bytes([label]) for label in labels) + b"eu."
    )  # fmt: skip


def test_batches_of_python_2_and_of_today_are_the_same(tmp_path):
    x, labels = RNG.integers(0, 256, (300, 3072), dtype=np.uint8), [i % 10 for i in range(300)]
    batch = {"data": x, "labels": labels}
    for raw in (batch_of_2009(x, labels), *(pickle.dumps(batch, protocol=p) for p in (2, 3, 4, 5))):
        (tmp_path / "test_batch").write_bytes(raw)
        read = formats.cifar10_pickles(tmp_path, "test")
        np.testing.assert_array_equal(read.x, x.reshape(-1, 3, 32, 32))
        assert read.y.tolist() == labels


def test_arrays_of_every_plain_dtype_come_back():
    kept = {str(dtype): RNG.random((2, 3, 4)).astype(dtype) for dtype in (*"?bBhHiIqQefd", ">f4", ">i2")}
    kept |= {
        "empty": np.zeros((0, 3)),
        "number": np.array(2.5),
        "columns": np.asfortranarray(RNG.random((3, 4))),
    }
    kept["twice"] = kept["number"]
    values = [1, -5, 1 << 200, 2.5, None, True, "a", b"b", (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [[]]]
    for protocol in (2, 3, 4, 5):
        found = load(pickle.dumps({"kept": kept, "values": values}, protocol=protocol))
        assert found["values"] == values
        assert list(found["kept"]) == list(kept)
        for name, array in kept.items():
            np.testing.assert_array_equal(found["kept"][name], array)
            assert found["kept"][name].dtype == array.dtype
            assert found["kept"][name].flags.writeable


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(data=[[0] * 3072]), "data should be rows of 3072 bytes"),
        (dict(data=np.zeros((2, 3072))), "data should be rows of 3072 bytes"),
        (dict(data=np.zeros((2, 3071), np.uint8)), "data should be rows of 3072 bytes"),
        (dict(labels=[0, -1]), "labels should be numbers below 100"),
        (dict(labels=[0, 1 << 70]), "labels should be numbers below 100"),
        (dict(labels=[0, [[1]]]), "labels should be numbers below 100"),
        (dict(labels=[0]), "should have 2 samples, but has 2 with 1 labels"),
    ],
)
def test_a_batch_that_is_no_batch_of_cifar_is_refused_by_name(tmp_path, monkeypatch, change, message):
    small = replace(data.SETS["cifar10"], splits={"train": 2, "test": 2})
    monkeypatch.setitem(data.SETS, "cifar10", small)
    batch = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1], **change}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch))
    with pytest.raises(data.DataError, match=message):
        data.load("cifar10", "test", folder=tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps([batch]))
    with pytest.raises(data.DataError, match="test_batch does not hold CIFAR batches"):
        data.load("cifar10", "test", folder=tmp_path)


# Chance

PLAIN = (type(None), bool, int, float, str, bytes, bytearray, pickles._Name, pickles._Dtype)
ROWS = np.arange(6, dtype=np.uint8).reshape(2, 3)
GOOD = [pickle.dumps({"data": ROWS, "labels": [1, 2], b"k": 0.5}, protocol=p) for p in (2, 3, 4, 5)]
GOOD.append(batch_of_2009(ROWS, [1, 2]))
PIECES = [
    *(
        b"(",
        b"0",
        b"N",
        b")",
        b"]",
        b"}",
        b"t",
        b"\x85",
        b"\x86",
        b"\x87",
        b"a",
        b"e",
        b"s",
        b"u",
        b"R",
        b"b",
    ),
    *(b"\x94", b"q\x00", b"h\x00", b"q\x01", b"h\x01", b"K\x00", b"K\x01", b"U\x01b", b"C\x02ab", b"\x89"),
    *(b"\x81", b"o", b"\x93", b"2", b"1", SHELL, DTYPE, FILLED, ARRAY, b"c_codecs\nencode\n"),
    *(b"cnumpy.core.numeric\n_frombuffer\n", b"ccollections\nOrderedDict\n", b"X\x06\x00\x00\x00latin1"),
]


def give_plain_values_or_one_line(raw):
    """Nothing in the tree could be called, or refers to objects by address."""
    try:
        todo = [load(raw)]
    except UnavailableError as refusal:
        said = str(refusal)
    else:
        said = ""
        for _ in range(500):  # shared parts make a tree long
            value = todo.pop() if todo else None
            if isinstance(value, np.ndarray):
                assert type(value) is np.ndarray
                assert value.dtype.kind in "biuf"
            elif type(value) is dict:
                todo += [*value, *value.values()]
            elif type(value) in (list, tuple):
                todo += value
            else:
                assert type(value) in PLAIN
    assert len(said.splitlines()) <= 1


@settings(max_examples=300)
@given(st.sampled_from(GOOD), st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=6))
def test_changed_bytes_give_plain_values_or_one_line(raw, changes):
    changed = bytearray(raw)
    for place, byte in changes:
        changed[place % len(raw)] = byte
    give_plain_values_or_one_line(bytes(changed))


@settings(max_examples=300)
@example([SHELL, b"q\x00", b"h\x00", FILLED])
@given(st.lists(st.sampled_from(PIECES), max_size=30))
def test_any_operations_give_plain_values_or_one_line(pieces):
    give_plain_values_or_one_line(b"\x80\x04" + b"".join(pieces) + b".")
