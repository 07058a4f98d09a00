"""The ``repalign`` command and the project's root, for tests."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def repalign(*words, cwd, **env):
    """Run the command as a user would, without any network."""
    return subprocess.run(
        [sys.executable, "-m", "repalign", *words],
        cwd=cwd,
        env={**os.environ, "REPALIGN_OFFLINE": "1", "COLUMNS": "200", **env},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
