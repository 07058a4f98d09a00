"""What a profile would cost follows from recorded seconds and the work of pages."""

import pandas as pd
import pytest

from repalign.press import plan, records


class Recorded(records.Record):
    """A record of two sweeps of 90 and 10 seconds."""

    def sweep(self, name):
        seconds = {"long": [60.0, 30.0], "short": [10.0]}[name]
        return pd.DataFrame(), pd.DataFrame({"seconds": seconds})


def record(**more):
    run = {"page": "toy/01", "profile": "desktop", "sweeps": {"long": {}, "short": {}}} | more
    return Recorded(place=None, run=run)


def test_seconds_grow_with_the_work():
    found = plan.cost(record(work={"desktop": 1e12, "paper": 5e14}), "paper")
    assert found.factor == 500
    assert found.seconds == 500 * 100
    assert found.gpu == pytest.approx(5e14 / plan.GPU)
    assert plan.cost(record(work={"desktop": 1e12, "paper": 5e14}), "desktop").seconds == 100


@pytest.mark.parametrize("work", [None, {}, {"desktop": 1.0}, {"paper": 1.0}])
def test_a_page_that_does_not_say_its_work_has_no_cost(work):
    assert plan.cost(record(work=work) if work is not None else record(), "paper") is None
