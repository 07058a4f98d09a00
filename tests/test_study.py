"""Settings, claims, the store and the figures: what a page relies on."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import repalign
from repalign import data, study
from repalign._files import imported, package_digest
from repalign.alignment import spectrum
from repalign.study import store, style
from repalign.study.claims import FIELDS, ClaimError, card, read

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


def declare(**more):
    study.claims(dict(id="toy.fig1", paper="it rises", criterion="it rises in every run", **more))


@pytest.mark.parametrize(
    ("holds", "verdict"),
    [
        (True, "REPRODUCED"),
        (np.True_, "REPRODUCED"),
        (False, "NOT REPRODUCED"),
        ([True, True], "REPRODUCED"),
        ([True, False], "PARTLY"),
        (np.array([False, False]), "NOT REPRODUCED"),
        (torch.tensor([True, False]), "PARTLY"),
        (None, "UNTESTED"),
    ],
)
def test_verdicts(holds, verdict):
    study.settings("laptop", **TABLE)
    declare()
    study.claim("toy.fig1", measured=1.5, holds=holds, interval=(1, 2), seeds=[0, 1])
    kept = measured()
    assert kept["verdict"] == verdict
    assert kept.keys() >= FIELDS
    assert kept["criterion"] == "it rises in every run"
    assert (kept["page"], kept["profile"]) == ("toy/01_page", "laptop")
    assert verdict in card(kept)
    assert read(out() / "claims") == [kept]


def test_smoke_gives_no_verdict():
    study.settings("smoke", **TABLE)
    declare()
    study.claim("toy.fig1", measured=1, holds=True)
    assert measured()["verdict"] == "UNTESTED"


@pytest.mark.parametrize("profile", study.PROFILES)
def test_an_exact_claim_that_fails_stops_the_page(profile):
    study.settings(profile, **TABLE)
    declare(exact=True)
    with pytest.raises(ClaimError, match="exact and does not hold"):
        study.claim("toy.fig1", measured=1e-3, holds=[True, False])
    assert not (out() / "claims").exists()


def test_a_claim_needs_a_criterion_and_a_declared_claim_a_measurement():
    with pytest.raises(ValueError, match="has no criterion"):
        study.claim("toy.fig2", measured=1, holds=True)
    with pytest.raises(ValueError, match=r"look like imani\.fig7"):
        study.claims(dict(id="Figure 7", paper="p", criterion="c"))
    with pytest.raises(ValueError, match="lacks"):
        study.claims(dict(id="toy.fig3", paper="p"))
    declare()
    with pytest.raises(ValueError, match="declared twice"):
        declare()
    with pytest.raises(RuntimeError, match=r"never measured: toy\.fig1"):
        study.stamp()
    study.claim("toy.fig1", measured=1, holds=True)
    with pytest.raises(ValueError, match="at least one answer"):
        study.claim("toy.fig1", measured=1, holds=[])
    study.stamp()
    assert json.loads((out() / "run.json").read_text())["claims"] == ["toy.fig1"]


def test_measured_values_become_plain_json():
    declare()
    values = {"a": torch.tensor([1.0, 2.0]), "b": np.float32(0.5), "c": float("nan"), "d": (1, None)}
    study.claim("toy.fig1", measured=values, holds=True)
    assert measured()["measured"] == {"a": [1.0, 2.0], "b": 0.5, "c": "nan", "d": [1, None]}


def test_a_damaged_claim_is_named():
    (out() / "claims").mkdir(parents=True)
    (out() / "claims" / "toy.fig1.json").write_text('{"id": "toy')
    with pytest.raises(ValueError, match=r"toy\.fig1\.json is not a claim"):
        read(out() / "claims")


def test_markup_in_texts_is_shown_not_run():
    study.claims(dict(id="toy.fig9", paper="<script>x</script>", criterion="a < b"))
    study.claim("toy.fig9", measured="<b>", holds=True)
    shown = card(measured("toy.fig9"))
    assert "<script>" not in shown
    assert "&lt;b&gt;" in shown


def test_interval_is_students():
    from scipy import stats

    values = np.random.default_rng(0).normal(size=9)
    low, high = study.interval(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high))
    with pytest.raises(ValueError, match="at least two runs"):
        study.interval([1.0])


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


def test_what_a_page_imports():
    page = """
from repalign import data
from repalign.machine import devices
from repalign.study import style
import numpy, repalign.kernels
def later():
    from repalign.models.mlp import MLP
"""
    assert imported(page) == {"data", "machine", "study", "kernels", "models"}
    assert imported("import repalign as ra") == {""}
    assert imported("import repalignment") == set()
    assert package_digest("alignment") != package_digest("kernels") != package_digest() == package_digest("")


def uses_alignment():
    return float(spectrum(torch.eye(2), torch.ones(2)).area())


def uses_kernels():
    return float(repalign.kernels.cka(torch.eye(4), torch.eye(4)))


def uses_nothing():
    return float(torch.ones(2).sum())


def imports_inside():
    from repalign.alignment import spectrum as inside

    return inside


@pytest.mark.parametrize(
    "fn, edited",
    [
        (
            uses_alignment,
            {
                "alignment/spectra.py": True,
                "_arrays.py": True,
                "kernels/measures.py": False,
                "cli/data.py": False,
            },
        ),
        (imports_inside, {"alignment/spectra.py": True, "_arrays.py": True, "data/sets.py": False}),
        (
            uses_kernels,
            {"alignment/spectra.py": True, "cli/data.py": True},
        ),  # by the package: all of it counts
        (uses_nothing, {"alignment/spectra.py": False, "_arrays.py": False}),
    ],
)
def test_the_key_follows_only_the_modules_in_use(fn, edited, tmp_path, monkeypatch):
    """Whoever edits one measure keeps what the others computed."""
    copy = tmp_path / "repalign"
    shutil.copytree(Path(repalign.__file__).parent, copy)
    monkeypatch.setattr(repalign, "__file__", str(copy / "__init__.py"))

    def mark():
        package_digest.cache_clear()
        return store.key(fn, {})

    for file, changes in edited.items():
        before = mark()
        with (copy / file).open("a") as f:
            f.write("# edited\n")
        assert (mark() != before) == changes, file
    package_digest.cache_clear()


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


def test_what_cannot_be_keyed_or_kept_is_refused():
    outside = 3

    def closes_over(n):
        return n + outside

    with pytest.raises(ValueError, match="uses outside from the function around it"):
        study.cached(closes_over, dict(n=1))
    with pytest.raises(TypeError, match="made of numbers, strings, lists and dicts"):
        study.cached(work, dict(n=object()))
    with pytest.raises(TypeError, match="only plain functions"):
        study.cached(len, {})
    with pytest.raises(TypeError, match="should have a fingerprint"):
        study.cached(work, {}, data=np.eye(2))


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


# Figures


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("background", ["#ffffff", "#121212"])
@pytest.mark.parametrize("colour", study.PALETTE)
def test_colours_are_seen_on_light_and_dark(colour, background):
    """WCAG asks for a contrast of 3 for graphical objects."""
    high, low = sorted((luminance(colour), luminance(background)), reverse=True)
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
