"""Images by their numbers: the same pictures from memory and from files, and shared by copies."""

import copy

import pytest
import torch
from PIL import Image

from repalign import data, train
from repalign.models import SimpleCNN
from repalign.papers import maennel


@pytest.fixture
def folder(tmp_path):
    g = torch.Generator().manual_seed(0)
    for split, many in (("train", 6), ("val", 4)):
        for kind in ("cats", "dogs"):
            place = tmp_path / "photos" / split / kind
            place.mkdir(parents=True)
            for i in range(many):
                pixels = torch.randint(256, (12, 12, 3), generator=g, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(place / f"{i}.png")
    return tmp_path / "photos"


def both(folder, size):
    files = [data.image_files("image_folder", split, size=size, folder=folder) for split in ("train", "val")]
    held = [
        data.load("image_folder", split, size=size, folder=folder, dtype=torch.uint8)
        for split in ("train", "val")
    ]
    return files, held


def test_files_and_memory_show_the_same_images_numbered_through(folder):
    files, held = both(folder, 12)
    rows = torch.tensor([0, 13, 7])
    seen = maennel.ImageRows(files, side=8)(rows)
    assert torch.equal(seen, maennel.ImageRows(held, side=8)(rows))
    second = held[1].x[13 - len(held[0])].float() / 127.5 - 1
    assert torch.allclose(seen[1], second[:, 2:10, 2:10])


def test_large_images_are_averaged_over_blocks(folder):
    _, held = both(folder, 12)
    small = maennel.ImageRows(held, side=6)(torch.arange(3))
    blocks = (held[0].x[:3].float() / 127.5 - 1).unfold(2, 2, 2).unfold(3, 2, 2).mean((4, 5))
    assert torch.allclose(small, blocks, atol=1e-6)
    with pytest.raises(ValueError, match="12 pixels cannot be seen at 20"):
        maennel.ImageRows(held, side=20)(torch.arange(2))


def test_numbers_in_place_of_images_train_the_same_network(folder):
    files, held = both(folder, 12)
    look = maennel.ImageRows(files, side=8)
    rows, y = torch.arange(len(files[0])), files[0].y
    nets = [SimpleCNN((3, 8, 8), 2, convs=1, filters=4, units=8, seed=0) for _ in range(2)]
    reading = torch.nn.Sequential(look, nets[0])
    how = dict(epochs=3, lr=0.05, batch_size=4, seed=0)
    train.fit(reading, rows, y, **how)
    train.fit(nets[1], maennel.ImageRows(held, side=8)(rows), y, **how)
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert list(maennel.layers(reading)) == ["1.conv0", "1.dense", "1.head"]
    assert copy.deepcopy(reading)[0] is look


def test_sets_of_two_kinds_are_refused(folder):
    files, held = both(folder, 12)
    with pytest.raises(ValueError, match="all be files"):
        maennel.ImageRows([files[0], held[1]], side=8)
