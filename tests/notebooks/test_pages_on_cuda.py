"""Pages at smoke with ``device="cuda"``, on the double of a GPU: who forgets to move something fails.

Another third of the pages each day; see ``pages.py``.
"""

import json
import os
import re
import subprocess
import sys

import pytest

from command import ROOT
from pages import IN_TURN

# One process and no workers: the double is in it.
RUN = """
import runpy, sys
import fake_cuda
with fake_cuda.installed():
    runpy.run_path(sys.argv[1], run_name="__main__")
print("tensors on the GPU:", fake_cuda.CudaTensor.made)
"""


@pytest.mark.parametrize("page", IN_TURN, ids=[page.name for page in IN_TURN])
def test_page_runs_on_a_gpu(page, tmp_path):
    source = page.text
    for name, value in (("profile", "smoke"), ("device", "cuda")):
        source, found = re.subn(rf'(?m)^{name} = "\w+"', f'{name} = "{value}"', source)
        assert found == 1, f"where is {name} set?"
    script = tmp_path / "page.py"
    script.write_text(source, encoding="utf-8")
    paths = os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    alone = {"REPALIGN_JOBS": "1", "REPALIGN_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(script)],
        cwd=tmp_path,
        env={**os.environ, **alone, "PYTHONPATH": paths, "REPALIGN_BOOK": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (run["profile"], run["page"]) == ("smoke", page.name)
    moved = int(done.stdout.split("tensors on the GPU:")[1])
    assert moved or "devices.device(" not in source, "the page asks for a device, and computes elsewhere"
