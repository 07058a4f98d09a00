"""Stored cells: a key of what decides numbers and of nothing else; a file is right, or computed again."""

import json
import os
import pickle
import resource
import textwrap
import threading
import types
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repalign import data, press
from repalign._code import source
from repalign.press import provenance, store, sweep


def work(n, scale=1.0):
    with open(os.environ["CALLS"], "a") as file:
        file.write("x")
    return [dict(i=i, value=i * scale, name=f"é{i}", odd=float("nan")) for i in range(n)]


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """How often ``work`` was computed."""
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv("CALLS", str(path))
    return lambda: len(path.read_text())


def computed(**config):
    return sweep.run(work, [config], None, {}, 1)


def only_file():
    (path,) = store.directory().glob("work-*.json")
    return path


# The key

CELL = """
    import torch
    from repalign import kernels

    FACTOR = 3
    unused = 1

    def helper(x):
        return x * FACTOR

    def cell(n, k=2):
        "What it does."
        def inner(x):
            return helper(x) + k
        return dict(value=inner(n))
"""
MATTERS = {
    "its own code": ("helper(x) + k", "helper(x) - k"),
    "a default": ("k=2", "k=4"),
    "a function that it calls": ("x * FACTOR", "x / FACTOR"),
    "a global that this one uses": ("FACTOR = 3", "FACTOR = 4"),
}
DOES_NOT = {
    "a comment": ("FACTOR = 3", "FACTOR = 3  # why"),
    "a docstring": ("What it does.", "What it does, in other words."),
    "its layout": ("def helper(x):", "\n\n    def helper(\n        x,\n    ):"),
    "what it does not use": ("unused = 1", "unused = 2"),
}


def key_of(text, n=1, marked=""):
    """The key of the cell of a page with this source."""
    space = types.ModuleType("__main__")
    exec(textwrap.dedent(text), vars(space))
    return store.key(space.cell, {"n": n}, marked)


@pytest.mark.parametrize("edit", MATTERS)
def test_the_key_changes_with_the_source_of_the_function(edit):
    assert key_of(CELL.replace(*MATTERS[edit])) != key_of(CELL)


@pytest.mark.parametrize("edit", DOES_NOT)
def test_the_key_does_not_change_with_what_decides_no_number(edit):
    assert key_of(CELL.replace(*DOES_NOT[edit])) == key_of(CELL)


def test_the_key_changes_with_configuration_data_samples_versions_and_library(monkeypatch):
    keys = {key_of(CELL), key_of(CELL, n=2), key_of(CELL, n=1.0), key_of(CELL, marked="other data")}
    monkeypatch.setenv("REPALIGN_SAMPLES", "shipped")
    keys.add(key_of(CELL))
    monkeypatch.setenv("REPALIGN_SAMPLES", "whole")
    keys.add(key_of(CELL))
    for library in ("torch", "numpy", "python"):
        versions = {**provenance.versions(), library: "0.0"}
        with monkeypatch.context() as other:
            other.setattr(provenance, "versions", lambda found=versions: found)
            keys.add(key_of(CELL))
    with monkeypatch.context() as edited:
        edited.setattr(source, "imported", lambda: "an edited library")
        keys.add(key_of(CELL))
    assert len(keys) == 10


def test_the_key_does_not_change_with_place_order_or_environment(monkeypatch, tmp_path):
    before = store.key(work, {"n": 3, "scale": 2.0}, "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPALIGN_JOBS", "7")
    monkeypatch.setattr(provenance, "today", lambda: "2999-01-01")
    torch.manual_seed(5)
    assert store.key(work, {"scale": 2.0, "n": 3}, "data") == before


def test_data_count_by_content():
    one, same, other = (data.load("mnist", n=10, seed=seed) for seed in (0, 0, 1))
    marks = [sweep.fingerprint_of(given) for given in (one, same, other, (one, other), (other, one))]
    assert marks[0] == marks[1]
    assert len(set(marks)) == 4
    keys = [store.key(work, {"n": given}, "") for given in (one, same, other)]
    assert keys[0] == keys[1] != keys[2]


def test_what_has_no_key_is_refused_by_name():
    with pytest.raises(TypeError, match=r"the configuration of work\['n'\] \(lock\) has no fingerprint"):
        store.key(work, {"n": threading.Lock()}, "")
    with pytest.raises(TypeError, match="a sweep maps a plain function, not a builtin_function"):
        store.key(len, {}, "")
    lock = threading.Lock()

    def waits():
        return lock

    with pytest.raises(TypeError, match=r"lock, which waits takes from around it \(lock\) has no"):
        store.key(waits, {}, "")


# One digest of the library

LIBRARY = {
    "kernels/rank.py": b'"""Ranks."""\nWIDTH = 3\n\n\ndef rank(x):\n    """How."""\n    return x * WIDTH\n',
    "linear.py": b"def fit(x):\n    return x\n",
    "press/cells.py": b"THREADS = 1\n",
    "press/cards.py": b"TITLE = 1\n",
    "plots/lines.py": b"COLOR = 1\n",
    "__init__.py": b"VERSION = 1\n",
}


@pytest.mark.parametrize(
    ("path", "old", "new", "counts"),
    [
        ("kernels/rank.py", b"x * WIDTH", b"x + WIDTH", True),
        ("kernels/rank.py", b"WIDTH = 3", b"WIDTH = 4", True),
        ("kernels/rank.py", b"def rank(x):", b"def rank(x):  (", True),  # in the middle of an edit
        ("linear.py", b"return x", b"return -x", True),
        ("press/cells.py", b"THREADS = 1", b"THREADS = 2", True),
        ("kernels/rank.py", b"Ranks.", b"All ranks.", False),
        ("kernels/rank.py", b'    """How."""\n', b"", False),
        ("kernels/rank.py", b"x * WIDTH", b"(x  *  WIDTH)  # wide", False),
        ("press/cards.py", b"TITLE = 1", b"TITLE = 2", False),
        ("plots/lines.py", b"COLOR = 1", b"COLOR = 2", False),
        ("__init__.py", b"VERSION = 1", b"VERSION = 2", False),
    ],
)
def test_the_digest_of_the_library_follows_its_code(path, old, new, counts):
    assert old in LIBRARY[path]
    edited = {**LIBRARY, path: LIBRARY[path].replace(old, new)}
    assert (source.of(edited) != source.of(LIBRARY)) == counts


def test_the_digest_knows_files_by_their_names():
    moved = {("kernels/moved.py" if path == "linear.py" else path): raw for path, raw in LIBRARY.items()}
    assert source.of(moved) != source.of(LIBRARY)
    assert source.of(dict(reversed(LIBRARY.items()))) == source.of(LIBRARY)


# The files


def test_a_cell_comes_back_as_it_was(calls):
    first = computed(n=3, scale=0.1)
    again = computed(n=3, scale=0.1)
    assert calls() == 1
    assert again.table.equals(first.table)
    assert again.cells.equals(first.cells)
    assert again.table["value"].tolist() == [0.0, 0.1, 0.2]
    computed(n=3, scale=0.2)
    assert calls() == 2


def torn(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def of_another_key(path):
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({**kept, "key": "another"}))


def by_another_program(path):
    path.write_text("[]")


def changed_by_hand(path):
    kept = json.loads(path.read_text())
    kept["rows"][0]["value"] = 9.0
    path.write_text(json.dumps(kept))


class Evil:
    def __reduce__(self):
        return Path.touch, (Path(os.environ["OPENED"]),)


def pickled(path):
    path.write_bytes(pickle.dumps(Evil()))


DAMAGES = [torn, empty, of_another_key, by_another_program, changed_by_hand, pickled]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_computed_again_with_a_warning(calls, damage, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENED", str(tmp_path / "opened"))
    before = computed(n=3).table
    damage(only_file())
    with pytest.warns(UserWarning, match=r"the stored cell work-.*\.json is unreadable .*computing it again"):
        assert computed(n=3).table.equals(before)
    assert calls() == 2
    computed(n=3)
    assert calls() == 2
    assert not (tmp_path / "opened").exists()


OF_OTHER_KINDS = {
    "numbers as rows": (3, {"commit": "a"}),
    "rows of numbers": ([3], {"commit": "a"}),
    "rows of lists": ([{"i": [1]}], {"commit": "a"}),
    "a number as provenance": ([{"i": 1}], 3),
    "no provenance": ([{"i": 1}], None),
}


@pytest.mark.parametrize("kind", OF_OTHER_KINDS)
def test_rows_of_another_kind_are_computed_again_although_their_digest_is_right(calls, kind):
    before = computed(n=3).table
    path = only_file()
    rows, provenance = OF_OTHER_KINDS[kind]
    content = store._content(store.Cell(rows, provenance))
    kept = {**json.loads(path.read_text()), "rows": rows, "provenance": provenance, "content": content}
    path.write_text(json.dumps(kept))
    with pytest.warns(UserWarning, match="unreadable .*computing it again"):
        assert computed(n=3).table.equals(before)
    assert calls() == 2


def test_a_pipe_in_place_of_a_file_is_not_waited_for(calls):
    before = computed(n=3).table
    path = only_file()
    path.unlink()
    os.mkfifo(path)
    with pytest.warns(UserWarning, match="it is no file"):
        assert computed(n=3).table.equals(before)
    assert path.is_file()


GARBLED = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=100).map(str.encode),
    st.sampled_from(
        [b"[" * 100_000, b"9" * 5_000, b'{"key":' * 5_000, b"null", b'"a"', b"\xff\xfe", b"1e999"]
    ),
)


@pytest.mark.filterwarnings("ignore:the stored cell")
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(GARBLED, st.integers(0, 1 << 16), st.integers(0, 300), st.booleans())
def test_a_garbled_file_is_the_same_cell_or_none(tmp_path, text, place, length, whole):
    cell = store.Cell([dict(i=i, odd=float("nan"), text="é\ud800") for i in range(3)], {"commit": "a"})
    store.write(work, "mark", cell)
    path = only_file()
    raw = path.read_bytes()
    place %= len(raw)
    path.write_bytes(text if whole else raw[:place] + text + raw[place + length :])
    assert repr(store.read(work, "mark")) in (repr(cell), "None")


@pytest.mark.filterwarnings("ignore:the stored cell")
def test_no_wrong_byte_gives_a_wrong_number(calls):
    computed(n=2)
    path = only_file()
    mark = json.loads(path.read_text())["key"]
    right, raw = store.read(work, mark), path.read_bytes()
    for place in range(len(raw)):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        found = store.read(work, mark)
        assert found is None or repr(found) == repr(right)


def test_a_full_disk_leaves_no_half_file():
    """A limit on the size of files stands in for the disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    cell = store.Cell([dict(text="x" * 100_000)], {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            store.write(work, "mark", cell)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(store.directory().iterdir()) == []


def test_several_that_write_a_cell_at_once_leave_a_whole_one():
    cell, found = store.Cell([dict(text="x" * 50_000)], {"commit": "a"}), []

    def write_and_read():
        for _ in range(20):
            store.write(work, "mark", cell)
            found.append(store.read(work, "mark"))

    threads = [threading.Thread(target=write_and_read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [cell] * 80
    assert len(list(store.directory().iterdir())) == 1


def test_a_run_for_the_record_has_a_store_of_its_own(calls, tmp_path, monkeypatch):
    computed(n=3)
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "fresh"))
    computed(n=3)
    computed(n=3)
    assert calls() == 2
    assert len(list((tmp_path / "fresh").iterdir())) == 1


# What a row holds


def gives(value):
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "gives should return rows: a dict, a list of dicts or a frame, not int"),
        ([3], "should return rows"),
        (dict(a=torch.zeros(2)), "returned a Tensor in the column 'a': a row holds numbers, strings and"),
        (dict(a=[1]), "returned a list in the column 'a'"),
        (dict(a=object()), "returned a object in the column 'a'"),
    ],
)
def test_what_is_no_row_is_refused(value, message):
    with pytest.raises(TypeError, match=message):
        store.plain(value, "gives")
    with pytest.raises(press.SweepError, match="should return rows"):
        sweep.run(gives, [dict(value=3)], None, {}, 1)


def test_numbers_of_numpy_and_torch_become_plain():
    row = dict(a=torch.tensor(1.5), b=torch.tensor(True), c=torch.ones(2).double().sum().numpy(), d=None)
    (found,) = store.plain(row, "gives")
    assert {name: type(value) for name, value in found.items()} == dict(
        a=float, b=bool, c=float, d=type(None)
    )
