"""What a page finds in its environment: nothing of the user's that decides numbers, and the right places.

One page is run; it writes down what it sees.
"""

import json
from pathlib import Path

import pytest

from repalign.machine import onednn
from repalign.press import cells, provenance, run, sweep
from repalign.press.project import Source

PAGE = """# %% [markdown]
# # A page

# %% tags=["parameters"]
profile = "laptop"

# %%
import json
import os
from pathlib import Path

from repalign._files import cache_root

seen = {
    "environment": dict(os.environ),
    "started": globals().get("STARTED", "not"),
    "cache": str(cache_root()),
}
place = Path(os.environ["REPALIGN_OUT"])
place.mkdir()
(place / "seen.json").write_text(json.dumps(seen))
(place / "run.json").write_text("{}")
"""
LIMIT = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where the user gave the command."""
    return tmp_path_factory.mktemp("user")


@pytest.fixture(scope="module")
def seen(place):
    """What a page saw that was run with a user's settings that could change its numbers."""
    startup = place / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00.py").write_text("STARTED = 'yes'\n")
    (place / "startup.py").write_text("raise SystemExit('no page')\n")
    (place / "notebooks" / "toy").mkdir(parents=True)
    source = place / "notebooks" / "toy" / "01_a.py"
    source.write_text(PAGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(onednn, "environment", lambda: LIMIT)
        users = {
            "REPALIGN_CACHE": "my-cache",
            "REPALIGN_DATA": "my-data",
            "REPALIGN_SAMPLES": "shipped",
            "IPYTHONDIR": str(place / "ipython"),
            "PYTHONSTARTUP": str(place / "startup.py"),
            "PYTHONOPTIMIZE": "2",
            "MKL_NUM_THREADS": "7",
            "MALLOC_TOP_PAD_": "12345678",
        }
        for name, value in users.items():
            patch.setenv(name, value)
        for name in ("MALLOC_TRIM_THRESHOLD_", "REPALIGN_JOBS", "ONEDNN_MAX_CPU_ISA"):
            patch.delenv(name, raising=False)
        runner = run.Runner(place, 1, lambda *progress: None, lambda result: None)
        (result,) = runner.run([Source("toy/01_a", source)], "desktop", {})
        assert result.status == "ran", result.problem
        return json.loads((runner.place(Source("toy/01_a", source), "desktop") / "seen.json").read_text())


def test_startup_files_of_the_user_do_not_run(seen):
    assert seen["started"] == "not"
    assert not {"PYTHONSTARTUP", "PYTHONOPTIMIZE"} & seen["environment"].keys()


def test_relative_directories_are_those_of_where_the_command_was_given(seen, place):
    assert seen["cache"] == str(place / "my-cache")
    assert seen["environment"]["REPALIGN_DATA"] == str(place / "my-data")


def test_evidence_is_drawn_from_whole_sets(seen):
    assert seen["environment"]["REPALIGN_SAMPLES"] == "whole"


def test_a_page_has_the_threads_that_the_runner_gives_it(seen):
    assert seen["environment"]["OMP_NUM_THREADS"] == "1"
    assert seen["environment"][cells.JOBS] == "1"
    assert "MKL_NUM_THREADS" not in seen["environment"]


def test_a_page_is_told_what_its_processor_cannot_do_and_keeps_its_memory(seen):
    assert seen["environment"].items() >= LIMIT.items()
    assert seen["environment"]["MALLOC_TRIM_THRESHOLD_"] == str(2**30)
    assert seen["environment"]["MALLOC_TOP_PAD_"] == "12345678"  # the user's own


def test_a_page_is_told_its_origin(seen):
    assert set(json.loads(seen["environment"][provenance.VARIABLE])) == {"commit", "clean", "code"}


def test_what_a_killed_page_leaves_lies_where_the_next_run_sweeps(seen, place):
    """Also the arrays that its workers shared."""
    for name in ("JOBLIB_TEMP_FOLDER", sweep.OUT):
        inside = Path(seen["environment"][name])
        assert inside.parts[: len(place.parts) + 1] == (*place.parts, "build")
        assert not inside.exists()
