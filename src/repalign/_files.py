"""Files that are written whole or not at all, and short fingerprints of what is in them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import platformdirs

_SEAL = b"repalign sha256:"
_SEAL_LENGTH = len(_SEAL) + 64
_END_OF_ZIP = b"PK\x05\x06"


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it there only if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        yield part
        os.chmod(part, 0o644)  # mkstemp's 0600 would follow the file to its place
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def seal(path: Path) -> None:
    """End the file that ``torch.save`` wrote at ``path`` with the sha256 of its content.

    It is a zip archive, and the digest its comment: torch reads the file as before.
    """
    with open(path, "r+b") as file:
        file.seek(-22, os.SEEK_END)
        end = file.read()
        if not end.startswith(_END_OF_ZIP):
            raise ValueError(f"{path} should be a zip archive without a comment, as torch.save writes it.")
        file.seek(-2, os.SEEK_END)
        file.write(struct.pack("<H", _SEAL_LENGTH))
        length = file.tell()
        file.write(_SEAL + _sha256(file, length))


def is_sealed(path: Path) -> bool:
    """Whether every byte of the file is what :func:`seal` saw."""
    with open(path, "rb") as file:
        length = file.seek(0, os.SEEK_END) - _SEAL_LENGTH
        if length < 0:
            return False
        file.seek(length)
        said = file.read()
        return said == _SEAL + _sha256(file, length)


def _sha256(file: BinaryIO, length: int) -> bytes:
    """The digest of the first ``length`` bytes; the file is left behind them."""
    file.seek(0)
    h = hashlib.sha256()
    for start in range(0, length, 1 << 20):
        h.update(file.read(min(1 << 20, length - start)))
    return h.hexdigest().encode()


def replace_directory(fresh: Path, place: Path) -> None:
    """Put the directory ``fresh`` at ``place``, whatever is there; several processes may do so at once."""
    for _ in range(20):
        try:
            os.replace(fresh, place)  # works where nothing, or an empty directory, is in the way
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        aside = tempfile.mkdtemp(dir=place.parent, prefix=".old-")
        with suppress(FileNotFoundError):
            os.replace(place, aside)
        shutil.rmtree(aside, ignore_errors=True)
    raise OSError(errno.EBUSY, "another process keeps writing there", str(place))


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically."""
    with atomic(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as readable JSON, atomically; NaN is refused, since JSON has none."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def project_root(start: Path) -> Path | None:
    """The book that ``start`` is in: the nearest directory above with ``_toc.yml`` and ``notebooks/``."""
    here = start.resolve()
    for root in (here, *here.parents):
        if (root / "_toc.yml").is_file() and (root / "notebooks").is_dir():
            return root
    return None


def cache_root() -> Path:
    """Where data and results rest between runs: ``$REPALIGN_CACHE``, else the user's cache directory."""
    return Path(os.environ.get("REPALIGN_CACHE") or platformdirs.user_cache_dir("repalign", appauthor=False))


def digest(*parts: str | bytes) -> str:
    """A short fingerprint of ``parts`` that keeps their borders apart."""
    h = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        h.update(f"{len(raw)}:".encode() + raw)
    return h.hexdigest()[:16]
