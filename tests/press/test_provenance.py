"""Where a number comes from: what was there when its run started, and nothing that is not so."""

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

import repalign
from repalign._code import source
from repalign.press import provenance


def git(root, *words):
    who = ["-c", "user.name=Toy", "-c", "user.email=toy@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", root, *who, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A project under git from which the package seems to be imported, as it was imported."""
    monkeypatch.delenv(provenance.VARIABLE, raising=False)
    root = tmp_path / "project"
    place(root, monkeypatch)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "start")
    return root


def place(root, monkeypatch):
    (root / "src" / "repalign").mkdir(parents=True)
    (root / "notebooks" / "toy").mkdir(parents=True)
    for file in ("src/repalign/__init__.py", "notebooks/toy/01_a.py", "README.md"):
        (root / file).write_text("")
    monkeypatch.setattr(repalign, "__file__", str(root / "src" / "repalign" / "__init__.py"))
    monkeypatch.setattr(source, "on_disk", source.imported)


def test_a_clean_tree_has_its_commit(root):
    found = provenance.origin()
    assert found == {"commit": git(root, "rev-parse", "HEAD")[:10], "clean": True, "code": source.imported()}


@pytest.mark.parametrize(
    ("file", "clean"),
    [
        ("src/repalign/__init__.py", False),
        ("notebooks/toy/01_a.py", False),
        ("src/repalign/papers/new.py", False),  # git does not know it
        ("notebooks/toy/02_b.py", False),
        ("README.md", True),  # decides no number
    ],
)
def test_a_file_that_differs_or_is_untracked_is_not_clean(root, file, clean):
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text("a = 1\n")
    assert provenance.ask(root)["clean"] is clean


def test_a_package_edited_since_its_import_is_not_clean(root, monkeypatch):
    """Even where the edit has been committed: what runs is not what is there."""
    monkeypatch.setattr(source, "on_disk", lambda: "another digest")
    found = provenance.ask(root)
    assert found["clean"] is False
    assert found["code"] == source.imported()


def test_the_digest_is_of_what_was_imported_and_of_what_is_on_disk(tmp_path, monkeypatch):
    package = tmp_path / "repalign"
    shutil.copytree(Path(repalign.__file__).parent / "kernels", package / "kernels")
    monkeypatch.setattr(source, "_ROOT", package)
    before, imported = source.on_disk(), source.imported()
    (package / "kernels" / "added.py").write_text("a = 1\n")
    assert source.on_disk() != before
    assert source.imported() == imported


def test_what_the_runner_found_when_it_started_counts(root, monkeypatch):
    """Commits made while a page waits or runs are not what made its numbers."""
    told = provenance.ask(root)
    monkeypatch.setenv(provenance.VARIABLE, json.dumps(told))
    (root / "notebooks/toy/01_a.py").write_text("a = 1\n")
    git(root, "commit", "-qam", "later")
    assert provenance.origin() == told
    assert provenance.ask(root)["commit"] != told["commit"]


def test_a_package_edited_between_the_runners_start_and_the_pages_is_not_clean(root, monkeypatch):
    told = {**provenance.ask(root), "code": "what the runner imported"}
    monkeypatch.setenv(provenance.VARIABLE, json.dumps(told))
    assert provenance.origin() == {**told, "clean": False, "code": source.imported()}


def test_an_archive_unpacked_inside_another_repository_has_no_commit(root, monkeypatch):
    with zipfile.ZipFile(root / "book.zip", "w") as archive:
        archive.write(root / "README.md", "README.md")
    inner = root / "unpacked"
    with zipfile.ZipFile(root / "book.zip") as archive:
        archive.extractall(inner)
    place(inner, monkeypatch)
    found = provenance.ask(inner)
    assert (found["commit"], found["clean"]) == ("unknown", False)


def test_an_installed_package_does_not_take_the_commit_of_the_book(root, monkeypatch):
    """Not even when its environment lies inside the book's directory."""
    installed = root / ".venv/lib/python3.11/site-packages/repalign/__init__.py"
    monkeypatch.setattr(repalign, "__file__", str(installed))
    found = provenance.ask(root)
    assert (found["commit"], found["clean"]) == (f"installed {repalign.__version__}", False)


def test_without_git_or_a_repository_the_commit_is_unknown(tmp_path, monkeypatch):
    monkeypatch.delenv(provenance.VARIABLE, raising=False)
    place(tmp_path / "loose", monkeypatch)
    assert provenance.origin()["commit"] == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.origin()["clean"] is False


def test_a_hook_of_another_repository_does_not_lend_its_commit(root, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q", "-b", "main")
    git(other, "commit", "-q", "--allow-empty", "-m", "other")
    expected = provenance.ask(root)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert provenance.ask(root) == expected
