"""What all tests share."""

import os
import shutil

import pytest
from hypothesis import HealthCheck, settings

from command import ROOT, repalign
from once import once
from pages import IN_TURN, PAGES
from repalign.machine import onednn

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


def copy_of_the_book(root):
    """The sources of the book and its records in ``root``, without anything that was built."""
    for name in ("notebooks", "book", "records"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("_toc.yml", "_config.yml"):
        shutil.copy(ROOT / name, root)


@pytest.fixture(scope="session")
def book(tmp_path_factory):
    """A copy of the book in which every notebook has been run at smoke, without network."""

    def build(root):
        copy_of_the_book(root)
        cache = str(tmp_path_factory.mktemp("cache"))
        # Those in turn compute their sweeps in worker processes, as on a machine with more cores than pages.
        apart = [page.name for page in IN_TURN]
        here = [page.name for page in PAGES if page not in IN_TURN]
        for names, workers in ((apart, "2"), (here, "1")):
            given = {"REPALIGN_CACHE": cache, "REPALIGN_JOBS": workers}
            if names:
                done = repalign("run", "--profile", "smoke", *names, cwd=root, **given)
                assert done.returncode == 0, done.stderr

    return once(tmp_path_factory, "book", build)


@pytest.fixture(scope="session")
def site(tmp_path_factory, book):
    """The rendered book, with every page's run at smoke beside its record."""

    def build(root):
        shutil.copytree(book, root)
        done = repalign("book", "--profile", "smoke", cwd=root)
        assert done.returncode == 0, done.stderr

    return once(tmp_path_factory, "site", build) / "_build" / "html"


@pytest.fixture(scope="session")
def read_site(tmp_path_factory):
    """The book rendered from its records alone; what it took from the cache is in ``cache`` beside it."""

    def build(root):
        copy_of_the_book(root)
        done = repalign("book", "--records", cwd=root, REPALIGN_CACHE=str(root / "cache"))
        assert done.returncode == 0, done.stderr

    return once(tmp_path_factory, "read", build) / "_build" / "html"
