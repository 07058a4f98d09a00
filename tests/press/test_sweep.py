"""Sweeps: one tidy table, the same bits however many cells run at once, and nothing finished is lost.

Faults are real: processes are killed, a cell exits, a cluster loses a worker.
"""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from joblib.externals.loky import get_reusable_executor

from repalign import data, press
from repalign._code import source
from repalign.press import cells, store, sweep


@pytest.fixture(autouse=True, scope="module")
def _no_idle_workers():
    """Workers wait for the next sweep; here they would outlive the tests."""
    yield
    get_reusable_executor().shutdown(kill_workers=True)


def run(fn, configs, given=None, jobs=1, **common):
    return sweep.run(fn, configs, given, common, jobs)


def noted(path, text):
    with open(path, "a") as file:
        file.write(f"{text}\n")


# One table


def layers(digits, seed, width):
    return [dict(layer=i, area=i / width + seed, n=len(digits.x)) for i in range(2)]


def test_a_sweep_is_one_table_with_a_row_for_each_row_of_a_cell():
    digits = data.load("mnist", n=20)
    found = run(layers, press.grid(seed=range(3)), digits, width=2)
    assert list(found.table.columns) == ["cell", "seed", "layer", "area", "n"]
    assert found.table["cell"].tolist() == [0, 0, 1, 1, 2, 2]
    assert found.table.query("seed == 1")["area"].tolist() == [1.0, 1.5]
    assert set(found.table["n"]) == {20}


def test_each_cell_says_how_it_was_computed():
    digits = data.load("mnist", n=20)
    made = run(layers, press.grid(seed=range(2)), digits, width=2).cells
    assert made["configuration"].tolist() == ["seed=0", "seed=1"]
    assert set(made["data"]) == {digits.fingerprint}
    assert set(made["code"]) == {source.imported()}
    assert all(f"torch {torch.__version__}" in versions for versions in made["versions"])
    assert {"commit", "clean", "date", "seconds", "processor"} <= set(made.columns)


def test_cells_of_the_store_keep_the_provenance_of_their_computation(monkeypatch):
    monkeypatch.setattr(sweep.provenance, "today", lambda: "2026-01-01")
    run(square, [dict(n=1)])
    monkeypatch.setattr(sweep.provenance, "today", lambda: "2026-02-02")
    assert run(square, [dict(n=1), dict(n=2)]).cells["date"].tolist() == ["2026-01-01", "2026-02-02"]


def square(n):
    return dict(square=n * n)


def named(network, sets, n):
    return dict(found=n)


def test_data_networks_and_functions_show_by_their_names():
    digits = data.load("mnist", n=20)
    found = run(named, [dict(network=torch.relu, sets=(digits, digits), n=1)])
    assert found.table["network"].tolist() == ["relu"]
    assert found.table["sets"].tolist() == ["mnist × mnist"]


def test_a_cell_may_return_a_frame_or_no_row():
    frames = run(framed, press.grid(n=(1, 2)))
    assert frames.table["k"].tolist() == [0, 0, 1]
    none = run(nothing, [dict(n=1)])
    assert none.table.empty
    assert list(none.table.columns) == ["cell", "n"]


def framed(n):
    return pd.DataFrame({"k": range(n)})


def nothing(n):
    return []


def test_two_meanings_of_one_name_are_refused():
    with pytest.raises(ValueError, match="both the configuration and the rows have n:"):
        run(clash, [dict(n=1)])
    with pytest.raises(TypeError, match="n is given for each cell and for all"):
        run(square, [dict(n=1)], n=2)


def clash(n):
    return dict(n=n)


def test_a_grid_is_every_combination():
    first = [dict(a=1, b="x"), dict(a=1, b="y")]
    assert press.grid(a=(1, 2), b="xy") == [*first, dict(a=2, b="x"), dict(a=2, b="y")]
    assert press.grid(a={"name": 3}) == [dict(a=3)]
    assert press.grid(a=[]) == []


def test_data_without_a_fingerprint_are_refused():
    with pytest.raises(TypeError, match="data should be a data set, several of them, or a function"):
        run(square, [dict(n=1)], torch.zeros(3))


# The same bits


def rounding(seed):
    """Sums whose last digits depend on how they are split among threads, and on their precision."""
    x = torch.rand(300, 300, generator=torch.Generator().manual_seed(seed))
    values = torch.linalg.eigvalsh(x @ x.T)
    return dict(
        smallest=values[0],
        largest=values[-1],
        total=values.sum(),
        threads=torch.get_num_threads(),
        dtype=str(torch.empty(0).dtype),
        jobs=cells.jobs(),
    )


def test_results_do_not_depend_on_how_many_cells_run_at_once(tmp_path, monkeypatch):
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)  # the page's own, and no business of its cells
    found = []
    try:
        for jobs in (1, 2):
            monkeypatch.setenv("REPALIGN_CACHE", str(tmp_path / str(jobs)))
            found.append(run(rounding, press.grid(seed=range(3)), jobs=jobs).table)
        assert torch.get_num_threads() == 2
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
    assert found[0].equals(found[1])
    assert set(found[0]["threads"]) == {1}
    assert set(found[0]["dtype"]) == {"torch.float32"}
    assert set(found[0]["jobs"]) == {1}  # no cells of cells


def arrived(digits, pair, k):
    total = float(digits.x.double().sum())
    own = digits.x.is_contiguous(), str(digits.x.dtype), digits.fingerprint, digits.source, digits.classes[0]
    digits.x.zero_()  # a cell's copy is its own
    return dict(total=total, other=int(pair[1].y.sum()), own=" ".join(map(str, own)), pid=os.getpid())


def test_a_data_set_arrives_in_every_worker_as_it_is():
    large = data.load("mnist", n=600)  # above what travels with a cell
    small = data.load("mnist", n=30, seed=1)
    expected = float(large.x.double().sum())
    found = run(arrived, press.grid(k=range(4)), large, jobs=2, pair=(large, small)).table
    assert os.getpid() not in set(found["pid"])
    assert set(found["total"]) == {expected}
    assert set(found["other"]) == {int(small.y.sum())}
    (own,) = set(found["own"])
    assert own == f"True torch.float32 {large.fingerprint} {large.source} {large.classes[0]}"
    assert float(large.x.double().sum()) == expected


# What fails


def sometimes(n):
    if n == 1:
        raise ValueError(f"cannot do {n}")
    if n == 2:
        sys.exit("enough")
    if n == 3:
        return threading.Lock()
    return dict(n_again=n)


@pytest.mark.parametrize("jobs", [1, 2])
def test_failed_cells_are_named_with_their_configuration_and_the_others_kept(jobs):
    with pytest.raises(press.SweepError, match="3 of 6 cells failed; the others are kept") as caught:
        run(sometimes, press.grid(n=range(6)), jobs=jobs)
    said = str(caught.value)
    assert "{'n': 1}: ValueError: cannot do 1" in said
    assert "{'n': 2}: SystemExit: enough" in said
    assert "{'n': 3}: TypeError: sometimes should return rows" in said
    assert 'raise ValueError(f"cannot do {n}")' in said  # the first one in full
    assert run(sometimes, press.grid(n=(0, 4, 5))).table["n_again"].tolist() == [0, 4, 5]


def logged(n, log):
    noted(log, n)
    return dict(square=n * n)


def test_finished_cells_do_not_run_again(tmp_path):
    log = tmp_path / "log"
    run(logged, press.grid(n=range(3)), log=str(log))
    found = run(logged, press.grid(n=(4, 1, 1, 0)), log=str(log))
    assert found.table["square"].tolist() == [16, 1, 1, 0]
    assert log.read_text().split() == ["0", "1", "2", "4"]


def mortal(n, mark):
    """The second cell kills its worker: each time, or once where there is a file to mark it."""
    if n == 1 and not (mark and Path(mark).exists()):
        if mark:
            Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return dict(tens=n * 10, pid=os.getpid())


def test_a_lost_worker_is_replaced_and_the_cell_that_kills_each_one_is_named():
    with pytest.raises(press.SweepError, match="1 of 8 cells failed") as caught:
        run(mortal, press.grid(n=range(8)), jobs=2, mark="")
    (failed,) = caught.value.failed
    assert failed[0] == {"n": 1}
    assert "most likely for lack of memory" in failed[1]
    others = [0, *range(2, 8)]
    assert run(mortal, press.grid(n=others), mark="").table["tens"].tolist() == [n * 10 for n in others]


def interrupting(n, mark):
    """The first cell works for long; the second presses Ctrl-C once the first is busy."""
    if n == 0:
        Path(mark).write_text(str(os.getpid()))
        time.sleep(120)
    while not (Path(mark).exists() and Path(mark).read_text()):
        time.sleep(0.02)
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(120)


def test_an_interrupted_sweep_stops_its_workers(tmp_path):
    mark = tmp_path / "mark"
    # Tests that run in the background would not hear it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(interrupting, press.grid(n=range(2)), jobs=2, mark=str(mark))
    finally:
        signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{mark.read_text()}").exists():
        assert time.monotonic() < deadline, "the worker goes on"
        time.sleep(0.05)
    assert run(square, press.grid(n=(5, 6)), jobs=2).table["square"].tolist() == [25, 36]


def test_a_worker_with_other_code_is_refused_by_name(monkeypatch):
    """Such as one that was started after the package had been edited."""
    monkeypatch.setattr(source, "imported", lambda: "another digest")
    with pytest.raises(press.SweepError, match="2 of 2 cells failed") as caught:
        run(square, press.grid(n=(7, 8)), jobs=2)
    assert "this worker has other code than the page that started it" in str(caught.value)


# As from a notebook: the function is in no module that a worker could import

PAGE = """
    import os
    import sys
    import time
    from types import SimpleNamespace

    import torch

    from repalign.press import sweep

    FACTOR = torch.tensor(3)
    # Named like modules of torch, which must not be taken along for them.
    part = SimpleNamespace(classes=2, ops=1)

    def slow(n, log):
        with open(log, "a") as file:
            file.write(f"{n}\\n")
        time.sleep(0.15)
        return dict(value=FACTOR * n * part.classes * part.ops)

    if __name__ == "__main__":
        jobs = int(sys.argv[2])
        found = sweep.run(slow, [dict(n=n) for n in range(16)], None, dict(log=sys.argv[1]), jobs)
        print(found.table["value"].tolist() == [6 * n for n in range(16)])
"""


def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path):
    script, log = tmp_path / "page.py", tmp_path / "log"
    script.write_text(textwrap.dedent(PAGE))
    command = [sys.executable, str(script), str(log)]
    environment = {name: value for name, value in os.environ.items() if name != sweep.OUT}
    process = subprocess.Popen(
        [*command, "1"], env=environment, start_new_session=True, stdout=subprocess.DEVNULL
    )
    kept = store.directory()
    deadline = time.monotonic() + 120
    while len(list(kept.glob("slow-*.json"))) < 5:
        assert process.poll() is None, "the sweep ended by itself"
        assert time.monotonic() < deadline, "no five cells in two minutes"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = len(list(kept.glob("slow-*.json")))
    started = len(log.read_text().split())
    done = subprocess.run([*command, "2"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{finished} of 16 cells are in the store" in done.stdout
    assert done.stdout.strip().endswith("True")
    assert len(log.read_text().split()) - started == 16 - finished  # no finished cell ran twice


# A cluster


def test_a_dask_cluster_gives_the_same_table_refuses_other_code_and_survives_a_lost_worker(
    tmp_path, monkeypatch
):
    distributed = pytest.importorskip("distributed")
    here = run(rounding, press.grid(seed=range(3))).table
    digits = data.load("mnist", n=600)
    monkeypatch.setenv("REPALIGN_CACHE", str(tmp_path / "elsewhere"))
    options = dict(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None)
    with distributed.LocalCluster(**options) as cluster:
        monkeypatch.setenv(cells.CLUSTER, cluster.scheduler_address)
        assert run(rounding, press.grid(seed=range(3))).table.equals(here)
        there = run(arrived, press.grid(k=range(2)), digits, pair=(digits, digits)).table
        assert set(there["total"]) == {float(digits.x.double().sum())}
        found = run(mortal, press.grid(n=(0, 1, 2)), mark=str(tmp_path / "mark")).table
        assert found["tens"].tolist() == [0, 10, 20]
        assert os.getpid() not in {*there["pid"], *found["pid"]}
        with monkeypatch.context() as edited:
            edited.setattr(source, "imported", lambda: "another digest")
            with pytest.raises(press.SweepError, match="this worker has other code than the page"):
                run(square, [dict(n=9)])


def test_an_address_without_a_cluster_is_an_error_in_words(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(cells, "PATIENCE", 0.5)
    with pytest.raises(RuntimeError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9 "):
        cells.check_cluster("tcp://127.0.0.1:9")
