"""Fingerprints of values and code: different when anything that matters is, equal otherwise."""

import enum
import functools
import json
import os
import subprocess
import sys
import textwrap
import threading
import types
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import repalign
from repalign import data, models
from repalign._code import fingerprint, on_disk, source
from repalign._code.source import Sources


class Point(NamedTuple):
    x: int
    y: float = 0.0


@dataclass(frozen=True)
class Box:
    size: int
    names: tuple[str, ...] = ()


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Other(enum.Enum):
    RED = 1
    BLUE = 2
    GREEN = 3


class Net(nn.Module):
    def __init__(self, fill=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), fill))

    def forward(self, x):
        return x * self.weight


def frozen():
    net = Net()
    net.weight.requires_grad = False
    return net


def add(a, b):
    return a + b


def adder(n):
    return lambda x: x + n


def long(last):
    return [*range(5000), last]


# In each row every value differs from every other, and each made twice is the same.
DIFFERENT = {
    "numbers": lambda: [0, 1, True, 1.0, -0.0, 0.0, 1e-300, float("nan"), 1j, "1", b"1", None, 2**70],
    "numpy scalars": lambda: [1, np.int64(1), np.int32(1), np.float32(1), np.float64(1), np.bool_(True)],
    "containers": lambda: [(), [], {}, set(), (1,), [1], {1: 1}, {1}, ((1,),), (1, 1), ([1],), range(1)],
    "borders": lambda: [["ab", "c"], ["a", "bc"], ["abc"], [["ab"], "c"]],
    "dicts": lambda: [{1: 2}, {"1": 2}, {np.int64(1): 2}, {1: "2"}, OrderedDict({1: 2}), {(1, 2): 3}],
    "order": lambda: [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
    "sets": lambda: [{1, 2}, {1, 3}, frozenset({1, 2}), {"1", 2}, {("a", 1)}],
    "arrays": lambda: [
        *(np.zeros(4, dtype) for dtype in ("f4", "f8", "i4", "u1", "<U1")),
        *(np.zeros((2, 2)), np.zeros((4, 1)), np.array([0, 0, 0, 1.0]), np.array([{}, 1], dtype=object)),
    ],
    "tensors": lambda: [
        *(torch.zeros(4, dtype=d) for d in (torch.float32, torch.bfloat16, torch.int64, torch.complex64)),
        *(torch.zeros(2, 2), torch.zeros(()), torch.zeros(0, 3), torch.zeros(0, 2), np.zeros(4, "f4")),
        *(torch.zeros(4, requires_grad=True), nn.Parameter(torch.zeros(4)), torch.tensor([0, 0, 0, 1.0])),
    ],
    "types of torch": lambda: [
        torch.float32,
        torch.float64,
        torch.device("cpu"),
        torch.device("cuda"),
        "cpu",
    ],
    "long": lambda: [long(0), long(1), torch.tensor(long(0)), torch.tensor(long(1)), "x" * 9999, "x" * 9998],
    "lambdas": lambda: [lambda x: x, lambda x: x + 1, lambda x: x + 2, lambda y: y + 1, lambda x=1: x],
    "closures": lambda: [adder(1), adder(2), adder("1")],
    "partials": lambda: [
        *(functools.partial(add, 1), functools.partial(add, 2), functools.partial(add, b=1)),
        *(functools.partial(adder, 1), functools.partial(torch.add, 1), add),
    ],
    "functions": lambda: [
        len,
        max,
        torch.add,
        torch.mul,
        np.add,
        np.mean,
        add,
        nn.functional.relu,
        data.load,
    ],
    "methods": lambda: ["a".upper, "b".upper, "a".lower, Net().forward, Net(1.0).forward],
    "classes": lambda: [Point, Box, Color, Other, Net, nn.Linear, models.MLP, int, np.ndarray],
    "objects": lambda: [Point(1), Point(1, 2.0), (1, 0.0), Box(1), Box(1, ("a",)), Color.RED, Other.RED],
    "networks": lambda: [
        *(Net(), Net(1.0), Net().double(), frozen(), Net().eval(), nn.Sequential(Net()), Net),
        *(models.MLP(2, 1, depth=1, width=2, seed=s) for s in (0, 1)),
        *(nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh())),
    ],
    "data sets": lambda: [
        *(data.load("mnist", n=n, seed=s) for n, s in ((10, 0), (10, 1), (20, 0))),
        "mnist",
    ],
    "modules": lambda: [np, torch, models, data],
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_different_values_differ_and_equal_ones_do_not(kind):
    marks = [fingerprint(value) for value in DIFFERENT[kind]()]
    assert len(set(marks)) == len(marks)
    assert [fingerprint(value) for value in DIFFERENT[kind]()] == marks


LEAVES = st.sampled_from(
    [0, 1, -1, 1.0, 0.5, float("inf"), True, False, None, "", "0", "a", "ab", b"", b"a", ()]
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(LEAVES, inner, max_size=3),
    ),
    max_leaves=6,
)


@given(TREES, TREES)
def test_values_are_told_apart_exactly_when_they_read_differently(a, b):
    assert (fingerprint(a) == fingerprint(b)) == (repr(a) == repr(b))


def test_a_cell_of_a_notebook_is_never_taken_for_a_library():
    """In a kernel __main__ was started from an installed file, as it is under pytest."""

    def made(text):
        space = {"__name__": "__main__"}
        exec(text, space)
        return space["f"]

    texts = ("def f(x): return x + 1", "def f(x): return x + 2", "class f: a = 1", "class f: a = 2")
    assert len({fingerprint(made(text)) for text in texts}) == 4


def test_a_tensor_is_its_values_not_its_memory():
    x = torch.arange(6.0).reshape(2, 3)
    for same in (x.T.contiguous().T, x.clone(), torch.cat([x, x])[:2]):
        assert fingerprint(same) == fingerprint(x)
    assert fingerprint(x.conj().numpy()) == fingerprint(x.numpy().copy(order="F"))
    z = torch.tensor([1 + 2j])
    assert fingerprint(z.conj()) == fingerprint(torch.tensor([1 - 2j]))


@pytest.mark.parametrize("value", [object(), threading.Lock(), (i for i in "a"), torch.eye(2).to_sparse()])
def test_what_has_no_fingerprint_is_refused_by_name(value):
    with pytest.raises(TypeError, match=r"the configuration\['a'\]\[1\] \(.*no fingerprint"):
        fingerprint({"a": [0, value]}, "the configuration")
    loop = []
    loop.append(loop)
    with pytest.raises(TypeError, match="contains itself"):
        fingerprint(loop)


# A script beside a helper file, edits that matter to its function ``main``, and edits that do not.

HELPER = """
import math
FACTOR = 3
TABLE = {"a": 1, "b": [1, 2]}

def square(x):
    return twice(x) * FACTOR

def twice(x):
    return 2 * x

def not_used(x):
    return x
"""

SCRIPT = '''
import functools
import os
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

import helper
from helper import square

SCALE = 1.5
STEPS = 10
area = 7  # the name of an attribute below
weights = torch.arange(5000.0)

class Base:
    rate = 0.1
    def step(self, x):
        return x * self.rate

class Net(nn.Module, Base):
    """A network."""
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    @property
    def half(self):
        return 0.5

    def forward(self, x):
        return soften(x) * self.half

def soften(x):
    return x - 0.25 + len(os.environ.get("REPALIGN_Y", ""))

class Pair(NamedTuple):
    a: int
    b: int = 4

@dataclass
class Plan:
    epochs: int = 5

net = Net()
shift = functools.partial(soften, 2)
pick = lambda x: x + 1
other = lambda x: x + 2

def deep(n):
    return shallow(n - 1) if n else 0

def shallow(n):
    return deep(n) + 8

@torch.no_grad()
def measured(x):
    return x * 6

def main(n, steps=STEPS):
    """What it does."""
    from helper import TABLE as table

    def inner(x):
        "Inside."
        return x * SCALE

    total = inner(n) + square(n) + helper.twice(n) + pick(n) + shift() + deep(n) + measured(n)
    return net(n), Pair(1), Plan(), table, weights, total.area, np.mean(total)
'''


MATTER = {
    "its own code": ("total = inner(n)", "total = 1 + inner(n)"),
    "a constant inside a function in it": ("x * SCALE", "x / SCALE"),
    "a global number": ("SCALE = 1.5", "SCALE = 1.6"),
    "a default taken from a global": ("STEPS = 10", "STEPS = 11"),
    "a long tensor": ("torch.arange(5000.0)", "torch.arange(5000.0).index_fill(0, torch.tensor(2500), 0)"),
    "a function that it calls": ("- 0.25", "- 0.5"),
    "a function of a helper file": ("return twice(x) * FACTOR", "return twice(x) + FACTOR"),
    "what that one uses": ("return 2 * x", "return 3 * x"),
    "a global of a helper file": ("FACTOR = 3", "FACTOR = 4"),
    "a table imported inside": ("[1, 2]", "[1, 3]"),
    "a lambda": ("pick = lambda x: x + 1", "pick = lambda x: x - 1"),
    "one lambda in place of another": ("+ pick(n)", "+ other(n)"),
    "an argument of a partial": ("soften, 2)", "soften, 3)"),
    "the weights of a network": ("torch.zeros(3)", "torch.ones(3)"),
    "a method of its class": ("self.half", "-self.half"),
    "a property of its class": ("return 0.5", "return 0.6"),
    "an attribute of its base": ("rate = 0.1", "rate = 0.2"),
    "a method of its base": ("x * self.rate", "x / self.rate"),
    "a function called in turns": ("deep(n) + 8", "deep(n) + 9"),
    "a function behind a decorator": ("return x * 6", "return x * 7"),
    "a default of a NamedTuple": ("b: int = 4", "b: int = 3"),
    "a default of a dataclass": ("epochs: int = 5", "epochs: int = 6"),
    "the order of a table": ('{"a": 1, "b": [1, 2]}', '{"b": [1, 2], "a": 1}'),
}
DO_NOT = {
    "nothing": ("", ""),
    "a comment": ("SCALE = 1.5", "# larger is wider\nSCALE = 1.5"),
    "its docstring": ('"""What it does."""', '"""What it does, in other words."""'),
    "no docstring": ('    """What it does."""\n', ""),
    "a docstring inside": ('"Inside."', '"In here."'),
    "the docstring of a class": ('"""A network."""', ""),
    "a new line": ("inner(n) + square(n)", "(inner(n)\n        + square(n))"),
    "a function that is not used": ("return x\n", "return x + 1\n"),
    "a new function": ("def soften(x):", "def fresh(x):\n    return x\n\ndef soften(x):"),
    "a global named like an attribute": ("area = 7", "area = 8"),
    "an import that is not used": ("import functools", "import functools\nimport decimal"),
    "the environment": (
        "import functools",
        "import functools, os\nos.environ['REPALIGN_X'] = 'x' + os.environ.get('REPALIGN_X', '')",
    ),
    "how an annotation is written": ("def twice(x):", "def twice(x: int) -> float:"),
}


def marks_of_edits():
    """The fingerprint of ``main`` after each edit."""
    found = {}
    for title, (old, new) in {**DO_NOT, **MATTER}.items():
        assert (old in HELPER) + (old in SCRIPT) >= 1, title
        for name, text in (("helper", HELPER), ("script", SCRIPT)):
            module = sys.modules[name] = types.ModuleType(name)
            exec(compile(text.replace(old, new) if old else text, f"{name}.py", "exec"), vars(module))
        found[title] = fingerprint(sys.modules["script"].main)
    os.environ.pop("REPALIGN_X")
    return found


@pytest.fixture(scope="module")
def edits():
    return marks_of_edits()


@pytest.mark.parametrize("title", MATTER)
def test_a_change_that_matters_is_seen(edits, title):
    assert edits[title] != edits["nothing"]


@pytest.mark.parametrize("title", DO_NOT)
def test_a_change_that_does_not_matter_is_not(edits, title):
    assert edits[title] == edits["nothing"]


def test_no_two_changes_are_taken_for_each_other(edits):
    assert len({edits[title] for title in MATTER}) == len(MATTER)


def test_another_process_finds_the_same(edits):
    code = "import json, test_code; print(json.dumps(test_code.marks_of_edits()))"
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": paths}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == edits


# The package's own source, by a small package in its place.

FILES = {
    "__init__.py": "VERSION = 1\n",
    "measures/__init__.py": """
        from repalign.measures.area import area
        from repalign.measures.rank import rank as effective
        """,
    "measures/area.py": """
        from __future__ import annotations
        import torch
        from dataclasses import dataclass
        from repalign import _tools
        from repalign._tools import check as checked, twice
        from repalign.data import Set

        WIDTH = 3
        HEIGHT, DEPTH = 4, 5

        @dataclass
        class Area:
            '''What it is.'''
            value: float
            def half(self):
                return twice(self.value) / 4

        def area(x: Set) -> Area:
            '''How it is.'''
            checked(x)
            from repalign.rooms import late
            return Area(x * WIDTH * HEIGHT + _tools.SCALE + late.shift())

        def unused(x):
            return x
        """,
    "measures/rank.py": "def rank(x):\n    return x + 1\n",
    "_tools.py": """
        SCALE = 2
        UNUSED = 3
        def check(x):
            return x
        def twice(x):
            return 2 * x
        """,
    "rooms/late.py": "def shift():\n    return 1\n\ndef other():\n    return 2\n",
    "data/__init__.py": "from repalign.data.sets import SETS, Set\n",
    "data/sets.py": "class Set:\n    pass\n\nSETS = {'a': 1}\n",
    "registry.py": """
        TABLE = {}
        def register(name):
            def keep(fn):
                TABLE[name] = fn
                return fn
            return keep
        def look(name):
            return TABLE[name]
        from repalign import plugins
        """,
    "plugins.py": """
        from repalign.registry import TABLE, register
        @register("one")
        def one(x):
            return helper(x)
        def helper(x):
            return x + 1
        TABLE["two"] = lambda x: x + 2
        def unused(x):
            return x
        """,
}
AREA, LOOK, EFFECTIVE = "repalign.measures:area", "repalign.registry:look", "repalign.measures:effective"
PACKAGE_EDITS = [
    (AREA, "measures/area.py", "x * WIDTH", "x + WIDTH", True),
    (AREA, "measures/area.py", "WIDTH = 3", "WIDTH = 4", True),
    (AREA, "measures/area.py", "= 4, 5", "= 5, 5", True),
    (AREA, "measures/area.py", "/ 4", "/ 5", True),
    (AREA, "measures/area.py", "value: float", "value: float = 1.0", True),
    (AREA, "measures/area.py", "check as checked, twice", "twice as checked, check as twice", True),
    (AREA, "measures/area.py", "import torch", "import torch; print(1)", True),
    (AREA, "_tools.py", "return 2 * x", "return 3 * x", True),
    (AREA, "_tools.py", "SCALE = 2", "SCALE = 3", True),
    (AREA, "rooms/late.py", "return 1", "return 3", True),
    (AREA, "measures/__init__.py", "area import area", "rank import rank as area", True),
    (AREA, "measures/area.py", "How it is", "How it was", False),
    (AREA, "measures/area.py", "What it is", "What it was", False),
    (AREA, "measures/area.py", "WIDTH = 3", "WIDTH = (3)  # wide", False),
    (AREA, "measures/area.py", "def area(x: Set) -> Area:", "def area(x) -> float:", False),
    (AREA, "measures/area.py", "return x\n", "return x + 1\n", False),
    (AREA, "measures/area.py", "import torch", "import torch, decimal", False),
    (AREA, "measures/rank.py", "x + 1", "x + 2", False),
    (AREA, "measures/__init__.py", "rank as effective", "rank as effective, rank as other", False),
    (AREA, "_tools.py", "UNUSED = 3", "UNUSED = 4", False),
    (AREA, "rooms/late.py", "return 2", "return 3", False),
    (AREA, "data/sets.py", "'a': 1", "'a': 1, 'b': 2", False),
    (AREA, "__init__.py", "VERSION = 1", "VERSION = 2", False),
    (EFFECTIVE, "measures/rank.py", "x + 1", "x + 2", True),
    (EFFECTIVE, "measures/area.py", "x * WIDTH", "x + WIDTH", False),
    (LOOK, "plugins.py", "return helper(x)", "return -helper(x)", True),
    (LOOK, "plugins.py", "x + 1", "x + 3", True),
    (LOOK, "plugins.py", "x + 2", "x + 3", True),
    (LOOK, "plugins.py", "return x\n", "return -x\n", False),
    ("repalign.measures", "measures/rank.py", "x + 1", "x + 2", True),
    ("repalign.measures", "measures/area.py", "x * WIDTH", "x + WIDTH", True),
    ("repalign", "__init__.py", "VERSION = 1", "VERSION = 2", True),
]


@pytest.mark.parametrize("root, file, old, new, matters", PACKAGE_EDITS)
def test_a_result_depends_on_the_definitions_that_it_reaches(root, file, old, new, matters):
    def digest(files):
        return Sources({path: textwrap.dedent(text).encode() for path, text in files.items()}).digest([root])

    assert old in FILES[file]
    edited = {**FILES, file: FILES[file].replace(old, new)}
    assert (digest(edited) != digest(FILES)) == matters


NETWORKS = {
    "__init__.py": "",
    "nets.py": """
        from repalign.parts import deep, plain, wide
        NAMES = {"plain": plain, "wide": lambda: wide(2), "deep": deep}
        STEPS = {"constant": 1, "linear": 2}
        def build(name, steps="constant"):
            return NAMES[name](), STEPS[steps]
        """,
    "parts.py": """
        def plain():
            return 1
        def wide(k):
            return k
        def deep():
            return 3 * inner()
        def inner():
            return 4
        """,
}


@pytest.mark.parametrize(
    "named, file, old, new, matters",
    [
        (["plain"], "parts.py", "return 1", "return 9", True),
        (["plain"], "parts.py", "return k", "return 9", False),
        (["plain"], "parts.py", "return 4", "return 9", False),
        (["deep"], "parts.py", "return 4", "return 9", True),
        (["wide"], "nets.py", "wide(2)", "wide(3)", True),
        (["plain"], "nets.py", '"deep": deep', '"deep": deep, "new": inner', False),
        (["plain"], "nets.py", '"deep": deep', '"deeper": deep', False),
        (["new"], "nets.py", '"deep": deep', '"new": deep', True),
        # Nothing is named that the table has: then every row may be the one.
        (["other"], "parts.py", "return k", "return 9", True),
        ([], "parts.py", "return k", "return 9", True),
        # A key in quotes in the code that is reached counts as well, and so does one more that is named.
        (["plain"], "nets.py", '"constant": 1', '"constant": 5', True),
        (["plain"], "nets.py", '"linear": 2', '"linear": 5', False),
        (["plain", "linear"], "nets.py", '"linear": 2', '"linear": 5', True),
        (["plain", "linear"], "nets.py", '"constant": 1', '"constant": 5', True),
        # Without names all rows count.
        (None, "parts.py", "return k", "return 9", True),
    ],
)
def test_of_a_table_the_rows_that_are_named_count(named, file, old, new, matters):
    def digest(files):
        package = Sources({path: textwrap.dedent(text).encode() for path, text in files.items()})
        return package.digest(["repalign.nets:build"], named=named)

    assert old in NETWORKS[file]
    edited = {**NETWORKS, file: NETWORKS[file].replace(old, new)}
    assert (digest(edited) != digest(NETWORKS)) == matters


def test_what_a_page_reaches():
    page = """
from repalign import data, measures as m
from repalign.data import Set
import numpy, repalign._tools, repalign.rooms.late as late

# %%
def later():
    from repalign.measures.rank import rank
    return rank(m.area(1)), repalign._tools.twice(2)
print(late)
"""
    found = Sources({path: textwrap.dedent(text).encode() for path, text in FILES.items()}).page(page)
    assert [root for root in found if not root.endswith(":")] == [
        *("repalign._tools:twice", "repalign.measures.rank:rank", "repalign.measures:area"),
        "repalign.rooms.late",
    ]
    assert {"repalign.data:", "repalign.measures:"} <= set(found)  # imported, if only to run


def test_every_public_name_of_the_package_has_its_code():
    """Whatever a page takes from the package, its key finds the definition and what that uses."""
    package, roots = on_disk(), []
    for name in dir(repalign):
        module = getattr(repalign, name)
        roots += [f"{module.__name__}:{public}" for public in getattr(module, "__all__", [])]
    digests = {root: package.digest([root]) for root in roots}
    assert len(digests) > 60
    assert len(set(digests.values())) == len(digests)
    assert package.digest(roots) == on_disk().digest(reversed(roots))
    with pytest.raises(ValueError, match="repalign has no module nothing"):
        package.digest(["repalign.nothing:f"])


def test_the_version_of_a_library_counts_where_it_is_used(monkeypatch):
    versions = {"torch": "1"}
    monkeypatch.setattr(source, "library_version", lambda name: versions.get(name, "0"))
    files = {path: textwrap.dedent(text).encode() for path, text in FILES.items()}
    files["measures/area.py"] = files["measures/area.py"].replace(b"x * WIDTH", b"torch.relu(x)")
    before = [Sources(files).digest([root]) for root in (AREA, EFFECTIVE)]
    versions["torch"] = "2"
    after = [Sources(files).digest([root]) for root in (AREA, EFFECTIVE)]
    assert [a != b for a, b in zip(after, before, strict=True)] == [True, False]


@pytest.mark.parametrize(
    "file, old, new, same",
    [
        ("_code/values.py", b'self._put("float", value.hex())', b'self._put("real", value.hex())', True),
        ("_code/source.py", b"def strings(", b"def texts(", True),
        ("train/loop.py", b"def fit(", b"STEP = 1\n\n\ndef fit(extra, ", False),
    ],
)
def test_keys_of_trained_networks_do_not_name_the_code_that_makes_keys(monkeypatch, file, old, new, same):
    def key():
        source.imported_digest.cache_clear()
        return source.imported_digest(frozenset(["repalign.train:fit"]))

    files, before = {path: raw for path, (raw, _) in repalign._source.items()}, key()
    assert old in files[file]
    files[file] = files[file].replace(old, new)
    monkeypatch.setattr(source, "imported", lambda: Sources(files))
    assert (key() == before) == same
    source.imported_digest.cache_clear()
