"""Fail if a notebook source holds outputs, has a tracked .ipynb, or is not as jupytext writes it."""

import subprocess
import sys
from pathlib import Path

import jupytext

root = Path(__file__).parents[1]


def body(text: str) -> str:
    """The cells, without the header, which names jupytext's version."""
    return text.split("# ---\n", 2)[-1].rstrip("\n")


tracked = subprocess.run(
    ["git", "-C", str(root), "ls-files", "notebooks/*.ipynb"], capture_output=True, text=True, check=False
)
wrong = [f"{name} is tracked: the .py is the source" for name in tracked.stdout.split()]
for path in sorted((root / "notebooks").glob("*/*.py")):
    text = path.read_text(encoding="utf-8")
    notebook = jupytext.reads(text, fmt="py:percent")
    # What jupytext would write back is what JupyterLab would save: it should be the file itself.
    again = jupytext.writes(notebook, fmt="py:percent")
    if body(again) != body(text):
        wrong.append(
            f"{path.relative_to(root)} is not as jupytext writes it: jupytext --sync or save it in JupyterLab"
        )
    if any(cell.get("outputs") for cell in notebook.cells):
        wrong.append(f"{path.relative_to(root)} holds outputs")
print("\n".join(wrong) or "notebooks are clean")
sys.exit(bool(wrong))
