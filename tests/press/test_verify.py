"""Would a page still give its numbers? Cells computed again, and what a difference says."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest

from repalign.press import records, sweep, verify
from repalign.press.verify import DifferenceError
from toy_book import (
    NUMBERS_FILE,
    TOY,
    commit,
    edit,
    page_of,
    ran,
    record_of,
    refused,
    repalign,
    run_of,
)

SEEDS = [{"seed": seed} for seed in range(4)]


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    """Cells of no time are computed before a worker has started."""
    monkeypatch.setenv("REPALIGN_JOBS", "1")


def values(seed, shift=0.0):
    return [{"value": 1.0 + seed, "word": "a"}, {"value": 2.0 + shift, "more": 1}]


def again(fn=values, configs=SEEDS, tolerance=1e-6, seconds=None, change=None, trained=False, **common):
    """Record a sweep of ``values``, verify it with ``fn``; what was found."""
    found = sweep.run(values, SEEDS, None, {})
    table, cells = found.table, found.cells
    if seconds:
        cells["seconds"] = seconds
    if change:
        change(table, cells)
    verify.check(fn, configs, None, common, "values", table, cells, tolerance, trained)
    (place,) = Path(os.environ["REPALIGN_OUT"]).glob("*.verified.json")
    return json.loads(place.read_text())


def test_the_same_numbers_are_the_same():
    found = again()
    assert (found["largest"], found["cells"], found["of"]) == (0.0, 4, 4)


def test_a_number_that_moved_is_measured_against_its_size_and_named():
    found = again(shift=0.5)
    assert found["largest"] == pytest.approx(0.2)
    assert found["worst"] == "value of seed=0"


def test_of_a_trained_network_a_number_is_measured_against_the_spread_of_such_numbers():
    """Values of rows with the word spread by 1.1, those without by nothing: these keep their own size."""
    moved = again(lambda seed: [{"value": 1.5 + seed, "word": "a"}, values(seed)[1]], trained=True)
    assert moved["largest"] == pytest.approx(0.5 / 1.5)
    small = again(
        lambda seed: [{"value": 0.1, "word": "a"} if seed == 0 else values(seed)[0], values(seed)[1]],
        change=lambda table, cells: table.__setitem__("value", table["value"].replace(1.0, 0.01)),
        trained=True,
    )
    spread = pd.Series([0.01, 2.0, 3.0, 4.0]).std(ddof=0)
    assert small["largest"] == pytest.approx(0.09 / spread)
    assert again(shift=0.5, trained=True)["largest"] == pytest.approx(0.2)
    other = again(lambda seed: [{**values(seed)[0], "word": "b"}, values(seed)[1]], trained=True)
    assert other["worst"] == "word of seed=0"


def test_rounding_around_zero_is_none():
    def zero(table, cells):
        table["value"] = 0.0

    found = again(lambda seed: [{"value": 1e-12, "word": "a"}, {"value": -1e-12, "more": 1}], change=zero)
    assert found["largest"] == 0.0


@pytest.mark.parametrize(
    ("fn", "worst"),
    [
        (lambda seed: values(seed)[:1], "the number of rows, 1 beside 2, of seed=0"),
        (lambda seed: [{**row, "new": 1} for row in values(seed)], "the new column new of seed=0"),
        (lambda seed: [{"value": row["value"]} for row in values(seed)], "word of seed=0"),
        (lambda seed: [{**values(seed)[0], "word": "b"}, values(seed)[1]], "word of seed=0"),
        (lambda seed: [{**values(seed)[0], "value": None}, values(seed)[1]], "value of seed=0"),
        (lambda seed: [{**values(seed)[0], "value": float("nan")}, values(seed)[1]], "value of seed=0"),
    ],
)
def test_what_is_of_another_kind_differs_without_end(fn, worst):
    found = again(fn)
    assert found["largest"] > 1e300
    assert found["worst"] == worst


def test_other_configurations_are_another_experiment():
    with pytest.raises(DifferenceError, match=r"other configurations than its record \(3 beside 4\)"):
        again(configs=SEEDS[:3])
    with pytest.raises(DifferenceError, match="the settings of the recorded profile have changed"):
        again(configs=SEEDS[::-1])


def test_other_data_are_another_experiment():
    with pytest.raises(DifferenceError, match="finds other data than its record was computed on"):
        again(change=lambda table, cells: cells.__setitem__("data", "other"))


def test_a_cell_that_fails_today_is_named():
    def fails(seed):
        raise KeyError("gone")

    with pytest.raises(DifferenceError, match="the cell seed=0 of values fails today: KeyError: 'gone'"):
        again(fails)


@pytest.mark.parametrize(
    ("budget", "computed"),
    [("0", [3]), ("7", [3, 1]), ("1000", [3, 1, 2, 0])],
)
def test_the_cheapest_cells_are_computed_and_at_least_one(monkeypatch, tmp_path, budget, computed):
    log = tmp_path / "log"

    def told(seed):
        with log.open("a") as file:
            file.write(f"{seed}\n")
        return values(seed)

    monkeypatch.setenv(verify.BUDGET, budget)
    again(told, seconds=[100.0, 5.0, 40.0, 1.0])
    assert [int(line) for line in log.read_text().split()] == computed


def test_equally_cheap_cells_take_turns(monkeypatch):
    seen = set()
    monkeypatch.setenv(verify.BUDGET, "0")
    for turn in range(4):
        monkeypatch.setenv(verify.TURN, str(turn))
        found = again(seconds=[1.0, 1.0, 1.0, 1.0], shift=1.0)
        seen.add(found["worst"])
    assert seen == {f"value of seed={seed}" for seed in range(4)}


def test_a_number_changed_in_the_library_is_found_and_a_new_name_is_none(root):
    """The experiment moves to another file, and a function on its way and a module get other names."""
    moved = TOY.with_name("toy_moved.py")
    (root / NUMBERS_FILE).rename(root / NUMBERS_FILE.with_name("toy_draws.py"))
    edit(root / NUMBERS_FILE.with_name("toy_draws.py"), "def around(", "def near(")
    edit(root / TOY, "toy_numbers.around", "toy_draws.near")
    edit(root / TOY, "toy_numbers", "toy_draws")
    edit(root / TOY, "def measured(", "def measure(")
    (root / TOY).rename(root / moved)
    edit(page_of(root), "import toy\n", "import toy_moved\n")
    edit(page_of(root), "toy.measured, press.grid(seed=settings.seeds),", "toy_moved.measure, seeds,")
    edit(page_of(root), "runs = page.sweep(", "seeds = press.grid(seed=settings.seeds)\nruns = page.sweep(")
    edit(page_of(root), "n=settings.n)", 'n=settings.n, name="measured")')
    at = commit(root)
    assert "toy/01_a: " in ran(root, "verify", "--budget", "30s").stdout
    (noted,) = json.loads((record_of(root) / "verified.json").read_text())
    assert (noted["commit"], noted["cells"], noted["of"], noted["largest"]) == (at, 4, 4, 0.0)
    assert noted["processor"]
    assert records.newest(root, "toy/01_a").verified().startswith(f"{noted['date']}, at commit {at}: 4 of 4")

    edit(root / NUMBERS_FILE.with_name("toy_draws.py"), "middle + sum", "1.001 * middle + sum")
    done = repalign(root, "verify")
    refused(done, "a record and the code do not agree: see above")
    assert "toy/01_a, sweep measured: value of seed=20" in done.stderr
    assert "from the record, more than 1e-06 of its size. Find what changed, or record" in done.stderr
    # A difference is not written down as a verification.
    assert json.loads((record_of(root) / "verified.json").read_text()) == [noted]


def test_settings_of_the_record_are_locked(root):
    edit(page_of(root), "desktop=dict(runs=4, n=5),", "desktop=dict(runs=4, n=6),")
    done = repalign(root, "verify")
    refused(done, "a record and the code do not agree")
    assert "toy/01_a has other settings than its record (n 6, recorded 5)" in done.stderr


def test_a_renamed_sweep_is_told_how_to_keep_its_record(root):
    edit(root / TOY, "def measured(", "def measure(")
    edit(page_of(root), "toy.measured", "toy.measure")
    done = repalign(root, "verify")
    refused(done, "a record and the code do not agree")
    assert "the record of toy/01_a has no sweep measure: it has measured" in done.stderr
    assert "give the sweep its old name (page.sweep(…, name=…))" in done.stderr


def test_what_cannot_be_verified_is_said_before_anything_runs(root):
    refused(repalign(root, "verify", "--budget", "10x"), "--budget takes a time such as 90s, 10m or 2h")
    (record_of(root) / "measured.parquet").write_bytes(b"")
    refused(repalign(root, "verify"), "measured.parquet of toy/01_a is not the file that the run left")
    (record_of(root) / "run.json").unlink()
    refused(repalign(root, "verify"), "none of these pages has a record")
    assert run_of(root, "desktop")["page"] == "toy/01_a"
    assert not (root / "build" / "verify").exists()


def test_a_sweep_that_is_gone_is_named(root, tmp_path):
    record = records.newest(root, "toy/01_a")
    with pytest.raises(DifferenceError, match="toy/01_a no longer has the recorded sweep measured"):
        verify.summarize(record, tmp_path, root)


def test_the_last_five_verifications_are_kept(root):
    record = records.newest(root, "toy/01_a")
    for i in range(7):
        verify.note(record, {"date": f"2026-11-0{i + 1}"})
    dates = [one["date"] for one in json.loads((record.place / "verified.json").read_text())]
    assert dates == [f"2026-11-0{i}" for i in (3, 4, 5, 6, 7)]


def test_tables_come_back_from_their_files_as_they_were(tmp_path):
    """Rows with and without a value, texts, whole numbers: what is compared is what was computed."""
    found = sweep.run(values, SEEDS, None, {})
    records.write_sweep(tmp_path, "values", found)
    table = pd.read_parquet(tmp_path / "values.parquet")
    cells = pd.read_parquet(tmp_path / "values.cells.parquet")
    verify.check(values, SEEDS, None, {}, "values", table, cells, 1e-6)
    (place,) = Path(os.environ["REPALIGN_OUT"]).glob("*.verified.json")
    assert json.loads(place.read_text())["largest"] == 0.0
