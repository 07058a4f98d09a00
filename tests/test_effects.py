"""Effects and verdicts: the interval decides, by the table of the book."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from repalign.study.correlations import correlation
from repalign.study.effects import (
    above,
    below,
    interval,
    ordered,
    ratio,
    share,
    spearman,
    verdict,
    wilson,
    within,
)

runs = st.lists(st.floats(-1e3, 1e3, allow_nan=False), min_size=2, max_size=12)


@given(runs)
def test_the_interval_is_students(values):
    low, high = interval(values)
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
    assert share(hits, trials).interval == list(wilson(hits, trials))


@given(runs, st.floats(-1e3, 1e3))
def test_sides_mirror_each_other(values, bound):
    swap = {"yes": "no", "no": "yes", "open": "open"}
    assert below(values, bound).answer == swap[above(values, bound).answer]
    assert below([-v for v in values], -bound).answer == above(values, bound).answer


@given(runs, st.floats(-1e3, 1e3))
def test_yes_means_that_the_whole_interval_is_on_the_side(values, bound):
    effect = above(values, bound)
    low, high = effect.interval
    assert (effect.answer == "yes") == (low > bound)
    assert (effect.answer == "no") == (high < bound)


@pytest.mark.parametrize(
    ("values", "answer"),
    [([0.49, 0.5, 0.51], "yes"), ([0.1, 0.9, 0.5], "open"), ([3.0, 3.1, 3.2], "no"), ([-3.0, -3.1], "no")],
)
def test_within_two_bounds(values, answer):
    assert within(values, 0.0, 1.0).answer == answer


def test_equal_runs_on_the_bound_are_open():
    assert above([0.0, 0.0, 0.0]).answer == "open"
    assert above([1e-9] * 3).answer == "yes"


YES, NO, OPEN = above([1.0, 1.1]), above([-1.0, -1.1]), above([-1.0, 1.0])


@pytest.mark.parametrize("effects", list(itertools.product((YES, NO, OPEN), repeat=3)))
def test_the_verdict_is_the_table(effects):
    answers = {effect.answer for effect in effects}
    wanted = (
        "REPRODUCED" if answers == {"yes"}
        else "PARTLY" if "yes" in answers
        else "NOT REPRODUCED" if "no" in answers
        else "OPEN"
    )  # fmt: skip
    assert verdict(effects) == wanted


def test_effects_take_what_a_frame_gives():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]})
    assert above(frame["a"]).values == [1.0, 2.0, 3.0]
    assert above(frame["a"].to_numpy()) == above([1.0, 2.0, 3.0])
    assert above(v for v in (1.0, 2.0)).mean == 1.5


def test_shares_have_a_side():
    assert share(9, 10).answer == "yes"
    assert share(1, 10, below=0.5).answer == "yes"
    assert share(9, 10, below=0.5).answer == "no"
    assert share(6, 10).answer == "open"
    assert share(95, 100, above=0.9).answer == "open"


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: above([]), "one number per independent run"),
        (lambda: above([[1.0], [2.0]]), "Average over what is not a run first"),
        (lambda: above([1.0, float("nan")]), "first in run 1.*share"),
        (lambda: above([1.0, 2.0], float("inf")), "bound of an effect should be finite"),
        (lambda: within([1.0, 2.0], 3, 2), "low below its high"),
        (lambda: share(3, 2), "3 of 2"),
        (lambda: share(0, 0), "at least one trial"),
        (lambda: share(1, 2, above=0.1, below=0.9), "one side"),
        (lambda: share(1, 2, above=50), "from 0 to 1"),
        (lambda: interval([1.0]), "at least two runs"),
        (lambda: verdict([]), "at least one effect"),
    ],
)
def test_bad_input_says_what_to_do(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_a_single_run_has_no_interval_and_stays_open():
    effect = above([5.0])
    assert effect.interval is None
    assert effect.answer == "open"


def test_ordered_compares_each_column_with_the_next_run_by_run():
    areas = pd.DataFrame({"a": [5.0, 7.0], "b": [2.0, 3.0], "c": [1.0, 2.5], "d": [0.0, 1.0]})
    found = ordered(areas, "a", ["b", "c"], "d")
    assert list(found) == ["a above b", "a above c", "b above d", "c above d"]
    assert found["a above c"] == above([4.0, 4.5])
    for columns in (("a",), ("a", "z")):
        with pytest.raises(ValueError, match="two columns or more of a, b, c, d"):
            ordered(areas, *columns)


def test_ordered_compares_within_each_value_of_the_levels_before_the_run():
    index = pd.MultiIndex.from_product([["mnist", "ct"], ["area"], [7, 8]])
    areas = pd.DataFrame({"a": [5.0, 7.0, 1.0, 2.0], "b": [2.0, 3.0, 4.0, 6.0]}, index)
    found = ordered(areas, "a", "b")
    assert found == {"mnist, area: a above b": above([3.0, 4.0]), "ct, area: a above b": above([-3.0, -4.0])}
    assert ordered(areas.droplevel(1), "a", "b").keys() == {"mnist: a above b", "ct: a above b"}


@given(st.integers(0, 10**6))
def test_a_ratio_of_means_has_fiellers_interval(seed):
    """Its ends are the ratios r at which the interval of top - r * bottom begins to leave 0."""
    draw = np.random.default_rng(seed)
    bottom = 2 + draw.normal(size=6) * 0.3
    top = bottom * draw.uniform(-1, 2) + draw.normal(size=6) * 0.2
    middle, low, high = ratio(top, bottom)
    assert middle == pytest.approx(top.mean() / bottom.mean())
    assert low < middle < high
    for end, touching in ((low, 0), (high, 1)):
        assert interval(top - end * bottom)[touching] == pytest.approx(0, abs=1e-9)
    assert above(top - (low - 1e-6) * bottom).answer == "yes"
    assert above(top - (low + 1e-6) * bottom).answer == "open"
    assert below(top - (high + 1e-6) * bottom).answer == "yes"


def test_nothing_is_known_of_a_ratio_to_something_about_zero():
    assert ratio([1.0, 2.0, 1.5], [1.0, -1.1, 0.3])[1:] == (-np.inf, np.inf)


def test_a_rank_correlation_agrees_with_scipy_and_has_an_interval():
    draw = np.random.default_rng(3)
    x = draw.integers(0, 6, 40)  # with ties
    y = x + draw.normal(size=40) * 2
    middle, low, high = spearman(x, y)
    assert middle == pytest.approx(stats.spearmanr(x, y).statistic)
    assert -1 <= low < middle < high <= 1
    assert spearman(x, y) == (middle, low, high)  # drawn by a fixed seed
    assert spearman(np.exp(x), y) == (middle, low, high)


def test_a_rank_correlation_of_too_little_tells_nothing():
    for x, y in (([1.0, 2.0], [1.0, 2.0]), ([1.0] * 4, [1.0, 2.0, 3.0, 4.0])):
        middle, low, high = spearman(x, y)
        assert np.isnan(middle)
        assert (low, high) == (-1, 1)
    with pytest.raises(ValueError, match="finite values"):
        spearman([1.0, 2.0, np.nan], [1.0, 2.0, 3.0])


@pytest.mark.parametrize("top, bottom", [([1.0], [2.0]), ([1.0, 2.0], [1.0]), ([[1.0, 2.0]], [[1.0, 2.0]])])
def test_a_ratio_of_different_runs_is_refused(top, bottom):
    with pytest.raises(ValueError, match="same two runs or more"):
        ratio(top, bottom)


def test_a_correlation_is_scipys_and_its_interval_that_of_models_drawn_again():
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    models = pd.DataFrame({"x": x, "y": x + 0.5 * rng.normal(size=40), "z": rng.normal(size=40)})
    found = correlation(models, "x", "y", above=0.5)
    assert found.mean == pytest.approx(stats.pearsonr(models.x, models.y).statistic)
    drawn = stats.bootstrap(
        (models.x, models.y), lambda a, b: stats.pearsonr(a, b).statistic, paired=True, vectorized=False,
        method="percentile", n_resamples=4000, rng=1,
    ).confidence_interval  # fmt: skip
    assert found.interval == pytest.approx(list(drawn), abs=0.02)
    assert found.answer == "yes"
    difference = correlation(models, "x", "y", less=("x", "z"))
    assert difference.mean == pytest.approx(found.mean - stats.pearsonr(models.x, models.z).statistic)
    # Drawn together: the difference with itself is zero in every draw.
    assert correlation(models, "x", "y", less=("y", "x")).interval == pytest.approx([0, 0], abs=1e-12)
    turned = models.assign(y=-models.y)
    assert correlation(turned, "x", "y", below=-0.5).answer == "yes"
    assert correlation(turned, "x", "y", less=("x", "z"), absolute=True).mean == pytest.approx(
        found.mean - abs(stats.pearsonr(models.x, models.z).statistic)
    )


def test_models_are_drawn_with_all_of_their_rows():
    rng = np.random.default_rng(1)
    models = pd.DataFrame({"model": range(20), "x": rng.normal(size=20), "y": rng.normal(size=20)})
    once = correlation(models, "x", "y")
    four = correlation(pd.concat([models] * 4), "x", "y", unit="model")
    assert four.interval == pytest.approx(once.interval)
    assert correlation(pd.concat([models] * 4), "x", "y").interval[0] > once.interval[0]


def test_a_correlation_that_nothing_is_known_of_is_open():
    few = pd.DataFrame({"x": [1.0, 2.0], "y": [1.0, 3.0]})
    same = pd.DataFrame({"x": [1.0] * 9, "y": np.arange(9.0)})
    assert correlation(few, "x", "y").answer == correlation(same, "x", "y").answer == "open"
    with pytest.raises(ValueError, match="finite"):
        correlation(pd.DataFrame({"x": [1.0, np.nan, 2.0], "y": [1.0, 2.0, 3.0]}), "x", "y")
    with pytest.raises(ValueError, match="no column z"):
        correlation(few, "x", "z")
    with pytest.raises(ValueError, match="one side"):
        correlation(few, "x", "y", above=0, below=0)
