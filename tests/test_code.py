"""Fingerprints of values and code: different when anything that matters is, equal otherwise."""

import enum
import functools
import json
import os
import subprocess
import sys
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

from repalign import data, models
from repalign._code import fingerprint


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
