"""Training on images in memory and in files."""

import pytest
import torch
from PIL import Image

from repalign import data, train
from repalign.data.acquire import trees
from repalign.papers import imani


@pytest.fixture
def folder(tmp_path):
    for level, name in enumerate(("dark", "light")):
        place = tmp_path / "train" / name
        place.mkdir(parents=True)
        for k in range(6):
            Image.new("RGB", (48, 40), (120 * level + 5 * k,) * 3).save(place / f"{k}.png")
    return tmp_path


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))


def test_files_train_as_images_in_memory_do_and_are_decoded_by_the_batch(folder, monkeypatch):
    files = data.image_files("image_folder", size=32, folder=folder)
    whole = data.load("image_folder", size=32, folder=folder, dtype=torch.uint8)
    read, decode = [], trees.decode
    monkeypatch.setattr(trees, "decode", lambda paths, size: read.append(len(paths)) or decode(paths, size))
    models = network(), network()
    for model, images in zip(models, (files, whole), strict=True):
        imani.fit_images(model, images, side=32, epochs=2, batch_size=5, seed=1)
    assert read == [5, 5, 2, 5, 5, 2]
    assert torch.equal(models[0][1].weight, models[1][1].weight)
    scores = [imani.image_accuracy(models[0], images, side=32, batch=7) for images in (files, whole)]
    direct = train.accuracy(models[0], imani.image_view(whole.x, 32), whole.y)
    assert scores == pytest.approx([direct, direct])


def test_a_view_is_a_window_without_borders():
    x = torch.full((8, 3, 32, 32), 255, dtype=torch.uint8)
    one = imani.image_view(x, 224)
    assert one.shape == (8, 3, 224, 224)
    assert torch.allclose(one, imani.image_view(x, 224, torch.Generator().manual_seed(0)), atol=1e-5)
    small = imani.image_view(x, 32, torch.Generator().manual_seed(0))
    assert small.shape == x.shape
    assert not torch.equal(small, imani.image_view(x, 32))


def test_floats_are_refused():
    digits = data.load("cifar10", n=20)
    with pytest.raises(TypeError, match=r"torch\.uint8"):
        imani.fit_images(network(), digits, side=32, epochs=1)
