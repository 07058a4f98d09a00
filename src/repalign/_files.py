"""Files that are written whole or not at all, and short fingerprints of what is in them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import platformdirs


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
