"""What all tests share."""

import shutil

import pytest
from hypothesis import HealthCheck, settings

from command import ROOT, repalign

# Properties are checked on the same examples in every run; linear algebra has no fixed duration.
settings.register_profile(
    "repalign", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repalign")


def pytest_collection_modifyitems(items):
    """With several processes, all tests of the built book go to one, which builds it once."""
    for item in items:
        if "book" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("book"))


@pytest.fixture(autouse=True)
def _own_directories(tmp_path, monkeypatch):
    """No test reads or writes the user's cache, or a store left by another run."""
    monkeypatch.setenv("REPALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REPALIGN_DATA", raising=False)
    monkeypatch.setenv("REPALIGN_OUT", str(tmp_path / "out"))


@pytest.fixture(scope="session")
def book(tmp_path_factory):
    """A copy of the book in which every notebook has been run at smoke, without network."""
    root = tmp_path_factory.mktemp("book")
    for name in ("notebooks", "book", "records"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("_toc.yml", "_config.yml", "README.md"):
        shutil.copy(ROOT / name, root)
    cache = str(tmp_path_factory.mktemp("cache"))
    done = repalign("run", "--profile", "smoke", cwd=root, REPALIGN_CACHE=cache)
    assert done.returncode == 0, done.stderr
    return root


@pytest.fixture(scope="session")
def site(book):
    """The rendered book."""
    done = repalign("book", "--profile", "smoke", cwd=book)
    assert done.returncode == 0, done.stderr
    return book / "_build" / "html"
