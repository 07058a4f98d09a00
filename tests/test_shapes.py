"""The shapes in the signatures are true: every public measure is called with jaxtyping checking them."""

import subprocess
import sys
from pathlib import Path


def test_annotated_shapes_hold():
    script = Path(__file__).parent / "every_measure.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # The checks were on: a wrong shape or type is refused in every room, and so is a wrong field of a result.
    assert done.stdout.split() == ["TypeCheckError"] * 9 + ["AssertionError"]
