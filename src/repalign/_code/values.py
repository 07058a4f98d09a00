"""Fingerprints of values: equal in every process for equal values and code, different for different ones."""

from __future__ import annotations

import builtins
import copyreg
import dis
import functools
import hashlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

from repalign._code import source
from repalign._code.origin import in_package, is_library, is_named, library_version

_DESCRIPTORS = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
)
# What Python writes into every class by itself, and texts for people.
_NOT_OF_A_CLASS = {
    *("__abstractmethods__", "__annotations__", "__dataclass_fields__", "__dataclass_params__", "__dict__"),
    *("__doc__", "__firstlineno__", "__module__", "__orig_bases__", "__parameters__", "__qualname__"),
    *("__slotnames__", "__static_attributes__", "__weakref__", "_abc_impl"),
}
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_SILENT = {"CACHE", "EXTENDED_ARG", "NOP"}


def fingerprint(value: Any, what: str = "this value") -> str:
    """A hash of ``value``: of its content, and of the code where it is or holds code.

    Numbers, strings, containers, arrays and tensors (type, shape and bytes); functions, methods, partials
    and classes (what runs, with defaults, closures, and the globals that it uses, not comments and
    docstrings; what belongs to this package counts by its name and one digest of the library's source);
    anything with a ``fingerprint`` of its own, such as a data set; any other object by what pickle would keep
    of it. What cannot be told apart in this way is refused, with an error that calls the
    value ``what``.
    """
    work = _Hash()
    work.add(value, what)
    return work.hexdigest()


class _Hash:
    """One walk through a value. Objects that may refer to each other are numbered as they are met."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._met: dict[int, tuple[int, Any]] = {}  # the object too, so that its id stays its own
        self._inside: list[int] = []  # containers that are being walked through
        self._where: list[str] = []
        self._uses_package = False

    def hexdigest(self) -> str:
        if self._uses_package:
            self._put("package", source.imported())
        return self._hash.hexdigest()[:32]

    def _put(self, *parts: str | bytes | memoryview) -> None:
        for part in parts:
            raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            self._hash.update(f"{len(raw)}:".encode())
            self._hash.update(raw)

    def _again(self, value: Any) -> bool:
        """Note a mention of an object met before; number a new one."""
        if id(value) in self._met:
            self._put("met", str(self._met[id(value)][0]))
            return True
        self._met[id(value)] = len(self._met), value
        return False

    def add(self, value: Any, where: str) -> None:
        """Take ``value`` in; ``where`` says for an error what it is."""
        self._where.append(where)
        kind = type(value)
        own = None if isinstance(value, type) else getattr(value, "fingerprint", None)
        if value is None or value is ... or value is NotImplemented or kind in (bool, int, str):
            self._put(kind.__name__, str(value))
        elif kind is float:
            self._put("float", value.hex())
        elif kind in (bytes, bytearray):
            self._put(kind.__name__, bytes(value))
        elif kind in (tuple, list, dict, set, frozenset, types.MappingProxyType):
            self._container(value)
        elif isinstance(own, str):
            self._put("fingerprint", own)
            self.add(kind, "class")
        elif not self._array(value):
            if self._again(value):
                pass
            elif isinstance(value, types.ModuleType):
                self._module(value)
            elif isinstance(value, type):
                self._class(value)
            elif isinstance(value, types.FunctionType):
                self._function(value)
            elif not self._callable(value):
                self._object(value)
        self._where.pop()

    def _container(self, value: Any) -> None:
        if id(value) in self._inside:
            raise TypeError(f"{self._here(value)} contains itself, so it has no fingerprint.")
        self._inside.append(id(value))
        self._put(type(value).__name__, str(len(value)))
        if isinstance(value, (dict, types.MappingProxyType)):
            for key, item in value.items():  # in order: who loops over them sees it
                self.add(key, f"a key of {self._where[-1]}")
                self.add(item, f"{self._where[-1]}[{key!r:.40}]")
        elif isinstance(value, (set, frozenset)):
            self._put(*sorted(fingerprint(item) for item in value))
        else:
            for i, item in enumerate(value):
                self.add(item, f"{self._where[-1]}[{i}]")
        self._inside.pop()

    def _array(self, value: Any) -> bool:
        """Arrays, tensors and their types: by their bytes."""
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if torch is not None and isinstance(value, (torch.dtype, torch.device, torch.layout)):
            self._put(type(value).__name__, str(value))
            return True
        if torch is not None and isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.device.type == "meta" or value.is_quantized:
                raise TypeError(f"{self._here(value)} is not a dense tensor, so it has no fingerprint.")
            plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
            self._put("tensor", type(value).__name__, str(value.dtype), str(tuple(value.shape)))
            self._put(str(value.requires_grad))
            self._put(memoryview(plain.reshape(-1).view(torch.uint8).numpy()))
            return True
        if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
            return False
        if isinstance(value, numpy.ma.MaskedArray) or value.dtype.hasobject:
            return False
        self._put("array" if isinstance(value, numpy.ndarray) else "scalar", repr(value.dtype))
        self._put(str(value.shape), numpy.ascontiguousarray(value).tobytes())
        return True

    def _module(self, module: types.ModuleType) -> None:
        name = module.__name__
        if in_package(name):
            self._root(name)
        elif is_library(name):
            self._library(name, "")
        else:
            self._put("module")
            for key, value in sorted(vars(module).items()):
                if not (key.startswith("__") and key.endswith("__")):
                    self._put(key)
                    self.add(value, f"{name}.{key}")

    def _class(self, cls: type) -> None:
        if in_package(cls.__module__) and is_named(cls):
            self._root(f"{cls.__module__}:{cls.__qualname__}")
            return
        if is_library(cls.__module__):
            self._library(cls.__module__, cls.__qualname__)
            return
        self._put("class", cls.__qualname__)
        self.add(type(cls), "metaclass")
        self.add(cls.__bases__, "bases")
        self._put(*vars(cls).get("__dataclass_fields__", {}))
        for name, value in sorted(vars(cls).items()):
            if name not in _NOT_OF_A_CLASS:
                self._put(name)
                self.add(value, f"{cls.__qualname__}.{name}")

    def _function(self, fn: types.FunctionType) -> None:
        if in_package(fn.__module__ or "") and is_named(fn):
            self._root(f"{fn.__module__}:{fn.__qualname__}")
            return
        home = fn.__globals__.get("__name__", "")
        inner = "<locals>" in fn.__code__.co_qualname  # made anew for each closure
        if is_library(home):
            self._library(home, fn.__code__.co_qualname)
            if not inner:
                return
        else:
            self._put("function")
            self._code(fn.__code__, fn.__globals__, fn.__name__)
        self.add(fn.__defaults__, f"a default of {fn.__name__}")
        self.add(fn.__kwdefaults__, f"a default of {fn.__name__}")
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                self.add(cell.cell_contents, f"{name}, which {fn.__name__} takes from around it,")
            except ValueError:  # not filled yet
                self._put("empty")
        for name, value in sorted(vars(fn).items()):
            if name != "__wrapped__":  # in the closure already
                self._put(name)
                self.add(value, f"{fn.__name__}.{name}")

    def _code(self, code: types.CodeType, names: dict[str, Any], title: str) -> None:
        """What is executed: instructions with the constants and globals that they load."""
        self._put("code", str((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)))
        self._put(str(code.co_flags), str(code.co_varnames), str(code.co_cellvars), str(code.co_freevars))
        steps = list(dis.get_instructions(code))
        loud = [step for step in steps if step.opname not in _SILENT]
        number, passed = {}, 0  # jumps count the instructions that do something
        for step in steps:
            number[step.offset] = passed
            passed += step.opname not in _SILENT
        for i, step in enumerate(loud):
            self._put(step.opname)
            if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
                self._put(str(number.get(step.argval, step.argval)))
            elif isinstance(step.argval, types.CodeType):
                self._code(step.argval, names, title)
            elif step.opcode in dis.hasconst:
                self.add(step.argval, f"a constant of {title}")
            elif step.opname == "IMPORT_NAME":
                self._put(step.argval)
                self._import(step.argval, loud[i - 2].argval, loud[i - 1].argval, names)
            elif step.opname in _GLOBALS:
                self._put(step.argval)
                if step.argval in names:
                    self._global(step.argval, names[step.argval], loud[i + 1 :], title)
                elif not hasattr(builtins, step.argval):
                    self._put("undefined")
            else:
                self._put(str(step.argval))

    def _global(self, name: str, value: Any, after: list[dis.Instruction], title: str) -> None:
        """A global; of a module the attributes behind it: ``models.MLP`` is MLP, not all of models.

        Of a library its version and the attribute's name are enough: ``os.environ`` is not its content.
        """
        for step in after:
            if not isinstance(value, types.ModuleType) or step.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                break
            if is_library(value.__name__):
                break
            name = f"{name}.{step.argval}"
            value = getattr(value, step.argval, "missing")
        self.add(value, f"the global {name}, which {title} uses,")

    def _import(self, name: str, level: Any, wanted: Any, names: dict[str, Any]) -> None:
        """An import inside a function."""
        if level:
            name = importlib.util.resolve_name("." * level + name, names.get("__package__") or "")
        if in_package(name):
            self._uses_package = True
        elif is_library(name):
            self._library(name, "")
        else:
            try:
                module = importlib.import_module(name)
            except ImportError:
                self._put("missing")
                return
            for part in wanted or ():
                self.add(getattr(module, part, "missing"), f"{name}.{part}")
            if not wanted:
                self.add(module, name)

    def _callable(self, value: Any) -> bool:
        """Callables and descriptors that pickle does not take apart."""
        parts: tuple[Any, ...]
        if isinstance(value, types.MethodType):
            parts = value.__func__, value.__self__
        elif isinstance(value, types.BuiltinFunctionType):
            home = value.__self__
            if home is None or isinstance(home, types.ModuleType):
                self._library(value.__module__ or "builtins", value.__qualname__)
                return True
            parts = value.__name__, home
        elif isinstance(value, (staticmethod, classmethod)):
            parts = (value.__func__,)
        elif isinstance(value, property):
            parts = value.fget, value.fset, value.fdel
        elif isinstance(value, functools.cached_property):
            parts = (value.func,)
        elif isinstance(value, functools._lru_cache_wrapper):
            parts = (value.__wrapped__,)
        elif isinstance(value, _DESCRIPTORS):
            parts = value.__name__, value.__objclass__
        else:
            return False
        self._put(type(value).__name__)
        for part in parts:
            self.add(part, self._where[-1])
        return True

    def _object(self, value: Any) -> None:
        """Any other object: what pickle would keep."""
        try:
            if type(value) is object:
                raise TypeError("an object without content")
            special = copyreg.dispatch_table.get(type(value))
            reduced = special(value) if special else value.__reduce_ex__(4)
        except Exception as error:  # each kind of object refuses in its own way
            raise TypeError(
                f"{self._here(value)} has no fingerprint ({error}): pass what it is made of (numbers, "
                "strings, arrays, tensors, functions), or give it an attribute fingerprint, a string that "
                "changes with its content."
            ) from None
        self._put("object")
        if isinstance(reduced, str):
            self._library(getattr(value, "__module__", None) or type(value).__module__, reduced)
            return
        for part in reduced:
            items = list(part) if isinstance(part, Iterator) else part
            self.add(items, self._where[-1])

    def _root(self, root: str) -> None:
        self._put("root", root)
        self._uses_package = True

    def _library(self, module: str, name: str) -> None:
        top = module.partition(".")[0]
        self._put("library", module, name, library_version(top))

    def _here(self, value: Any) -> str:
        return f"{self._where[-1]} ({type(value).__name__})".replace(", (", " (")
