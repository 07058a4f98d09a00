"""Rows that arrive batch after batch: to memory, or to files that appear when all are complete."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

Keep = Callable[[str, Tensor], None]  # layer, its next rows


class Memory:
    """The rows of each layer, in place where their number ``n`` is known, else joined at the end."""

    def __init__(self, n: int | None) -> None:
        self.n = n
        self.rows: dict[str, Tensor] = {}
        self.filled: dict[str, int] = {}
        self.parts: dict[str, list[Tensor]] = {}

    def keep(self, name: str, rows: Tensor) -> None:
        if self.n is None:
            # A copy: a later layer may work in place.
            self.parts.setdefault(name, []).append(rows.to("cpu", copy=True))
            return
        if name not in self.rows:
            self.rows[name] = torch.empty(self.n, rows.shape[1], dtype=rows.dtype)
        start = self.filled.get(name, 0)
        self.rows[name][start : start + len(rows)] = rows.cpu()
        self.filled[name] = start + len(rows)

    def take(self, name: str) -> Tensor:
        """All rows of a layer; its parts are given up."""
        return self.rows[name] if self.n is not None else torch.cat(self.parts.pop(name))


def as_numpy(rows: Tensor) -> np.ndarray:
    """The rows as an array; numpy has no bfloat16."""
    return (rows.float() if rows.dtype == torch.bfloat16 else rows).cpu().numpy()


@contextmanager
def files(out: Path, names: list[str]) -> Iterator[tuple[dict[str, Path], Keep]]:
    """A file per layer, beside its place until all are complete.

    Rows are appended by ordinary writes: through a memory map a full disk would kill the process.
    """
    out.mkdir(parents=True, exist_ok=True)
    parts: dict[str, tuple[BinaryIO, Path]] = {}
    shapes: dict[str, tuple[str, int, int]] = {}
    paths = {name: out / f"{name}.npy" for name in names}

    def write(name: str, rows: Tensor) -> None:
        block = np.ascontiguousarray(as_numpy(rows))
        if name not in parts:
            handle, part = tempfile.mkstemp(dir=out, prefix=f".{name}.", suffix=".part")
            parts[name] = (os.fdopen(handle, "wb"), Path(part))
            _header(parts[name][0], block.dtype.str, 0, block.shape[1])
        parts[name][0].write(block.tobytes())
        done = shapes[name][1] if name in shapes else 0
        shapes[name] = (block.dtype.str, done + len(block), block.shape[1])

    try:
        yield paths, write
        for name, (file, _) in parts.items():
            # Only now is the number of rows known; numpy leaves room for it in the header.
            file.seek(0)
            _header(file, *shapes[name])
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


def _header(file: BinaryIO, dtype: str, n: int, d: int) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": (n, d)})
