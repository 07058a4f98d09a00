"""The package's own source as syntax trees: which definitions a name reaches, and a fingerprint of them.

A result depends on the code that made it and on no other. Comments, docstrings, formatting, annotations of
functions and definitions that are never reached are not part of a fingerprint.
"""

from __future__ import annotations

import ast
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

import repalign
from repalign import _stamp as stamp
from repalign._code.origin import PACKAGE, distributions, library_version
from repalign._files import digest

_ROOT = Path(repalign.__file__).parent
EFFECTS, ALL = "", "*"  # in the place of a definition's name: what a module does on import, all that it has
# Decorators that act on nothing but the function below them; any other may register it somewhere.
_HARMLESS = {
    *("abstractmethod", "cache", "cached_property", "classmethod", "contextmanager", "dataclass", "final"),
    *("inference_mode", "lru_cache", "no_grad", "numpy_too", "overload", "property", "staticmethod"),
    *("total_ordering", "wraps"),
}
# What makes keys has no part in what is kept under them: training reaches it by way of checkpoints, and a
# better walk through values would forget every trained network. Where it makes another key, that is enough.
_MAKES_KEYS = ("repalign._code",)
# Calls that do something besides giving an answer; torch's end with an underscore.
_CHANGES = {
    *("acquire", "add", "append", "clear", "discard", "extend", "insert", "next", "pop", "popitem", "read"),
    *("readline", "release", "remove", "send", "setattr", "setdefault", "sort", "update", "write"),
}
_Node = tuple[str, str]  # a module and a definition in it
_Alias = tuple[str, str]  # a module and the name taken from it, "" for the module itself


@dataclass
class Module:
    """A parsed file: what each top-level name is made by, where imported names come from, what acts."""

    name: str
    home: str  # what relative imports count from
    made: dict[str, list[ast.stmt]] = field(default_factory=dict)
    aliases: dict[str, _Alias] = field(default_factory=dict)
    effects: list[ast.stmt] = field(default_factory=list)


@dataclass
class _Seen:
    """What was found in a definition."""

    text: list[str] = field(default_factory=list)
    reached: set[_Node] = field(default_factory=set)
    outside: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)  # in quotes


class Sources:
    """The files of the package at one moment, parsed when they are needed."""

    def __init__(self, files: Mapping[str, bytes], *, refusals: bool = True) -> None:
        """``files`` by path inside the package, such as ``data/sets.py``.

        Without ``refusals`` what only stops or warns does not count: see :func:`without_refusals`.
        """
        self._refusals = refusals
        folders = {f"{folder.as_posix()}/__init__.py": b"" for path in files for folder in Path(path).parents}
        # A folder without an __init__ is a package too, an empty one.
        self.files = {_module_name(path): raw for path, raw in {**folders, **files}.items()}
        self._packages = {_module_name(path) for path in files if path.endswith("__init__.py")}
        self._parsed: dict[str, Module] = {}
        self._seen: dict[_Node, _Seen] = {}

    def digest(
        self,
        roots: Iterable[str],
        *,
        libraries: bool = True,
        beside: tuple[str, ...] = (),
        named: Iterable[str] | None = None,
    ) -> str:
        """Fingerprint of all that ``roots`` reach, with the versions of the ``libraries`` that it uses.

        A root is a definition ("repalign.alignment:spectrum"), a whole module ("repalign.alignment"), or
        what a module does on import ("repalign.alignment:"). Modules ``beside``, and those below them, are
        left out. With ``named``, strings that the user of the roots has in quotes, a table such as
        ``models.NAMES`` counts only by the rows whose keys are among these or are quoted in the code reached;
        by all of them where there is none. A key that is put together at run time is not seen.
        """
        left_out = tuple(f"{name}." for name in beside)
        found: dict[_Node, _Seen] = {}
        wanted, quoted = {self._node(root) for root in roots}, set(named or ())
        tables: dict[_Node, dict[str, _Seen]] = {}
        while True:
            while wanted:
                node = wanted.pop()
                if node in found or node in tables or f"{node[0]}.".startswith(left_out):
                    continue
                rows = self._rows(node) if named is not None else {}
                if rows:
                    tables[node] = rows
                else:
                    found[node] = self._look(node)
                    wanted |= found[node].reached
                    quoted |= found[node].strings
            for (module, name), rows in tables.items():
                used = quoted & rows.keys() or rows.keys()
                added = {(module, f"{name}[{key}]"): rows[key] for key in used}
                new = {node: seen for node, seen in added.items() if node not in found}
                found |= new
                for seen in new.values():
                    wanted |= seen.reached
                    quoted |= seen.strings
            if not wanted:
                break
        listed = [text for node in sorted(found) if found[node].text for text in (*node, *found[node].text)]
        outside = set[str]().union(*(seen.outside for seen in found.values())) if libraries else set()
        return digest(*listed, *(f"{name}={library_version(name)}" for name in sorted(outside)))

    def page(self, source: str) -> list[str]:
        """What a script or page uses of the package, as roots."""
        script = _parse("", False, bare(ast.parse(source)))
        statements = {id(s): s for made in [*script.made.values(), script.effects] for s in made}
        seen = _Seen(reached=self._runs(script.aliases))
        for statement in statements.values():
            self._names(statement, script, seen)
        return sorted(m if name == ALL else f"{m}:{name}" for m, name in seen.reached if m)

    def _node(self, root: str) -> _Node:
        module, colon, name = root.partition(":")
        found = self._find(module, [name.partition(".")[0]] if name else [])
        return (module, EFFECTS) if colon and not name else found

    def _runs(self, aliases: Mapping[str, _Alias]) -> set[_Node]:
        """Imports run modules, also when nothing of them is used."""
        named = {name for target, taken in aliases.values() for name in (target, f"{target}.{taken}")}
        return {(name, EFFECTS) for name in named if name in self.files}

    def _module(self, name: str) -> Module:
        if name not in self._parsed:
            tree = bare(ast.parse(self.files[name]))
            tree = tree if self._refusals else without_refusals(tree)
            self._parsed[name] = _parse(name, name in self._packages, tree)
        return self._parsed[name]

    def _look(self, node: _Node) -> _Seen:
        """A node as text, the nodes that it reaches, and the libraries that it uses."""
        if node not in self._seen:
            module, name = self._module(node[0]), node[1]
            seen = _Seen(reached={(module.name, EFFECTS)})
            if "." in module.name:
                seen.reached.add((module.name.rpartition(".")[0], EFFECTS))
            if name == EFFECTS:
                seen.reached |= self._runs(module.aliases)
            elif name == ALL:
                seen.reached |= {(module.name, made) for made in (*module.made, *module.aliases)}
            elif name in module.aliases:
                self._follow(module.aliases[name], [], seen)
            for statement in module.effects if name == EFFECTS else module.made.get(name, []):
                seen.text.append(ast.dump(statement))
                self._names(statement, module, seen)
            self._seen[node] = seen
        return self._seen[node]

    def _rows(self, node: _Node) -> dict[str, _Seen]:
        """The rows of a table, a module's one dict with strings as keys; none for anything else."""
        made = self._module(node[0]).made.get(node[1], [])
        table = made[0].value if len(made) == 1 and isinstance(made[0], (ast.Assign, ast.AnnAssign)) else None
        if not isinstance(table, ast.Dict) or not table.keys:
            return {}
        keys = [
            key.value for key in table.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ]
        if len(keys) < len(table.keys):
            return {}
        rows = {}
        for key, value in zip(keys, table.values, strict=True):
            # With the module's own effects and the name: what a definition has that is not a table.
            seen = _Seen(text=[ast.dump(value)], reached={(node[0], EFFECTS)})
            self._names(ast.Expr(value), self._module(node[0]), seen)
            rows[key] = seen
        return rows

    def _names(self, statement: ast.stmt, module: Module, seen: _Seen) -> None:
        """Add what the names in ``statement`` mean to ``seen``."""
        local: dict[str, _Alias] = {}
        seen.strings.update(strings(statement))
        for part in ast.walk(statement):
            if isinstance(part, (ast.Import, ast.ImportFrom)):
                local.update(_aliases(part, module.home))
        seen.reached |= self._runs(local)
        known = {**module.aliases, **local}
        for root, *rest in sorted({tuple(path) for path in _dotted(statement)}):
            if root in known:
                seen.text.append(root)
                self._follow(known[root], rest, seen)
            elif root in module.made:
                seen.reached.add((module.name, root))
            elif root in ("globals", "eval", "exec"):
                seen.reached.add((module.name, ALL))
        if any(target.startswith("importlib") for target, _ in known.values()):
            # A library may be imported by its name in quotes.
            seen.outside |= {name for name in strings(statement) if name in distributions()}

    def _follow(self, alias: _Alias, rest: list[str], seen: _Seen) -> None:
        """Add what an imported name, with the attributes behind it, stands for."""
        target, taken = alias
        if target in self.files:
            found = self._find(target, [taken, *rest] if taken else rest)
            seen.reached.add(found)
            seen.text.extend(found)
        else:
            seen.outside.add(target.partition(".")[0])
            seen.text.extend(alias)

    def _find(self, module: str, path: list[str]) -> _Node:
        """The definition at ``path`` from ``module``: ``repalign``, ``["kernels", "cka"]``."""
        if module not in self.files:
            raise ValueError(f"{PACKAGE} has no module {module.removeprefix(PACKAGE + '.')}.")
        for name in path:
            here = self._module(module)
            if name in here.made or name in here.aliases:
                return module, name
            if name in ("__file__", "__name__", "__path__"):
                return module, EFFECTS
            if f"{module}.{name}" not in self.files:
                break  # made at run time, or not there at all: all of the module counts
            module = f"{module}.{name}"
        return module, ALL


def _module_name(path: str) -> str:
    parts = [PACKAGE, *Path(path).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _parse(name: str, package: bool, tree: ast.Module) -> Module:
    module = Module(name, home=name + ".__init__" if package else name)
    for statement in tree.body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING"):
            continue
        for part in _outside_functions(statement):
            if isinstance(part, (ast.Import, ast.ImportFrom)):
                module.aliases.update(_aliases(part, module.home))
            elif isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                module.made.setdefault(part.name, []).append(statement)
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                module.made.setdefault(part.id, []).append(statement)
        if _acts(statement):
            module.effects.append(statement)
    return module


def bare(tree: ast.Module) -> ast.Module:
    """``tree`` without docstrings and without annotations of functions."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    return tree


def without_refusals(tree: ast.Module) -> ast.Module:
    """``tree`` without the checks that only refuse or warn, and without the words of errors.

    A number that came out was not refused, so another check, or a better word, would not have changed it.
    A check counts when asking it may change something, as ``next(rows)`` does, and when its error may be
    caught: inside ``try``, and all but ValueError and TypeError, which nothing that computes waits for.
    """
    found: ast.Module = _Unrefused().visit(tree)
    return found


class _Unrefused(ast.NodeTransformer):
    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Try):
            for part in (*node.handlers, *node.orelse, *node.finalbody):
                self.visit(part)
            return node
        super().generic_visit(node)
        if isinstance(getattr(node, "body", None), list) and not node.body:  # type: ignore[attr-defined]
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
        return node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if _refuses(node) else self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if _warns(node) else node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            node.exc = node.exc.func
        return node


def _refuses(check: ast.If) -> bool:
    """Does an ``if`` do no more than to refuse or to warn?"""
    if check.orelse or not _only_looks(check.test):
        return False
    *before, last = check.body
    if isinstance(last, ast.Raise) and last.exc is not None:
        error = last.exc.func if isinstance(last.exc, ast.Call) else last.exc
        # What is named on the way is for the error's words: nothing comes after it.
        names = [t for s in before if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)]
        return len(names) == len(before) and ast.unparse(error) in ("ValueError", "TypeError")
    return _warns(last) and not before


def _warns(statement: ast.stmt) -> bool:
    called = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(called, ast.Call) and ast.unparse(called.func) == "warnings.warn"


def _only_looks(test: ast.expr) -> bool:
    """No name is given in it, and nothing is called that is known to change something."""
    for part in ast.walk(test):
        if isinstance(part, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
            return False
        if isinstance(part, ast.Call):
            called = ast.unparse(part.func).rpartition(".")[2]
            if called in _CHANGES or (called.endswith("_") and not called.endswith("__")):
                return False
    return True


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """``node`` and what is in it, but for the inside of functions and classes: the names of a module."""
    yield node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        for child in ast.iter_child_nodes(node):
            yield from _outside_functions(child)


def _acts(statement: ast.stmt) -> bool:
    """Does it do more than give something a name?"""
    if isinstance(statement, (ast.Import, ast.ImportFrom, ast.Pass)):
        return False
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        last = [ast.unparse(d).partition("(")[0].rpartition(".")[2] for d in statement.decorator_list]
        return not _HARMLESS.issuperset(last)
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return not all(isinstance(target, (ast.Name, ast.Tuple)) for target in targets)
    return True


def _aliases(node: ast.Import | ast.ImportFrom, home: str) -> dict[str, _Alias]:
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name.partition(".")[0]: (
                alias.name if alias.asname else alias.name.partition(".")[0],
                "",
            )
            for alias in node.names
        }
    above = home.rsplit(".", node.level)[0] if node.level else ""
    target = ".".join(part for part in (above, node.module or "") if part)
    return {alias.asname or alias.name: (target, alias.name) for alias in node.names}


def _dotted(node: ast.AST) -> Iterator[list[str]]:
    """Every name in ``node`` with the attributes behind it: ``a.b.c`` is [a, b, c]."""
    path: list[str] = []
    inner = node
    while isinstance(inner, ast.Attribute):
        path.insert(0, inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        yield [inner.id, *path]
        return
    for child in ast.iter_child_nodes(inner):
        yield from _dotted(child)


def strings(node: ast.AST) -> Iterator[str]:
    """What is in quotes in ``node``."""
    return (n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def on_disk(*, refusals: bool = True) -> Sources:
    """The package as its files are now: what a new process will import."""
    return _read(tuple(sorted((path, *stamp(path)) for path in _ROOT.rglob("*.py"))), refusals)


@lru_cache(maxsize=2)
def _read(files: tuple[tuple[Path, int, int], ...], refusals: bool) -> Sources:
    found = {path.relative_to(_ROOT).as_posix(): path.read_bytes() for path, *_ in files}
    return Sources(found, refusals=refusals)


@cache
def imported() -> Sources:
    """The package as it was when it was imported: what runs here."""
    return Sources({path: raw for path, (raw, _) in repalign._source.items()})


def package_digest(roots: Iterable[str]) -> str:
    """Fingerprint of the code behind ``roots`` as it runs here.

    When their files have changed since they were imported nobody can tell which of both is running (a
    module may have been loaded before or after): then every answer is another one, so that nothing is
    taken from the store, and nothing that is put there is ever found again.
    """
    roots = frozenset(roots)
    found = imported_digest(roots)
    if _touched():
        try:
            same = on_disk().digest(roots, beside=_MAKES_KEYS) == found
        except (OSError, ValueError, SyntaxError):  # somebody is in the middle of an edit
            same = False
        if not same:
            warnings.warn(
                "the package has changed on disk since it was imported: results are computed again and not "
                "kept. Restart the kernel to go on with the new code.",
                stacklevel=2,
            )
            return uuid.uuid4().hex
    return found


@cache
def imported_digest(roots: frozenset[str]) -> str:
    """Fingerprint of the code behind ``roots`` as it was when this process imported the package."""
    return imported().digest(roots, beside=_MAKES_KEYS)


def _touched() -> bool:
    """Has any file of the package another size or time than at import?"""
    try:
        return any(stamp(_ROOT / path) != was for path, (_, was) in repalign._source.items())
    except OSError:
        return True
