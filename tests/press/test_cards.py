"""Cards: what a reader sees of a claim, drawn to scale and without markup from its texts."""

import datetime
import re

import pytest

from repalign import press
from repalign.press import cards, claims
from repalign.press.claims import Claim

YES, NO = [1.0, 1.1, 0.9], [-1.0, -1.1, -0.9]
ABOUT = dict(
    id="toy.rises",
    says="It rises.",
    where="figure 3",
    kind="paper",
    criterion="the mean is above 0",
    stand_in="",
    paper_value=None,
    fixed="2026-11-01",
    revised=[],
    found="",
    settings={},
    runs=3,
    profile="laptop",
    date="2026-11-02",
    made="profile laptop, on two cores",
    verified="",
    history=[],
)


def evidence(*effects, **more):
    """What a page knows of a claim with these effects."""
    about = {**ABOUT, **more}
    fixed = datetime.date.fromisoformat(about["fixed"])
    row = Claim("toy.rises", "01_page", about["says"], about["kind"], about["criterion"], fixed)
    return {**about, **claims.judge(row, effects)}


def test_a_card_says_what_is_claimed_and_what_came_out():
    found = evidence(
        press.above("lead of layer 2", YES),
        found="It does rise.",
        stand_in="digits in place of CT slices",
        paper_value=0.4,
        settings={"n": [5, 50], "depth": [3, 3], "extra": [[], "a"]},
        revised=[{"date": "2026-11-01", "reason": "it was empty", "was": "anything goes"}],
        verified="2026-11-03",
        history=["2026-10-01 (desktop, commit abc): PARTLY"],
    )
    card = cards.card(found)
    for text in (
        "It rises.",
        "(figure 3)",
        "REPRODUCED",
        "on a stand-in: digits in place of CT slices; 3 runs",
        "It does rise.",
        "lead of layer 2",
        "<dt>Criterion</dt><dd>the mean is above 0</dd>",
        "<dt>Revised 2026-11-01</dt><dd>it was empty; it was: anything goes</dd>",
        "<dt>Paper&#x27;s value</dt><dd>0.4</dd>",
        "n 5 (profile paper: 50); extra none (profile paper: a); as in profile paper: depth",
        "profile laptop, on two cores",
        "<dt>Recomputed</dt><dd>2026-11-03</dd>",
        "<dt>Earlier</dt><dd>2026-10-01 (desktop, commit abc): PARTLY</dd>",
    ):
        assert text in card
    assert card.count("<svg") == 1


def test_our_own_question_is_called_so():
    assert "Our own question." in cards.card(evidence(press.above("lead", YES), kind="ours"))
    assert "Our own question." not in cards.card(evidence(press.above("lead", YES)))


def test_what_could_not_be_tested_says_why():
    fits = press.condition("training accuracy", [0.5, 0.6], above=0.99)
    met = press.condition("layers moved", YES, above=0.1)
    card = cards.card(evidence(press.above("lead", YES), fits, met))
    assert "OPEN" in card
    (said,) = re.findall('<p class="ra-unmet">(.*?)</p>', card)
    assert said == "Not testable here. training accuracy: 0.55 [-0.09, 1.19], needed above 0.99."
    assert "Not testable" not in cards.card(evidence(press.above("lead", YES), met))


def test_a_condition_is_on_the_card_when_it_holds():
    card = cards.card(
        evidence(press.above("lead", YES), press.condition("fit", YES, above=0.1, unit="points"))
    )
    assert "<dt>Condition</dt><dd>fit: 1 [0.75, 1.25] points, needed above 0.1, yes</dd>" in card


@pytest.mark.parametrize("verdict", ["NOT TRIED", "UNTESTED"])
def test_a_verdict_without_a_test_is_explained(verdict):
    card = cards.card({**evidence(press.above("lead", YES)), "verdict": verdict, "effects": []})
    assert re.search('<p class="ra-found">.+</p>', card)


def test_exact_statements_show_their_largest_deviation():
    card = cards.card(evidence(press.at_most("sum", [1e-12, -3e-11], 1e-8), kind="exact"))
    assert "<th>sum</th><td>1e-12</td><td>1e-08</td>" in card
    assert "<svg" not in card


def test_the_papers_number_stands_beside_ours():
    card = cards.card(
        evidence(press.within("slope", [0.58, 0.61, 0.6], 0.5, 0.7, paper=0.6, unit="per layer"))
    )
    assert "0.597 per layer <small>[0.559, 0.635]</small><br><small>paper 0.6</small>" in card
    assert 'class="ra-paper"' in card


def drawn(*effects):
    """Positions in the first row of a card: bounds, ends of the interval, mean."""
    row = cards.card(evidence(*effects)).split("<svg")[1]
    bounds = [float(x) for x in re.findall(r'class="ra-bound" x1="([\d.-]+)"', row)]
    ends = [float(x) for x in re.search(r'"ra-interval" x1="([\d.-]+)" x2="([\d.-]+)"', row).groups()]
    return bounds, ends, float(re.search(r'cx="([\d.-]+)"', row).group(1))


@pytest.mark.parametrize(
    "other", [[], [press.above("far", [50.0, 51.0])], [press.below("low", [0.2, 0.1], 3.0)]]
)
def test_interval_and_bound_are_drawn_to_scale(other):
    effect = press.above("lead", YES, 0.5)
    (bound,), (low, high), mean = drawn(effect, *other)
    assert bound < low < mean < high
    unit = (high - low) / (effect.interval[1] - effect.interval[0])
    assert mean - bound == pytest.approx(unit * (effect.mean - 0.5), abs=0.2)


def test_effects_of_one_bound_share_a_scale():
    small, large = press.above("small", [1.0, 1.1]), press.above("large", [10.0, 10.1])
    _, _, alone = drawn(small)
    _, _, beside = drawn(small, large)
    assert beside < alone


def test_many_effects_are_folded_under_their_count():
    effects = [press.above(str(i), YES if i else NO) for i in range(9)]
    assert "<summary>9 effects: 8 yes, 1 no</summary>" in cards.card(evidence(*effects))
    assert "effects: " not in cards.card(evidence(*effects[:8]))


@pytest.mark.parametrize(
    ("effects", "runs", "said"),
    [
        ([press.above("lead", YES)], 3, "3 runs"),
        ([press.above("lead", YES)], 2, "3 values of an effect"),
        ([press.above("lead", YES), press.share("hits", 9, 10)], 3, "3 to 10 values of an effect"),
    ],
)
def test_a_card_says_how_many_values_an_effect_has(effects, runs, said):
    assert f">{said}<" in cards.card(evidence(*effects, runs=runs))


SCRIPT = '<script>alert("x")</script>'


@pytest.mark.parametrize(
    "field", ["says", "where", "criterion", "stand_in", "paper_value", "found", "made", "verified", "id"]
)
def test_markup_in_a_text_is_shown_not_run(field):
    card = cards.card(evidence(press.above("lead", YES), **{field: SCRIPT}))
    assert "<script" not in card
    assert "&lt;script&gt;" in card


def test_markup_in_lists_and_in_effects_is_shown_not_run():
    effect = press.above(SCRIPT, YES, unit=SCRIPT)
    found = evidence(
        effect,
        press.condition(f"fit {SCRIPT}", NO, above=0, unit=SCRIPT),
        settings={SCRIPT: [SCRIPT, 2]},
        revised=[{"date": SCRIPT, "reason": SCRIPT, "was": SCRIPT}],
        history=[SCRIPT],
    )
    assert "<script" not in cards.card(found)
    # What a file says of an effect is not believed to be a word of ours.
    damaged = {**found["effects"][0], "answer": SCRIPT}
    assert "<script" not in cards.card({**found, "effects": [damaged], "verdict": SCRIPT})
    exact = evidence(press.at_most(SCRIPT, [0.0], 1.0), kind="exact")
    assert "<script" not in cards.card(exact)
