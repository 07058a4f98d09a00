"""What killed commands leave behind goes with the next one; what is in use stays."""

import os
import signal
import subprocess
import sys
import time

import pytest

from repalign._files import cache_root
from repalign.press import scratch

HOLDER = """
import sys, time
from pathlib import Path
from repalign.press import scratch
with scratch.directory(Path(sys.argv[1])) as place:
    (place / "file").write_text("content")
    print(place.name, flush=True)
    time.sleep(600)
"""


def aged(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_directory_lasts_as_long_as_its_block(tmp_path):
    with scratch.directory(tmp_path) as place:
        assert place.parent == tmp_path / "build"
        scratch.sweep(tmp_path)  # as another command would
        assert place.is_dir()
    assert list((tmp_path / "build").iterdir()) == []


def test_the_directory_of_a_killed_command_goes_and_that_of_a_living_one_stays(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            left = tmp_path / "build" / process.stdout.readline().strip()
            scratch.sweep(tmp_path)
            assert (left / "file").is_file()
        finally:
            process.send_signal(signal.SIGKILL)
    assert left.is_dir()
    scratch.sweep(tmp_path)
    assert not left.exists()


@pytest.mark.parametrize(
    "place", ["records/toy", "build/desktop/toy", "_build", "cache/cells", "cache/fresh/a"]
)
def test_what_is_renamed_within_seconds_goes_when_it_is_old(tmp_path, place):
    assert cache_root() == tmp_path / "cache"
    folder = tmp_path / place
    folder.mkdir(parents=True)
    names = [".record-a", ".old-b", ".new-c", ".cell-1.json.x.part"]
    for name in names:
        (folder / name).mkdir() if "." not in name[1:] else (folder / name).write_text("half")
    (folder / "kept.json").write_text("{}")
    aged(folder / "kept.json", 7200)
    scratch.sweep(tmp_path)
    assert {path.name for path in folder.iterdir()} == {*names, "kept.json"}
    for name in names:
        aged(folder / name, 7200)
    scratch.sweep(tmp_path)
    assert {path.name for path in folder.iterdir()} == {"kept.json"}
