"""One digest of the library's source: what a stored result depends on, beside its function and its settings.

Comments, docstrings and formatting do not count, nor do the parts that only show results: the commands, the
book's machinery and the drawings. Any other edit of the package makes every stored result a miss. That is
simple and right: nobody has to know which definitions a number reached.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import repalign
from repalign._files import digest

_ROOT = Path(repalign.__file__).parent
# What brings a number to its reader and has no part in its value.
BESIDE = ("__init__.py", "__main__.py", "_code/", "cli/", "plots/", "press/", "study/")
# With how many threads and in which precision a cell is computed does have a part in it.
_COMPUTES = "press/cells.py"


def on_disk() -> str:
    """The digest of the package as its files are now: what a new process will import."""
    return of({path.relative_to(_ROOT).as_posix(): path.read_bytes() for path in _ROOT.rglob("*.py")})


@cache
def imported() -> str:
    """The digest of the package as it was when this process imported it: what runs here."""
    return of(repalign._source)


def of(files: Mapping[str, bytes]) -> str:
    """The digest of ``files``, by their paths inside the package.

    >>> of({"linear.py": b"a = 1  # one"}) == of({"linear.py": b"a = 1"}) != of({"linear.py": b"a = 2"})
    True
    """
    counted = sorted(path for path in files if path == _COMPUTES or not path.startswith(BESIDE))
    return digest(*(part for path in counted for part in (path, _bare(files[path]))))


@cache
def _bare(raw: bytes) -> str | bytes:
    """A file's syntax tree as text, without docstrings; a file that does not parse counts as it is."""
    try:
        tree = ast.parse(raw)
    except (SyntaxError, ValueError):  # somebody is in the middle of an edit
        return raw
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            said = first.value if isinstance(first, ast.Expr) else None
            if isinstance(said, ast.Constant) and isinstance(said.value, str):
                node.body = node.body[1:]
    return ast.dump(tree)
