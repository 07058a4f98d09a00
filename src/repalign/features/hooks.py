"""The outputs of named layers, batch after batch, by forward hooks: to memory or to files."""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from repalign.models import probed_layers

Array = TypeVar("Array", Tensor, np.ndarray)
Keep = Callable[[str, int, Tensor], None]  # layer, first row, rows


def extract(
    model: nn.Module,
    x: Array,
    layers: Sequence[str] | None = None,
    batch_size: int = 256,
    *,
    pool: str = "flatten",
    out: str | Path | None = None,
) -> dict[str, Array]:
    """The output of each of ``layers`` for every sample: {layer: (n, d)}, in the order of ``layers``.

    ``layers`` are module names, by default ``models.probed_layers(model)``. The model runs in eval mode,
    without gradients, where its parameters are; results come to the CPU, numpy if ``x`` was. Everything
    of a sample becomes one row; ``pool="mean"`` or ``"max"`` first pools over positions of an image or over
    tokens. With ``out``, a directory, each layer goes to ``out/<layer>.npy`` as batches finish and comes
    back as a read-only memory map; the files appear when all are complete.
    """
    names = _known(model, probed_layers(model) if layers is None else layers)
    if pool not in ("flatten", "mean", "max"):
        raise ValueError(f"pool should be flatten, mean or max, but is {pool!r}.")
    if batch_size < 1:
        raise ValueError(f"batch_size should be at least 1, but is {batch_size}.")
    if x.ndim < 2 or len(x) == 0:
        raise ValueError(f"x should have shape (n, ...) with at least one row, but has {tuple(x.shape)}.")
    if out is not None:
        with _files(Path(out), names, len(x)) as (paths, write):
            _run(model, x, names, batch_size, pool, write)
        return {name: np.load(path, mmap_mode="r") for name, path in paths.items()}
    found: dict[str, Any] = {}

    def fill(name: str, start: int, rows: Tensor) -> None:
        if name not in found:
            found[name] = torch.empty(len(x), rows.shape[1], dtype=rows.dtype)
        found[name][start : start + len(rows)] = rows

    _run(model, x, names, batch_size, pool, fill)
    as_it_came = _numpy if isinstance(x, np.ndarray) else Tensor.detach
    return {name: as_it_came(found[name]) for name in names}


def _known(model: nn.Module, layers: Sequence[str]) -> list[str]:
    modules = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    names = [layers] if isinstance(layers, str) else list(layers)
    for name in names:
        if name not in modules:
            near = difflib.get_close_matches(name, modules, n=3) or modules[:10]
            raise ValueError(f"no layer {name!r} in {type(model).__name__}: did you mean {', '.join(near)}?")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"layers should be names, each once, but are {names}.")
    return names


@torch.no_grad()
def _run(model: nn.Module, x: Any, names: list[str], batch_size: int, pool: str, keep: Keep) -> None:
    """Hand the rows of every layer, batch after batch, to ``keep``."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    seen: list[str] = []
    start = rows = 0

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def save(module: nn.Module, _: Any, output: Any) -> None:
            if name in seen:
                raise ValueError(f"layer {name!r} runs more than once per pass: choose another.")
            if not isinstance(output, Tensor) or output.ndim == 0 or len(output) != rows:
                got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
                raise ValueError(
                    f"layer {name!r} should give a tensor of {rows} rows, but gives {got}: choose another."
                )
            seen.append(name)
            # Kept as a copy, at once: a later layer may work in place.
            keep(name, start, _row_per_sample(output, pool).cpu())

        return save

    with ExitStack() as undo:
        for module in model.modules():
            undo.callback(setattr, module, "training", module.training)
        for name in names:
            undo.callback(model.get_submodule(name).register_forward_hook(hook(name)).remove)
        model.eval()
        for start in range(0, len(x), batch_size):
            batch = x[start : start + batch_size]
            batch = torch.from_numpy(np.array(batch)) if isinstance(batch, np.ndarray) else batch
            batch = batch.to(like.device, like.dtype)
            if not torch.isfinite(batch).all():
                raise ValueError(f"x should be finite, but has NaN or infinity in rows from {start} on.")
            rows = len(batch)
            seen.clear()
            model(batch)
            if len(seen) < len(names):
                idle = ", ".join(name for name in names if name not in seen)
                raise ValueError(f"the model does not run these layers: {idle}. Choose others.")


def _row_per_sample(output: Tensor, pool: str) -> Tensor:
    if pool != "flatten" and output.ndim > 2:
        # (n, tokens, d) or (n, channels, height, width): positions are pooled, features stay.
        axes = (1,) if output.ndim == 3 else tuple(range(2, output.ndim))
        output = output.mean(axes) if pool == "mean" else output.amax(axes)
    return output.reshape(len(output), -1)


def _numpy(rows: Tensor) -> np.ndarray:
    return (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()


@contextmanager
def _files(out: Path, names: list[str], n: int) -> Iterator[tuple[dict[str, Path], Keep]]:
    """A file per layer, beside its place until all are complete.

    Rows are appended by ordinary writes: through a memory map a full disk would kill the process.
    """
    out.mkdir(parents=True, exist_ok=True)
    parts: dict[str, tuple[BinaryIO, Path]] = {}
    paths = {name: out / f"{name}.npy" for name in names}

    def write(name: str, _: int, rows: Tensor) -> None:
        block = np.ascontiguousarray(_numpy(rows))
        if name not in parts:
            handle, part = tempfile.mkstemp(dir=out, prefix=f".{name}.", suffix=".part")
            parts[name] = (os.fdopen(handle, "wb"), Path(part))
            shape = (n, block.shape[1])
            header = {"descr": block.dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(parts[name][0], header)
        parts[name][0].write(block.tobytes())

    try:
        yield paths, write
        for file, _ in parts.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        for name, (_, part) in parts.items():
            os.chmod(part, 0o644)  # mkstemp's 0600 would follow the file to its place
            os.replace(part, paths[name])
    finally:
        for file, part in parts.values():
            with suppress(OSError):
                file.close()  # flushes, which fails again when the disk is full
            part.unlink(missing_ok=True)
