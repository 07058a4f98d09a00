"""What sweeps of the first edition's pages keep: more than rows. It goes with ``repalign.study``."""

import json
import sys
import tempfile
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repalign import study
from repalign._files import cache_root
from repalign.study import pack, store
from test_code import TREES


class Pair(NamedTuple):
    low: float
    high: np.ndarray


class Strange(tuple):
    __slots__ = ()


def rich(seed):
    generator = torch.Generator().manual_seed(seed)
    dtypes = torch.bfloat16, torch.float16, torch.complex64, torch.bool
    return {
        "pair": Pair(0.5, np.arange(3.0)),
        "size": torch.Size([2, 3]),
        "svd": torch.linalg.svd(torch.eye(2)),
        "numbers": (1, 1.0, True, 2**80, float("nan"), float("-inf"), 1 - 2j, None, "é", b"\x00b"),
        "scalars": [np.int64(3), np.float32(0.1), np.bool_(True), np.str_("s")],
        "keys": {np.int64(1): "a", 2: "b", (3, "c"): "d", 0.5: "e"},
        "sets": ({1, 2}, frozenset("ab")),
        "tensors": [torch.rand(2, 3, generator=generator).to(dtype) for dtype in dtypes],
        "odd": [torch.zeros(0, 2), torch.tensor(1.5, dtype=torch.bfloat16), torch.eye(3).T[:2]],
        "arrays": [np.array(1.5), np.array(["a", "bc"]), np.zeros((2, 0), "f2"), np.arange(3, dtype=">i4")],
    }


def same(a, b):
    """Equal in value and in kind, through and through."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        same(list(a), list(b))
        same(list(a.values()), list(b.values()))
    elif isinstance(a, (list, tuple)):
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, (np.ndarray, np.generic)):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    else:
        assert a == b or a != a


def test_everything_comes_back_as_what_it_was():
    same(study.cached(rich, dict(seed=0)), rich(0))
    same(study.cached(rich, dict(seed=0)), rich(0))
    (_, other) = study.sweep(rich, study.grid(seed=(0, 1)), jobs=1)
    same(other, rich(1))


@given(TREES)
def test_any_tree_of_plain_values_comes_back(value):
    with tempfile.TemporaryDirectory() as folder:
        pack.write(Path(folder) / "x.npz", "k", value)
        assert repr(pack.read(Path(folder) / "x.npz", "k")) == repr(value)


def gives(value):
    return value


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Strange((1,)), "tuples and NamedTuples, not Strange"),
        (lambda: namedtuple("Hidden", "a")(1), "cannot be found again by its name"),
        (lambda: np.array([{}]), "not ndarray"),
        (lambda: OrderedDict(a=1), "not OrderedDict"),
        (lambda: torch.eye(2).to_sparse(), "not Tensor"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused(make, message):
    with pytest.raises(TypeError, match=message):
        store.write(gives, "key", make())
    assert store.read(gives, "key") is None


def test_a_stored_name_is_not_an_order_to_import_or_call():
    """A file may name any class: only NamedTuples with the same fields, of modules that are there."""
    path = cache_root() / "gives-k.npz"
    pack.write(path, "k", Pair(1.0, np.zeros(1)))
    for module, name, message in (
        ("antigravity", "Pair", "no NamedTuple Pair in antigravity"),
        (__name__, "Strange", "other fields"),
        ("os", "system", "no NamedTuple system in os"),
    ):
        tree = {"key": "k", "value": {"named": [module, name, ["low", "high"], [1, 2]]}}
        np.savez(path, tree=np.frombuffer(json.dumps(tree).encode(), dtype=np.uint8))
        with pytest.raises(ValueError, match=message):
            pack.read(path, "k")
    assert "antigravity" not in sys.modules


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1), st.booleans())
def test_a_garbled_file_is_the_same_result_or_none(tmp_path, changes, cut):
    value = {"pair": Pair(0.5, np.arange(3.0)), "tensor": torch.eye(2), "text": "é"}
    store.write(rich, "key", value)
    path = store._path(rich, "key")
    raw = bytearray(path.read_bytes())
    for place, byte in changes:
        raw[place % len(raw)] = byte
    path.write_bytes(raw[: -changes[0][0] % len(raw)] if cut else raw)
    found = store.read(rich, "key")
    if found is not None:
        same(found[0], value)


@pytest.mark.parametrize("damage", ["torn", "empty", "a pickle"])
def test_a_damaged_file_is_computed_again_with_a_warning(damage):
    study.cached(rich, dict(seed=0))
    (path,) = (cache_root() / "store").glob("rich-*.npz")
    raw = path.read_bytes()
    if damage == "a pickle":
        np.savez(path, tree=np.array([{"a": 1}], dtype=object))
    else:
        path.write_bytes(raw[: len(raw) // 2] if damage == "torn" else b"")
    with pytest.warns(UserWarning, match="computing it again"):
        same(study.cached(rich, dict(seed=0)), rich(0))
    assert path.read_bytes() == raw
