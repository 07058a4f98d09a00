"""Effects of quantities that some runs do not have."""

import math

import pandas as pd
import pytest

from repalign import study
from repalign.study.known import above_where_known

NONE = math.nan


def test_all_runs_have_it():
    values = pd.Series([1.0, 1.1, 1.2])
    assert above_where_known({"it": values}, 0.5) == {"it": study.above(values, 0.5)}


def test_runs_without_it_are_counted():
    found = above_where_known({"it": pd.Series([1.0, NONE, 1.1, 1.2])})
    assert found["it"] == study.above([1.0, 1.1, 1.2])
    assert found["runs that have: it"] == study.share(3, 4)


@pytest.mark.parametrize("values", [[NONE, NONE, NONE], [NONE, 1.0, NONE], [NONE], [1.0]])
def test_of_too_few_there_is_only_the_share(values):
    (found,) = above_where_known({"it": pd.Series(values)}).values()
    assert found.kind == "share"


def test_runs_without_it_never_speak_against_a_claim():
    (found,) = above_where_known({"it": pd.Series(20 * [NONE])}).values()
    assert (found.mean, found.answer) == (0, "open")
    assert study.share(0, 20).answer == "no"
