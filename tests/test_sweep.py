"""Sweeps: parallel, resumable, and unmoved by lost workers. Faults are real: processes are killed."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from repalign import data, study
from repalign.machine.vision import torchvision
from repalign.study import send, workers


@pytest.fixture(autouse=True, scope="module")
def _no_idle_workers():
    """Workers wait for the next sweep; here they would outlive the tests."""
    yield
    workers.close()


def cell(n, seed, log=""):
    if log:
        with open(log, "a") as file:
            file.write(f"{n}\n")
    g = torch.Generator().manual_seed(seed)
    return {"mean": torch.rand(n, generator=g).mean().item(), "pid": os.getpid()}


def grid(log="", count=8):
    return [dict(n=n, seed=1, log=str(log)) for n in range(1, count + 1)]


def values(results):
    return [r["mean"] for r in results]


def test_results_come_in_order_from_several_processes():
    found = study.sweep(cell, grid(), jobs=2)
    assert values(found) == [cell(n, 1)["mean"] for n in range(1, 9)]
    assert os.getpid() not in {r["pid"] for r in found}
    assert values(study.sweep(cell, grid(count=3), jobs=1)) == values(found)[:3]


def test_a_cell_of_a_notebook_may_have_an_attribute_named_like_a_part_of_torch(tmp_path):
    """Functions of a notebook travel by value, with the modules that their names seem to mean."""
    script = tmp_path / "page.py"
    script.write_text(
        textwrap.dedent(
            """
            from types import SimpleNamespace
            import torch
            from repalign import study

            def cell(k):
                part = SimpleNamespace(classes=2, ops=torch.tensor(3))
                return part.classes * int(part.ops) + k

            if __name__ == "__main__":
                print(study.sweep(cell, [dict(k=0), dict(k=1)], jobs=2))
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[6, 7]", done.stderr


# Data sets in configurations


def on_data(data, pair, k, log=""):
    with open(log, "a") as file:
        file.write(f"{os.getpid()} {data.x.data_ptr()} {id(data) == id(pair[0])}\n")
    return float(data.x.double().sum()), data.y.sum().item(), pair[1].source, data.classes, k


def test_a_data_set_is_sent_once_and_arrives_as_it_is(tmp_path, monkeypatch):
    one, two = (data.load("mnist", n=60, seed=seed) for seed in (0, 1))
    two = two.with_labels(two.y.flip(0), "reversed")
    log, written = tmp_path / "log", []
    monkeypatch.setattr(send, "_keep", lambda d, path, keep=send._keep: (written.append(path), keep(d, path)))
    configs = study.grid(data=[one, two], pair=[(one, two)], k=range(5))
    found = study.sweep(on_data, configs, jobs=2, log=str(log))
    expected = [(float(d.x.double().sum()), d.y.sum().item(), two.source, d.classes) for d in (one, two)]
    assert [r[:4] for r in found] == [expected[0]] * 5 + [expected[1]] * 5
    assert len(written) == 2  # for ten cells with three data sets each
    lines = {tuple(line.split()) for line in log.read_text().splitlines()}
    workers = {pid for pid, *_ in lines}
    assert str(os.getpid()) not in workers
    assert len({(pid, place) for pid, place, _ in lines}) <= 2 * len(workers)  # each keeps it
    assert not list((tmp_path / "cache" / "store").glob(".*"))
    # In this process nothing is written, and the cells are known by the content of the data.
    again = study.sweep(on_data, study.grid(data=[two], pair=[[one, two]], k=[7]), jobs=1, log=str(log))
    assert again[0][:4] == expected[1]
    assert len(written) == 2
    lines = len(log.read_text().splitlines())
    same = [data.load("mnist", n=60, seed=0)]
    study.sweep(on_data, study.grid(data=same, pair=[(same[0], two)], k=range(5)), jobs=2, log=str(log))
    assert len(log.read_text().splitlines()) == lines


# One table


def rows(data, seed, width):
    return [dict(layer=i, area=i / width + seed, n=len(data)) for i in range(2)]


def outputs_of(net, k):
    return net(torch.full((1, 3, 32, 32), float(k))).shape[1]


def test_a_network_of_torchvision_can_be_sent():
    net = torchvision().models.get_model("mobilenet_v2", weights=None).eval()
    assert study.sweep(outputs_of, [dict(k=0), dict(k=1)], net=net, jobs=2) == [1000, 1000]


def test_cells_that_return_rows_give_one_table():
    sets = {"a": data.load("mnist", n=20), "b": data.load("cifar10", n=30)}
    runs = study.sweep(rows, study.grid(data=sets, seed=range(2)), jobs=1, width=2)
    assert list(runs.columns) == ["data", "seed", "layer", "area", "n"]
    assert len(runs) == 8
    assert runs["area"].dtype == float
    picked = runs.query("data == 'cifar10' and seed == 1")
    assert picked["area"].tolist() == [1.0, 1.5]
    assert set(picked["n"]) == {30}
    again = study.sweep(rows, study.grid(data=sets, seed=range(2)), jobs=1, width=2)
    assert again.equals(runs)
    with pytest.raises(ValueError, match="both the configuration and the rows have n:"):
        study.sweep(clash, [dict(n=1)], jobs=1)
    assert study.sweep(nothing, [dict(n=1), dict(n=2)], jobs=1).empty
    assert study.sweep(sometimes, [dict(n=1)], jobs=1) == [1]
    assert study.sweep(sometimes, []) == []


def clash(n):
    return [dict(n=n)]


def nothing(n):
    return []


def test_a_grid_is_every_combination():
    assert study.grid(a=(1, 2), b="xy") == [
        *(dict(a=1, b="x"), dict(a=1, b="y"), dict(a=2, b="x"), dict(a=2, b="y")),
    ]
    assert study.grid(a=[]) == []
    assert study.grid() == [{}]


def test_a_page_may_return_a_named_tuple_of_its_own(tmp_path):
    """A notebook's classes are not importable in a worker: they come back all the same."""
    script = tmp_path / "page.py"
    script.write_text(
        textwrap.dedent(
            """
            from typing import NamedTuple
            from repalign import study

            class Found(NamedTuple):
                low: float
                high: float = 2.0

            def cell(k):
                return Found(k)

            if __name__ == "__main__":
                print(study.sweep(cell, [dict(k=0), dict(k=1)], jobs=2))
            """
        )
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
        assert done.stdout.strip().endswith("[Found(low=0, high=2.0), Found(low=1, high=2.0)]"), done.stderr


def test_finished_cells_do_not_run_again(tmp_path):
    log = tmp_path / "log"
    study.sweep(cell, grid(log, 3), jobs=2)
    study.sweep(cell, grid(log, 6), jobs=2)
    assert sorted(log.read_text().split(), key=int) == ["1", "2", "3", "4", "5", "6"]


def sometimes(n):
    if n % 3 == 0:
        raise ValueError(f"cannot do {n}")
    return n


def test_failed_cells_are_named_and_the_others_kept():
    with pytest.raises(study.SweepError, match="2 of 7 cells failed") as caught:
        study.sweep(sometimes, [dict(n=n) for n in range(1, 8)], jobs=2)
    assert [config for config, _ in sorted(caught.value.failed, key=str)] == [dict(n=3), dict(n=6)]
    assert "{'n': 3}: ValueError: cannot do 3" in str(caught.value)
    assert study.sweep(sometimes, [dict(n=1), dict(n=7)], jobs=2) == [1, 7]


def dies_once(n, mark):
    path = Path(mark)
    if n == 2 and not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return n * 10


def always_dies(n):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_lost_worker_is_replaced(tmp_path):
    configs = [dict(n=n, mark=str(tmp_path / "mark")) for n in range(6)]
    assert study.sweep(dies_once, configs, jobs=2) == [0, 10, 20, 30, 40, 50]
    with pytest.raises(study.SweepError, match="a worker was lost"):
        study.sweep(always_dies, [dict(n=1), dict(n=2)], jobs=2, retries=0)


SWEEP = """
    import sys, time
    from repalign import study

    def slow(n, log):
        with open(log, "a") as file:
            file.write(f"{n}\\n")
        time.sleep(0.15)
        return n * n

    if __name__ == "__main__":
        print(study.sweep(slow, [dict(n=n, log=sys.argv[1]) for n in range(16)], jobs=2)[-1])
"""


def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path):
    script, log = tmp_path / "sweep_script.py", tmp_path / "log"
    script.write_text(textwrap.dedent(SWEEP))
    command = [sys.executable, str(script), str(log)]
    environment = {k: v for k, v in os.environ.items() if k != "REPALIGN_OUT"}
    process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
    store = Path(os.environ["REPALIGN_CACHE"]) / "store"
    deadline = time.monotonic() + 60
    while len(list(store.glob("slow-*.npz"))) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = len(list(store.glob("slow-*.npz")))
    started = log.read_text().split()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip().endswith("225")
    assert "of 16 cells are in the store" in done.stdout
    again = log.read_text().split()[len(started) :]
    assert len(again) == 16 - finished  # no finished cell ran twice
    assert len(list(store.glob("slow-*.npz"))) == 16


def test_a_dask_cluster_gives_the_same_results_and_survives_a_lost_worker(tmp_path):
    distributed = pytest.importorskip("distributed")
    here = values(study.sweep(cell, grid(), jobs=2))
    os.environ["REPALIGN_CACHE"] = str(tmp_path / "elsewhere")
    options = dict(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0")
    with distributed.LocalCluster(**options) as cluster:
        assert values(study.sweep(cell, grid(), dask=cluster.scheduler_address)) == here
        configs = study.grid(data=[data.load("mnist", n=20)], pair=[[data.load("mnist", n=30)] * 2], k=[1, 2])
        log = str(tmp_path / "log")
        there = study.sweep(on_data, configs, dask=cluster.scheduler_address, log=log)
        assert there == [on_data(**config, log=log) for config in configs]
        configs = [dict(n=n, mark=str(tmp_path / "mark")) for n in range(6)]
        assert study.sweep(dies_once, configs, dask=cluster.scheduler_address) == [0, 10, 20, 30, 40, 50]


def test_no_cluster_there():
    pytest.importorskip("distributed")
    with pytest.raises(RuntimeError, match="no Dask scheduler answers at"):
        study.sweep(cell, grid(count=1), dask="tcp://127.0.0.1:9")


def test_no_two_threads_import_joblib_at_once(tmp_path):
    """Its modules import one another in a circle: a second thread that comes meanwhile sees half of them."""
    script = tmp_path / "page.py"
    script.write_text(
        "import sys, threading\n"
        "from repalign import study\n"
        "start, seen = threading.Thread.start, []\n"
        "def watched(thread):\n"
        "    seen.append('joblib.externals.loky.process_executor' in sys.modules)\n"
        "    start(thread)\n"
        "threading.Thread.start = watched\n"
        "def cell(n):\n"
        "    return n\n"
        "assert study.sweep(cell, [dict(n=n) for n in range(4)], jobs=2) == [0, 1, 2, 3]\n"
        "assert seen and all(seen), seen\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
