"""Keep what was expensive to compute, under a key that names everything it depends on."""

from __future__ import annotations

import inspect
import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

import numpy as np

from repalign._files import atomic, cache_root, digest, package_digest

R = TypeVar("R")


def cached(fn: Callable[..., R], config: dict[str, Any], *, data: Any = None) -> R:
    """``fn(**config)``, or what it returned last time.

    The key is made of the source of ``fn`` and of the functions beside it that it calls, ``config``,
    the fingerprint of ``data`` (a data set, or several) and the source of the package's modules that
    they use: change one and it runs again. When ``data`` is given it is passed on as
    ``fn(data, **config)``. Results are numbers, strings, arrays, tensors, and tuples, lists and dicts of
    them.
    """
    mark = key(fn, config, data)
    path = _path(fn, mark)
    try:
        return _read(path, mark)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        warnings.warn(
            f"the stored result {path.name} is unreadable ({error}): computing it again", stacklevel=2
        )
    result = fn(**config) if data is None else fn(data, **config)
    write(fn, mark, result)
    return result


def key(fn: Callable[..., Any], config: dict[str, Any], data: Any = None) -> str:
    """Everything that the result depends on, as a short fingerprint."""
    seen: dict[str, str] = {}
    modules: set[str] = set()
    _collect(fn, seen, modules)
    for part in data if isinstance(data, (list, tuple)) else [data]:
        _note(type(part).__module__, modules)
    package = package_digest(*sorted(modules)) if modules else ""
    return digest(json.dumps(seen, sort_keys=True), _canonical(config), _fingerprint(data), package)


def _note(module: str, modules: set[str]) -> None:
    """Add the part of the package that ``module`` belongs to; the package itself is all of it, ``""``."""
    package, _, rest = module.partition(".")
    if package == "repalign":
        modules.add(rest.split(".")[0])


def has(fn: Callable[..., Any], key: str) -> bool:
    """Is there a result under this key?"""
    return _path(fn, key).is_file()


def _path(fn: Callable[..., Any], key: str) -> Path:
    return directory() / f"{fn.__name__}-{key}.npz"


def directory() -> Path:
    """Where results are kept: a part of the cache directory."""
    return cache_root() / "store"


def _collect(fn: Callable[..., Any], seen: dict[str, str], modules: set[str]) -> None:
    """By name, the source of ``fn`` and of what it uses from the notebook or module it stands in.

    ``modules`` gets the parts of the package that they use.
    """
    if not isinstance(fn, FunctionType):
        raise TypeError(
            f"only plain functions can be cached, but got {type(fn).__name__}: define one with def."
        )
    if fn.__closure__:
        names = ", ".join(fn.__code__.co_freevars)
        raise ValueError(f"{fn.__name__} uses {names} from the function around it: pass them through config.")
    try:
        seen[fn.__qualname__] = inspect.getsource(fn)
    except OSError as error:
        raise ValueError(
            f"the source of {fn.__name__} cannot be read: define it in a file or a cell."
        ) from error
    _note(fn.__module__, modules)
    for name in sorted(_names(fn.__code__)):
        if name not in fn.__globals__:
            _note(name, modules)  # imported inside the function
        value = fn.__globals__.get(name)
        if isinstance(value, ModuleType):
            _note(value.__name__, modules)
        elif callable(value):
            _note(getattr(value, "__module__", None) or "", modules)
        if isinstance(value, FunctionType) and value.__module__ == fn.__module__:
            if value.__qualname__ not in seen:
                _collect(value, seen, modules)
        elif isinstance(value, (bool, int, float, str, bytes, tuple, list, dict, set, type(None))):
            if name in fn.__globals__:
                seen[f"global {name}"] = repr(value)
        elif isinstance(value, type) and value.__module__ == fn.__module__:
            seen[f"class {name}"] = inspect.getsource(value)
        elif (
            value is not None
            and not isinstance(value, (ModuleType, FunctionType, type))
            and not callable(value)
        ):
            raise ValueError(
                f"{fn.__name__} uses the global {name} ({type(value).__name__}), whose value is not part of "
                "the key: pass it through config or data."
            )


def _names(code: CodeType) -> set[str]:
    """Global names that ``code`` mentions, also inside the functions and comprehensions in it."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*(_names(const) for const in inner))


def _canonical(config: dict[str, Any]) -> str:
    try:
        return json.dumps(config, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"a configuration is made of numbers, strings, lists and dicts: {error}.") from None


def _fingerprint(data: Any) -> str:
    if data is None:
        return ""
    if isinstance(data, (list, tuple)):
        return " ".join(_fingerprint(part) for part in data)
    if not isinstance(getattr(data, "fingerprint", None), str):
        raise TypeError(f"data should have a fingerprint, as data.load gives, but is {type(data).__name__}.")
    return str(data.fingerprint)


# A result is one .npz without pickles: "tree" is JSON in which an array is its position in the file.


def write(fn: Callable[..., Any], key: str, result: Any) -> None:
    """Keep ``result`` under ``key``."""
    arrays: list[np.ndarray] = []
    tree = {"key": key, "value": _pack(result, arrays)}
    text = np.frombuffer(json.dumps(tree).encode(), dtype=np.uint8)
    with atomic(_path(fn, key)) as part, part.open("wb") as file:
        np.savez(file, tree=text, **{f"a{i}": a for i, a in enumerate(arrays)})  # type: ignore[arg-type]


def _read(path: Path, key: str) -> Any:
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        tree = json.loads(file["tree"].tobytes())
        if not isinstance(tree, dict) or tree["key"] != key:
            raise ValueError("it belongs to another key")
        return _unpack(tree["value"], file)


def _pack(value: Any, arrays: list[np.ndarray]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return {"list" if isinstance(value, list) else "tuple": [_pack(v, arrays) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[_pack(k, arrays), _pack(v, arrays)] for k, v in value.items()]}
    is_tensor = type(value).__module__.startswith("torch")
    array = value.detach().cpu().numpy() if is_tensor else np.asarray(value)
    if array.dtype == object:
        raise TypeError(
            f"a stored result is made of numbers, strings and arrays, not {type(value).__name__}."
        )
    arrays.append(array)
    return {"tensor" if is_tensor else "array": len(arrays) - 1}


def _unpack(tree: Any, file: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind in ("list", "tuple"):
        items = [_unpack(v, file) for v in value]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {_unpack(k, file): _unpack(v, file) for k, v in value}
    array = file[f"a{value}"]
    if kind == "array":
        return array
    import torch

    return torch.from_numpy(array)
