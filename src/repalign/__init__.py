"""How a network's representations align with its task: measures, data and runs of five papers.

>>> import torch, repalign
>>> phi = torch.tensor([[1.0, 0.0], [0.0, 0.5]])
>>> repalign.alignment.alignment(phi, torch.tensor([3.0, 4.0]), tau=0.8)
tensor(9.)
"""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

__version__ = "0.1.0"

_public = sorted(m.name for m in iter_modules(__path__) if not m.name.startswith("_"))


# The source as it is now, before any other module runs: a stored result is kept under the code that made it,
# also when somebody edits the files meanwhile.
_root = Path(__file__).parent
_source = {path.relative_to(_root).as_posix(): path.read_bytes() for path in _root.rglob("*.py")}


def __getattr__(name: str) -> ModuleType:
    """Import a submodule when it is first asked for, so that ``import repalign`` stays light."""
    if name in _public:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'repalign' has no attribute {name!r}; it has {', '.join(_public)}")


def __dir__() -> list[str]:
    return ["__version__", *_public]
