"""Fail if a notebook source holds outputs, has a tracked .ipynb, or is not as jupytext writes it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import jupytext


def problems(root: Path) -> list[str]:
    """What is wrong with the sources under ``root``, a line each."""
    git = ["git", "-C", str(root), "ls-files", "notebooks/*.ipynb"]
    tracked = subprocess.run(git, capture_output=True, text=True, check=False)
    wrong = [f"{name} is tracked: the .py is the source" for name in tracked.stdout.split()]
    settings = tomllib.loads((root / "notebooks" / "jupytext.toml").read_text(encoding="utf-8"))
    saved = {"extension": ".py", "format_name": "percent", **settings}
    for path in sorted((root / "notebooks").glob("*/*.py")):
        text = path.read_text(encoding="utf-8")
        notebook = jupytext.reads(text, fmt="py:percent")
        # What jupytext writes back is what JupyterLab would save: it should be the file itself.
        if jupytext.writes(notebook, fmt=saved) != text:
            wrong.append(f"{path.relative_to(root)} is not as jupytext writes it: save it in JupyterLab")
        if any(cell.get("outputs") for cell in notebook.cells):
            wrong.append(f"{path.relative_to(root)} holds outputs")
    return wrong


if __name__ == "__main__":
    found = problems(Path(__file__).parents[1])
    print("\n".join(found) or "notebooks are clean")
    sys.exit(bool(found))
