"""A book of one paper with pages of a few lines, and a copy of the package that it stands on.

It is a repository of its own, so that a test can commit, record, edit the package, and look at what is left.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import command

PAGE = """# %% [markdown]
# # A toy page

# %%
import os
import sys
import time

from matplotlib import pyplot as plt

from repalign import press
from repalign.papers import toy

page = press.page("toy/{name}")

# %% tags=["parameters"]
profile = "laptop"
device = "auto"
change = {{}}

# %%
settings = page.settings(
    profile,
    change,
    smoke=dict(runs=2, n=5),
    laptop=dict(runs=3, n=5),
    desktop=dict(runs=4, n=5),
    paper=dict(runs=4, n=50),
)

# %%
{body}

# %%
runs = page.sweep(toy.measured, press.grid(seed=settings.seeds), n=settings.n)


# %%
@page.figure("{name}.fig", "A point for each run.", runs)
def points(runs):
    figure, ax = plt.subplots()
    ax.plot(runs["seed"], runs["value"], "o")
    return figure


# %%
@page.claim("toy.{name}", runs)
def mean(runs):
    yield press.above("mean", runs["value"], 0.5)


# %%
page.end()
"""

# Numbers around one; the seed decides them.
PAPER = '''"""The experiment of the toy book."""

from repalign.papers import toy_numbers


def measured(seed, n):
    return {"value": toy_numbers.around(1.0, seed, n)}
'''
NUMBERS = '''"""What the experiment of the toy book draws."""

import random


def around(middle, seed, n):
    draws = random.Random(seed)
    return middle + sum(draws.gauss(0, 0.1) for _ in range(n)) / n
'''

CLAIM = """
["toy.{name}"]
page = "{name}"
says = "The mean lies above one half."
kind = "paper"
criterion = "{criterion}"
fixed = 2026-11-01
"""
CRITERION = "the mean of the runs lies above 0.5"
PACKAGE = Path("src/repalign")
TOY = PACKAGE / "papers" / "toy.py"
NUMBERS_FILE = PACKAGE / "papers" / "toy_numbers.py"


def make(root, pages=("01_a",)):
    """A toy book with ``pages`` at ``root``, committed."""
    large = shutil.ignore_patterns("*.npz")
    shutil.copytree(command.ROOT / PACKAGE, root / PACKAGE, ignore=large)
    (root / TOY).write_text(PAPER)
    (root / NUMBERS_FILE).write_text(NUMBERS)
    shutil.copytree(command.ROOT / "book", root / "book")
    (root / "book" / "intro.md").write_text("# Intro\n")
    shutil.copy(command.ROOT / "_config.yml", root)
    (root / ".gitignore").write_text("__pycache__\nbuild\n_build\ncache\n")
    (root / "notebooks" / "toy").mkdir(parents=True)
    for name in pages:
        write(root, name)
    list_pages(root)
    git(root, "init", "-q", "-b", "main")
    commit(root)


def list_pages(root):
    """A table of contents and claims for all pages that there are."""
    names = sorted(path.stem for path in (root / "notebooks" / "toy").glob("*.py"))
    files = "".join(f"- file: notebooks/toy/{name}\n" for name in names)
    (root / "_toc.yml").write_text(f"format: jb-book\nroot: book/intro\nchapters:\n{files}")
    rows = "".join(CLAIM.format(name=name, criterion=CRITERION) for name in names)
    claims_of(root).write_text(rows)


def write(root, name, body="pass"):
    """The page ``name`` with ``body`` as its first cell that computes."""
    page_of(root, name).write_text(PAGE.format(name=name, body=body))


def page_of(root, name="01_a"):
    return root / "notebooks" / "toy" / f"{name}.py"


def claims_of(root):
    return root / "notebooks" / "toy" / "claims.toml"


def edit(path, old, new):
    """Replace ``old``, which is there, in a file."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def git(root, *words):
    who = ["-c", "user.name=Toy", "-c", "user.email=toy@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", root, *who, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(root):
    """Commit all that differs; the commit."""
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", "toy")
    return git(root, "rev-parse", "HEAD")[:10]


def environment(root, **env):
    """With this book's own copy of the package, and a cache that goes with the book.

    A sweep of the toy's is done before a worker process has started.
    """
    own = {"PYTHONPATH": str(root / "src"), "REPALIGN_CACHE": str(root / "cache"), "REPALIGN_JOBS": "1"}
    return {**own, **env}


def repalign(root, *words, **env):
    """The command in this book."""
    return command.repalign(*words, cwd=root, **environment(root, **env))


def started(root, *words, **env):
    """The command in this book, going on in the background; it hears Ctrl-C as in a terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "repalign", *words],
        cwd=root,
        env={**os.environ, "REPALIGN_OFFLINE": "1", **environment(root, **env)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def ran(root, *words, **env):
    """The command in this book, which should succeed."""
    done = repalign(root, *words, **env)
    assert done.returncode == 0, done.stderr
    return done


def run_of(root, profile="laptop", name="01_a"):
    """What the last run of a page says of itself."""
    return json.loads((root / "build" / profile / "toy" / name / "run.json").read_text())


def record_of(root, name="01_a"):
    """The directory of a page's record."""
    return root / "records" / "toy" / name


def refused(done, *parts):
    """A mistake of the user's is one line that says what to do: no traceback."""
    assert done.returncode == 2, done.stderr
    *_, said = done.stderr.splitlines()
    assert said.startswith("repalign: "), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    for part in parts:
        assert part in said


def wait_for(what):
    """Until ``what()`` holds."""
    deadline = time.monotonic() + 300
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
