"""What every page keeps to, seen in its source."""

import ast
import importlib
import inspect

import pytest

from command import ROOT

PAGES = sorted((ROOT / "notebooks").glob("*/*.py"))


def functions_of_sweeps(tree):
    """The functions that a page hands to study.sweep, by name: its own, or some of the package."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {ast.unparse(c.args[0]) for c in calls if ast.unparse(c.func) == "study.sweep"}
    made = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        for taken in node.names if isinstance(node, ast.ImportFrom) else ():
            for name in (n for n in names if n.startswith(f"{taken.name}.")):
                function = getattr(importlib.import_module(f"{node.module}.{taken.name}"), name.split(".")[1])
                made[name] = ast.parse(inspect.getsource(function))
    return {name: made[name] for name in names}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_cells_of_a_sweep_are_given_their_data(page):
    """What a cell loads itself is not in the key of its result; a data set in its configuration is."""
    for name, function in functions_of_sweeps(ast.parse(page.read_text(encoding="utf-8"))).items():
        used = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
        assert not used & {"data.load", "data.image_files"}, f"{name} loads data in a cell"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_a_page_is_one_story(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 400
    assert max(map(len, lines)) < 80
