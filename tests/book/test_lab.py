"""``make lab`` as a reader uses it: open a page, run it, save it, in a real browser."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from command import ROOT

pytest_plugins = ["browsing"]

CLAIMS = """["toy.a"]
page = "01_a"
says = "One is one."
where = "page 1"
kind = "exact"
criterion = "It is."
fixed = 2026-11-18
"""
PAGE = """# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A toy page

# %% tags=["hide-cell"]
from repalign import press

page = press.page("toy/01_a")

# %% tags=["parameters"]
profile = "smoke"
device = "auto"
change = {}

# %%
settings = page.settings(
    profile,
    change,
    smoke=dict(runs=2),
    laptop=dict(runs=2),
    desktop=dict(runs=2),
    paper=dict(runs=2),
)


# %%
def one(seed):
    return {"value": 1.0}


runs = page.sweep(one, press.grid(seed=range(settings.runs)))


# %%
@page.claim("toy.a", runs)
def is_one(runs):
    yield press.at_most("distance from one", abs(runs["value"] - 1), 0)


# %%
page.end()
"""


@pytest.fixture
def project(tmp_path):
    """A book of one page with the Makefile and the settings of this one, and an environment that is ready."""
    root = tmp_path / "project"
    (root / "notebooks" / "toy").mkdir(parents=True)
    (root / "notebooks" / "toy" / "01_a.py").write_text(PAGE)
    (root / "notebooks" / "toy" / "claims.toml").write_text(CLAIMS)
    for name in ("_toc.yml", "Makefile", "notebooks/jupytext.toml"):
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / ".jupyter", root / ".jupyter")
    for name in ("pyproject.toml", "constraints.txt"):
        (root / name).touch()
    (root / ".venv").mkdir()
    (root / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (root / ".venv" / ".ready").touch()
    return root


@pytest.fixture
def lab(project, tmp_path):
    """The address of JupyterLab on ``project``, started by ``make lab``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # What a user's own settings might say: no second browser, and a port that nobody else has.
    config = tmp_path / "config"
    config.mkdir()
    server = {"open_browser": False, "allow_root": True, "ip": "127.0.0.1", "port": port, "port_retries": 0}
    (config / "jupyter_server_config.json").write_text(json.dumps({"ServerApp": server}))
    environment = {k: v for k, v in os.environ.items() if k != "REPALIGN_OUT"}
    environment |= {"JUPYTER_CONFIG_DIR": str(config), "JUPYTER_TOKEN": "toy", "HOME": str(tmp_path)}
    environment |= {"REPALIGN_JOBS": "1"}
    environment |= {
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "JUPYTER_DATA_DIR": str(tmp_path / "data"),
    }
    with open(tmp_path / "lab.log", "w+") as log:
        process = subprocess.Popen(
            ["make", "lab"], cwd=project, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    urlopen(f"http://127.0.0.1:{port}/api?token=toy", timeout=5).close()
                    break
                except OSError:
                    said = Path(log.name).read_text()
                    assert process.poll() is None, said
                    assert time.monotonic() < deadline, said
                    time.sleep(0.2)
            yield f"http://127.0.0.1:{port}/lab?token=toy"
        finally:
            os.killpg(process.pid, 15)
            process.wait(60)


def test_open_run_and_save_a_page(browser, lab, project):
    # Tall: JupyterLab keeps only those cells on the page that are seen.
    page = browser.new_page(viewport={"width": 1280, "height": 3000})
    page.set_default_timeout(120_000)
    page.goto(lab)
    listed = page.locator(".jp-DirListing-item")
    listed.filter(has_text="toy").dblclick()
    listed.filter(has_text="01_a.py").dblclick()
    # A notebook, with its cells: not a text file.
    page.locator(".jp-NotebookPanel .jp-Cell").nth(5).wait_for()
    assert page.locator(".jp-NotebookPanel .jp-MarkdownOutput h1").inner_text().startswith("A toy page")

    # While the kernel is not there yet, JupyterLab passes over the cells without running them.
    page.locator("#jp-main-statusbar", has_text="Python 3 (ipykernel) | Idle").wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.locator(".jp-NotebookPanel .ra-stamp").wait_for()
    assert page.locator(".jp-NotebookPanel .ra-card").count() == 1

    source = project / "notebooks" / "toy" / "01_a.py"
    before = source.stat().st_mtime_ns
    page.keyboard.press("Control+s")
    deadline = time.monotonic() + 60
    while source.stat().st_mtime_ns == before or not source.read_text():
        assert time.monotonic() < deadline, "nothing was saved"
        page.wait_for_timeout(100)
    page.close()

    assert source.read_text() == PAGE
    made = project / "build" / "by-hand" / "toy" / "01_a"
    run = json.loads((made / "run.json").read_text())
    assert run["claims"]["toy.a"]["live"]["verdict"] == "EXACT"
    left = {p.name for p in source.parent.iterdir() if not p.name.startswith(".")}
    assert left == {"01_a.py", "claims.toml"}
