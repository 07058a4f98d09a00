"""Taking files out of archives that are not ours: tar, zip, wheel, Debian package.

Only regular files are taken, only under names that stay below the target, and nothing is executed.
"""

from __future__ import annotations

import io
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import cast

from repalign.data.errors import UnavailableError

_BROKEN = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, NotImplementedError)


def unpack(archive: Path, target: Path, wanted: Iterable[str]) -> None:
    """Write the members that match the patterns ``wanted`` into ``target``, under their bare names."""
    patterns = list(wanted)
    target.mkdir(parents=True, exist_ok=True)
    found: set[str] = set()
    for name, stream in members(archive):
        matching = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
        if matching:
            found.update(matching)
            _copy(stream, target / safe(PurePosixPath(name).name, archive), archive)
    if missing := [pattern for pattern in patterns if pattern not in found]:
        raise UnavailableError(f"{archive.name} lacks {', '.join(missing)}")


def unpack_tree(archive: Path, target: Path) -> None:
    """Write every file of the archive below ``target``, directories as in the archive."""
    for name, stream in members(archive):
        path = target / safe(name, archive)
        path.parent.mkdir(parents=True, exist_ok=True)
        _copy(stream, path, archive)


def member(archive: Path, name: str) -> bytes:
    """The bytes of one member."""
    for have, stream in members(archive):
        if have == name:
            return stream.read()
    raise UnavailableError(f"{archive.name} lacks {name}")


def members(archive: Path) -> Iterator[tuple[str, BufferedIOBase]]:
    """Name and content of each regular file; a broken archive raises UnavailableError."""
    try:
        yield from _members(archive)
    except _BROKEN as error:
        raise UnavailableError(
            f"{archive.name} cannot be unpacked: {error} (cut short or altered?)"
        ) from error


def safe(name: str, archive: Path) -> str:
    """The name, if it stays below the directory it is put into."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name or ":" in name:
        raise UnavailableError(f"{archive.name} wants to write to {name!r}: refused")
    return str(path)


def _copy(stream: BufferedIOBase, path: Path, archive: Path) -> None:
    with open(path, "wb") as out:
        shutil.copyfileobj(stream, out, 1 << 20)


def _members(archive: Path) -> Iterator[tuple[str, BufferedIOBase]]:
    with open(archive, "rb") as file:
        magic = file.read(8)
    if magic.startswith(b"PK"):
        with zipfile.ZipFile(archive) as z:
            for info in z.infolist():
                if not info.is_dir():
                    with z.open(info) as stream:
                        yield info.filename, cast(BufferedIOBase, stream)
        return
    inner = io.BytesIO(_debian_data(archive)) if magic == b"!<arch>\n" else None
    with tarfile.open(None if inner else archive, mode="r:*", fileobj=inner) as tar:
        for info_ in tar:
            if info_.isreg() and (content := tar.extractfile(info_)) is not None:
                name = info_.name.removeprefix("./")
                yield name, cast(BufferedIOBase, content)


def _debian_data(package: Path) -> bytes:
    """The ``data.tar.*`` of a Debian package, which is an ``ar`` archive."""
    with open(package, "rb") as file:
        file.seek(8)
        while len(header := file.read(60)) == 60:
            name, size = header[:16].decode("ascii").strip(" /"), int(header[48:58])
            if name.startswith("data.tar") and len(content := file.read(size)) == size:
                return content
            file.seek(size + size % 2, 1)  # members begin at even offsets
    raise UnavailableError(f"{package.name} has no data.tar: cut short or not a Debian package")
