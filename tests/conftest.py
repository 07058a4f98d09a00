"""What all tests share."""

import os
import shutil

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from command import ROOT, repalign
from repalign.machine import cores, onednn

# Before anything computes, here and in the processes that tests start.
onednn.prepare()

# One process for each core: more threads than that would only wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Properties are checked on the same examples in every run; linear algebra has no fixed duration.
settings.register_profile(
    "repalign", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repalign")


@pytest.fixture(autouse=True)
def _own_directories(tmp_path, monkeypatch):
    """No test reads or writes the user's cache, or a store left by another run."""
    monkeypatch.setenv("REPALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REPALIGN_DATA", raising=False)
    monkeypatch.setenv("REPALIGN_OUT", str(tmp_path / "out"))


def once(tmp_path_factory, name, build):
    """A directory made by ``build``, once for all processes of a run of the tests."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    place, done = base / name, base / f"{name}.done"
    with FileLock(base / f"{name}.lock"):
        if not done.exists():
            # What a process left that failed here would only hide the reason from the next one.
            shutil.rmtree(place, ignore_errors=True)
            build(place)
            done.touch()
    return place


@pytest.fixture(scope="session")
def book(tmp_path_factory):
    """A copy of the book in which every notebook has been run at smoke, without network."""

    def build(root):
        for name in ("notebooks", "book", "records"):
            shutil.copytree(ROOT / name, root / name)
        for name in ("_toc.yml", "_config.yml", "README.md"):
            shutil.copy(ROOT / name, root)
        cache = str(tmp_path_factory.mktemp("cache"))
        # Every cell of every sweep in a worker process, as for a reader, and not only when a core is free.
        workers = {cores.VARIABLE: "", "REPALIGN_JOBS": "2"}
        words = ["run", "--profile", "smoke", "--jobs", "1"]
        done = repalign(*words, cwd=root, REPALIGN_CACHE=cache, **workers)
        assert done.returncode == 0, done.stderr

    return once(tmp_path_factory, "book", build)


@pytest.fixture(scope="session")
def site(tmp_path_factory, book):
    """The rendered book."""

    def build(root):
        shutil.copytree(book, root)
        done = repalign("book", "--profile", "smoke", cwd=root)
        assert done.returncode == 0, done.stderr

    return once(tmp_path_factory, "site", build) / "_build" / "html"
