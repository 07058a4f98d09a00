"""Settings, claims, the store and the figures: what a page relies on."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given

import repalign
from repalign import data, study
from repalign.study import pack, run, store, style
from test_code import TREES

TABLE = dict(smoke=dict(n=1), laptop=dict(n=2), desktop=dict(n=3), paper=dict(n=4))


@pytest.fixture(autouse=True)
def _page(_own_directories):
    study.begin("toy/01_page")


def out():
    return Path(os.environ["REPALIGN_OUT"])


# Settings


def test_settings_are_the_column_of_the_profile():
    s = study.settings("desktop", **TABLE)
    assert s.n == 3
    assert study.settings("desktop", {"n": 7}, **TABLE).n == 7
    shown = s._repr_html_()
    assert "this run (desktop)" in shown
    assert ">3<" in shown
    assert ">4<" in shown  # the paper's column beside ours


def test_settings_refuse_what_they_do_not_know():
    with pytest.raises(ValueError, match="choose one of smoke, laptop, desktop, paper"):
        study.settings("huge", **TABLE)
    with pytest.raises(ValueError, match="unknown setting m: this page has n"):
        study.settings("laptop", {"m": 1}, **TABLE)
    with pytest.raises(ValueError, match="laptop and paper differ in m"):
        study.settings("laptop", **{**TABLE, "laptop": dict(n=1, m=2)})
    with pytest.raises(AttributeError, match="no setting 'm' on this page; there are n"):
        _ = study.settings("laptop", **TABLE).m


# Claims


def measured(id="toy.fig1"):
    return json.loads((out() / "claims" / f"{id}.json").read_text())


def declare():
    study.claims(dict(id="toy.fig1", paper="one is one", criterion="it is", exact=True))


def test_data_used_are_part_of_a_claim(capsys):
    digits = data.load("mnist", n=20, seed=0)
    study.uses(digits)
    assert digits.source in capsys.readouterr().out
    declare()
    study.claim("toy.fig1", measured=1, holds=True)
    kept = measured()
    assert kept["data"] == {"mnist/train": digits.source}
    study.begin("toy/02_page")
    declare()
    study.claim("toy.fig1", measured=1, holds=True)
    assert measured()["fingerprint"] != kept["fingerprint"]


# The store

SCALE = 2


def helper(x):
    return x * SCALE


def work(n, scale=1.0):
    with open(os.environ["REPALIGN_CALLS"], "a") as file:
        file.write("x")
    return {"t": torch.arange(n) * scale, "a": np.eye(2), 3: [(1, "s", None, True)], "h": helper(0.5)}


@pytest.fixture
def calls(tmp_path, monkeypatch):
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv("REPALIGN_CALLS", str(path))
    return lambda: len(path.read_text())


def test_a_result_is_computed_once_and_comes_back_as_it_was(calls):
    first = study.cached(work, dict(n=3))
    again = study.cached(work, dict(n=3))
    assert calls() == 1
    assert torch.equal(first["t"], again["t"])
    assert again["t"].dtype == first["t"].dtype
    assert isinstance(again["a"], np.ndarray)
    assert again[3] == [(1, "s", None, True)]
    study.cached(work, dict(n=3, scale=2.0))
    assert calls() == 2


def test_the_key_follows_source_globals_and_data(calls, monkeypatch):
    study.cached(work, dict(n=3))
    monkeypatch.setitem(globals(), "SCALE", 3)
    study.cached(work, dict(n=3))
    assert calls() == 2

    def on_data(d, k):
        return float(d.x.sum()) + k

    a, b = (data.load("mnist", n=10, seed=seed) for seed in (0, 1))
    assert study.cached(on_data, dict(k=1), data=a) != study.cached(on_data, dict(k=1), data=b)


@pytest.mark.parametrize("damage", ["torn", "foreign", "empty"])
def test_a_torn_or_foreign_file_is_computed_again_with_a_warning(calls, damage):
    study.cached(work, dict(n=3))
    (path,) = store.directory().glob("work-*.npz")
    raw = path.read_bytes()
    if damage == "foreign":
        study.cached(work, dict(n=4))
        other = next(p for p in store.directory().glob("work-*.npz") if p != path)
        path.write_bytes(other.read_bytes())
    else:
        path.write_bytes(raw[: len(raw) // 2] if damage == "torn" else b"")
    before = calls()
    with pytest.warns(UserWarning, match="computing it again"):
        assert len(study.cached(work, dict(n=3))["t"]) == 3
    assert calls() == before + 1
    study.cached(work, dict(n=3))
    assert calls() == before + 1
    assert not list(store.directory().glob(".*"))


def test_a_pickle_in_the_store_is_not_opened(calls):
    study.cached(work, dict(n=3))
    (path,) = store.directory().glob("work-*.npz")
    evil = np.array([{"a": 1}], dtype=object)
    np.savez(path, tree=evil)
    with pytest.warns(UserWarning, match="computing it again"):
        study.cached(work, dict(n=3))


def test_what_cannot_be_keyed_is_refused():
    with pytest.raises(TypeError, match=r"the configuration\['n'\] \(lock\) has no fingerprint"):
        study.cached(work, dict(n=threading.Lock()))
    with pytest.raises(TypeError, match="only plain functions"):
        study.cached(len, {})
    with pytest.raises(TypeError, match="dict of arguments by name"):
        study.cached(work, [3])
    lock = threading.Lock()

    def waits():
        return lock

    with pytest.raises(TypeError, match=r"lock, which waits takes from around it \(lock\) has no"):
        study.cached(waits, {})


def gives_object():
    return object()


def test_a_result_that_cannot_be_stored_is_refused():
    with pytest.raises(TypeError, match="numbers, strings and arrays, not object"):
        study.cached(gives_object, {})


def test_two_at_once_both_get_the_result(calls):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(study.cached(work, dict(n=5)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(torch.equal(r["t"], results[0]["t"]) for r in results)


def test_a_full_disk_leaves_no_half_file(calls, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        study.cached(work, dict(n=3))
    assert not list(store.directory().iterdir())


class Pair(NamedTuple):
    low: float
    high: np.ndarray


def rich():
    return {
        "pair": Pair(0.5, np.arange(3.0)),
        "pairs": [Pair(1.0, np.zeros(0))],
        "size": torch.Size([2, 3]),
        "svd": torch.linalg.svd(torch.eye(2)),
        "numbers": (1, 1.0, True, 2**80, float("nan"), float("-inf"), 1 - 2j, None, "é", b"\x00b"),
        "scalars": [np.int64(3), np.float32(0.1), np.float64(0.1), np.bool_(True), np.str_("s")],
        "keys": {np.int64(1): "a", 2: "b", (3, "c"): "d", 0.5: "e"},
        "sets": ({1, 2}, frozenset("ab")),
        "tensors": [
            torch.rand(2, 3).to(d) for d in (torch.bfloat16, torch.float16, torch.complex64, torch.bool)
        ],
        "odd": [torch.zeros(0, 2), torch.tensor(1.5, dtype=torch.bfloat16), torch.eye(3).T[:2]],
        "arrays": [np.array(1.5), np.array(["a", "bc"]), np.zeros((2, 0), "f2"), np.arange(3, dtype=">i4")],
    }


def same(a, b):
    """Equal in value and in kind, through and through."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(map(type, a)) == list(map(type, b))
        assert list(a) == list(b)
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
    torch.manual_seed(0)
    first = study.cached(rich, {})
    torch.manual_seed(0)
    same(first, rich())
    same(study.cached(rich, {}), first)
    assert run.current.from_store == {"read": 1, "computed": 1}


@given(TREES)
def test_any_tree_of_plain_values_comes_back(value):
    with tempfile.TemporaryDirectory() as folder:
        pack.write(Path(folder) / "x.npz", "k", value)
        assert repr(pack.read(Path(folder) / "x.npz", "k")) == repr(value)


def gives(value):
    return value


class Strange(tuple):
    __slots__ = ()


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
    assert not store.has(gives, "key")


def test_a_stored_name_is_not_an_order_to_import_or_call(calls):
    """A file may name any class: only NamedTuples with the same fields, of modules that are there."""
    pack.write(store.directory() / "gives-k.npz", "k", Pair(1.0, np.zeros(1)))
    path = store.directory() / "gives-k.npz"
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


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_the_key_follows_the_versions_of_libraries(calls, monkeypatch, library):
    study.cached(work, dict(n=3))
    found = {**run.versions(), library: "0.0"}
    monkeypatch.setattr(run, "versions", lambda: found)
    study.cached(work, dict(n=3))
    assert calls() == 2


def test_arguments_count_by_name_not_by_order(calls):
    study.cached(work, dict(n=3, scale=2.0))
    study.cached(work, dict(scale=2.0, n=3))
    assert calls() == 1


def on_sets(pair, k):
    with open(os.environ["REPALIGN_CALLS"], "a") as file:
        file.write("x")
    return float(pair[0].x.sum() + pair[1].y.sum()) + k


def test_data_sets_in_a_configuration_count_by_content(calls):
    a, b = (data.load("mnist", n=10, seed=seed) for seed in (0, 1))
    first = study.cached(on_sets, dict(pair=[a, b], k=1))
    assert study.cached(on_sets, dict(pair=[data.load("mnist", n=10, seed=0), b], k=1)) == first
    assert calls() == 1
    study.cached(on_sets, dict(pair=[a, b.with_labels(b.y.flip(0), "reversed")], k=1))
    study.cached(on_sets, dict(pair=[b, a], k=1))
    assert calls() == 3


def test_a_page_rests_on_every_sample_that_it_used(calls):
    def marks(*sizes):
        study.begin("toy/01_page")
        for n in sizes:
            study.uses(data.load("mnist", n=n, seed=0))
        return run.fingerprint(run.current.data)

    assert len({marks(10), marks(20), marks(10, 20), marks(20, 30)}) == 4
    assert marks(10, 20, 10) == marks(10, 20)
    (kept,) = run.current.data.values()
    assert len(kept["samples"]) == 2
    # Also those that it only passed on.
    before = run.fingerprint(run.current.data)
    study.cached(on_sets, dict(pair=[data.load("mnist", n=10, seed=i) for i in (0, 3)], k=1))
    assert run.fingerprint(run.current.data) != before


def test_a_page_may_use_a_set_of_its_own(calls):
    own = data.Dataset(torch.zeros(3, 2), torch.zeros(3), (), "mine", "train", "made up")
    study.uses(own)
    study.cached(on_sets, dict(pair=[own, own], k=1))
    assert run.current.data["mine/train"]["found"] == "own"


def test_claims_and_the_stamp_say_how_much_came_from_the_store(calls):
    for n in (3, 3, 4):
        study.cached(work, dict(n=n))
    study.sweep(gives, [dict(value=v) for v in (1, 2)], jobs=1)
    study.sweep(gives, [dict(value=v) for v in (1, 2, 3)], jobs=1)
    declare()
    study.claim("toy.fig1", measured=1, holds=True)
    study.cached(work, dict(n=4))
    study.stamp()
    assert measured()["from_store"] == {"read": 3, "computed": 5}
    assert json.loads((out() / "run.json").read_text())["from_store"] == {"read": 4, "computed": 5}


PAGE = """
    import os, sys
    from repalign import study
    from repalign.study.tables import number
    from repalign.study.run import current

    def cell(n):
        return number(n / 3)

    if __name__ == "__main__":
        print(study.cached(cell, dict(n=100)), current.from_store)
        if len(sys.argv) > 1:
            print(os.system(sys.argv[1]))
            print(study.cached(cell, dict(n=100)), current.from_store)
            study.sweep(cell, [dict(n=1), dict(n=2)], jobs=2)
"""


def test_the_key_names_the_code_that_runs_though_files_change(tmp_path):
    """An edit during a run: what was imported is not what is on disk."""
    package = tmp_path / "package" / "repalign"
    ignore = shutil.ignore_patterns("shipped", "__pycache__")
    shutil.copytree(Path(repalign.__file__).parent, package, ignore=ignore)
    script, edited = tmp_path / "page.py", package / "study" / "tables.py"
    script.write_text(textwrap.dedent(PAGE))
    source = edited.read_text()
    assert "digits: int = 4" in source

    def go(*words):
        environment = {**os.environ, "PYTHONPATH": str(package.parent)}
        command = [sys.executable, str(script), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert go().stdout.strip() == "33.33 {'read': 0, 'computed': 1}"
    assert go().stdout.strip() == "33.33 {'read': 1, 'computed': 0}"
    # Comments, docstrings and other functions are no change, before the run or during it.
    other = source.replace('"""A float with', '"""A number with').replace("def shown", "# new\ndef shown")
    edited.write_text(other + "\n\ndef fresh():\n    return 1\n")
    assert go().stdout.strip() == "33.33 {'read': 1, 'computed': 0}"
    again = go(f"echo '# more' >> {edited}")
    assert again.stdout.split("\n")[2] == "33.33 {'read': 2, 'computed': 0}"
    assert again.returncode == 0, again.stderr
    # A change during a run: the old code goes on, and nothing is read or kept under a wrong name.
    meanwhile = go(f"sed -i 's/digits: int = 4/digits: int = 2/' {edited}")
    assert meanwhile.stdout.split("\n")[2] == "33.33 {'read': 1, 'computed': 1}"
    assert "changed on disk since it was imported" in meanwhile.stderr
    assert "this worker has other code than the page" in meanwhile.stderr
    assert go().stdout.strip() == "33 {'read': 0, 'computed': 1}"
    edited.write_text(source)
    assert go().stdout.strip() == "33.33 {'read': 1, 'computed': 0}"


# Figures


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("background", ["#ffffff", "#121212"])
@pytest.mark.parametrize("color", study.PALETTE)
def test_colors_are_seen_on_light_and_dark(color, background):
    """WCAG asks for a contrast of 3 for graphical objects."""
    high, low = sorted((luminance(color), luminance(background)), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 3


def draw():
    fig, ax = plt.subplots()
    ax.plot([1, 2, 3], label="line")
    ax.set(xlabel="x", title="a title")
    ax.legend()
    return fig


def test_a_figure_follows_the_page_and_is_the_same_on_a_rerun():
    study.show(draw(), "toy.fig1", 'A "quoted" <caption>.')
    path = out() / "figures" / "toy.fig1.svg"
    svg = path.read_text()
    assert svg.startswith("<svg")
    assert "currentColor" in svg
    assert style._INK not in svg
    assert "#ffffff" not in svg  # no background of its own
    assert 'aria-label="A &quot;quoted&quot; &lt;caption&gt;."' in svg
    study.show(draw(), "toy.fig1", 'A "quoted" <caption>.')
    assert path.read_text() == svg
    assert not plt.get_fignums()


def test_ids_inside_figures_do_not_collide_on_a_page():
    study.show(draw(), "toy.fig1", "c")
    svg = (out() / "figures" / "toy.fig1.svg").read_text()
    one, two = style.framed(svg, "toy.fig1", "c", "live"), style.framed(svg, "toy.fig1", "c", "record")
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for text, own in zip((one, two), ids, strict=True):
        used = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
        assert used
        assert used <= own


def test_keys_of_styles_follow_the_color_of_the_text():
    svg = '<svg width="10pt"><path style="stroke: #333333"/><path style="fill: #262626"/></svg>'
    assert style.framed(svg, "toy.fig1", "c").count("currentColor") == 2


@pytest.mark.parametrize(("low", "left"), [(0, True), (-5, False)])
def test_a_symmetric_logarithm_begins_at_zero_where_nothing_is_below(low, left):
    figure, ax = plt.subplots()
    ax.plot([low, 10, 1000], [1, 2, 3])
    ax.set_xscale("symlog")
    assert ax.get_xlim()[0] < 0
    style.drawn(figure, "toy.fig1", "c")
    assert (ax.get_xlim()[0] == 0) == left


def test_reading_claims_needs_no_torch():
    code = "import sys, repalign.cli; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_results_by_hand_go_to_the_project_from_anywhere_below_it(tmp_path, monkeypatch):
    root = tmp_path / "project"
    (root / "notebooks" / "toy").mkdir(parents=True)
    monkeypatch.delenv("REPALIGN_OUT")
    monkeypatch.chdir(root / "notebooks" / "toy")
    # Not a project yet: below the current directory.
    assert style.output_directory() == root / "notebooks" / "toy" / "build" / "by-hand"
    (root / "_toc.yml").touch()
    assert style.output_directory() == root / "build" / "by-hand"
    monkeypatch.setenv("REPALIGN_OUT", str(tmp_path / "said"))
    assert style.output_directory() == tmp_path / "said"
