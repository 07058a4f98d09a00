"""Running pages: as a user does, on a small book of toy pages."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

import repalign as repalign_package
from command import repalign
from repalign._code.source import Sources
from repalign._files import replace_directory
from repalign.runner import execute, pages, records
from repalign.runner.pages import UserError

PAGE = """# ---
# jupyter:
#   kernelspec: {{display_name: Python 3, language: python, name: python3}}
# ---

# %% [markdown]
# # A toy page

# %%
from repalign import study
study.begin("toy/{name}")
study.claims(dict(id="toy.{name}", paper="one is one", criterion="it is", exact=True))

# %% tags=["parameters"]
profile = "laptop"
device = "auto"
change = {{}}
word = "hello"

# %%
s = study.settings(profile, change, smoke=dict(n=1), laptop=dict(n=2), desktop=dict(n=3), paper=dict(n=4))
s

# %%
{body}

# %%
study.claim("toy.{name}", measured={{"n": s.n, "word": word}}, holds=True)
study.stamp()
"""


def write(root, name, body="print(word)"):
    (root / "notebooks" / "toy" / f"{name}.py").write_text(PAGE.format(name=name, body=body))


@pytest.fixture
def root(tmp_path):
    """A book of one page."""
    root = tmp_path / "book"
    (root / "notebooks" / "toy").mkdir(parents=True)
    (root / "_toc.yml").write_text(
        "format: jb-book\nroot: book/intro\nchapters:\n- file: notebooks/toy/01_a\n"
    )
    (root / "_config.yml").write_text("title: toy\n")
    (root / "book").mkdir()
    (root / "book" / "intro.md").write_text("# Intro\n")
    (root / "README.md").write_text("x\n<!-- scoreboard -->\nold\n<!-- /scoreboard -->\ny\n")
    write(root, "01_a")
    return root


def measured(root, profile="laptop", name="01_a"):
    path = root / "build" / profile / "toy" / name / "claims" / f"toy.{name}.json"
    return json.loads(path.read_text())["measured"]


def one_line(done, *parts):
    """A mistake of the user's is one line that says what to do: no traceback, no page run."""
    assert done.returncode == 2
    assert done.stderr.startswith("repalign: ")
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


def test_run_record_and_read_back(root):
    done = repalign(
        "run", "--set", "n=9", "--set", "word=you", cwd=root / "notebooks"
    )  # from anywhere inside
    assert done.returncode == 0, done.stderr
    assert "ran" in done.stderr
    assert measured(root) == {"n": 9, "word": "you"}
    assert (root / "build/laptop/toy/01_a.ipynb").is_file()

    # The same again does nothing; anything that matters makes it run again.
    assert "unchanged" in repalign("run", "--set", "n=9", "--set", "word=you", cwd=root).stderr
    assert "unchanged" not in repalign("run", cwd=root).stderr
    assert measured(root) == {"n": 2, "word": "hello"}
    assert "unchanged" not in repalign("run", "--force", cwd=root).stderr
    write(root, "01_a", body="print(word, 2)")
    assert "unchanged" not in repalign("run", cwd=root).stderr

    table = repalign("claims", cwd=root)
    assert "EXACT" in table.stdout
    assert "1 exact" in table.stdout
    (claim,) = json.loads(repalign("claims", "--json", cwd=root).stdout)
    assert claim["id"] == "toy.01_a"

    one_line(
        repalign("record", cwd=root), "no finished run at desktop", "repalign run toy/01_a --profile desktop"
    )
    one_line(repalign("record", "--profile", "smoke", cwd=root), "no verdict")
    assert repalign("record", "--profile", "laptop", cwd=root).returncode == 0
    kept = records.newest(root, "toy/01_a")
    assert kept.run["profile"] == "laptop"
    assert kept.run.keys() >= {"date", "machine", "commit", "versions", "settings", "seconds"}
    readme = (root / "README.md").read_text()
    assert "| `toy/01_a` |" in readme
    assert "| page | recorded | exact |" in readme
    assert "| all | | 1 |" in readme
    assert "old" not in readme
    assert readme.startswith("x\n")
    assert readme.endswith("y\n")


def test_the_key_of_a_page_follows_the_code_that_it_reaches(root, monkeypatch):
    """Whoever edits one measure does not run the pages of the others again."""
    write(root, "01_a", body="from repalign import kernels\nprint(kernels.cka)")
    (page,) = pages.find(root)
    files = {path: raw for path, (raw, _) in repalign_package._source.items()}
    module = repalign_package.kernels.cka.__module__.removeprefix("repalign.").replace(".", "/")
    home = next(path for path in files if path in (f"{module}.py", f"{module}/__init__.py"))

    def key(**edited):
        changed = {path: edited.get(path, raw) for path, raw in files.items()}
        monkeypatch.setattr(execute, "on_disk", lambda: Sources(changed))
        return execute.job(root, page, dict(profile="laptop")).key

    before, text = key(), files[home].decode()
    assert (
        key(**{path: raw + b"\n\ndef brand_new():\n    return 1  # new\n" for path, raw in files.items()})
        == before
    )
    assert key(**{"tangent/hessian.py": files["tangent/hessian.py"] + b"\nprint(1)\n"}) == before
    start = text.index('"""', text.index("def cka("))
    docless = text[:start] + '"""Other words."""' + text[text.index('"""', start + 3) + 3 :]
    assert docless != text
    assert key(**{home: docless.encode()}) == before
    assert key(**{home: text.replace("def cka(", "def cka(_more=0, *, ", 1).encode()}) != before
    assert key(**{"_arrays.py": files["_arrays.py"] + b"\nprint(1)\n"}) != before
    assert key(**{"_arrays.py": b"half an edit ("}) != before
    assert (
        key(**{"study/run.py": files["study/run.py"].replace(b'"page": current.page', b'"page": ""')})
        != before
    )


def test_a_page_does_not_count_as_run_when_its_code_changed_meanwhile(root, tmp_path, monkeypatch):
    (page,) = pages.find(root)
    job = execute.job(root, page, pages.parameters_for(page, "laptop", "cpu", {}))

    def publish():
        results, executed = tmp_path / "results", tmp_path / "page.ipynb"
        results.mkdir()
        (results / "run.json").write_text('{"data": {}, "changed": {}}')
        executed.write_text("{}")
        execute.Executor(root, 1, lambda *_: None, lambda _: None)._publish(job, results, executed, 1.0)
        return execute.unchanged(job)

    assert publish()
    monkeypatch.setattr(execute, "_code", lambda source: "edited")
    assert not publish()


def test_a_failing_page_is_named_and_the_others_go_on(root):
    assert repalign("run", cwd=root).returncode == 0
    good = (root / "build/laptop/toy/01_a.ipynb").read_bytes()
    write(root, "01_a", body="# why\nraise KeyError('missing thing')")
    write(root, "02_b")
    done = repalign("run", cwd=root)
    assert done.returncode == 1
    assert "failed" in done.stderr
    assert "cell 4 (raise KeyError('missing thing')): KeyError: 'missing thing'" in done.stderr
    kept = root / "build/failed/laptop/toy/01_a.ipynb"
    assert str(kept) in done.stderr
    assert "KeyError" in kept.read_text()
    assert measured(root, name="02_b") == {"n": 2, "word": "hello"}
    assert (root / "build/laptop/toy/01_a.ipynb").read_bytes() == good  # the last good page is still there
    assert not list((root / "build").glob(".run-*"))
    # A failed page is not taken for finished.
    assert repalign("run", "01_a", cwd=root).returncode == 1


def test_a_kernel_that_dies_is_a_failure_with_advice(root):
    write(root, "01_a", body="import os; os.kill(os.getpid(), 9)")
    done = repalign("run", cwd=root)
    assert done.returncode == 1
    assert "the kernel died" in done.stderr


def test_a_full_disk_is_named(root):
    write(root, "01_a", body="raise OSError(28, 'No space left on device')")
    done = repalign("run", cwd=root)
    assert done.returncode == 1
    assert "the disk is full" in done.stderr


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["run", "--profile", "huge"], ["unknown profile 'huge'", "smoke, laptop, desktop, paper"]),
        (["run", "nothing"], ["no notebook matches 'nothing'", "toy/01_a"]),
        (["run", "--set", "m=1"], ["no parameter 'm'", "word, n"]),
        (["run", "--set", "n"], ["--set takes NAME=VALUE"]),
        (["run", "--device", "tpu"], ["unknown device 'tpu'", "auto, cpu, cuda, mps"]),
        (["run", "--jobs", "-1"], ["--jobs should be 0 or more"]),
        (["claims"], ["nothing measured yet", "repalign run"]),
        (["book"], ["not run yet at laptop: toy/01_a", "repalign run"]),
    ],
)
def test_bad_words_are_one_line_and_run_nothing(root, words, parts):
    one_line(repalign(*words, cwd=root), *parts)
    assert not (root / "build").exists()


def test_settings_shared_by_the_columns_of_a_table_can_be_set_too(root):
    path = root / "notebooks/toy/01_a.py"
    text = (
        path.read_text()
        .replace("dict(n=4)", "dict(n=4, **common) | rest")
        .replace(
            "s = study", "more = dict(m=1)\ncommon = dict(k=5)\ncommon |= more\nrest = common\ns = study"
        )
    )
    path.write_text(text)
    (page,) = pages.find(root)
    assert page.settings == ("n", "k", "m")
    assert pages.parameters_for(page, "smoke", "cpu", {"k": 7, "word": "w"}) == {
        "profile": "smoke",
        "device": "cpu",
        "word": "w",
        "change": {"k": 7},
    }


def test_no_book_here(tmp_path):
    one_line(repalign("run", cwd=tmp_path), "no book here", "_toc.yml")


def test_an_unknown_option_is_explained(root):
    done = repalign("run", "--prfile", "smoke", cwd=root)
    assert done.returncode == 2
    assert "No such option: --prfile" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_result_is_named(root):
    repalign("run", cwd=root)
    (root / "build/laptop/toy/01_a/claims/toy.01_a.json").write_text("{")
    one_line(repalign("claims", cwd=root), "is damaged", "Delete it")
    # Running the page again repairs it.
    assert repalign("run", "--force", cwd=root).returncode == 0
    assert measured(root) == {"n": 2, "word": "hello"}


def test_a_page_that_does_not_parse_or_lacks_its_cell_is_named(root):
    write(root, "01_a", body="def (")
    one_line(repalign("run", cwd=root), "toy/01_a does not parse")
    (root / "notebooks/toy/01_a.py").write_text("# %%\n1 + 1\n")
    one_line(repalign("run", cwd=root), "one cell tagged parameters, but has 0")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_ends_its_kernels_and_leaves_nothing_half_written(root, how):
    mark = root / "started"
    write(
        root,
        "01_a",
        body=f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(600)",
    )
    write(root, "02_b")
    command = [sys.executable, "-m", "repalign", "run", "--jobs", "2"]
    # A test run in the background is deaf to SIGINT, and would make its children so.
    hears = dict(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    process = subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True, **hears)
    deadline = time.monotonic() + 300
    finished = root / "build/laptop/toy/02_b.ipynb"
    while not (mark.exists() and mark.read_text() and finished.exists()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    kernel = int(mark.read_text())
    process.send_signal(how)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped; finished pages are kept" in said
    assert "Traceback" not in said
    assert not (root / "build/laptop/toy/01_a.ipynb").exists()
    assert finished.exists()
    assert not list((root / "build").glob(".run-*"))
    for _ in range(100):  # the kernel notices within a second or so that its parent is gone
        if not _alive(kernel):
            break
        time.sleep(0.1)
    assert not _alive(kernel)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


SWEEPS = """
import os, time
from pathlib import Path

def cell(n, marks):
    (Path(marks) / str(os.getpid())).touch()
    time.sleep(600)

study.sweep(cell, [dict(n=n, marks={marks!r}) for n in range(2)])
"""


def test_killed_it_takes_its_kernels_and_their_workers_along(root):
    marks = root / "marks"
    marks.mkdir()
    write(root, "01_a", body=SWEEPS.format(marks=str(marks)))
    command = [sys.executable, "-m", "repalign", "run", "--jobs", "2"]
    with subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 300
        # The page is alone: its kernel computes one cell, and a worker on the other core the second one.
        while len(list(marks.iterdir())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        family = psutil.Process(process.pid).children(recursive=True)
        assert {int(mark.name) for mark in marks.iterdir()} < {member.pid for member in family}
        process.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=60)
    assert [member for member in alive if member.status() != psutil.STATUS_ZOMBIE] == []
    # The next run clears what the killed one left.
    write(root, "01_a")
    assert repalign("run", cwd=root).returncode == 0
    assert [p.name for p in (root / "build").iterdir()] == ["laptop"]


def test_long_pages_first_and_unknown_ones_before_them(root, monkeypatch):
    took = {"01_a": ("build/laptop", 5), "02_b": ("build/laptop", 50), "04_d": ("records", 20)}
    for name in ("02_b", "03_c", "04_d"):
        write(root, name)
    for name, (where, seconds) in took.items():
        place = root / where / "toy" / name
        place = place / "2026-01-01-desktop" if where == "records" else place
        place.mkdir(parents=True)
        (place / "run.json").write_text(json.dumps({"seconds": seconds}))
    order = []

    def one(self, job, scratch, start):
        order.append(job.page.name.removeprefix("toy/"))
        return execute.Result(job.page.name, "ran")

    monkeypatch.setattr(execute.Executor, "_one", one)
    work = [
        execute.job(root, page, pages.parameters_for(page, "laptop", "cpu", {})) for page in pages.find(root)
    ]
    results = execute.Executor(root, 1, lambda *_: None, lambda _: None).run(work)
    assert order == ["03_c", "02_b", "04_d", "01_a"]
    assert [result.page for result in results] == ["toy/01_a", "toy/02_b", "toy/03_c", "toy/04_d"]


def test_the_cores_of_ended_pages_are_free_for_the_sweeps_of_the_others(root, monkeypatch):
    """Three pages on two cores: none is free while one waits, one as soon as a single page is left."""
    for name in ("02_b", "03_c"):
        write(root, name)
    free, last = [], threading.Event()

    def one(self, job, scratch, start):
        shared, name = start.keywords["shared"], job.page.name
        assert start.keywords["threads"] == 1
        if name == "toy/03_c":  # starts when one of the others has ended
            free.append(shared.take())
            last.set()
        if name == "toy/02_b":
            assert last.wait(60)
            deadline = time.monotonic() + 60
            while (core := shared.take()) is None:
                assert time.monotonic() < deadline
            core.release()
            free.append("one")
        return execute.Result(name, "ran")

    monkeypatch.setattr(execute.Executor, "_one", one)
    work = [
        execute.job(root, page, pages.parameters_for(page, "laptop", "cpu", {})) for page in pages.find(root)
    ]
    execute.Executor(root, 2, lambda *_: None, lambda _: None).run(work, force=True)
    assert free == [None, "one"]


def test_killed_while_publishing_a_page_does_not_count_as_run(root, monkeypatch):
    (page,) = pages.find(root)
    job = execute.job(root, page, pages.parameters_for(page, "laptop", "cpu", {}))
    executor = execute.Executor(root, 1, lambda *_: None, lambda _: None)

    def publish():
        results = root / "fresh"
        results.mkdir()
        (results / "run.json").write_text(json.dumps({"data": {}, "changed": {}}))
        (root / "page.ipynb").write_text("{}")
        executor._publish(job, results, root / "page.ipynb", 1.0)

    publish()
    assert execute.unchanged(job)

    class KilledError(BaseException):
        pass

    def killed(*_):
        raise KilledError

    for module, step in ((execute.os, "replace"), (execute, "replace_directory")):
        publish()
        with monkeypatch.context() as patch:
            patch.setattr(execute, "write_json", lambda *_: None)
            patch.setattr(module, step, killed)
            with pytest.raises(KilledError):
                publish()
        assert not (job.results / "run.json").exists()
        assert not execute.unchanged(job)
        shutil.rmtree(root / "fresh")


def test_a_run_with_other_settings_is_not_recorded(root):
    """Neither a changed setting of the table nor a changed parameter; the same value is no change."""
    assert repalign("run", "--set", "n=9", "--set", "word=you", cwd=root).returncode == 0
    run = records.live(root, "toy/01_a", "laptop").run
    assert run["changed"] == {"n": 9, "word": "you"}
    assert run["device"] == "auto"
    one_line(
        repalign("record", "--profile", "laptop", cwd=root), "with n=9, word=you", "repalign run toy/01_a"
    )
    assert records.newest(root, "toy/01_a") is None
    (claim,) = json.loads(repalign("claims", "--json", cwd=root).stdout)
    assert claim["profile"] == "laptop with n=9, word=you"
    assert repalign("run", "--set", "n=2", "--set", "word=hello", "--device", "cpu", cwd=root).returncode == 0
    assert repalign("record", "--profile", "laptop", cwd=root).returncode == 0
    run = records.newest(root, "toy/01_a").run
    assert (run["changed"], run["device"]) == ({}, "cpu")

    # A record comes first, unless a profile is asked for: then its last run.
    assert repalign("run", "--set", "n=9", cwd=root).returncode == 0
    (claim,) = json.loads(repalign("claims", "--json", cwd=root).stdout)
    assert (claim["profile"], claim["recorded"]) == ("laptop", True)
    (claim,) = json.loads(repalign("claims", "--profile", "laptop", "--json", cwd=root).stdout)
    assert (claim["profile"], claim["recorded"]) == ("laptop with n=9", False)


def test_claims_are_readable_in_a_narrow_window(root):
    assert repalign("run", cwd=root).returncode == 0
    (line,) = [line for line in repalign("claims", cwd=root).stdout.splitlines() if "toy.01_a" in line]
    assert "n: 2" in line
    narrow = repalign("claims", cwd=root, COLUMNS="60").stdout.splitlines()
    assert narrow == ["toy.01_a  EXACT  laptop", "    n: 2; word: hello", "1 exact"]


def test_a_missing_kernel_says_what_to_install(root, monkeypatch):
    there = execute.find_spec
    monkeypatch.setattr(execute, "find_spec", lambda name: None if name == "ipykernel" else there(name))
    with pytest.raises(UserError, match=r"ipykernel is not installed here: pip install 'repalign\[book\]'"):
        execute.Executor(root, 1, lambda *_: None, lambda _: None)


@pytest.mark.parametrize(
    ("answers", "problem", "starts"),
    [
        ([execute.one.NO_ANSWER, ""], "", 2),
        ([execute.one.NO_ANSWER] * 3, execute.one.NO_ANSWER, 3),
        (["cell 2 (x): ValueError: no"], "cell 2 (x): ValueError: no", 1),
    ],
)
def test_a_kernel_that_never_answered_is_started_again(root, monkeypatch, answers, problem, starts):
    left, started = list(answers), []
    monkeypatch.setattr(execute.one, "follow", lambda *_: left.pop(0))
    executor = execute.Executor(root, 1, lambda *_: None, lambda _: None)
    (page,) = pages.find(root)
    job = execute.job(root, page, pages.parameters_for(page, "smoke", "cpu", {}))
    found = executor._execute(job, root / "scratch", lambda *_: started.append(1) or object())
    assert (found, len(started)) == (problem, starts)


def test_what_papermill_says_of_a_kernel_that_never_answered(tmp_path):
    said = "Traceback\nRuntimeError: Kernel died before replying to kernel_info"
    assert execute.one._problem(tmp_path / "none.ipynb", said) == execute.one.NO_ANSWER
    died = execute.one._problem(tmp_path / "none.ipynb", "nbclient.exceptions.DeadKernelError: Kernel died")
    assert "lack of memory" in died


def test_a_directory_is_replaced_whole_by_several_at_once(tmp_path):
    place = tmp_path / "place"

    def put(i):
        fresh = tmp_path / f"fresh{i}"
        fresh.mkdir()
        for name in "ab":
            (fresh / name).write_text(str(i))
        replace_directory(fresh, place)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(40)))
    assert (place / "a").read_text() == (place / "b").read_text()
    assert [p.name for p in tmp_path.iterdir() if p.name != "cache"] == ["place"]


def test_whole_pages_on_a_dask_cluster(root):
    distributed = pytest.importorskip("distributed")
    write(root, "02_b", body="raise KeyError('elsewhere')")
    options = dict(n_workers=1, threads_per_worker=2, processes=True, dashboard_address=":0")
    with distributed.LocalCluster(**options) as cluster:
        done = repalign("run", "--dask", cluster.scheduler_address, "--whole-pages", cwd=root)
    assert done.returncode == 1
    assert measured(root) == {"n": 2, "word": "hello"}
    assert "KeyError: 'elsewhere'" in done.stderr
    assert (root / "build/failed/laptop/toy/02_b.ipynb").is_file()
    one_line(repalign("run", "--whole-pages", cwd=root), "--dask tcp://HOST:PORT")
    one_line(repalign("run", "--dask", "nonsense", cwd=root), "no Dask scheduler answers")


def test_disagreements_are_found(root):
    assert pages.disagreements(root) == []
    write(root, "02_b")
    write(root, "03_c")
    text = (root / "notebooks/toy/03_c.py").read_text()
    (root / "notebooks/toy/03_c.py").write_text(
        text.replace('begin("toy/03_c")', 'begin("toy/3")').replace("toy.03_c", "toy.02_b")
    )
    listed = ("notebooks/toy/01_a", "book/gone", "notebooks/toy/03_c")
    chapters = "".join(f"- file: {file}\n" for file in listed)
    (root / "_toc.yml").write_text(f"root: book/intro\nchapters:\n{chapters}")
    (root / "records/toy/04_d/2026-01-01-desktop").mkdir(parents=True)
    (root / "records/toy/04_d/2026-01-01-desktop/run.json").write_text("{}")
    found = "\n".join(pages.disagreements(root))
    assert "records/toy/04_d belongs to no page" in found
    assert "notebooks/toy/02_b is not in _toc.yml" in found
    assert "book/gone, which does not exist" in found
    assert "toy/03_c begins as toy/3" in found
    assert "toy.02_b is declared on toy/02_b and on toy/03_c" in found


def test_the_newest_record_wins_and_of_a_day_the_larger_profile(root):
    for name in (
        "2026-01-02-desktop",
        "2026-02-01-laptop",
        "2026-02-01-desktop",
        "2025-12-31-paper",
        "notes",
    ):
        place = root / "records/toy/01_a" / name
        place.mkdir(parents=True)
        (place / "run.json").write_text(json.dumps({"profile": name.rpartition("-")[2], "date": name[:10]}))
    newest = records.newest(root, "toy/01_a")
    assert newest.place.name == "2026-02-01-desktop"
    assert records.newest(root, "toy/02_b") is None


def test_a_readme_without_markers_is_an_error_not_a_loss(root):
    (root / "README.md").write_text("mine\n")
    with pytest.raises(UserError, match="lost its"):
        records.write_readme(root, pages.find(root))
    assert (root / "README.md").read_text() == "mine\n"
