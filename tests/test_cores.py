"""Cores that processes share: no dead process keeps one, and a sweep uses those that are free."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from pickle import PicklingError

import pytest
import torch

from repalign import study
from repalign.machine import cores
from repalign.study import workers


@pytest.fixture(autouse=True, scope="module")
def _no_idle_workers():
    yield
    workers.close()


@pytest.fixture
def two(monkeypatch):
    """Two cores as a runner shares them out; one of them is the page's, as it would be under the runner."""
    with cores.shared_out(2) as shared:
        monkeypatch.setenv(cores.VARIABLE, str(shared))
        page = shared.take()
        yield shared
        page.release()


def free(shared):
    """How many cores nobody has."""
    taken = []
    while (core := shared.take()) is not None:
        taken.append(core)
    for core in taken:
        core.release()
    return len(taken)


def test_a_core_has_one_holder_at_a_time():
    with cores.shared_out(3) as shared:
        first, second, third = (shared.take() for _ in range(3))
        assert shared.take() is None
        second.release()
        assert free(shared) == 1
        again = shared.take()
        assert shared.take() is None
        for core in (first, again, third):
            core.release()
        assert free(shared) == 3
    assert not shared.directory.exists()


def test_no_runner_no_shared_cores(monkeypatch):
    monkeypatch.delenv(cores.VARIABLE, raising=False)
    assert cores.shared() is None
    assert cores.count() >= 1


HOLDER = """
import time
from repalign.machine import cores
core = cores.shared().take()
print("holds" if core else "none", flush=True)
time.sleep(600)
"""


def test_the_core_of_a_killed_process_is_free_again(two):
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "holds\n"
        assert free(two) == 0
        process.send_signal(signal.SIGKILL)
    assert free(two) == 1


def where(n):
    return os.getpid()


def test_without_a_free_core_a_page_computes_its_sweep_itself(two):
    other = two.take()
    assert set(study.sweep(where, [dict(n=n) for n in range(5)], jobs=4)) == {os.getpid()}
    other.release()


def patient(n, parent, mark):
    """The first cells of the page's own process do not wait; the next one does, until a worker was there."""
    if os.getpid() != parent:
        Path(mark).touch()
    elif n > 1:
        deadline = time.monotonic() + 200
        while not Path(mark).exists():
            assert time.monotonic() < deadline, "no worker joined in"
            time.sleep(0.02)
    return os.getpid()


def test_a_running_sweep_takes_a_core_that_becomes_free(two, tmp_path):
    other = two.take()
    configs = [dict(n=n, parent=os.getpid(), mark=str(tmp_path / "mark")) for n in range(6)]
    timer = threading.Timer(0.5, other.release)
    timer.start()
    found = study.sweep(patient, configs)
    timer.join()
    assert found[:2] == [os.getpid()] * 2
    assert len(set(found)) == 2
    assert free(two) == 1  # the page's own is still held, the other was given back


def crowd(n, directory):
    """How many cells are being computed right now."""
    mine = Path(directory) / str(n)
    mine.touch()
    time.sleep(0.05)
    count = len(list(Path(directory).iterdir()))
    mine.unlink()
    return count


def test_no_more_cells_at_a_time_than_cores(two, tmp_path):
    place = tmp_path / "crowd"
    place.mkdir()
    found = study.sweep(crowd, [dict(n=n, directory=str(place)) for n in range(40)], jobs=8)
    assert max(found) <= 2


def rounding(seed):
    """Sums whose last digits depend on how they are split among threads."""
    x = torch.rand(300, 300, generator=torch.Generator().manual_seed(seed))
    return {"value": torch.linalg.eigvalsh(x @ x.T), "threads": torch.get_num_threads()}


def test_results_do_not_depend_on_how_many_workers_there_were(tmp_path, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    configs, found = [dict(seed=i) for i in range(3)], []
    try:
        with cores.shared_out(2) as shared:
            for jobs, variable in ((1, ""), (2, ""), (2, str(shared))):
                monkeypatch.setenv("REPALIGN_CACHE", str(tmp_path / str(len(found))))
                monkeypatch.setenv(cores.VARIABLE, variable)
                found.append(study.sweep(rounding, configs, jobs=jobs))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    for results in found:
        assert [r["threads"] for r in results] == [1, 1, 1]
        for one, other in zip(results, found[0], strict=True):
            assert torch.equal(torch.as_tensor(one["value"]), torch.as_tensor(other["value"]))


def interrupted(n, parent, mark):
    """In the page's process: Ctrl-C, as soon as a worker is busy."""
    if os.getpid() != parent:
        Path(mark).write_text(str(os.getpid()))
        time.sleep(600)
    deadline = time.monotonic() + 200
    while not (Path(mark).exists() and Path(mark).read_text()):
        assert time.monotonic() < deadline, "no worker joined in"
        time.sleep(0.02)
    raise KeyboardInterrupt


def test_an_interrupted_sweep_stops_its_workers_and_gives_its_cores_back(two, tmp_path):
    mark = tmp_path / "mark"
    with pytest.raises(KeyboardInterrupt):
        study.sweep(interrupted, [dict(n=n, parent=os.getpid(), mark=str(mark)) for n in range(4)])
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
    assert free(two) == 1
    assert study.sweep(where, [dict(n=n) for n in range(10, 12)])


def test_a_task_that_cannot_be_sent_is_an_error_not_a_wait(monkeypatch):
    monkeypatch.delenv(cores.VARIABLE, raising=False)
    lock = threading.Lock()
    with pytest.raises(PicklingError):
        list(workers.compute(where, [(lock,), (lock,)], 2, 0))
