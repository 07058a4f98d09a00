"""What pages of the first edition still need; it goes with the folder that it tests."""

import json
import math
import os
import shutil
import subprocess

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from repalign import data, study
from repalign.machine import onednn
from repalign.press import claims, style
from repalign.press.records import RecordError
from repalign.study import old_records, store
from repalign.study.claims import ClaimError
from repalign.study.known import above_where_known

TABLE = dict(
    smoke=dict(n=1, runs=1), laptop=dict(n=2, runs=3), desktop=dict(n=3, runs=5), paper=dict(n=4, runs=5)
)
YES, NO, UNSURE = [1.0, 1.1, 0.9], [-1.0, -1.1, -0.9], [1.0, -1.0, 0.1]
ROW = """
["toy.{id}"]
page = "01_page"
says = "It rises."
kind = "{kind}"
criterion = "the mean is above 0"
fixed = 2026-11-01
"""
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page of the first edition with a claim of each kind, begun at laptop; where its results go."""
    (tmp_path / "notebooks" / "toy").mkdir(parents=True)
    (tmp_path / "_toc.yml").touch()
    rows = (ROW.format(id=kind, kind=kind) for kind in ("paper", "exact", "shown"))
    (tmp_path / "notebooks" / "toy" / "claims.toml").write_text("".join(rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(onednn, "prepare", lambda: None)  # this process is
    study.begin("toy/01_page")
    study.settings("laptop", **TABLE)
    return tmp_path / "out"


def kept(page, id="toy.paper"):
    return json.loads((page / "claims" / f"{id}.json").read_text())


# Claims


@pytest.mark.parametrize(
    ("effects", "verdict"),
    [([YES, YES], "REPRODUCED"), ([YES, NO], "PARTLY"), ([UNSURE, NO], "NOT REPRODUCED"), ([UNSURE], "OPEN")],
)
def test_the_verdict_follows_from_the_effects(page, effects, verdict):
    named = {f"effect {i}": study.above(values) for i, values in enumerate(effects)}
    study.claim("toy.paper", effects=named, measured={"loss": np.float32(0.5), "none": math.nan})
    found = kept(page)
    assert found["verdict"] == verdict
    assert [one["values"] for one in found["effects"]] == effects
    assert found["measured"] == {"loss": 0.5, "none": "nan"}


def test_smoke_gives_no_verdict_and_exact_claims_hold_or_stop_the_page(page):
    study.settings("smoke", **TABLE)
    study.claim("toy.paper", effects={"lead": study.above([1.0])})
    assert kept(page)["verdict"] == "UNTESTED"
    study.claim("toy.exact", measured=1e-15, holds=np.bool_(True))
    assert kept(page, "toy.exact")["verdict"] == "EXACT"
    study.claim("toy.exact", holds=None)  # it could not be checked
    assert kept(page, "toy.exact")["verdict"] == "UNTESTED"
    with pytest.raises(ClaimError, match="exact and does not hold"):
        study.claim("toy.exact", measured=1e-3, holds=False)


@pytest.mark.parametrize(
    ("id", "how", "message"),
    [
        ("paper", dict(effects={"lead": study.above([1.0])}), "'lead' of toy.paper has one run"),
        ("paper", dict(), "has none at all"),
        ("paper", dict(effects={"lead": [1.0, 2.0]}), "'lead' has none"),
        ("paper", dict(holds=True), "follows from effects, not from holds"),
        ("paper", dict(effects={"lead": study.above(YES)}, size=("m",)), "no setting m on this page"),
        ("exact", dict(holds=[True, False]), "2 answers"),
        ("shown", dict(effects={"lead": study.above(YES)}), "cannot fail: it takes no effects"),
        ("other", dict(), "toy.other has no row with the page toy/01_page"),
    ],
)
def test_what_gives_no_verdict_is_refused(page, id, how, message):
    with pytest.raises(ValueError, match=message):
        study.claim(f"toy.{id}", **how)
    assert not (page / "claims").exists()


def test_a_page_ends_when_every_claim_is_measured(page):
    assert study.claims()._repr_html_().count("It rises.") == 3
    study.claim("toy.paper", effects={"lead": study.above(YES)}, seeds=study.seeds(3))
    study.claim("toy.exact", holds=True)
    with pytest.raises(RuntimeError, match=r"never measured: toy\.shown"):
        study.stamp()
    study.claim("toy.shown")
    study.stamp()
    run = json.loads((page / "run.json").read_text())
    assert run["claims"] == ["toy.exact", "toy.paper", "toy.shown"]
    assert kept(page)["seeds"] == [0, 1, 2]


def test_a_claim_rests_on_the_data_that_it_names_or_on_all(page):
    one, two = data.load("mnist", n=10, seed=0), data.load("fashion_mnist", n=10)
    study.uses(one)
    study.uses(two)
    study.claim("toy.paper", effects={"lead": study.above(YES)}, data=[two], size=("n",))
    assert list(kept(page)["data"]) == ["fashion_mnist/train"]
    assert kept(page)["size"] == {"n": [2, 4]}
    study.claim("toy.paper", effects={"lead": study.above(YES)})
    assert list(kept(page)["data"]) == ["mnist/train", "fashion_mnist/train"]


def test_recorded_runs_of_the_first_edition_have_seeds_from_100(page):
    study.settings("desktop", **TABLE)
    assert study.seeds(2) == [100, 101]
    with pytest.raises(ValueError, match="set at least 2 at desktop"):
        study.seeds(1)


# Effects


def test_ordered_compares_each_column_with_the_next_run_by_run():
    areas = pd.DataFrame({"a": [5.0, 7.0], "b": [2.0, 3.0], "c": [1.0, 2.5], "d": [0.0, 1.0]})
    found = study.ordered(areas, "a", ["b", "c"], "d")
    assert list(found) == ["a above b", "a above c", "b above d", "c above d"]
    assert found["a above c"] == study.above([4.0, 4.5])
    index = pd.MultiIndex.from_product([["mnist", "ct"], [7, 8]])
    areas = pd.DataFrame({"a": [5.0, 7.0, 1.0, 2.0], "b": [2.0, 3.0, 4.0, 6.0]}, index)
    assert study.ordered(areas, "a", "b")["ct: a above b"] == study.above([-3.0, -4.0])
    with pytest.raises(ValueError, match="two columns or more of a, b"):
        study.ordered(areas, "a", "z")


def test_a_ratio_of_means_has_fiellers_interval():
    """Its ends are the ratios r at which the interval of top - r * bottom begins to leave 0."""
    draw = np.random.default_rng(0)
    bottom = 2 + draw.normal(size=6) * 0.3
    top = bottom * draw.uniform(-1, 2) + draw.normal(size=6) * 0.2
    middle, low, high = study.ratio(top, bottom)
    assert middle == pytest.approx(top.mean() / bottom.mean())
    for end, touching in ((low, 0), (high, 1)):
        assert study.interval(top - end * bottom)[touching] == pytest.approx(0, abs=1e-9)
    assert study.ratio([1.0, 2.0, 1.5], [1.0, -1.1, 0.3])[1:] == (-np.inf, np.inf)


def test_a_rank_correlation_agrees_with_scipy_and_has_an_interval():
    draw = np.random.default_rng(3)
    x = draw.integers(0, 6, 40)  # with ties
    y = x + draw.normal(size=40) * 2
    middle, low, high = study.spearman(x, y)
    assert middle == pytest.approx(stats.spearmanr(x, y).statistic)
    assert -1 <= low < middle < high <= 1
    assert study.spearman([1.0, 2.0], [1.0, 2.0])[1:] == (-1, 1)


def test_runs_without_a_value_are_counted_and_never_speak_against_a_claim():
    none = math.nan
    found = above_where_known({"it": pd.Series([1.0, none, 1.1, 1.2])})
    assert found == {"it": study.above([1.0, 1.1, 1.2]), "runs that have: it": study.share(3, 4)}
    (only,) = above_where_known({"it": pd.Series(20 * [none])}).values()
    assert (only.kind, only.mean, only.answer) == ("share", 0, "open")


# The store


def work(n):
    with open(os.environ["REPALIGN_CALLS"], "a") as file:
        file.write("x")
    return {"t": torch.arange(n), "a": np.eye(2), 3: [(1, "s", None, True)]}


@pytest.fixture
def calls(tmp_path, monkeypatch):
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv("REPALIGN_CALLS", str(path))
    return lambda: len(path.read_text())


def test_a_result_is_computed_once_and_comes_back_as_it_was(calls):
    first, again = study.cached(work, dict(n=3)), study.cached(work, dict(n=3))
    assert calls() == 1
    assert torch.equal(first["t"], again["t"])
    np.testing.assert_array_equal(first["a"], again["a"])
    assert again[3] == [(1, "s", None, True)]
    study.cached(work, dict(n=4))
    assert calls() == 2


@pytest.mark.parametrize("damage", ["torn", "pickled"])
def test_a_file_that_cannot_be_trusted_is_computed_again(calls, damage):
    study.cached(work, dict(n=3))
    (key,) = store.keys(work, [dict(n=3)])
    path = store._path(work, key)
    if damage == "torn":
        path.write_bytes(path.read_bytes()[:100])
    else:
        np.savez(path, tree=np.array([{"a": 1}], dtype=object))
    with pytest.warns(UserWarning, match="computing it again"):
        study.cached(work, dict(n=3))
    assert calls() == 2


# Figures and records


def test_a_figure_keeps_its_caption_and_its_table(page):
    caption = 'Rises & falls: "a" < b'
    study.show(plt.figure(), "toy.fig1", caption, table=pd.DataFrame({"tau": [0.0, 1 / 3]}))
    assert (page / "figures" / "toy.fig1.csv").read_text() == "tau\n0\n0.333333\n"
    assert old_records.Old(page, {}, {}).caption("toy.fig1") == caption


@pytest.fixture
def record(page):
    """What a finished run of the page left."""
    study.claim("toy.paper", effects={"lead": study.above(YES)})
    study.claim("toy.exact", holds=True)
    study.claim("toy.shown")
    study.show(plt.figure(), "toy.fig1", "A caption.")
    study.stamp()
    return page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda claim: claim.update(verdict="NOT REPRODUCED"),
            "says NOT REPRODUCED, and its effects say REPR",
        ),
        (lambda claim: claim.update(verdict=SCRIPT), "has the verdict"),
        (lambda claim: claim["effects"][0].update(mean=SCRIPT), "could not convert"),
    ],
)
def test_a_record_edited_by_hand_is_noticed(record, change, message):
    assert old_records.read(record, "toy/01_page").claims["toy.paper"]["verdict"] == "REPRODUCED"
    claim = kept(record)
    change(claim)
    (record / "claims" / "toy.paper.json").write_text(json.dumps(claim))
    with pytest.raises(RecordError, match=f"the run of toy/01_page in out is damaged .*{message}"):
        old_records.read(record, "toy/01_page")


def test_what_could_act_leaves_a_drawing_of_a_record(record):
    path = record / "figures" / "toy.fig1.svg"
    acting = SCRIPT + '<a href="javascript:alert(1)"><rect onclick="alert(1)"/></a>'
    path.write_text(path.read_text().replace("</svg>", acting + "</svg>"))
    shown = old_records.read(record, "toy/01_page").figure("toy.fig1")
    assert shown.startswith("<svg")
    assert "alert" not in style.framed(shown, "toy.fig1", "A caption.")


def test_a_record_of_a_lost_commit_or_of_the_future_says_so(record, tmp_path):
    """In a repository whose history does not have the commit that the record names."""
    command = ["git", "-C", str(tmp_path), "-c", "user.name=Toy", "-c", "user.email=toy@example.org"]
    subprocess.run([*command, "init", "-q"], check=True)
    subprocess.run([*command, "commit", "-q", "--allow-empty", "-m", "toy"], check=True)
    place = tmp_path / "records" / "toy" / "01_page"
    for day in ("2026-11-02", "2999-01-01"):
        shutil.copytree(record, place / f"{day}-desktop")
        run = json.loads((record / "run.json").read_text())
        (place / f"{day}-desktop" / "run.json").write_text(
            json.dumps({**run, "date": day, "commit": "0123456789"})
        )
    newest = old_records.newest(tmp_path, "toy/01_page")
    assert newest.run["date"] == "2026-11-02"
    told = newest.evidence(claims.of_page(tmp_path, "toy/01_page"), "toy/01_page", True)
    assert "at commit 0123456789, which is in no history" in told["toy.paper"]["made"]
