"""A double of a CUDA device on a machine without one: the numbers are the CPU's, the rules are a GPU's.

A tensor "on the GPU" is a :class:`CudaTensor` around an ordinary one. torch itself carries such an object
through views, gradients, hooks, optimizers and the transforms of ``torch.func``, and hands every operation on
it to ``__torch_dispatch__``, which raises where a GPU would: operands on both devices. torch's own code takes
it for a tensor of the CPU; what Python sees (``.device``, ``device=``, ``.to``, ``.numpy()``, generators) is
answered by a function mode.

    with fake_cuda.installed():
        x = torch.ones(3, device="cuda")
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from copy import deepcopy
from unittest.mock import patch

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
INDICES = "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
aten = torch.ops.aten
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}


def tensors(args, kwargs):
    """The tensors among the arguments, also in lists."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(value, {})


def _each(value, change):
    """``value`` with every tensor in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    return type(value)(_each(one, change) for one in value) if type(value) in (list, tuple) else value


def _inside(value):
    return _each(value, lambda t: t.inside if isinstance(t, CudaTensor) else t)


class CudaTensor(Tensor):
    """``inside`` holds the numbers."""

    made = 0  # how many there have been
    __module__ = "torch"  # where a tensor's type says that it is from
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inside):
        self = Tensor._make_wrapper_subclass(
            cls, inside.shape, inside.stride(), inside.storage_offset(), dtype=inside.dtype, device=CPU
        )
        self.inside = inside
        cls.made += 1
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        _check_devices(func, args, kwargs)
        given = {id(t.inside): t for t in tensors(args, kwargs) if isinstance(t, cls)}
        out = func(*(_inside(a) for a in args), **{k: _inside(v) for k, v in kwargs.items()})
        if func.overloadpacket is aten.copy_ and not isinstance(args[0], cls):
            return args[0]
        if torch.Tag.inplace_view in func.tags:
            with no_dispatch():
                func(*args, **kwargs)  # squeeze_ and its like: the shape of the outside as well
        for t in given.values():
            assert t.shape == t.inside.shape, f"this double cannot reshape in place, as {func} does"
        # What was changed in place comes back as the very object that was given.
        return _each(out, lambda t: given[id(t)] if id(t) in given else cls(t))

    def numpy(self, *args, **kwargs):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    __array__ = numpy

    def tolist(self):
        return self.inside.tolist()

    def data_ptr(self):
        return self.inside.data_ptr()

    def __repr__(self):
        return repr(self.inside)

    def __format__(self, spec):
        return format(self.inside, spec)

    def __reduce_ex__(self, protocol):
        return self.inside.__reduce_ex__(protocol)  # read again, it is on the CPU

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = copy = CudaTensor(self.inside.clone()).requires_grad_(self.requires_grad)
            copy.__dict__ |= {k: v for k, v in self.__dict__.items() if k != "inside"}  # is it a parameter?
            copy.grad = None if self.grad is None else deepcopy(self.grad, memo)
        return memo[id(self)]


def _check_devices(func, args, kwargs):
    """Raise what CUDA raises for operands on both devices."""
    op = func.overloadpacket
    if op is aten.copy_:
        return
    if op in INDEXED:
        if not isinstance(args[0], CudaTensor):
            raise RuntimeError(INDICES)
        args = (args[0], *args[2:])  # a GPU's tensor may be indexed from the CPU
    written = args[0] if func._schema.is_mutable and args else None
    # A single number, in a tensor of no axes, may come from the CPU; not to be written, and not in a list.
    single = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and not t.ndim]
    free = {id(t) for t in single if not isinstance(t, CudaTensor) and t is not written}
    free -= {id(kwargs.get("out"))}
    if len({isinstance(t, CudaTensor) for t in tensors(args, kwargs) if id(t) not in free}) > 1:
        raise RuntimeError(TWO_DEVICES)


class _Made(TorchDispatchMode):
    """Within an operation on the GPU: what torch's own code makes from nothing is there as well."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # nothing is compiled here, and loading the compiler takes seconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is aten._efficientzerotensor.default:  # zeros without memory, which cannot be wrapped
            func = aten.zeros.default
        kwargs = kwargs or {}
        if next(tensors(args, kwargs), None) is not None:
            return func(*args, **kwargs)
        if kwargs.get("device") is not None:  # asked for by a hook
            kwargs = {**kwargs, "device": CPU}
        return _each(func(*args, **kwargs), CudaTensor)


_made = _Made()


class _Move(torch.autograd.Function):
    """To the other device; the gradient takes the way back."""

    @staticmethod
    def forward(x, cuda):
        return CudaTensor(x.detach().clone()) if cuda else x.inside.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.cuda = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return move(gradient, not ctx.cuda), None

    @staticmethod
    def vmap(info, in_dims, x, cuda):
        return _Move.apply(x, cuda), in_dims[0]


def on_cuda(t):
    while functorch.is_functorch_wrapped_tensor(t):
        t = functorch.get_unwrapped(t)
    return isinstance(t, CudaTensor)


def move(t, cuda):
    return t if on_cuda(t) == cuda else _Move.apply(t, cuda)


class _Mode(TorchFunctionMode):
    """Whatever Python asks torch: devices go by the double, the rest goes to torch."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        here = any(on_cuda(t) for t in tensors(args, kwargs))
        if func in ASKED:
            return ASKED[func](here)
        if func == Tensor.grad.__set__ and args[1] is not None and on_cuda(args[0]) != on_cuda(args[1]):
            raise RuntimeError("attempting to assign a gradient on another device than its tensor's")
        if func in READ and not isinstance(args[0], Tensor):  # a list of tensors is read number by number
            here, args = False, (_inside(args[0]), *args[1:])
        if func in (Tensor.cpu, Tensor.cuda):
            func, args, kwargs = Tensor.to, (args[0], func.__name__), {}
        wanted = None  # the device that is asked for, if any
        if func is Tensor.to:
            wanted, args, kwargs = _destination(args, kwargs)
        elif kwargs.get("device") is not None:
            wanted, kwargs["device"] = torch.device(kwargs["device"]).type, CPU
        elif func is Tensor.new_tensor:
            wanted = "cuda" if here else "cpu"
        cuda = here if wanted is None else wanted == "cuda"
        drawn = kwargs.get("generator")
        if drawn is not None and drawn.device.type != ("cuda" if cuda else "cpu"):
            raise RuntimeError(
                f"Expected a '{'cuda' if cuda else 'cpu'}' device type for generator "
                f"but found '{drawn.device.type}'"
            )
        leaf = cuda and wanted is not None and kwargs.pop("requires_grad", False)
        if not here:
            out = func(*args, **kwargs)
        else:
            with _made:
                out = func(*args, **kwargs)
        if wanted is None:
            return out
        out = _each(out, lambda t: move(t, cuda))
        return out.requires_grad_() if leaf else out


def _destination(args, kwargs):
    """The device type that ``.to(…)`` asks for, or None; and its arguments without it."""
    x, *rest = args
    target = rest.pop(0) if rest and not isinstance(rest[0], torch.dtype) else None
    target = kwargs.pop("device", target)
    if isinstance(target, Tensor):
        return ("cuda" if on_cuda(target) else "cpu"), (x, target.dtype, *rest), kwargs
    if target is None:
        return None, (x, CPU, *rest), kwargs
    return torch.device(target).type, (x, CPU, *rest), kwargs


ASKED = {
    Tensor.device.__get__: lambda here: CUDA if here else CPU,
    Tensor.is_cuda.__get__: lambda here: here,
    Tensor.is_cpu.__get__: lambda here: not here,
    Tensor.get_device: lambda here: 0 if here else -1,
}
READ = {torch.tensor, torch.as_tensor}


class _Generator(torch._C.Generator):
    """A generator that can say that it is the GPU's."""

    def __new__(cls, device="cpu"):
        self = super().__new__(cls, device=CPU)
        self._device = torch.device(device)
        return self

    @property
    def device(self):
        return self._device


@contextmanager
def installed():
    """One CUDA device, as long as the block lasts."""
    autocast, module_to = torch.autocast, torch.nn.Module.to

    def to(module, *args, **kwargs):
        if args and isinstance(args[0], CudaTensor):  # .to(tensor): its device and type
            args = (CUDA, args[0].dtype, *args[1:])
        return module_to(module, *args, **kwargs)

    answers = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "a double",
        "is_bf16_supported": lambda including_emulation=True: True,
        "default_generators": (_Generator("cuda"),),
        "_lazy_init": lambda: None,
        "_lazy_call": lambda call, **_: call(),
    }
    swap = torch.__future__.get_swap_module_params_on_conversion()
    with ExitStack() as stack:
        for name, answer in answers.items():
            for module in (torch.cuda, torch.cuda.random):
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, answer))
        stack.enter_context(patch.object(torch, "Generator", _Generator))
        on_cpu = lambda device_type, *a, **k: autocast("cpu", *a, **k)  # noqa: E731
        stack.enter_context(patch.object(torch, "autocast", on_cpu))
        stack.enter_context(patch.object(torch.nn.Module, "to", to))
        # A module that is moved keeps its parameters as objects, as with a real GPU.
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swap)
        stack.enter_context(_Mode())
        yield
