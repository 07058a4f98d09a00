"""Named tuples in files: by the name of their class, found again without running what a file says."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

_OF_TORCH = ("torch", "torch.return_types")


def name_of(value: tuple[Any, ...]) -> tuple[str, str, list[str]]:
    """Module, name and fields of a NamedTuple's class, or of torch's named results."""
    cls = type(value)
    if cls.__module__ in _OF_TORCH:
        return cls.__module__, cls.__name__, []
    if not hasattr(cls, "_fields"):
        raise TypeError(f"a stored result holds tuples and NamedTuples, not {cls.__name__}: return a tuple.")
    # A notebook's classes travel to a worker by value: there __main__ is another module.
    found = _find(cls.__module__, cls.__qualname__)
    if found is not cls and (cls.__module__ != "__main__" or "." in cls.__qualname__):
        raise TypeError(
            f"the NamedTuple {cls.__qualname__} cannot be found again by its name in {cls.__module__}: "
            "define it at the top of a page or module, or return a tuple."
        )
    return cls.__module__, cls.__qualname__, list(cls._fields)


def make(module: str, name: str, fields: list[str], items: list[Any]) -> Any:
    """The named tuple again. Only modules that are loaded, or the package's own, are asked for its class."""
    if module.startswith("repalign.") and not module.endswith("__main__"):  # that one runs the command
        try:
            import_module(module)
        except ImportError as error:
            raise ValueError(f"there is no module {module} now") from error
    cls = _find(module, name)
    if not isinstance(cls, type) or not issubclass(cls, tuple):
        raise ValueError(f"there is no NamedTuple {name} in {module} now; is what defines it imported?")
    if module in _OF_TORCH:
        return cls(items)
    if list(getattr(cls, "_fields", [])) != fields:
        raise ValueError(f"the NamedTuple {name} has other fields now")
    return cls._make(items)  # type: ignore[attr-defined]


def _find(module: str, name: str) -> Any:
    """What a loaded module has under a name, also inside its classes; nothing is computed on the way."""
    found: Any = sys.modules.get(module)
    first, *inner = name.split(".")
    found = None if found is None else vars(found).get(first)
    for part in inner:
        found = vars(found).get(part) if isinstance(found, type) else None
    return found
