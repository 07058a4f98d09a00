"""Running pages, as a user does: what fails is named and alone, what is stopped leaves nothing."""

import json
import shutil
import signal

import psutil
import pytest

import toy_book
from once import once
from repalign.press import project, run
from repalign.press.project import UserError
from repalign.press.run import Result, Runner
from toy_book import claims_of, commit, edit, page_of, ran, record_of, refused, repalign, run_of, wait_for

# A page of each kind of mistake, beside one that is well; and what is said of it.
LOUD = 'for _ in range(40):\n    print("x" * 1_000_000)'
STARTUP = "assert not os.path.exists(os.environ['TOY_STARTED'])"
BROKEN = {
    "02_exit": ("sys.exit(0)", "it ended before its last cell: does a cell call exit()?"),
    "03_syntax": ("def (", "cell 4 (def (): SyntaxError"),
    "04_raises": ("# why\nraise KeyError('none')", "cell 4 (raise KeyError('none')): KeyError: 'none'"),
    "05_killed": ("os.kill(os.getpid(), 9)", "the kernel died: for lack of memory"),
    "06_loud": (LOUD, "MB: print less; a page may have 30 MB"),
    "07_disk": ("raise OSError(28, 'No space left on device')", "the disk is full: free some space"),
    "08_latin": ("print('é')", "toy/08_latin is not UTF-8 text"),
    "09_untagged": ("pass", "there should be one cell tagged parameters, but there are 0"),
    "10_endless": ("pass", "it left no results: the last cell is page.end()"),
}


@pytest.fixture(scope="session")
def broken(tmp_path_factory):
    """A book after a run in which nine of ten pages are broken, each in its own way."""

    def build(root):
        home = tmp_path_factory.mktemp("home")
        startup = home / "profile_default" / "startup"
        startup.mkdir(parents=True)
        mark = home / "started"
        (startup / "00.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
        toy_book.make(root, ("01_a", *BROKEN))
        toy_book.write(root, "01_a", STARTUP)
        for name, (body, _) in BROKEN.items():
            toy_book.write(root, name, body)
        good, latin, untagged, endless = (
            page_of(root, name) for name in ("01_a", "08_latin", "09_untagged", "10_endless")
        )
        good.write_text("\N{BYTE ORDER MARK}" + good.read_text())
        latin.write_bytes(latin.read_text().encode("latin-1"))
        edit(untagged, ' tags=["parameters"]', "")
        edit(endless, "page.end()", "pass")
        done = repalign(root, "run", "--set", "n=7", IPYTHONDIR=str(home), TOY_STARTED=str(mark))
        (root / "said").write_text(done.stderr)
        (root / "code").write_text(str(done.returncode))

    return once(tmp_path_factory, "broken", build)


def test_broken_pages_stop_no_other(broken):
    said = (broken / "said").read_text()
    assert (broken / "code").read_text() == "1"
    assert "9 of 10 notebooks failed." in said
    assert "Traceback" not in said
    assert run_of(broken)["changed"] == {"n": 7}
    assert (broken / "build/laptop/toy/01_a.ipynb").is_file()
    assert sorted(place.name for place in (broken / "build").iterdir()) == ["failed", "laptop"]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_page_is_named_with_its_mistake(broken, name):
    lines = (broken / "said").read_text().splitlines()
    (place,) = [i for i, line in enumerate(lines) if f"failed    toy/{name} after" in line]
    assert BROKEN[name][1] in lines[place + 1]
    assert not (broken / f"build/laptop/toy/{name}.ipynb").exists()


def test_a_half_executed_page_is_kept_to_look_at(broken):
    kept = broken / "build/failed/laptop/toy/04_raises.ipynb"
    assert f"half-executed notebook: {kept}" in (broken / "said").read_text()
    assert "KeyError" in kept.read_text()
    # But not one that is too large to look at.
    assert not (kept.parent / "06_loud.ipynb").exists()


def test_what_has_not_changed_is_not_run_again(root):
    shutil.rmtree(root / "records")  # a page shows its record, so a new one is a change
    again = ("run", "--profile", "desktop")
    assert "unchanged toy/01_a" in ran(root, *again).stderr
    build = root / "build" / "desktop" / "toy"
    whole = shutil.copytree(build, root / "whole")
    changes = {
        "figures": lambda: shutil.rmtree(build / "01_a" / "figures"),
        "table": lambda: (build / "01_a" / "measured.parquet").unlink(),
        "notebook": lambda: (build / "01_a.ipynb").write_text("{"),
        "run.json": lambda: (build / "01_a" / "run.json").write_text("[]"),
        "finished.json": lambda: (build / "01_a" / "finished.json").write_text("[]"),
        "claims": lambda: edit(claims_of(root), "one half", "a half"),
    }
    for name, spoil in changes.items():
        spoil()
        # No page is done so soon: this only asks whether it is run.
        done = repalign(root, *again, "--limit", "0.01")
        assert "it took longer than 0.01 s: use --limit for more time" in done.stderr, name
        shutil.rmtree(build)
        shutil.copytree(whole, build)


@pytest.mark.parametrize("words", [("--set", "n=6"), ("--force",), ("--profile", "paper")])
def test_what_is_asked_for_anew_is_run_again(root, words):
    done = repalign(root, "run", "--profile", "desktop", "--limit", "0.01", *words)
    assert "it took longer" in done.stderr


def test_a_code_edit_makes_every_page_run_again(root):
    edit(root / toy_book.NUMBERS_FILE, "0.1", "0.2")
    assert "it took longer" in repalign(root, "run", "--profile", "desktop", "--limit", "0.01").stderr


def test_a_recorded_run_starts_on_a_clean_tree_of_the_package_itself(root):
    fresh = ("run", "--profile", "desktop", "--fresh")
    new = root / "notebooks" / "toy" / "helper.py"
    new.write_text("x = 1\n")
    refused(repalign(root, *fresh), "starts on a clean tree", "untracked files count", "again with --fresh")
    new.unlink()
    refused(
        repalign(root, *fresh, PYTHONPATH=""), "but here it is 'installed", "run it in a clone of the book"
    )


def test_what_is_edited_while_it_runs_is_not_recorded(root):
    """A page that changes itself, one that changes the package, and one that runs on what was changed."""
    module = str(root / toy_book.NUMBERS_FILE)
    bodies = {
        "01_a": f"open({str(page_of(root))!r}, 'a').write('# later\\n')",
        "02_b": f"open({module!r}, 'a').write('x = 1\\n')",
        "03_c": "pass",
    }
    for name, body in bodies.items():
        toy_book.write(root, name, body)
    toy_book.list_pages(root)
    commit(root)
    before = (record_of(root) / "run.json").read_bytes()
    ran(root, "run", "--profile", "desktop", "--fresh", "--jobs", "1", "01_a", "02_b", "03_c")
    done = repalign(root, "record")
    refused(done)
    for name in bodies:
        assert f"toy/{name} is not recorded: the package or the page was edited while it ran" in done.stderr
    assert done.stdout == ""
    assert (record_of(root) / "run.json").read_bytes() == before


# Cells that tell who computes them; the first two end at once, the others when they are told to.
PATIENT = """
import os
import time
from pathlib import Path

from repalign.papers import toy_numbers


def measured(seed, n):
    here = Path(os.environ["TOY_HERE"])
    with open(here / "log", "a") as log:
        log.write(f"{seed} {os.getpid()}\\n")
    while seed >= 202 and not (here / "go").exists():
        time.sleep(0.1)
    return {"value": toy_numbers.around(1.0, seed, n)}
"""
FRESH = ("run", "--profile", "desktop", "--fresh")


@pytest.fixture
def patient(root, tmp_path):
    """The toy book with a sweep that waits in both of its workers; and where it tells what it does."""
    (root / toy_book.TOY).write_text(PATIENT)
    commit(root)
    here = tmp_path / "here"
    here.mkdir()
    return root, here


def asked_for(here):
    """The seeds of the cells that were begun, and the processes that began them."""
    log = here / "log"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [int(seed) for seed, _ in lines], {int(process) for _, process in lines}


def begun(root, here):
    """A run for the record, with two cells finished and two at work, and all processes it consists of."""
    process = toy_book.started(root, *FRESH, TOY_HERE=str(here), REPALIGN_JOBS="2")
    wait_for(lambda: process.poll() is not None or {202, 203} <= set(asked_for(here)[0]))
    assert process.poll() is None, process.stderr.read()
    family = psutil.Process(process.pid).children(recursive=True)
    assert asked_for(here)[1] < {member.pid for member in family}
    return process, family


def alive(family):
    _, left = psutil.wait_procs(family, timeout=60)
    return [member for member in left if member.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_ends_all_its_processes_and_leaves_nothing(patient, how):
    root, here = patient
    process, family = begun(root, here)
    process.send_signal(how)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped; what is finished is kept" in said
    assert "Traceback" not in said
    assert alive(family) == []
    assert [place.name for place in (root / "build").iterdir()] == ["desktop"]


def test_killed_it_takes_its_processes_along_and_goes_on_where_it_was(patient):
    root, here = patient
    process, family = begun(root, here)
    with process:
        process.kill()
    assert alive(family) == []
    (here / "go").touch()
    ran(root, *FRESH, TOY_HERE=str(here))
    seeds, _ = asked_for(here)
    assert sorted(seeds) == [200, 201, 202, 202, 203, 203]  # what was finished was not computed again
    # What the killed run left is cleared, and the page can be recorded: all of it is of one commit.
    assert [place.name for place in (root / "build").iterdir()] == ["desktop"]
    assert ran(root, "record").stdout == "kept records/toy/01_a\n"


def test_a_store_that_is_not_empty_is_not_the_records(patient):
    """A run for the record computes every cell, also those that an earlier run has left in the store."""
    root, here = patient
    (here / "go").touch()
    ran(root, "run", "--profile", "desktop", TOY_HERE=str(here))
    ran(root, *FRESH, TOY_HERE=str(here))
    assert sorted(asked_for(here)[0]) == sorted(2 * [200, 201, 202, 203])


def runner(root, **options):
    return Runner(root, 1, lambda *_: None, lambda _: None, **options)


def test_long_pages_first_and_unknown_ones_before_them(tmp_path, monkeypatch):
    """What a page took is known from its last run, and in a fresh clone from its record of either form."""
    took = {
        "build/laptop/toy/01_a": 5,
        "build/smoke/toy/02_b": 50,
        "records/toy/04_d": 20,
        "records/toy/05_e/2026-01-01-desktop": 30,
    }
    (tmp_path / "notebooks" / "toy").mkdir(parents=True)
    for name in ("01_a", "02_b", "03_c", "04_d", "05_e"):
        page_of(tmp_path, name).touch()
    for place, seconds in took.items():
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "run.json").write_text(json.dumps({"seconds": seconds}))
    order = []

    def one(self, page, *_):
        order.append(page.name.removeprefix("toy/"))
        return Result(page.name, "ran")

    monkeypatch.setattr(Runner, "_one", one)
    results = runner(tmp_path).run(project.find(tmp_path), "laptop", {})
    assert order == ["03_c", "02_b", "05_e", "04_d", "01_a"]
    assert [result.page for result in results] == [f"toy/{name}" for name in sorted(order)]


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([run._NO_ANSWER, "cell 2 (x): ValueError: no"], "cell 2 (x): ValueError: no"),
        ([run._NO_ANSWER] * 3, run._NO_ANSWER),
    ],
)
def test_a_kernel_that_never_answered_is_started_again(tmp_path, monkeypatch, answers, problem):
    (tmp_path / "notebooks" / "toy").mkdir(parents=True)
    page_of(tmp_path, "01_a").write_text('# %% tags=["parameters"]\nprofile = "smoke"\n')
    left = list(answers)
    monkeypatch.setattr(Runner, "_execute", lambda *_: left.pop(0))
    (result,) = runner(tmp_path).run(project.find(tmp_path), "smoke", {})
    assert (result.status, result.problem, left) == ("failed", problem, [])


def test_what_is_missing_is_named_before_anything_runs(tmp_path, monkeypatch):
    there = run.find_spec
    monkeypatch.setattr(run, "find_spec", lambda name: None if name == "ipykernel" else there(name))
    with pytest.raises(UserError, match=r"ipykernel is not installed here: pip install 'repalign\[book\]'"):
        runner(tmp_path)


def test_a_cache_that_cannot_be_written_is_named_before_anything_runs(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("REPALIGN_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match=r"cannot write to the cache .*: set REPALIGN_CACHE"):
        runner(tmp_path)
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize("limit", [-1.0, float("nan")])
def test_a_limit_that_is_none_is_refused(tmp_path, limit):
    with pytest.raises(UserError, match="--limit should be 0 or more seconds"):
        runner(tmp_path, limit=limit)
