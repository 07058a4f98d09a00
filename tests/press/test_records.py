"""Records: what is kept of a run, what is refused, and how a spoiled record is named."""

import json
import shutil
from datetime import date, timedelta

import pandas as pd
import pytest

from repalign.press import records
from repalign.press.claims import ClaimError
from repalign.press.records import RecordError
from toy_book import TOY, claims_of, commit, edit, git, page_of, ran, record_of, refused, repalign

PAGE = "toy/01_a"


def build_of(root):
    return root / "build" / "desktop" / "toy" / "01_a"


def change(place, **facts):
    """Replace facts in a ``run.json``."""
    file = place / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **facts}))


def facts_of(place):
    return json.loads((place / "run.json").read_text())


def truncate(file):
    file.write_bytes(file.read_bytes()[:-20])


def other_numbers(file):
    """The same table with another value, as well-formed as before."""
    table = pd.read_parquet(file)
    table.loc[0, "value"] += 1.0
    table.to_parquet(file, index=False)


def test_a_record_says_where_each_cell_comes_from(root):
    record = records.newest(root, PAGE)
    table, cells = record.sweep("measured")
    computed_at = git(root, "rev-parse", "HEAD~1")[:10]
    assert table["seed"].tolist() == [200, 201, 202, 203]
    assert cells["configuration"].tolist() == [f"seed={seed}" for seed in (200, 201, 202, 203)]
    assert set(cells["commit"]) == {computed_at}
    assert cells["clean"].all()
    assert (cells["seconds"] >= 0).all()
    assert not (cells[["date", "processor", "versions"]] == "").any(axis=None)
    assert record.run["claims"]["toy.01_a"]["verdict"] == "REPRODUCED"
    assert f"profile desktop, {record.run['date']}, commit {computed_at}, 4 cells" in record.made()
    assert records.problems(root, PAGE) == []


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda build: truncate(build / "measured.parquet"), "measured.parquet of toy/01_a is not the file"),
        (lambda build: other_numbers(build / "measured.parquet"), "measured.parquet of toy/01_a is not"),
        (lambda build: (build / "measured.parquet").unlink(), "measured.parquet of toy/01_a is missing"),
        (lambda build: (build / "measured.cells.parquet").unlink(), "measured.cells.parquet of toy/01_a is"),
        (lambda build: shutil.rmtree(build), "no finished run at desktop"),
        (lambda build: (build / "run.json").write_text("[]"), "run.json of toy/01_a"),
        (lambda build: (build / "run.json").write_text("{"), "run.json of toy/01_a cannot be read"),
        (lambda build: change(build, sweeps={}), "it has no table"),
        (lambda build: change(build, clean=False), "untracked ones count"),
        (lambda build: change(build, commit="0123456789"), "its commit 0123456789 is not in this history"),
        (lambda build: change(build, commit="installed 0.1.0"), "its commit installed 0.1.0 is not in"),
        (lambda build: change(build, edited=True), "edited while it ran"),
        (lambda build: change(build, changed={"n": 9}), "it was run with n changed"),
        (lambda build: change(build, claims={}), "claims.toml has other claims"),
        (lambda build: change(build, date="2999-01-01"), "lies in the future"),
        (lambda build: change(build, date="soon"), "which is none"),
    ],
)
def test_what_is_no_evidence_is_not_kept(root, spoil, named):
    before = (record_of(root) / "run.json").read_bytes()
    spoil(build_of(root))
    with pytest.raises(RecordError) as refusal:
        records.keep(root, PAGE, "desktop")
    assert named in str(refusal.value)
    assert "repalign run toy/01_a" in str(refusal.value) or "run toy/01_a again" in str(refusal.value)
    assert (record_of(root) / "run.json").read_bytes() == before


def test_a_look_is_not_recorded(root):
    with pytest.raises(RecordError, match="a run at laptop is no evidence: only desktop and paper"):
        records.keep(root, PAGE, "laptop")


def test_cells_of_another_commit_are_not_kept(root):
    """A run on the next commit that found its cells in the store did not compute them there."""
    (root / "README.md").write_text("Another commit.\n")
    change(build_of(root), commit=commit(root))
    with pytest.raises(RecordError, match="computed at another commit: run with --fresh"):
        records.keep(root, PAGE, "desktop")


def test_a_criterion_that_is_fixed_after_the_run_is_refused(root):
    edit(claims_of(root), "above 0.5", "above 0.9")
    for _ in range(2):  # whether or not it is committed by now
        with pytest.raises(RecordError, match=r"the criterion of toy.01_a was fixed after the run"):
            records.keep(root, PAGE, "desktop")
        commit(root)


def test_a_criterion_is_not_fixed_in_the_future(root):
    run = date.fromisoformat(facts_of(build_of(root))["date"])
    edit(claims_of(root), "2026-11-01", (run + timedelta(days=1)).isoformat())
    with pytest.raises(RecordError, match=r"toy.01_a is said to be fixed on .*, after the run of"):
        records.keep(root, PAGE, "desktop")
    edit(claims_of(root), (run + timedelta(days=1)).isoformat(), "2999-01-01")
    with pytest.raises(ClaimError, match="2999-01-01, which lies in the future"):
        records.keep(root, PAGE, "desktop")


def test_a_changed_criterion_is_named_until_it_says_so(root):
    was = "the mean of the runs lies above 0.5"
    edit(claims_of(root), "above 0.5", "above 0.9")
    (problem,) = records.problems(root, PAGE)
    assert "the criterion of toy.01_a is not the one that its record was judged by" in problem
    revised = f'revised = [{{ date = 2026-11-02, reason = "too weak", was = "{was}" }}]\n'
    claims_of(root).write_text(claims_of(root).read_text() + revised)
    assert records.problems(root, PAGE) == []


def test_a_claim_is_lost_only_by_name(root):
    claims = facts_of(record_of(root))["claims"]
    change(record_of(root), claims={**claims, "toy.gone": claims["toy.01_a"]})
    with pytest.raises(RecordError, match=r"its record judges toy.gone, .* name each with --retired"):
        records.keep(root, PAGE, "desktop")
    records.keep(root, PAGE, "desktop", retired=["toy.gone"])
    assert facts_of(record_of(root))["retired"] == ["toy.gone"]


def test_a_record_lists_those_before_it_once(root):
    records.keep(root, PAGE, "desktop")  # the same run again
    assert records.newest(root, PAGE).earlier("toy.01_a") == []
    change(record_of(root), date="2026-11-02", commit="abcdef0123")
    for _ in range(2):
        records.keep(root, PAGE, "desktop")
        assert records.newest(root, PAGE).earlier("toy.01_a") == [
            "2026-11-02 (desktop, commit abcdef0123): REPRODUCED"
        ]


def test_stopped_while_it_records_the_old_record_stays(root, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    before = (record_of(root) / "run.json").read_bytes()
    monkeypatch.setattr(records, "replace_directory", stopped)
    with pytest.raises(KeyboardInterrupt):
        records.keep(root, PAGE, "desktop")
    assert (record_of(root) / "run.json").read_bytes() == before
    assert [place.name for place in record_of(root).parent.iterdir()] == ["01_a"]


def claim_with(record, **changed):
    claims = facts_of(record)["claims"]
    change(record, claims={"toy.01_a": {**claims["toy.01_a"], **changed}})


def effect_with(record, **changed):
    (effect,) = facts_of(record)["claims"]["toy.01_a"]["effects"]
    claim_with(record, effects=[{**effect, **changed}])


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda record: claim_with(record, verdict="NOT REPRODUCED"), "which its own effects do not say"),
        (lambda record: effect_with(record, interval=[0.1, 0.2]), "which its own effects do not say"),
        (lambda record: effect_with(record, answer="no"), "which its own effects do not say"),
        (lambda record: claim_with(record, effects=[]), "which its own effects do not say"),
        (lambda record: claim_with(record, effects=7), "which its own effects do not say"),
        (lambda record: change(record, claims={}), "does not judge toy.01_a: repalign record toy/01_a"),
        (lambda record: other_numbers(record / "measured.parquet"), "is not the file that the run left"),
        (lambda record: truncate(record / "measured.cells.parquet"), "is not the file that the run left"),
        (lambda record: (record / "measured.parquet").unlink(), "measured.parquet of toy/01_a is missing"),
        (lambda record: change(record, date="2999-01-01"), "2999-01-01, which lies in the future"),
        (lambda record: change(record, clean=False), "comes from a tree that was not clean"),
        (lambda record: change(record, commit="0123456789"), "0123456789, which is in no history"),
        (lambda record: change(record, page="toy/02_b"), "lacks its own name"),
        (lambda record: (record / "run.json").write_text("[]"), "Take it back from git"),
        (lambda record: (record / "verified.json").write_text("[]"), "verified.json of toy/01_a"),
    ],
)
def test_a_spoiled_record_is_named(root, spoil, named):
    spoil(record_of(root))
    (problem,) = records.problems(root, PAGE)
    assert named in problem
    assert "toy/01_a" in problem


def test_whatever_stands_in_a_record_is_an_answer_and_no_traceback(root):
    file = record_of(root) / "run.json"
    whole = facts_of(record_of(root))
    junk = (None, [], {}, 0, "", "x", [0], {"x": 0}, {"x": []}, [{}])
    for key in whole:
        for value in junk:
            file.write_text(json.dumps({**whole, key: value}))
            assert isinstance(records.problems(root, PAGE), list)
            try:
                record = records.newest(root, PAGE)
                assert record.label()
                assert record.made()
                assert record.earlier("toy.01_a") == []
            except RecordError:
                continue


def test_a_record_of_other_versions_is_read(root):
    change(record_of(root), versions={"python": "3.9.1"})
    assert records.problems(root, PAGE) == []
    assert records.newest(root, PAGE).made().endswith("torch ?")


@pytest.mark.parametrize("inside_another", [False, True])
def test_an_unpacked_archive_has_no_history_to_doubt(root, inside_another):
    """A reader's copy without git, or within a repository of the reader's own, is read as it is."""
    shutil.rmtree(root / ".git")
    if inside_another:
        git(root.parent, "init", "-q")
    assert records.problems(root, PAGE) == []


def test_what_was_found_is_written_for_a_verdict(root):
    claims_of(root).write_text(
        claims_of(root).read_text() + 'found = "It is {mean.mean:.2f}."\nfound_for = "PARTLY"\n'
    )
    assert records.problems(root, PAGE) == []  # the book can be read meanwhile: it says "to be written"
    (problem,) = records.unwritten(root, PAGE)
    assert "toy.01_a found was written for PARTLY, and its record says REPRODUCED" in problem
    refused(repalign(root, "claims", "--check"), "toy.01_a found was written for PARTLY")
    assert "To be written" in ran(root, "claims").stdout


def test_the_recorded_tables_are_judged_again_on_request(root):
    """A claim's function may be mended without a run: the book asks for it, and the record says so then."""
    edit(page_of(root), 'runs["value"], 0.5)', '-runs["value"], 0.5)')
    refused(
        repalign(root, "book", "--records"),
        "toy.01_a is kept as REPRODUCED, and its record says NOT REPRODUCED",
        "repalign record toy/01_a --judge",
    )
    done = ran(root, "record", "--judge")
    assert done.stdout == "toy/01_a: toy.01_a: REPRODUCED to NOT REPRODUCED\n"
    assert facts_of(record_of(root))["claims"]["toy.01_a"]["verdict"] == "NOT REPRODUCED"
    assert facts_of(record_of(root))["criteria"] == {"toy.01_a": "the mean of the runs lies above 0.5"}
    assert [one.endswith(": REPRODUCED") for one in records.newest(root, PAGE).earlier("toy.01_a")] == [True]
    assert records.problems(root, PAGE) == []


def test_a_bound_does_not_move_once_the_tables_are_seen(root):
    edit(page_of(root), 'runs["value"], 0.5)', 'runs["value"], 0.4)')
    kept = (record_of(root) / "run.json").read_bytes()
    done = repalign(root, "record", "--judge")
    refused(done, "the bound of 'mean' of toy.01_a is not the one that it was recorded with")
    assert (record_of(root) / "run.json").read_bytes() == kept


def test_a_claim_is_not_added_to_tables_that_are_seen(root):
    more = claims_of(root).read_text().replace("toy.01_a", "toy.more").replace("above 0.5", "above 0.6")
    claims_of(root).write_text(claims_of(root).read_text() + more)
    judging = page_of(root).read_text().partition('@page.claim("toy.01_a", runs)')[2].partition("\n# %%")[0]
    edit(page_of(root), "page.end()", f'@page.claim("toy.more", runs){judging}\npage.end()')
    refused(repalign(root, "record", "--judge"), "the criterion of toy.more is in no record of this chapter")


def revise(root, was):
    """A weaker criterion that says so, and the bound to it."""
    weaker = was.replace("0.5", "0.4")
    edit(claims_of(root), was, weaker)
    revised = f'revised = [{{ date = 2026-11-02, reason = "too strong", was = "{was}" }}]\n'
    claims_of(root).write_text(claims_of(root).read_text() + revised)
    edit(page_of(root), 'runs["value"], 0.5)', 'runs["value"], 0.4)')


def test_a_page_that_measures_something_new_runs_for_the_record(root):
    """Its functions need what the record before it does not have."""
    edit(root / TOY, 'return {"value"', 'return {"twice": 2.0, "value"')
    edit(page_of(root), 'runs["value"], 0.5)', 'runs["twice"] / 2, 0.5)')
    commit(root)
    assert "fails on the record" in repalign(root, "run", "--profile", "desktop").stderr
    ran(root, "run", "--profile", "desktop", "--fresh")
    ran(root, "record")
    assert records.problems(root, PAGE) == []


def test_a_criterion_is_not_weakened_on_seeds_that_are_seen(root):
    was = "the mean of the runs lies above 0.5"
    revise(root, was)
    commit(root)
    ran(root, "run", "--profile", "desktop", "--fresh")
    refused(repalign(root, "record"), "revised after seeds 200 to 203 had been seen: run on new ones")
    edit(page_of(root), "paper=dict(runs=4, n=50),", "paper=dict(runs=4, n=50),\n    first_seed=300,")
    commit(root)
    ran(root, "run", "--profile", "desktop", "--fresh")
    ran(root, "record")
    assert facts_of(record_of(root))["criteria"] == {"toy.01_a": was.replace("0.5", "0.4")}
    claims_of(root).write_text(claims_of(root).read_text().partition("revised")[0].replace("0.4", "0.3"))
    commit(root)
    ran(root, "run", "--profile", "desktop", "--fresh")
    refused(repalign(root, "record"), "is not that of the record before, and revised does not say so")


def test_the_command_goes_on_after_a_page_that_it_refuses(root):
    shutil.copy(page_of(root), page_of(root, "00_first"))
    done = repalign(root, "record")
    refused(done, "toy/00_first has no finished run at desktop", "repalign run toy/00_first")
    assert done.stdout == "kept records/toy/01_a\n"
