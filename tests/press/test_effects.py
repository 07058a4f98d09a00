"""Effects and verdicts: the interval decides, by the table of the book."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from repalign.press.effects import (
    above,
    at_most,
    below,
    condition,
    correlation,
    decreasing,
    increasing,
    ratio,
    share,
    student,
    verdict,
    wilson,
    within,
)

runs = st.lists(st.floats(-1e3, 1e3, allow_nan=False), min_size=2, max_size=12)


@given(runs)
def test_the_interval_of_a_mean_is_students(values):
    low, high = above("mean", values).interval
    if np.ptp(values) > 1e-6:
        theirs = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        np.testing.assert_allclose((low, high), theirs, rtol=1e-9, atol=1e-9)
    assert low <= np.mean(values) + 1e-9
    assert high >= np.mean(values) - 1e-9


@given(st.integers(1, 200), st.data())
def test_a_share_has_wilsons_interval(trials, data):
    hits = data.draw(st.integers(0, trials))
    theirs = stats.binomtest(hits, trials).proportion_ci(0.95, "wilson")
    np.testing.assert_allclose(wilson(hits, trials), theirs, atol=1e-12)
    assert share("hits", hits, trials).interval == list(wilson(hits, trials))


@given(runs, st.floats(-1e3, 1e3))
def test_sides_mirror_each_other(values, bound):
    swap = {"yes": "no", "no": "yes", "open": "open"}
    answer = above("mean", values, bound).answer
    assert below("mean", values, bound).answer == swap[answer]
    assert below("mean", [-v for v in values], -bound).answer == answer


@given(runs, st.floats(-1e3, 1e3))
def test_yes_means_that_the_whole_interval_is_on_the_side(values, bound):
    effect = above("mean", values, bound)
    low, high = effect.interval
    assert (effect.answer == "yes") == (low > bound)
    assert (effect.answer == "no") == (high < bound)


@pytest.mark.parametrize(
    ("values", "answer"),
    [([0.49, 0.5, 0.51], "yes"), ([0.1, 0.9, 0.5], "open"), ([3.0, 3.1, 3.2], "no"), ([-3.0, -3.1], "no")],
)
def test_equality_is_an_interval_within_two_bounds(values, answer):
    assert within("mean", values, 0.0, 1.0).answer == answer


def test_equal_runs_on_the_bound_are_open():
    assert above("mean", [0.0, 0.0, 0.0]).answer == "open"
    assert above("mean", [1e-9] * 3).answer == "yes"


def test_a_single_run_has_no_interval_and_stays_open():
    for effect in (above("mean", [5.0]), ratio("twice", [5.0], [1.0])):
        assert effect.interval is None
        assert effect.answer == "open"


def test_effects_take_what_a_frame_gives():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]})
    assert above("a", frame["a"]).values == [1.0, 2.0, 3.0]
    assert above("a", frame["a"].to_numpy()) == above("a", [1.0, 2.0, 3.0])
    assert above("a", (v for v in (1.0, 2.0))).mean == 1.5


def test_shares_have_a_side():
    assert share("hits", 9, 10).answer == "yes"
    assert share("hits", 1, 10, below=0.5).answer == "yes"
    assert share("hits", 9, 10, below=0.5).answer == "no"
    assert share("hits", 6, 10).answer == "open"
    assert share("hits", 95, 100, above=0.9).answer == "open"


def test_rounding_may_reach_its_limit_and_not_pass_it():
    assert at_most("sum", [0.0, 1e-8], 1e-8).answer == "yes"
    assert at_most("sum", [0.0, 2e-8, 0.0], 1e-8).answer == "no"


def test_a_ratio_is_compared_in_logs():
    top, bottom = [2.0, 4.0, 9.0], [1.0, 1.0, 3.0]
    found = ratio("as wide", top, bottom, above=1.5)
    assert found.mean == pytest.approx(stats.gmean([2, 4, 3]))
    assert found.interval == pytest.approx(list(np.exp(student(np.log([2, 4, 3])))))
    turned = ratio("as narrow", bottom, top, below=1 / 1.5)
    assert turned.answer == found.answer
    assert turned.interval == pytest.approx([1 / end for end in reversed(found.interval)])
    assert ratio("wider", top, bottom).bound == [1.0]


# The verdict

YES, NO, OPEN = above("yes", [1.0, 1.1]), above("no", [-1.0, -1.1]), above("open", [-1.0, 1.0])


@pytest.mark.parametrize("effects", list(itertools.product((YES, NO, OPEN), repeat=3)))
def test_the_verdict_is_the_table(effects):
    answers = {effect.answer for effect in effects}
    if answers == {"yes"}:
        wanted = "REPRODUCED"
    elif "yes" in answers:
        wanted = "PARTLY"
    elif "no" in answers:
        wanted = "NOT REPRODUCED"
    else:
        wanted = "OPEN"
    assert verdict(effects) == wanted
    assert verdict([*effects, condition("met", [1.0, 1.0], above=0.5)]) == wanted
    assert verdict([*effects, condition("unmet", [0.0, 1.0], above=0.5)]) == "OPEN"


# Steps along an axis


def cells(axis, rise):
    """Two runs at each place on ``axis``; a step adds ``rise`` in the second, twice that in the first."""
    rows = [
        {"seed": seed, "layer": place, "cka": step * (2 - seed) * rise}
        for seed in (0, 1)
        for step, place in enumerate(axis)
    ]
    return pd.DataFrame(rows)


def test_each_step_compares_the_same_run():
    first, second = increasing(cells([1, 2, 10], 0.1), "cka", along="layer")
    assert (first.name, second.name) == ("layer 2 above layer 1", "layer 10 above layer 2")
    assert first.values == pytest.approx([0.2, 0.1])
    (down, _) = decreasing(cells([1, 2, 10], -0.1), "cka", along="layer")
    assert down.name == "layer 2 below layer 1"
    assert down.side == "below"
    assert down.values == pytest.approx([-0.2, -0.1])


def test_numbers_are_steps_in_their_order_and_names_in_the_tables():
    mixed = cells([10, 1, 2], 0.1)
    assert [one.name for one in increasing(mixed, "cka", along="layer")] == [
        "layer 2 above layer 1",
        "layer 10 above layer 2",
    ]
    named = cells(["stem", "block", "head"], 0.1)
    assert [one.name for one in increasing(named, "cka", along="layer")] == [
        "layer block above layer stem",
        "layer head above layer block",
    ]


def test_rows_of_one_run_are_averaged_and_never_counted_as_runs():
    table = cells([1, 2], 0.1)
    (once,) = increasing(table, "cka", along="layer")
    (twice,) = increasing(pd.concat([table, table]), "cka", along="layer")
    assert twice.values == pytest.approx(once.values)


def test_a_pair_that_lacks_one_side_is_refused():
    table = cells([1, 2], 0.1)
    with pytest.raises(ValueError, match=r"cka is missing at some layer in the runs \[1\]"):
        list(increasing(table.iloc[:-1], "cka", along="layer"))
    doubled = pd.concat([table, table.assign(cka=[np.nan, 0.1, 0.1, 0.1])])  # one NaN among several rows
    with pytest.raises(ValueError, match=r"cka is missing at some layer in the runs \[0\]"):
        list(increasing(doubled, "cka", along="layer"))
    with pytest.raises(ValueError, match="no column depth; it has seed, layer, cka"):
        list(increasing(table, "cka", along="depth"))


# Input that gives no effect

ONE = [1.0, 2.0]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: above("lead", []), "lead: .*one number for each independent run"),
        (lambda: above("lead", [[1.0], [2.0]]), "Average over what is not a run first"),
        (lambda: above("lead", [1.0, float("nan")]), "first in run 1.*share"),
        (lambda: above("lead", ONE, float("inf")), "lead: the bound of an effect should be finite"),
        (lambda: share("lead", 1, 2, above=float("nan")), "from 0 to 1"),
        (lambda: ratio("lead", ONE, ONE, above=float("nan")), "should be finite"),
        (lambda: at_most("lead", [0.0], float("nan")), "should be finite"),
        (lambda: at_most("lead", [0.0, float("nan")], 1.0), "1 of 2 are NaN"),
        (lambda: within("lead", ONE, 3, 2), "low below its high, but got 3 and 2"),
        (lambda: condition("lead", ONE), "one side: give above= or below="),
        (lambda: condition("lead", ONE, above=0, below=1), "one side"),
        (lambda: share("lead", 3, 2), "3 of 2"),
        (lambda: share("lead", 0, 0), "at least one trial"),
        (lambda: share("lead", 0.5, 2), "0.5 of 2"),
        (lambda: share("lead", 1, 2, above=0.1, below=0.9), "one side"),
        (lambda: share("lead", 1, 2, above=50), "from 0 to 1"),
        (lambda: ratio("lead", ONE, ONE, above=1, below=1), "one side"),
        (lambda: ratio("lead", ONE, [1.0]), "both quantities in every run, but got 2 and 1"),
        (lambda: ratio("lead", ONE, [1.0, 0.0]), "needs positive values"),
        (lambda: student([1.0]), "at least two runs"),
        (lambda: verdict([]), "at least one effect"),
        (lambda: verdict([condition("met", ONE, above=0)]), "at least one effect"),
    ],
)
def test_bad_input_says_what_to_do(make, match):
    with pytest.raises(ValueError, match=match):
        make()


# Correlations


def models(n=40, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return pd.DataFrame({"x": x, "y": x + 0.5 * rng.normal(size=n), "z": rng.normal(size=n)})


def test_a_correlation_is_scipys_and_its_interval_that_of_models_drawn_again():
    table = models()
    found = correlation("r", table, "x", "y", above=0.5)
    assert found.mean == pytest.approx(stats.pearsonr(table.x, table.y).statistic)
    drawn = stats.bootstrap(
        (table.x, table.y),
        lambda a, b: stats.pearsonr(a, b).statistic,
        paired=True,
        vectorized=False,
        method="percentile",
        n_resamples=4000,
        rng=1,
    )
    assert found.interval == pytest.approx(list(drawn.confidence_interval), abs=0.02)
    assert found.answer == "yes"
    assert correlation("r", table, "x", "y", above=0.5) == found  # drawn by a fixed seed
    assert correlation("r", table.assign(y=-table.y), "x", "y", below=-0.5).answer == "yes"


def test_two_correlations_are_compared_within_each_draw():
    table = models()
    r = {pair: stats.pearsonr(table[pair[0]], table[pair[1]]).statistic for pair in ("xy", "xz")}
    assert correlation("r", table, "x", "y", less=("x", "z")).mean == pytest.approx(r["xy"] - r["xz"])
    turned = table.assign(y=-table.y)
    sizes = correlation("r", turned, "x", "y", less=("x", "z"), absolute=True)
    assert sizes.mean == pytest.approx(abs(r["xy"]) - abs(r["xz"]))
    itself = correlation("r", table, "x", "y", less=("y", "x"))
    assert itself.interval == pytest.approx([0, 0], abs=1e-12)


def test_models_are_drawn_with_all_of_their_rows():
    table = models(20).assign(model=range(20))
    four = pd.concat([table] * 4)
    once = correlation("r", table, "x", "y")
    assert correlation("r", four, "x", "y", unit="model").interval == pytest.approx(once.interval)
    assert correlation("r", four, "x", "y").interval[0] > once.interval[0]


def test_a_correlation_that_nothing_is_known_of_is_open():
    few = pd.DataFrame({"x": [1.0, 2.0], "y": [1.0, 3.0]})
    same = pd.DataFrame({"x": [1.0] * 9, "y": np.arange(9.0)})
    assert correlation("r", few, "x", "y").answer == correlation("r", same, "x", "y").answer == "open"
    with pytest.raises(ValueError, match="finite"):
        correlation("r", pd.DataFrame({"x": [1.0, np.nan, 2.0], "y": [1.0, 2.0, 3.0]}), "x", "y")
    with pytest.raises(ValueError, match="no column z"):
        correlation("r", few, "x", "z")
    with pytest.raises(ValueError, match="one side"):
        correlation("r", few, "x", "y", above=0, below=0)
