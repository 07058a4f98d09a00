"""Where a number comes from: commit and code when its run started, machine, versions, day.

Everything is asked at the start of a run, from the place that the package itself is imported from: what is
edited, committed or installed while a run goes on is not what made its numbers.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import repalign
from repalign._code import library_version, source
from repalign.machine import onednn

# Where the runner tells its kernels and their workers what it found when it started.
VARIABLE = "REPALIGN_ORIGIN"
# What decides numbers; a figure's caption or a test may differ from the commit.
_COUNTED = ("src", "notebooks", "pyproject.toml", "constraints.txt")
_OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


def origin(root: Path | None = None) -> dict[str, Any]:
    """Commit, cleanliness and digest of the code: as the runner found them, else as they are now.

    Was the package edited between the runner's start and this process's import of it, then what runs here is
    not the runner's commit.
    """
    told = os.environ.get(VARIABLE)
    if not told:
        return ask(root or _root())
    found: dict[str, Any] = json.loads(told)
    if found["code"] != source.imported():
        found |= {"clean": False, "code": source.imported()}
    return found


def ask(root: Path) -> dict[str, Any]:
    """The commit that ``root`` is at, whether its files are those of the commit, and the digest of the code.

    Files that git does not know count as a difference, and so does a package that was edited after this
    process had imported it. A directory that is not the top of its repository (such as an unpacked archive
    inside another one) has no commit of its own: "unknown". Nor has a package that is not the one in
    ``root``'s src, such as a copy that pip has installed.
    """
    found: dict[str, Any] = {"commit": "unknown", "clean": False, "code": source.imported()}
    if _root() != root.resolve():
        return {**found, "commit": f"installed {repalign.__version__}"}
    try:
        top = Path(git(root, "rev-parse", "--show-toplevel"))
        if top.resolve() != root.resolve():
            return found
        found["commit"] = git(root, "rev-parse", "HEAD")[:10]
        differs = git(root, "status", "--porcelain", "--untracked-files=all", "--", *_COUNTED)
    except (OSError, subprocess.SubprocessError):
        return {**found, "commit": "unknown"}
    found["clean"] = differs == "" and source.on_disk() == source.imported()
    return found


def _root() -> Path:
    """The project that the imported package is a part of, when it lies in one: the parent of its src."""
    return Path(repalign.__file__).resolve().parents[2]


def is_commit(name: str) -> bool:
    """Does ``name`` look like a commit, and not like what stands in for one?"""
    return re.fullmatch("[0-9a-f]{10,40}", name) is not None


def git(root: Path, *words: str) -> str:
    """What git says."""
    # A hook of git's sets these for its own repository.
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
    done = subprocess.run(
        ["git", "-C", str(root), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def today() -> str:
    """The date, the same everywhere on earth."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def versions() -> dict[str, str]:
    """Versions of what a number depends on."""
    used = ("repalign", "torch", "torchvision", "numpy", "scipy")
    return {"python": platform.python_version(), **{name: library_version(name) for name in used}}


def processor() -> str:
    """The processor's model, on which rounding depends; no name of the machine."""
    return onednn.model(onednn.processor()) or platform.machine()


def machine() -> str:
    """Cores, processor and accelerator, and nothing that names the machine."""
    parts = [f"{os.cpu_count() or 1} cores", processor(), platform.system()]
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name(0))
    return ", ".join(parts)
