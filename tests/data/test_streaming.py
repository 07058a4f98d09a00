"""Image files that are decoded batch by batch."""

import pytest
import torch
from PIL import Image

from repalign import data


@pytest.fixture
def folder(tmp_path):
    for level, name in enumerate(("dark", "light", "other")):
        for k in range(4):
            place = tmp_path / "train" / name
            place.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 16), (100 * level + 5 * k,) * 3).save(place / f"{k}.png")
    return tmp_path


def test_rows_are_those_that_load_gives(folder):
    choice = dict(n=6, classes=("light", "dark"), seed=3, size=8, folder=folder)
    whole = data.load("image_folder", dtype=torch.uint8, **choice)
    files = data.image_files("image_folder", **choice)
    assert files.classes == whole.classes
    assert torch.equal(files.y, whole.y)
    assert repr(files).startswith("image_folder train: 6 files, 2 classes; the image files in")
    assert torch.equal(files[torch.tensor([4, 0])], whole.x[[4, 0]])
    again = data.image_files("image_folder", **choice)
    other = data.image_files("image_folder", **{**choice, "seed": 4})
    assert files.fingerprint == again.fingerprint != other.fingerprint


def test_other_sets_are_loaded(folder):
    with pytest.raises(ValueError, match="not a set of image files"):
        data.image_files("mnist")
    with pytest.raises(ValueError, match="has 12 samples"):
        data.image_files("image_folder", n=13, folder=folder)


def test_a_subset_has_as_many_of_each_class(folder):
    whole = data.load("image_folder", size=8, folder=folder)
    few = data.subset(whole, 4, ("other", "dark"), seed=1)
    assert few.classes == ("other", "dark")
    assert few.y.bincount().tolist() == [2, 2]
    assert few.x[few.y == 0].mean() > 0.7 > 0.1 > few.x[few.y == 1].mean()
    assert torch.equal(data.subset(whole, 4, ("other", "dark"), seed=1).x, few.x)
    assert torch.equal(data.subset(whole).x, whole.x)
    with pytest.raises(ValueError, match="has 8 samples of these classes"):
        data.subset(whole, 9, ("other", "dark"))
