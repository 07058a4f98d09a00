"""Claims: a criterion fixed before the run, effects, and the verdict that follows from them."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from repalign import data, study
from repalign.study import criteria
from repalign.study.card import card
from repalign.study.claims import FIELDS, ClaimError, read

TABLE = dict(
    smoke=dict(n=1, runs=1), laptop=dict(n=2, runs=3), desktop=dict(n=3, runs=5), paper=dict(n=4, runs=5)
)
YES, NO, UNSURE = [1.0, 1.1, 0.9], [-1.0, -1.1, -0.9], [1.0, -1.0, 0.1]


@pytest.fixture(autouse=True)
def _page(_own_directories, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where no criterion is locked
    study.begin("toy/01_page")
    study.settings("laptop", **TABLE)


def out():
    return Path(os.environ["REPALIGN_OUT"])


def measured(id="toy.fig1"):
    return json.loads((out() / "claims" / f"{id}.json").read_text())


def declare(**more):
    study.claims(dict(id="toy.fig1", paper="it rises", criterion="the mean is above 0", **more))


@pytest.mark.parametrize(
    ("effects", "verdict"),
    [
        ([YES, YES], "REPRODUCED"),
        ([YES, UNSURE], "PARTLY"),
        ([YES, NO], "PARTLY"),
        ([UNSURE, NO], "NOT REPRODUCED"),
        ([UNSURE], "OPEN"),
    ],
)
def test_the_verdict_follows_from_the_effects(effects, verdict):
    declare()
    named = {f"effect {i}": study.above(values) for i, values in enumerate(effects)}
    study.claim("toy.fig1", effects=named, measured={"epochs": 7}, stand_in="a toy in place of CT slices")
    kept = measured()
    assert kept["verdict"] == verdict
    assert kept.keys() >= FIELDS
    assert [effect["values"] for effect in kept["effects"]] == effects
    assert (kept["page"], kept["profile"], kept["stand_in"]) == (
        "toy/01_page",
        "laptop",
        "a toy in place of CT slices",
    )
    assert read(out() / "claims") == [kept]
    shown = card(kept)
    for text in (verdict, "effect 0", "on a stand-in", "a toy in place of CT slices", "epochs: 7"):
        assert text in shown
    assert shown.count("<svg") == len(effects)


def test_smoke_gives_no_verdict_and_needs_no_second_run():
    study.settings("smoke", **TABLE)
    declare()
    study.claim("toy.fig1", effects={"one": study.above([1.0])})
    assert measured()["verdict"] == "UNTESTED"


@pytest.mark.parametrize("profile", study.PROFILES)
def test_an_exact_claim_holds_or_stops_the_page(profile):
    study.settings(profile, **TABLE)
    declare(exact=True)
    with pytest.raises(ClaimError, match="exact and does not hold"):
        study.claim("toy.fig1", measured=1e-3, holds=False)
    with pytest.raises(ValueError, match="2 answers"):
        study.claim("toy.fig1", measured=1e-3, holds=[True, False])
    assert not (out() / "claims").exists()
    study.claim("toy.fig1", measured=1e-3, holds=None)  # it could not be checked
    assert measured()["verdict"] == "UNTESTED"
    study.claim("toy.fig1", measured=1e-15, holds=np.bool_(True))
    assert measured()["verdict"] == "EXACT"


def test_what_is_only_shown_is_not_evidence():
    declare(shown=True)
    with pytest.raises(ValueError, match="cannot fail: it takes no effects"):
        study.claim("toy.fig1", effects={"one": study.above(YES)})
    study.claim("toy.fig1")
    assert measured()["verdict"] == "SHOWN"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (dict(effects={"lead": study.above([1.0])}), "'lead' of toy.fig1 has one run"),
        (dict(effects={}), "has none at all"),
        (dict(), "has none at all"),
        (dict(effects={"lead": [1.0, 2.0]}), "'lead' has none"),
        (dict(holds=True), "follows from effects, not from holds"),
        (dict(holds=True, effects={"lead": study.above(YES)}), "follows from effects, not from holds"),
        (
            dict(effects={"lead": study.above(YES)}, size=("m",)),
            "no setting m on this page",
        ),
    ],
)
def test_what_gives_no_verdict_is_refused(how, message):
    declare()
    with pytest.raises(ValueError, match=message):
        study.claim("toy.fig1", **how)
    assert not (out() / "claims").exists()


def test_declarations_are_checked():
    with pytest.raises(ValueError, match="has no criterion"):
        study.claim("toy.fig2", effects={"lead": study.above(YES)})
    for wrong, message in (
        (dict(id="Figure 7", paper="p", criterion="c"), r"look like imani\.fig7"),
        (dict(id="toy.fig3", paper="p"), "lacks"),
        (dict(id="toy.fig3", paper="p", criterion="c", holds=True), "too many"),
        (dict(id="toy.fig3", paper="p", criterion="c", exact=True, shown=True), "not both"),
    ):
        with pytest.raises(ValueError, match=message):
            study.claims(wrong)
    declare()
    with pytest.raises(ValueError, match="declared twice"):
        declare()
    with pytest.raises(RuntimeError, match=r"never measured: toy\.fig1"):
        study.stamp()
    study.claim("toy.fig1", effects={"lead": study.above(YES)})
    study.stamp()
    assert json.loads((out() / "run.json").read_text())["claims"] == ["toy.fig1"]


def test_seeds_of_recorded_runs_are_ones_that_nobody_has_seen():
    assert study.seeds(3) == [0, 1, 2]
    declare()
    study.claim("toy.fig1", effects={"lead": study.above(YES)})
    assert measured()["seeds"] == [0, 1, 2]
    study.settings("desktop", **TABLE)
    assert study.seeds(2) == [100, 101]
    with pytest.raises(ValueError, match="no verdict: set at least 2 at desktop"):
        study.seeds(1)
    study.settings("smoke", **TABLE)
    assert study.seeds(1) == [0]


def test_a_claim_has_its_own_data_and_size():
    declare()
    one, two = (data.load("mnist", n=10, seed=seed) for seed in (0, 1))
    study.uses(one)
    study.uses(data.load("fashion_mnist", n=10))
    lead = {"lead": study.above(YES)}
    study.claim("toy.fig1", effects=lead, data=[two], size=("n",))
    mine = measured()
    assert list(mine["data"]) == ["mnist/train"]
    assert mine["size"] == {"n": [2, 4]}
    study.claim("toy.fig1", effects=lead)
    assert list(measured()["data"]) == ["mnist/train", "fashion_mnist/train"]
    assert measured()["size"] == {"n": [2, 4], "runs": [3, 5]}
    assert measured()["fingerprint"] != mine["fingerprint"]
    assert "n 2 (profile paper: 4)" in card(measured())
    study.claim("toy.fig1", effects=lead, size=())
    assert measured()["size"] == {}
    assert "Size" not in card(measured())


def test_measured_values_become_plain_json():
    declare()
    values = {"a": torch.tensor([1.0, 2.0]), "b": np.float32(0.5), "c": float("nan"), "d": (1, None)}
    study.claim("toy.fig1", effects={"lead": study.above(YES)}, measured=values)
    assert measured()["measured"] == {"a": [1.0, 2.0], "b": 0.5, "c": "nan", "d": [1, None]}


def test_a_damaged_claim_is_named():
    (out() / "claims").mkdir(parents=True)
    (out() / "claims" / "toy.fig1.json").write_text('{"id": "toy')
    with pytest.raises(ValueError, match=r"toy\.fig1\.json is not a claim"):
        read(out() / "claims")


def test_markup_in_texts_is_shown_not_run():
    study.claims(dict(id="toy.fig9", paper="<script>x</script>", criterion="a < b"))
    study.claim("toy.fig9", effects={"<i>": study.above(YES)}, measured="<b>", stand_in="<u>")
    shown = card(measured("toy.fig9"))
    for tag in ("<script>", "<b>", "<i>", "<u>"):
        assert tag not in shown
        assert tag.replace("<", "&lt;").replace(">", "&gt;") in shown


# The drawing of a card


def drawn(effect, *others):
    """Positions in the first row of a card's forest plot: bounds, ends of the interval, mean."""
    named = {str(i): one for i, one in enumerate((effect, *others))}
    declare()
    study.claim("toy.fig1", effects=named)
    row = card(measured()).split("<svg")[1]
    bounds = [float(x) for x in re.findall(r'class="ra-bound" x1="([\d.-]+)"', row)]
    ends = [float(x) for x in re.search(r'"ra-interval" x1="([\d.-]+)" x2="([\d.-]+)"', row).groups()]
    return bounds, ends, float(re.search(r'cx="([\d.-]+)"', row).group(1))


@pytest.mark.parametrize("other", [[], [study.above([50.0, 51.0])], [study.below([0.2, 0.1], 3.0)]])
def test_a_card_draws_interval_and_bound_to_scale(other):
    effect = study.above(YES, 0.5)
    (bound,), (low, high), mean = drawn(effect, *other)
    assert bound < low < mean < high
    unit = (high - low) / (effect.interval[1] - effect.interval[0])
    assert mean - bound == pytest.approx(unit * (effect.mean - 0.5), abs=0.2)


def test_many_effects_are_folded_under_their_count():
    declare()
    study.claim("toy.fig1", effects={str(i): study.above(YES if i else NO) for i in range(9)})
    assert "<summary>9 effects: 8 yes, 1 no</summary>" in card(measured())


# The lock


@pytest.fixture
def locked(tmp_path):
    (tmp_path / "records").mkdir()
    assert criteria.lock(tmp_path, {"toy.fig1": "the mean is above 0"}) == ["toy.fig1"]
    return tmp_path


def test_a_changed_criterion_is_refused_unless_revised_openly(locked):
    declare()
    study.begin("toy/01_page")
    with pytest.raises(ValueError, match="revise it openly"):
        study.claims(dict(id="toy.fig1", paper="it rises", criterion="the mean is above -9"))
    entry = criteria.read(locked)["toy.fig1"]
    revision = {"date": "2026-11-17", "reason": "it was empty", "was": entry["criterion"]}
    criteria.path(locked).write_text(
        json.dumps({"toy.fig1": {**entry, "criterion": "the mean is above -9", "revised": [revision]}})
    )
    study.settings("laptop", **TABLE)
    study.claims(dict(id="toy.fig1", paper="it rises", criterion="the mean is above -9"))
    study.claim("toy.fig1", effects={"lead": study.above(YES, -9)})
    assert measured()["revised"] == [revision]
    assert "2026-11-17: it was empty" in card(measured())


def test_the_lock_adds_and_never_changes(locked):
    assert criteria.lock(locked, {"toy.fig1": "other", "toy.fig2": "c"}) == ["toy.fig2"]
    assert criteria.read(locked)["toy.fig1"]["criterion"] == "the mean is above 0"
    (differs, unlocked, gone) = criteria.problems(locked, {"toy.fig1": "other", "toy.fig3": "c"})
    assert "toy.fig1 differs" in differs
    assert "toy.fig3 is not locked" in unlocked
    assert "toy.fig2, which no page declares" in gone


def test_criteria_may_be_locked_before_their_page_is_written(locked):
    kept = criteria.read(locked)
    kept["toy.fig1"]["page"] = "toy/07_later"
    criteria.path(locked).write_text(json.dumps(kept))
    assert criteria.problems(locked, {}) == []
    (locked / "notebooks" / "toy").mkdir(parents=True)
    (locked / "notebooks" / "toy" / "07_later.py").write_text("")
    (gone,) = criteria.problems(locked, {})
    assert "toy.fig1, which no page declares" in gone


@pytest.mark.parametrize("text", ["{", '{"toy.fig1": {}}', '{"toy.fig1": 3}', "[1]"])
def test_a_damaged_lock_is_named(locked, text):
    criteria.path(locked).write_text(text)
    with pytest.raises(ValueError, match=r"criteria\.json is damaged"):
        criteria.read(locked)


# Figures and the tables behind them


def test_a_figure_keeps_its_caption_and_its_table():
    import matplotlib.pyplot as plt

    from repalign.study.style import caption_of

    figure, ax = plt.subplots()
    ax.plot([1, 2])
    caption = 'Rises & falls: "a" < b'
    table = pd.DataFrame({"tau": [0.0, 1 / 3], "alignment": [1, 2]})
    study.show(figure, "toy.fig1", caption, table=table)
    figures = out() / "figures"
    assert caption_of((figures / "toy.fig1.svg").read_text()) == caption
    assert (figures / "toy.fig1.csv").read_text() == "tau,alignment\n0,1\n0.333333,2\n"
    named = table.set_index("tau")
    figure, _ = plt.subplots()
    study.show(figure, "toy.fig2", caption, table=named)
    assert (figures / "toy.fig2.csv").read_text().startswith("tau,alignment\n")


def test_a_card_says_how_many_values_an_effect_has():
    declare()
    study.claim("toy.fig1", effects={"lead": study.above(YES)}, seeds=[1, 2, 3])
    assert ">3 runs, profile laptop<" in card(measured())
    study.claim("toy.fig1", effects={"lead": study.above(YES)}, seeds=[1, 2])
    assert ">3 values of an effect, profile laptop<" in card(measured())
    several = {"lead": study.above(YES), "share": study.share(9, 10)}
    study.claim("toy.fig1", effects=several, seeds=[1, 2, 3])
    assert ">3 to 10 values of an effect, profile laptop<" in card(measured())


def test_what_is_none_in_a_size_is_said_so():
    size = {"known": [["a", "b"], []], "n": [4, 4]}
    text = card({**CARD, "size": size})
    assert "known a, b (profile paper: none); as in profile paper: n" in text


CARD = dict(id="toy.a", paper="p", criterion="c", stand_in="", measured={}, paper_value=None, seeds=[],
            verdict="OPEN", profile="laptop", effects=[])  # fmt: skip
