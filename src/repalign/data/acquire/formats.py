"""Readers of the files in which data sets are published; none of them loops over images.

A reader takes a directory and a split, and returns what the files there hold.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import tempfile
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from repalign.data.acquire.archives import unpack
from repalign.data.acquire.pickles import load_arrays
from repalign.data.errors import UnavailableError

Array = NDArray[Any]

# Bytes of a file when it is unpacked: a small one may hold any number. MNIST's images are 47 MB.
LARGEST = 1 << 28
LARGEST_LINES = 1 << 25
LARGEST_TABLE = 1 << 30


class Read(NamedTuple):
    """Images uint8 (n, c, h, w) or rows float32 (n, d); labels int64, targets float32; names of classes."""

    x: Array
    y: Array
    classes: tuple[str, ...] = ()


Reader = Callable[[Path, str], Read]


def find(folder: Path, name: str) -> Path:
    """The file in ``folder``, plain or gzipped."""
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise UnavailableError(f"{folder} has no {name} (nor {name}.gz)")


def readable(path: Path) -> Path:
    """The path, if its name is text: it goes into names of classes, messages and digests."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UnavailableError(f"{str(path)!a} is not a name in UTF-8: rename it") from None
    return path


def contents(path: Path, most: int) -> bytes:
    """The bytes of a file, unpacked when it is gzipped; at most ``most`` of them."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            raw = gzip.GzipFile(fileobj=file).read(most + 1) if packed else file.read(most + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise UnavailableError(f"{path} is cut short or altered: {error}") from error
    if len(raw) > most:
        raise UnavailableError(f"{path} holds more than the {most:,} bytes that belong there: fetch it again")
    return raw


def parsed(text: bytes, path: Path) -> Any:
    """What JSON says."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnavailableError(f"{path} is not JSON: {error}") from error


def idx(path: Path) -> Array:
    """An array of the IDX format: two zero bytes, type, number of axes, their lengths, the data."""
    raw = contents(path, LARGEST)
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise UnavailableError(f"{path} is not an IDX file of bytes: it begins with {raw[:4].hex(' ')}")
    axes = raw[3]
    if not 1 <= axes <= 4 or len(raw) < 4 + 4 * axes:
        raise UnavailableError(f"{path} announces {axes} axes in {len(raw)} bytes: images have 3, labels 1")
    shape = tuple(int(length) for length in np.frombuffer(raw[4 : 4 + 4 * axes], ">u4"))
    expected, have = math.prod(shape), len(raw) - 4 - 4 * axes
    if have != expected:
        raise UnavailableError(f"{path} announces {expected} bytes of data but holds {have}: fetch it again")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def mnist_files(folder: Path, split: str) -> Read:
    """The four IDX files of MNIST, Fashion-MNIST and KMNIST."""
    prefix = {"train": "train", "test": "t10k"}[split]
    x = idx(find(folder, f"{prefix}-images-idx3-ubyte"))
    y = idx(find(folder, f"{prefix}-labels-idx1-ubyte"))
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        raise UnavailableError(f"{folder}: images of shape {x.shape} do not fit labels of shape {y.shape}")
    return Read(x[:, None], y.astype(np.int64))


_BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}


def cifar10_pickles(folder: Path, split: str) -> Read:
    """CIFAR-10 as its home packs it: pickled batches of planar rows."""
    return _cifar(folder, _BATCHES[split], "labels")


def cifar100_pickles(folder: Path, split: str) -> Read:
    """CIFAR-100 as its home packs it; the fine labels."""
    return _cifar(folder, [split], "fine_labels")


def _cifar(folder: Path, names: list[str], labels: str) -> Read:
    batches = [_batch(find(folder, name), labels) for name in names]
    x = np.concatenate([rows for rows, _ in batches]).reshape(-1, 3, 32, 32)
    return Read(x, np.concatenate([y for _, y in batches]))


def _batch(path: Path, labels: str) -> tuple[Array, Array]:
    """Rows and labels of one pickled batch."""
    batch = load_arrays(path)
    if type(batch) is not dict or not {"data", labels} <= set(batch):
        raise UnavailableError(f"{path} does not hold CIFAR batches: it should have data and {labels}")
    x, y = batch["data"], batch[labels]
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3072:
        raise UnavailableError(f"{path} does not hold CIFAR batches: data should be rows of 3072 bytes")
    if isinstance(y, np.ndarray):
        y = y.tolist()
    if type(y) is not list or not all(type(label) is int and 0 <= label < 100 for label in y):
        raise UnavailableError(f"{path} does not hold CIFAR batches: {labels} should be numbers below 100")
    return x, np.array(y, np.int64)


def cifar10_png_rows(folder: Path, split: str) -> Read:
    """CIFAR-10 as PNG files in which each row of 1024 pixels is one image, labels as JSON."""
    parts = []
    for name in _BATCHES[split]:
        path = find(folder, f"{name}.png")
        try:
            with Image.open(path, formats=("PNG",)) as image:
                if image.width != 1024 or image.height > 50_000:
                    raise ValueError(f"its rows should be images of 1024 pixels, but it is {image.size}")
                rows = np.asarray(image.convert("RGB"))
        except Exception as error:  # Pillow raises a dozen kinds for a garbled file
            raise UnavailableError(f"{path} cannot be read: {error}") from error
        parts.append(rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))
    path = find(folder, f"{split}_lables.json")  # their spelling
    labels = parsed(contents(path, LARGEST_LINES), path)
    if type(labels) is not list or not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise UnavailableError(f"{path} should be a list of numbers below 10")
    return Read(np.concatenate(parts), np.array(labels, np.int64))


def quickdraw_lines(folder: Path, split: str) -> Read:
    """Drawings as one gzipped file per class, one JSON list of 28×28 numbers in [0, 1] per line."""
    suffix = ".ndjson.gz"
    files = sorted(folder.glob(f"*{suffix}"), key=lambda file: file.name.lower())
    if not files:
        raise UnavailableError(f"{folder} has no *{suffix}")
    drawings = [_drawings(file) for file in files]
    x = np.concatenate(drawings).reshape(-1, 1, 28, 28)
    y = np.repeat(np.arange(len(files)), [len(d) for d in drawings])
    return Read((255 * x).round().astype(np.uint8), y, tuple(f.name.removesuffix(suffix) for f in files))


def _drawings(path: Path) -> Array:
    """The lines of one file: 784 numbers each."""
    lines = contents(path, LARGEST_LINES).splitlines()
    rows = parsed(b"[" + b",".join(lines) + b"]", path)
    try:
        x = np.array(rows, np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise UnavailableError(f"{path}: not drawings of 28×28 numbers: {error}") from error
    if x.ndim != 2 or x.shape[1] != 784 or not ((x >= 0) & (x <= 1)).all():
        raise UnavailableError(f"{path}: not drawings of 28×28 numbers from 0 to 1 in each line")
    return x.astype(np.float32)


def table(path: Path, without: tuple[str, ...] = ()) -> tuple[list[str], Array]:
    """A csv file of numbers under a line of names, without the columns ``without``."""
    try:
        file = io.TextIOWrapper(io.BytesIO(contents(path, LARGEST_TABLE)), "utf-8", newline="")
        names = next(csv.reader(file), [])
        if missing := set(without) - set(names):
            raise UnavailableError(f"{path} lacks the columns {', '.join(sorted(missing))}")
        keep = [i for i, name in enumerate(names) if name not in without]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns of no rows, which are refused below
            values = np.loadtxt(file, delimiter=",", ndmin=2, usecols=keep)
    except (ValueError, csv.Error) as error:
        raise UnavailableError(f"{path} is not a table of numbers: {error}") from error
    if not len(values) or values.shape[1] != len(keep):
        raise UnavailableError(f"{path} has no rows of {len(keep)} numbers")
    return [names[i] for i in keep], values


def ct_slices(folder: Path, split: str) -> Read:
    """The UCI table: patientId, value0 … value383, reference; as csv or in the zip it comes in."""
    name = "slice_localization_data"
    if not (folder / f"{name}.csv").is_file() and (folder / f"{name}.zip").is_file():
        with tempfile.TemporaryDirectory() as unpacked:
            unpack(folder / f"{name}.zip", Path(unpacked), [f"*{name}.csv"])
            return ct_slices(Path(unpacked), split)
    if not (folder / f"{name}.csv").is_file():
        raise UnavailableError(f"{folder} has neither {name}.csv nor {name}.zip")
    names, values = table(folder / f"{name}.csv")
    if names != ["patientId", *(f"value{i}" for i in range(384)), "reference"]:
        raise UnavailableError(f"{folder}: the columns are not patientId, value0 to value383, reference")
    x, y = values[:, 1:-1].astype(np.float32), values[:, -1].astype(np.float32)
    if not (np.isfinite(x).all() and (y >= 0).all() and (y <= 180).all()):
        raise UnavailableError(f"{folder}: features should be finite and references from 0 to 180")
    return Read(x, y)


def crime(folder: Path, split: str) -> Read:
    """Communities and Crime: 145 features of a community; violent crimes per person, scaled to [0, 1]."""
    names, values = table(find(folder, "crime.csv"), ("communityname", "fold", ">0.06black", "high_crime"))
    if "ViolentCrimesPerPop" not in names:
        raise UnavailableError(f"{folder}/crime.csv lacks the column ViolentCrimesPerPop")
    target = names.index("ViolentCrimesPerPop")
    return Read(np.delete(values, target, 1).astype(np.float32), values[:, target].astype(np.float32))
