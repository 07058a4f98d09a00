"""Rows of claims.toml, the verdict that follows from effects, and the sentence on what was found."""

import datetime
import subprocess
import sys

import pytest

from repalign import press
from repalign.press import claims
from repalign.press.claims import Claim, ClaimError

YES, NO, UNSURE = [1.0, 1.1, 0.9], [-1.0, -1.1, -0.9], [1.0, -1.0, 0.1]
ROW = """
["toy.rises"]
page = "01_page"
says = "It rises."
kind = "paper"
criterion = "the mean is above 0"
fixed = 2026-11-01
"""


def parsed(text):
    return claims.parse(text, "notebooks/toy/claims.toml", "toy")


def claim(kind="paper", **more):
    fixed = datetime.date(2026, 11, 1)
    return Claim("toy.rises", "01_page", "It rises.", kind, "the mean is above 0", fixed, **more)


# Rows


def test_a_row_is_a_claim():
    text = ROW + 'found = """ It does. """\nfound_for = "REPRODUCED"\nstand_in = "digits"\n'
    (found,) = parsed(text).values()
    assert found == claim(found="It does.", found_for="REPRODUCED", stand_in="digits")


def test_claims_are_read_from_the_paper_and_chosen_by_the_page(tmp_path):
    assert claims.read(tmp_path, "toy") == {}
    place = claims.path(tmp_path, "toy")
    place.parent.mkdir(parents=True)
    other = ROW.replace("toy.rises", "toy.falls").replace("01_page", "02_page")
    place.write_text("\ufeff" + ROW + other, encoding="utf-8")  # some editors begin a file with this mark
    assert list(claims.read(tmp_path, "toy")) == ["toy.rises", "toy.falls"]
    assert list(claims.of_page(tmp_path, "toy/02_page")) == ["toy.falls"]
    place.write_bytes("# caf\u00e9\n".encode("latin-1"))
    with pytest.raises(ClaimError, match=r"notebooks/toy/claims\.toml is not UTF-8"):
        claims.read(tmp_path, "toy")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("toy.rises", "lou.rises", "belongs to another paper: ids here begin with toy."),
        ('says = "It rises."', "", "toy.rises lacks says"),
        ('criterion = "the mean is above 0"', 'criterion = ""', "lacks criterion"),
        ('"It rises."', "3", "a text in quotes as says, not 3"),
        ("kind", "exact = true\nkind", "the unknown fields exact: there are criterion, fixed, found"),
        ('"paper"', '"proved"', "has the kind 'proved': there are paper, ours, exact, shown, not tried"),
        ("fixed = 2026-11-01", 'fixed = "2026-11-01"', "dates without quotes, such as 2026-11-20"),
        ("fixed = 2026-11-01", "fixed = 2026-11-01T10:00:00", "dates without quotes"),
        ("fixed = 2026-11-01", "fixed = 9999-01-01", "has the date 9999-01-01, which lies in the future"),
        ("kind", 'found = "It does."\nkind', "found and found_for, or neither"),
        ("kind", 'found_for = "PARTLY"\nkind', "found and found_for, or neither"),
        ("kind", 'found = "It does."\nfound_for = "YES"\nkind', "is found_for 'YES': there are EXACT"),
        ("kind", "revised = 3\nkind", "should have revised = "),
        ("kind", 'revised = [{ date = 2026-11-02, reason = "r" }]\nkind', "should have revised = "),
        ("kind", 'revised = [{ date = 2026-11-02, reason = "", was = "w" }]\nkind', "should have revised = "),
        ("kind", 'revised = [{ date = "today", reason = "r", was = "w" }]\nkind', "not 'today'"),
        ("kind", 'revised = [{ date = 9999-01-01, reason = "r", was = "w" }]\nkind', "lies in the future"),
        ('["toy.rises"]', "[[", "claims.toml is not TOML"),
        ('["toy.rises"]', '"toy.rises" = 3\n["toy.falls"]', r'such as \["toy.fig1"\]'),
    ],
)
def test_a_row_that_is_wrong_is_named_with_what_to_do(old, new, message):
    assert old in ROW
    with pytest.raises(ClaimError, match=message) as refused:
        parsed(ROW.replace(old, new, 1))
    assert "notebooks/toy/claims.toml" in str(refused.value)


def test_two_rows_of_one_id_are_refused():
    with pytest.raises(ClaimError, match="is not TOML"):
        parsed(ROW + ROW)


def test_reading_claims_needs_no_torch():
    code = "import sys, repalign.cli; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Verdicts


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([YES, YES], "REPRODUCED"),
        ([YES, UNSURE], "PARTLY"),
        ([YES, NO], "PARTLY"),
        ([UNSURE, NO], "NOT REPRODUCED"),
        ([UNSURE], "OPEN"),
    ],
)
def test_the_verdict_follows_from_the_effects(values, verdict):
    effects = [press.above(f"effect {i}", some) for i, some in enumerate(values)]
    judged = claims.judge(claim(), effects)
    assert judged["verdict"] == verdict
    assert [one["values"] for one in judged["effects"]] == values
    assert judged["conditions"] == []
    assert claims.judge(claim(), effects, tested=False)["verdict"] == "UNTESTED"


def test_what_cannot_be_tested_is_open_whatever_its_effects_say():
    for accuracy in (NO, UNSURE):
        fits = press.condition("networks fit", accuracy, above=0.5)
        judged = claims.judge(claim(), [fits, press.above("lead", YES)])
        assert judged["verdict"] == "OPEN"
        assert [one["name"] for one in judged["conditions"]] == ["networks fit"]
    met = press.condition("networks fit", YES, above=0.5)
    assert claims.judge(claim(), [met, press.above("lead", YES)])["verdict"] == "REPRODUCED"


def test_an_exact_claim_holds_or_stops_the_page():
    small = press.at_most("sum", [1e-12, -1e-9], 1e-8)
    for tested in (True, False):  # mathematics holds at every size
        assert claims.judge(claim("exact"), [small], tested=tested)["verdict"] == "EXACT"
        with pytest.raises(AssertionError, match="is exact and does not hold: product: 0"):
            claims.judge(claim("exact"), [small, press.at_most("product", [0.0, 0.5], 1e-8)], tested=tested)


@pytest.mark.parametrize("kind", ["shown", "not tried"])
def test_what_is_only_shown_or_not_tried_takes_no_effects(kind):
    assert claims.judge(claim(kind), None)["verdict"] == kind.upper()
    with pytest.raises(ClaimError, match=f"toy.rises is {kind}: it takes no effects"):
        claims.judge(claim(kind), [press.above("lead", YES)])


def test_a_function_may_return_its_only_effect():
    assert claims.judge(claim(), press.above("lead", YES))["verdict"] == "REPRODUCED"


@pytest.mark.parametrize(
    ("kind", "effects", "message"),
    [
        ("paper", None, "yields no effect"),
        ("paper", [press.condition("fit", YES, above=0.5)], "yields no effect"),
        ("paper", [[1.0, 2.0]], r"yields effects, such as press\.above\(name, values\), not \[1\.0, 2\.0\]"),
        ("paper", 3.0, "yields effects, such as"),
        ("paper", [press.above("lead", YES), press.above("lead", NO)], "two effects are called 'lead'"),
        ("paper", [press.above("lead", [1.0])], "'lead' has one run, and one run has no interval"),
        ("paper", [press.ratio("twice", [2.0], [1.0])], "'twice' has one run"),
        ("paper", [press.above("lead", YES), press.condition("fit", [1.0], above=0)], "'fit' has one run"),
        ("paper", [press.at_most("sum", [0.0], 1e-8)], 'is for claims of kind = "exact"'),
        ("exact", [press.above("lead", YES)], "its effects are press.at_most"),
        ("exact", [], "yields no effect"),
    ],
)
def test_what_gives_no_verdict_is_refused(kind, effects, message):
    with pytest.raises(ClaimError, match=message) as refused:
        claims.judge(claim(kind), effects)
    assert "toy.rises" in str(refused.value)


def test_smoke_needs_no_second_run():
    assert claims.judge(claim(), [press.above("lead", [1.0])], tested=False)["verdict"] == "UNTESTED"


# What was found


def judged():
    effects = [
        press.condition("networks fit", [0.99, 1.0], above=0.5),
        press.above("lead of layer 2", [0.51, 0.53, 0.55], paper=0.4),
        press.share("runs that rise", 9, 10),
    ]
    return claims.judge(claim(), effects)


def test_what_was_found_takes_its_numbers_from_the_table():
    text = (
        "{lead_of_layer_2.mean:.2f} {lead_of_layer_2.interval}, paper {lead_of_layer_2.paper:g}; "
        "{runs_that_rise.percent} from {runs_that_rise.low:.1f} to {runs_that_rise.high:.1f}; "
        "{networks_fit.mean:.3f}"
    )
    found = claims.sentence(claim(found=text, found_for="REPRODUCED"), judged())
    assert found == "0.53 [0.480, 0.580], paper 0.4; 90% from 0.6 to 1.0; 0.995"


def test_what_was_found_for_another_verdict_is_to_be_written():
    text = claims.sentence(claim(found="It does.", found_for="PARTLY"), judged())
    assert text == claims.TO_BE_WRITTEN
    assert claims.sentence(claim(), judged()) == ""


@pytest.mark.parametrize(
    "text",
    [
        "{slope.mean}",
        "{}",
        "{runs_that_rise.median}",
        "{runs_that_rise.paper:.2f}",
        "{runs_that_rise[0]}",
        "{",
    ],
)
def test_what_cannot_be_filled_in_lists_what_there_is(text):
    with pytest.raises(ClaimError, match="lead_of_layer_2, runs_that_rise, networks_fit") as refused:
        claims.sentence(claim(found=text, found_for="REPRODUCED"), judged())
    assert "what toy.rises found cannot be filled in" in str(refused.value)


def test_a_name_that_two_effects_share_is_not_guessed():
    effects = [press.above("loss > 1", YES), press.above("loss < 1", [2.0, 2.1]), press.above("rise", YES)]
    both = claims.judge(claim(), effects)
    assert claims.filled(claim(found="{rise.mean:g}"), both) == "1"
    with pytest.raises(ClaimError, match=r"There are: rise, each"):
        claims.filled(claim(found="{loss_1.mean}"), both)


def test_a_criterion_changes_openly_or_is_noticed():
    entry = {"date": datetime.date(2026, 11, 2), "reason": "it was empty", "was": "before"}
    assert not claims.changed_since(claim(), "the mean is above 0")
    assert claims.changed_since(claim(), "before")
    assert not claims.changed_since(claim(revised=[entry]), "before")
    assert claims.changed_since(claim(revised=[entry]), "something else")
