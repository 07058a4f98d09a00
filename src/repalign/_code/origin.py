"""Where code comes from: this package, an installed library, or files that may change from day to day."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

PACKAGE = "repalign"


def in_package(module: str) -> bool:
    """Is it a module of this package?"""
    return module == PACKAGE or module.startswith(PACKAGE + ".")


def is_named(value: Any) -> bool:
    """Is ``value`` what its module has under its name?"""
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


@cache
def is_library(module: str) -> bool:
    """Is it installed, so that a version tells all? Files anywhere else may change from day to day."""
    top = module.partition(".")[0]
    if top in ("__main__", "__mp_main__"):  # a notebook or script, whatever started it
        return False
    loaded = sys.modules.get(top)
    try:
        spec = getattr(loaded, "__spec__", None) or importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    places = [getattr(spec, "origin", None), *(getattr(spec, "submodule_search_locations", None) or ())]
    files = [Path(place) for place in places if place not in (None, "built-in", "frozen")]
    if not files:
        return top in sys.stdlib_module_names
    if any(not {"site-packages", "dist-packages"}.isdisjoint(file.parts) for file in files):
        return True
    return any(file.is_relative_to(sysconfig.get_path("stdlib")) for file in files)


@cache
def distributions() -> Mapping[str, list[str]]:
    """What is installed under each name to import."""
    return packages_distributions()


@cache
def library_version(name: str) -> str:
    """The version of the installed library that is imported as ``name``."""
    if name in sys.stdlib_module_names:
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        return version(name)
    except PackageNotFoundError:
        return (
            " ".join(f"{d} {version(d)}" for d in sorted(set(distributions().get(name, []))))
            or "not installed"
        )
