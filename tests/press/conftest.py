"""A toy book that was run and recorded once, for all tests of the press."""

import shutil
from pathlib import Path

import pytest

import toy_book
from once import once


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """A toy book of one page that was run for the record, and recorded."""

    def build(root):
        toy_book.make(root)
        toy_book.ran(root, "run", "--profile", "desktop", "--fresh")
        toy_book.ran(root, "record")
        toy_book.commit(root)

    return once(tmp_path_factory, "toy", build)


@pytest.fixture
def root(recorded, tmp_path):
    """A copy of the recorded toy book, to be spoiled."""
    return Path(shutil.copytree(recorded, tmp_path / "book"))
