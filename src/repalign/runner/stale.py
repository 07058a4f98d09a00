"""Would a page still give what its record says? Not if code, settings or a criterion has changed since.

What only draws, tells or refuses does not count: prose, captions, cells that call ``study.show``, the
columns of other profiles, the package's checks of its input, and its parts that no number depends on.
"""

from __future__ import annotations

import ast
import copy
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repalign._code import bare, on_disk, strings
from repalign._files import digest
from repalign.runner.pages import Page
from repalign.runner.records import Kept, newest
from repalign.study import effects
from repalign.study.settings import PROFILES

# What brings a number to the reader, or the data to the page, without a part in its value: the record has the
# data's own fingerprints, so the table of sets may grow. The answers of effects are in study, and count.
_BESIDE = tuple(
    f"repalign.{name}"
    for name in (
        *("study", "plots", "runner", "machine", "_files", "_named", "_code"),
        *("data.acquire", "data.sets", "data.row"),
    )
)


def made_by(source: str, profile: str) -> dict[str, str]:
    """Fingerprints of what the numbers of a page at ``profile`` depend on, for its run.json."""
    trees, settings = _that_counts(source, profile)
    statements = [statement for tree in trees for statement in tree.body]
    package = on_disk(refusals=False)
    roots = package.page("\n".join(ast.unparse(_unshadowed(statement)) for statement in statements))
    # Of a table of networks or recipes, the rows that the page names: others may be added and changed.
    named = {text for tree in (*statements, ast.parse("\n".join(settings))) for text in strings(tree)}
    used = package.digest(roots, libraries=False, beside=_BESIDE, named=named)
    answers = package.digest(_effects(roots), libraries=False)
    # What the page takes from the package counts by what it is, not by the line that imports it.
    own = [s for s in statements if not (isinstance(s, ast.ImportFrom) and _of_package(s))]
    code = digest(*map(ast.unparse, own), used, answers)
    return {"code": code, "settings": digest(*settings), "python": _python()}


def reasons(page: Page, record: Kept) -> list[str]:
    """What has changed since ``record`` was made: code, settings, criteria; nothing when it is fresh.

    A fingerprint of code belongs to a version of Python. Under another one the code is not compared.
    """
    then: Mapping[str, Any] = record.run.get("made_by", {})
    now = made_by(page.source.read_text(encoding="utf-8"), record.run["profile"])
    asked = ["code", "settings"] if then.get("python", now["python"]) == now["python"] else ["settings"]
    changed = [what for what in asked if then.get(what) != now[what]]
    if {id: claim["criterion"] for id, claim in record.claims.items()} != page.claims:
        changed.append("criteria")
    return changed


def stale(root: Path, pages: list[Page]) -> dict[str, list[str]]:
    """The pages whose newest record is stale, with what has changed."""
    found = {page.name: reasons(page, record) for page in pages if (record := newest(root, page.name))}
    return {name: changed for name, changed in found.items() if changed}


def _unshadowed(statement: ast.stmt) -> ast.stmt:
    """A copy with the parameters of functions unnamed inside them: ``data`` may be a module outside alone."""
    statement = copy.deepcopy(statement)
    for node in ast.walk(statement):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            known = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
            body = node.body if isinstance(node.body, list) else [node.body]
            for part in (inner for line in body for inner in ast.walk(line)):
                if isinstance(part, ast.Name) and part.id in known:
                    part.id = "_"
    return statement


def _that_counts(source: str, profile: str) -> tuple[list[ast.Module], list[str]]:
    """The code cells that a number may depend on, and the settings at ``profile`` as text."""
    import jupytext

    notebook = jupytext.reads(source, fmt="py:percent")
    settings: list[str] = []
    counting: list[ast.Module] = []
    drawing: list[ast.Module] = []
    for cell in notebook.cells:
        if cell.cell_type != "code" or "parameters" in cell.metadata.get("tags", []):
            continue
        tree = bare(ast.parse(cell.source))
        called = {_name(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node) == "claims":
                node.args = []  # criteria are compared as they stand, and the rest is told
            if isinstance(node, ast.Call) and _name(node) == "settings":
                settings += [ast.unparse(k.value) for k in node.keywords if k.arg == profile]
                node.keywords = [k for k in node.keywords if k.arg not in PROFILES]
        (drawing if "show" in called and "claim" not in called else counting).append(tree)
    # A drawing counts after all when a cell that counts needs a name that is made in it.
    while needed := [tree for tree in drawing if _makes(tree) & set().union(*map(_needs, counting))]:
        counting += needed
        drawing = [tree for tree in drawing if tree not in needed]
    return counting, settings


def _effects(roots: list[str]) -> list[str]:
    """What the page uses to give answers, of all that :mod:`repalign.study.effects` has."""
    taken = [root.partition(":")[2] for root in roots if root.startswith("repalign.study:")]
    own = [name for name in taken if getattr(vars(effects).get(name), "__module__", "") == effects.__name__]
    return [f"{effects.__name__}:{name}" for name in ("verdict", *own)]


def _of_package(imported: ast.ImportFrom) -> bool:
    return (imported.module or "").split(".")[0] == "repalign"


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _makes(tree: ast.Module) -> set[str]:
    """Names that a cell gives to something."""
    made = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return made | {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}


def _needs(tree: ast.Module) -> set[str]:
    """Names that a cell uses and does not make."""
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return used - _makes(tree)


def _python() -> str:
    return ".".join(platform.python_version_tuple()[:2])
