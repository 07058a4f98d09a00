"""How cells reach their workers: data sets by file, modules by name, and only to the same code."""

from __future__ import annotations

import copyreg
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from repalign._code import code_behind, imported_digest
from repalign._files import atomic, digest
from repalign.study import run

if TYPE_CHECKING:
    from repalign.data import Dataset


class SameCode:
    """``fn`` for a worker, which imports the package itself: it must find the code that the key names."""

    def __init__(self, fn: Callable[..., Any], configs: list[dict[str, Any]]) -> None:
        self._fn, self.__name__ = fn, fn.__name__
        self._roots = code_behind((fn, configs))
        self._mark = self._found()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._found() != self._mark:
            raise RuntimeError(
                "this worker has other code than the page that started it: the package was edited meanwhile "
                "(restart the kernel), or other versions are installed on the worker's machine."
            )
        return self._fn(*args, **kwargs)

    def _found(self) -> tuple[str, dict[str, str]]:
        return imported_digest(self._roots), run.versions()


@contextmanager
def data_by_file(place: Path) -> Iterator[None]:
    """Inside, a data set travels to other processes as the name of a file, which is written once."""
    loading = sys.modules.get("repalign.data.loading")
    if loading is None:  # then there is no data set
        yield
        return

    def send(dataset: Dataset) -> tuple[Callable[[str], Dataset], tuple[str]]:
        # Equal samples may differ in where they came from and where they are.
        about = digest(dataset.source, str(dataset.x.device), str(dataset.y.device))
        path = Path(folder) / f"{dataset.fingerprint}-{about}.pt"
        with once:  # each worker is sent its cells by a thread of its own
            if not path.exists():
                _keep(dataset, path)
        return _opened, (str(path),)

    once = threading.Lock()
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".data-", dir=place, ignore_cleanup_errors=True) as folder:
        copyreg.pickle(loading.Dataset, send)
        try:
            yield
        finally:
            copyreg.dispatch_table.pop(loading.Dataset, None)


def _keep(dataset: Dataset, path: Path) -> None:
    import torch

    parts = {f.name: getattr(dataset, f.name) for f in fields(dataset)}
    parts |= {"x": dataset.x.cpu(), "y": dataset.y.cpu()}
    with atomic(path) as part:
        torch.save((parts, str(dataset.x.device), str(dataset.y.device)), part)


@lru_cache(maxsize=16)
def _opened(path: str) -> Dataset:
    """In a worker: the file is mapped, so that all workers share its memory."""
    import torch

    from repalign.data import Dataset

    parts, *devices = torch.load(path, mmap=True, weights_only=True)
    x, y = (parts[name].to(device) for name, device in zip("xy", devices, strict=True))
    return Dataset(**{**parts, "x": x, "y": y})


def modules_by_name() -> None:
    """Let a cell of a notebook have an attribute ``classes`` or ``ops`` beside torch.

    cloudpickle then takes torch.classes or torch.ops for a part of torch that the cell uses and sends it
    along. Both are objects in the place of a module, which it cannot pickle.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.") and isinstance(module, ModuleType) and type(module) is not ModuleType:
            copyreg.pickle(type(module), _name_of)


def _name_of(module: ModuleType) -> tuple[Callable[[str], ModuleType], tuple[str]]:
    return import_module, (module.__name__,)
