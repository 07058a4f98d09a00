"""The pages of the book: where they are, what they can be set to, and whether everything agrees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from repalign._files import project_root
from repalign.study import criteria


class UserError(Exception):
    """Something the user can fix: shown as one line, without a traceback."""


# Parameters that every page has, and the runner sets.
_RUNNERS = ("profile", "device", "change")


@dataclass(frozen=True)
class Page:
    """A notebook source. ``parameters`` may be set by papermill; ``settings`` are its table's names.

    ``claims`` are its criteria, by claim.
    """

    name: str
    source: Path
    begins: str
    parameters: dict[str, Any]
    settings: tuple[str, ...]
    claims: dict[str, str]

    def changed(self, given: dict[str, Any]) -> dict[str, Any]:
        """What in ``given`` is not as the page has it, besides profile, device and the table's settings."""
        return {k: v for k, v in given.items() if k not in _RUNNERS and v != self.parameters[k]}


def project(start: Path | None = None) -> Path:
    """The root of the book: this directory or one above it, with ``_toc.yml`` and ``notebooks/``."""
    here = start or Path.cwd()
    root = project_root(here)
    if root is None:
        raise UserError(
            f"no book here: {here} and the directories above it have no _toc.yml beside notebooks/."
        )
    return root


def find(root: Path, patterns: list[str] | None = None) -> list[Page]:
    """The pages that match one of ``patterns`` (a part of the name, or a glob); all when none is given."""
    sources = {
        path.relative_to(root / "notebooks").with_suffix("").as_posix(): path
        for path in sorted((root / "notebooks").glob("*/[0-9]*.py"))
    }
    if not sources:
        raise UserError(f"no notebooks in {root / 'notebooks'}: pages are notebooks/<paper>/NN_topic.py.")
    chosen: set[str] = set()
    for pattern in patterns or ["*"]:
        bare = pattern.removeprefix("notebooks/").removesuffix(".py")
        hits = {name for name in sources if bare in name or fnmatch(name, bare)}
        if not hits:
            raise UserError(f"no notebook matches {pattern!r}. There are: {', '.join(sources)}.")
        chosen |= hits
    return [read(name, sources[name]) for name in sources if name in chosen]


def read(name: str, source: Path) -> Page:
    """What can be known of a page without running it."""
    import jupytext

    notebook = jupytext.read(source, fmt="py:percent")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    tagged = [c for c in code if "parameters" in c.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise UserError(f"{name} should have one cell tagged parameters, but has {len(tagged)}.")
    try:
        parameters = _assignments(ast.parse(tagged[0].source))
        trees = [ast.parse(cell.source) for cell in code]
    except SyntaxError as error:
        raise UserError(f"{name} does not parse: {error.msg}, near {str(error.text).strip()!r}.") from None
    shared = _dictionaries(trees)
    calls = [_calls(tree, shared) for tree in trees]
    begins, settings = (tuple(x for c in calls for x in c[i]) for i in range(2))
    try:
        declared = [pair for tree in trees for pair in _declared(tree)]
    except ValueError:
        raise UserError(
            f"{name} should write out id and criterion of each claim as plain text: study.claims(dict(...))."
        ) from None
    claims = dict(declared)
    if len(claims) < len(declared):
        raise UserError(f"{name} declares a claim twice: {', '.join(id for id, _ in declared)}.")
    return Page(name, source, begins[0] if begins else "", parameters, settings, claims)


def _assignments(tree: ast.Module) -> dict[str, Any]:
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def _keys(node: ast.expr, shared: dict[str, list[str]]) -> list[str]:
    """Keys of a dictionary that is written out: dict(n=1, **common), one | another, or a name for those."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _keys(node.left, shared) + _keys(node.right, shared)
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict":
        found = [key for argument in node.args for key in _keys(argument, shared)]
        for k in node.keywords:
            found += [k.arg] if k.arg else _keys(k.value, shared)
        return found
    return shared.get(getattr(node, "id", ""), [])


def _dictionaries(trees: list[ast.Module]) -> dict[str, list[str]]:
    """Keys of the dictionaries that have a name of their own: the columns of a table may share them."""
    shared: dict[str, list[str]] = {}
    for node in (statement for tree in trees for statement in tree.body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            shared[node.targets[0].id] = _keys(node.value, shared)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            shared[node.target.id] = shared.get(node.target.id, []) + _keys(node.value, shared)
    return shared


def _calls(tree: ast.Module, shared: dict[str, list[str]]) -> tuple[list[str], list[str]]:
    """Arguments of study.begin, and names in the table of study.settings."""
    begins: list[str] = []
    settings: list[str] = []
    for node in _methods(tree):
        if node.func.attr == "begin" and node.args and isinstance(node.args[0], ast.Constant):
            begins.append(str(node.args[0].value))
        for inner in node.keywords:
            if node.func.attr == "settings" and inner.arg == "paper":
                settings += list(dict.fromkeys(_keys(inner.value, shared)))
    return begins, settings


def _declared(tree: ast.Module) -> list[tuple[str, str]]:
    """Claims and their criteria, as study.claims has them."""
    found = []
    for node in _methods(tree):
        for entry in node.args if node.func.attr == "claims" else []:
            keywords = entry.keywords if isinstance(entry, ast.Call) else []
            given = {k.arg: ast.literal_eval(k.value) for k in keywords if k.arg in ("id", "criterion")}
            found.append((str(given.get("id", "")), str(given.get("criterion", ""))))
    return found


def _methods(tree: ast.Module) -> Iterator[Any]:
    """Calls of the form something.name(...)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node


def parameters_for(page: Page, profile: str, device: str, change: dict[str, Any]) -> dict[str, Any]:
    """What papermill injects: a name of ``change`` is a parameter of the page, or a setting in its table."""
    given: dict[str, Any] = {"profile": profile, "device": device}
    for name in given:
        if name not in page.parameters:
            raise UserError(f"{page.name} has no parameter {name!r} in its parameters cell.")
    table: dict[str, Any] = {}
    for name, value in change.items():
        if name in page.settings:
            table[name] = value
        elif name in page.parameters and name not in _RUNNERS:
            given[name] = value
        else:
            own = [p for p in page.parameters if p not in _RUNNERS]
            raise UserError(
                f"{page.name} has no parameter {name!r}; it has {', '.join([*own, *page.settings])}."
            )
    return {**given, "change": table}


def disagreements(root: Path) -> list[str]:
    """Where the table of contents, the notebooks, the names in them and the records do not agree."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    listed = _toc_files(toc)
    pages = find(root)
    names = {f"notebooks/{page.name}" for page in pages}
    problems = [f"{name} is not in _toc.yml" for name in sorted(names - set(listed))]
    for entry in listed:
        missing = entry.startswith("notebooks/") and entry not in names
        if missing or not (entry.startswith("notebooks/") or (root / f"{entry}.md").is_file()):
            problems.append(f"_toc.yml lists {entry}, which does not exist")
    owner: dict[str, str] = {}
    for page in pages:
        if page.begins != page.name:
            problems.append(f"{page.name} begins as {page.begins or 'nothing'}: study.begin({page.name!r})")
        if not page.claims:
            problems.append(f"{page.name} declares no claim")
        for claim in page.claims:
            if claim in owner:
                problems.append(f"{claim} is declared on {owner[claim]} and on {page.name}")
            if not claim.startswith(page.name.split("/")[0] + "."):
                problems.append(f"{page.name} declares {claim}, which belongs to another paper")
            owner[claim] = page.name
    recorded = {run.parents[1].relative_to(root / "records") for run in root.glob("records/*/*/*/run.json")}
    for name in sorted({one.as_posix() for one in recorded} - {page.name for page in pages}):
        problems.append(f"records/{name} belongs to no page: record its page again, or delete it")
    return problems


def criteria_of(pages: list[Page]) -> dict[str, str]:
    """Criteria by claim, of all ``pages``."""
    return {id: criterion for page in pages for id, criterion in page.claims.items()}


def check_criteria(root: Path, pages: list[Page]) -> None:
    """Refuse criteria that differ from those in records/criteria.json, before anything runs."""
    try:
        wrong = criteria.differing(root, criteria_of(pages))
    except ValueError as error:
        raise UserError(str(error)) from None
    if wrong:
        raise UserError("; ".join(wrong) + ".")


def _toc_files(node: Any) -> list[str]:
    if isinstance(node, list):
        return [file for entry in node for file in _toc_files(entry)]
    if isinstance(node, dict):
        own = [node[key] for key in ("root", "file") if key in node]
        return own + [f for key in ("parts", "chapters", "sections") for f in _toc_files(node.get(key))]
    return []
