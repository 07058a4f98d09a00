"""Taking files out of archives that are not ours: tar, zip, wheel, Debian package.

Only regular files are taken, only under names that stay below the target, and nothing is executed.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import cast

from repalign.data.errors import UnavailableError

# Bytes that an archive may unpack to: a small one may hold any number. The largest is Tiny ImageNet, 240 MB.
LARGEST = 1 << 30


def unpack(archive: Path, target: Path, wanted: Iterable[str]) -> None:
    """Write the members that match the patterns ``wanted`` into ``target``, under their bare names."""
    patterns = list(wanted)
    target.mkdir(parents=True, exist_ok=True)
    left = LARGEST
    found: set[str] = set()
    for name, stream in members(archive):
        matching = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
        if matching:
            found.update(matching)
            left -= _copy(stream, target / safe(PurePosixPath(name).name, archive), archive, left)
    if missing := [pattern for pattern in patterns if pattern not in found]:
        raise UnavailableError(f"{archive.name} lacks {', '.join(missing)}")


def unpack_tree(archive: Path, target: Path) -> None:
    """Write every file of the archive below ``target``, directories as in the archive."""
    left = LARGEST
    for name, stream in members(archive):
        path = target / safe(name, archive)
        path.parent.mkdir(parents=True, exist_ok=True)
        left -= _copy(stream, path, archive, left)


def member(archive: Path, name: str) -> bytes:
    """The bytes of one member."""
    for have, stream in members(archive):
        if have == name:
            raw = stream.read(LARGEST + 1)
            if len(raw) > LARGEST:
                raise _too_large(archive)
            return raw
    raise UnavailableError(f"{archive.name} lacks {name}")


def members(archive: Path) -> Iterator[tuple[str, Member]]:
    """Name and content of each regular file; a broken archive raises UnavailableError."""
    found = _members(archive)
    while True:
        try:
            name, stream = next(found)
        except StopIteration:
            return
        except UnavailableError:
            raise
        except Exception as error:  # tarfile, zipfile and what they unpack with raise a dozen kinds
            raise _broken(archive, error) from error
        yield name, Member(stream, archive)


class Member:
    """The content of a member, which may turn out to be broken while it is read."""

    def __init__(self, stream: BufferedIOBase, archive: Path) -> None:
        self.stream = stream
        self.archive = archive

    def read(self, size: int) -> bytes:
        try:
            return self.stream.read(size)
        except Exception as error:
            raise _broken(self.archive, error) from error


def _broken(archive: Path, error: Exception) -> UnavailableError:
    said = " ".join(str(error).split()) or type(error).__name__
    return UnavailableError(f"{archive.name} cannot be unpacked: {said} (cut short or altered?)")


def _too_large(archive: Path) -> UnavailableError:
    return UnavailableError(f"{archive.name} unpacks to more than {LARGEST >> 20} MB: refused")


def safe(name: str, archive: Path) -> str:
    """The name, if it stays below the directory it is put into."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name or ":" in name:
        raise UnavailableError(f"{archive.name} wants to write to {name!r}: refused")
    return str(path)


def _copy(stream: Member, path: Path, archive: Path, most: int) -> int:
    """Write a member; return its size, of at most ``most`` bytes."""
    size = 0
    with open(path, "wb") as out:
        while block := stream.read(1 << 20):
            size += len(block)
            if size > most:
                raise _too_large(archive)
            out.write(block)
    return size


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
        left = LARGEST
        for info_ in tar:
            left -= info_.size  # what is not wanted is unpacked too, to get to the next
            if left < 0:
                raise _too_large(archive)
            if info_.isreg() and (content := tar.extractfile(info_)) is not None:
                name = info_.name.removeprefix("./")
                yield name, cast(BufferedIOBase, content)


def _debian_data(package: Path) -> bytes:
    """The ``data.tar.*`` of a Debian package, which is an ``ar`` archive."""
    with open(package, "rb") as file:
        file.seek(8)
        while len(header := file.read(60)) == 60:
            name, size = header[:16].decode("ascii").strip(" /"), int(header[48:58])
            if size < 0:
                break
            if name.startswith("data.tar") and len(content := file.read(size)) == size:
                return content
            file.seek(size + size % 2, 1)  # members begin at even offsets
    raise UnavailableError(f"{package.name} has no data.tar: cut short or not a Debian package")
