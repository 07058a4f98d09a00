"""Pages that have cells in common: each is computed once, also when one of the pages is killed."""

import os
import subprocess
import sys
import time

import pytest

PAGE = """
import os
import sys
import time
from repalign.press import sweep


def cell(n, log):
    with open(log, "a") as file:
        file.write(f"{n} ")
    time.sleep(float(os.environ["SECONDS_OF_A_CELL"]))
    return {"square": n * n}


if __name__ == "__main__":
    found = sweep.run(cell, sweep.grid(n=range(6)), None, {"log": sys.argv[1]}, int(sys.argv[2]))
    print(found.table["square"].tolist())
"""
SQUARES = str([n * n for n in range(6)])


@pytest.fixture
def page(tmp_path):
    script = tmp_path / "page.py"
    script.write_text(PAGE)

    def start(at_once, seconds):
        return subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "log"), str(at_once)],
            env={**os.environ, "SECONDS_OF_A_CELL": str(seconds)},
            stdout=subprocess.PIPE,
            text=True,
        )

    return start


def table(process):
    return process.communicate(timeout=240)[0].strip().splitlines()[-1]


@pytest.mark.parametrize("at_once", [1, 2])
def test_two_pages_compute_each_cell_once(page, tmp_path, at_once):
    both = [page(at_once, 0.3) for _ in range(2)]
    assert [table(one) for one in both] == [SQUARES, SQUARES]
    assert sorted((tmp_path / "log").read_text().split()) == sorted(str(n) for n in range(6))
    assert not list((tmp_path / "cache").rglob("*.lock"))


def test_the_cell_of_a_killed_page_is_computed_by_the_other(page, tmp_path):
    killed = page(1, 600)
    while not (tmp_path / "log").exists():
        assert killed.poll() is None
        time.sleep(0.1)
    other = page(1, 0)
    # It computes all but the one cell that the first page has, and waits for that one.
    while len((tmp_path / "log").read_text().split()) < 6:
        assert other.poll() is None
        time.sleep(0.1)
    killed.kill()
    killed.communicate()
    assert table(other) == SQUARES
