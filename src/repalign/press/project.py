"""The book's pages: where they are, and whether the table of contents, the pages and the claims agree."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from repalign._files import project_root
from repalign.press import claims


class UserError(Exception):
    """Something the user can fix: shown as one line, without a traceback."""


@dataclass(frozen=True)
class Source:
    """The source of a page: ``name`` is "paper/NN_topic"."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        """What the file says; a byte order mark is none of its business."""
        try:
            return self.path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(f"{self.name} is not UTF-8 text ({error}): save it as UTF-8.") from None

    @property
    def paper(self) -> str:
        return self.name.partition("/")[0]

    @property
    def title(self) -> str:
        """The title that the page gives itself."""
        found = re.search(r"(?m)^# # (.+)$", self.text)
        return found[1] if found else self.name

    @property
    def first_edition(self) -> bool:
        """Is it a page of the first edition, which calls ``study``?"""
        return "study.begin(" in self.text


def project(start: Path | None = None) -> Path:
    """The root of the book: this directory or one above it, with ``_toc.yml`` and ``notebooks/``."""
    here = start or Path.cwd()
    root = project_root(here)
    if root is None:
        raise UserError(
            f"no book here: {here} and the directories above it have no _toc.yml beside notebooks/."
        )
    return root


def find(root: Path, patterns: list[str] | None = None) -> list[Source]:
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
    return [Source(name, sources[name]) for name in sources if name in chosen]


def papers(pages: list[Source]) -> list[str]:
    """The papers of ``pages``, in their order."""
    return list(dict.fromkeys(page.paper for page in pages))


def contents(root: Path) -> list[str]:
    """The files of the table of contents, in reading order."""
    return _files(read_yaml(root / "_toc.yml"))


def read_yaml(path: Path) -> Any:
    """The content of a YAML file of the book; a mistake in it is one line that names its place."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path.name} cannot be read: {' '.join(str(error).split())}.") from None


def disagreements(root: Path) -> list[str]:
    """Where the table of contents, the notebooks and the rows of claims.toml do not agree."""
    listed = contents(root)
    pages = find(root)
    names = {f"notebooks/{page.name}" for page in pages}
    found = [f"{name} is not in _toc.yml" for name in sorted(names - set(listed))]
    for entry in listed:
        if entry not in names and not (root / f"{entry}.md").is_file():
            found.append(f"_toc.yml lists {entry}, which does not exist")
    for paper in papers(pages):
        try:
            rows = claims.read(root, paper)
        except claims.ClaimError as error:
            found.append(str(error))
            continue
        topics = {page.name.partition("/")[2] for page in pages if page.paper == paper}
        for claim in rows.values():
            if claim.page not in topics:
                found.append(f"{claim.id} is for the page {paper}/{claim.page}, which does not exist")
        for topic in sorted(topics - {claim.page for claim in rows.values()}):
            found.append(f"{paper}/{topic} has no claim in notebooks/{paper}/claims.toml")
    recorded = {place.parent for place in (root / "records").glob("*/*/run.json")}
    recorded |= {place.parents[1] for place in (root / "records").glob("*/*/*/run.json")}
    for place in sorted(recorded):
        name = place.relative_to(root / "records").as_posix()
        if f"notebooks/{name}" not in names:
            found.append(f"records/{name} belongs to no page: record its page again, or delete it")
    return found


def _files(node: Any) -> list[str]:
    if isinstance(node, list):
        return [file for entry in node for file in _files(entry)]
    if isinstance(node, dict):
        own = [node[key] for key in ("root", "file") if key in node]
        return own + [f for key in ("parts", "chapters", "sections") for f in _files(node.get(key))]
    return []
