"""Numbers for maps of epochs against epochs, on maps whose answer is known."""

import math

import numpy as np
import pytest

from repalign.papers.sharon import transitions

EPOCHS = [0, *np.unique(np.geomspace(1, 1000, 40).round()).tolist()]
LOG = np.log(np.maximum(EPOCHS, 0.5))


def drift(speed=0.1):
    """CKA that depends on the ratio of two epochs alone."""
    return np.exp(-speed * np.abs(LOG[:, None] - LOG))


def blocks(border, low=0.3, speed=0.0):
    """Two blocks of similar epochs, before ``border`` and from it on, that may drift."""
    side = np.asarray(EPOCHS) >= border
    return np.where(side[:, None] == side, 1.0, low) * drift(speed)


def test_identical_epochs_never_change():
    same = np.ones((len(EPOCHS), len(EPOCHS)))
    assert transitions.change(same) == transitions.change(same, EPOCHS, ratio=1.5) == 0
    assert transitions.returned(same, 3, [5, 6]) == transitions.set_apart(same, [5, 6]) == 0
    new = transitions.novelty(same, EPOCHS)
    assert np.nanmax(np.abs(new)) == 0


def test_novelty_peaks_at_the_border_of_two_blocks():
    border = EPOCHS[25]
    new = transitions.novelty(blocks(border), EPOCHS)
    assert np.nanargmax(new) == 25
    assert new[25] == pytest.approx(0.7)
    # Where the window has one block alone there is nothing new.
    assert new[EPOCHS.index(5)] == pytest.approx(0, abs=1e-12)


def test_novelty_of_a_drift_is_the_same_everywhere():
    new = transitions.novelty(drift(), EPOCHS)
    there = np.isfinite(new)
    late = new[there & (np.asarray(EPOCHS) > 30)]  # rounded epochs are uneven before
    assert len(late) > 5
    assert late.min() > 0
    assert late.max() / np.median(late) < 1.1
    assert new[there].max() / np.median(new[there]) < 1.3  # but not so much that a block seems to begin


def test_novelty_needs_its_whole_window():
    new = dict(zip(EPOCHS, np.isfinite(transitions.novelty(drift(), EPOCHS)).tolist(), strict=True))
    assert {epoch for epoch, there in new.items() if there} == {e for e in EPOCHS if 5 <= e <= 1000 / 3}


def test_change_grows_with_speed_and_is_smaller_nearby():
    slow, fast = (transitions.change(drift(speed)) for speed in (0.05, 0.1))
    assert 0 < slow < fast
    assert 0 < transitions.change(drift(), EPOCHS, ratio=1.5) < fast
    assert transitions.change(drift(), EPOCHS, ratio=1e9) < fast  # without epoch 0
    assert math.isnan(transitions.change(np.ones((2, 2)), [0, 1], ratio=1.5))


def test_nearby_pairs_are_counted_by_their_ratio():
    at = [0, 2, 3, 6]
    far = 1 - np.array([[0, 9, 9, 9], [9, 0, 0.5, 9], [9, 0.5, 0, 9], [9, 9, 9, 0]])
    assert transitions.change(far, at, ratio=1.5) == 0.5


def test_a_layer_that_comes_back_has_returned():
    away = np.ones((4, 4))
    away[1] = away[:, 1] = 0.5
    np.fill_diagonal(away, 1)
    assert transitions.returned(away, 1, [2, 3]) == pytest.approx(0.5)
    assert transitions.returned(drift(), 20, [34, 35]) < 0


def test_a_late_block_is_set_apart():
    assert transitions.set_apart(blocks(EPOCHS[30]), range(30, len(EPOCHS))) == pytest.approx(0.7)
    assert math.isnan(transitions.set_apart(np.ones((3, 3)), [2]))


def test_milestones():
    found = transitions.milestones([0, 1, 10, 75, 100], [0.9, 0.4, 0.005, 0.1, 0], [0.9, 0.3, 0.2, 0.1, 0.1])
    assert found == (2, 1, [3, 4])
    one_of_200 = transitions.milestones([0, 1], [0.9, 1 - 199 / 200], [0.9, 0.1])
    assert one_of_200.fit == 1
    never = transitions.milestones([0, 1, 10], [0.9, 0.4, 0.3], [0.9, 0.1, 0.2])
    assert never == (None, 1, [2])


def test_a_summary_has_every_number_that_exists():
    at, border = np.asarray(EPOCHS), EPOCHS[25]
    errors = np.where(at >= border, 0, 0.5)
    found, cka = transitions.milestones(at, errors, errors), blocks(border, speed=0.01)
    told = transitions.summary(cka, at, found)
    assert told["change"] == transitions.change(cka)
    assert told["nearby"] == transitions.change(cka, at, ratio=1.5)
    assert told["peak"] == told["at_fit"] > 1
    assert told["returned"] == pytest.approx(0)  # the best is the first
    assert told["set_apart"] > 0
    never = transitions.summary(drift(), at, found._replace(fit=None))
    assert math.isnan(never["returned"])
    assert math.isnan(never["at_fit"])
    still = transitions.summary(blocks(border), at, found)  # nothing changes within a block
    assert (math.isnan(still["at_fit"]), still["largest"]) == (True, pytest.approx(0.7))
    short = transitions.summary(np.ones((3, 3)), [0, 1, 2], transitions.Milestones(1, 0, [2]))
    assert math.isnan(short["at_fit"])


def test_rows_of_a_run():
    at = EPOCHS
    test = np.linspace(0.9, 0.1, len(at))
    test[20:] = 0.5
    test[-1] = 0.3
    rows = [
        {"epoch": e, "statistics": kind, "train": 0.0 if e >= at[22] else 0.4, "test": float(t) + extra}
        for e, t in zip(at, test, strict=True)
        for kind, extra in (("training", 0.2), ("recomputed", 0.0))
    ]
    first, second = transitions.described(
        rows, {"plain": {"first": drift(), "second": blocks(at[22], speed=0.01)}}
    )
    assert [(row["kind"], row["layer"]) for row in (first, second)] == [
        ("plain", "first"),
        ("plain", "second"),
    ]
    for row in (first, second):
        assert row["start"] == at[22]
        assert row["best"] == pytest.approx(test[19])
        assert row["last"] == pytest.approx(0.3)
        assert row["highest"] == pytest.approx(0.5)
        assert row["highest_stale"] == pytest.approx(0.7)
    assert second["at_fit"] == second["peak"] > first["at_fit"]
    never = [{**row, "train": 0.4} for row in rows]
    (row,) = transitions.described(never, {"debiased": {"first": drift()}})
    assert math.isnan(row["start"])
    (row,) = transitions.described(never, {"debiased": {"first": drift()}}, perfect=0.4)
    assert row["start"] == 0
    falling = [{**row, "test": 1 / (1 + row["epoch"])} for row in never]
    (row,) = transitions.described(falling, {"plain": {"first": drift()}})
    assert math.isnan(row["highest"])  # nothing comes after the best epoch
