"""Sets of image files in the layouts their homes use."""

import io
import os
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from made_files import sha256
from repalign import data
from repalign.data import loading
from repalign.data.acquire import find
from repalign.data.acquire.fetch import Web
from repalign.data.row import Source
from repalign.data.sets import SETS

pytest_plugins = ["serving"]


def picture(path, level, size=(70, 64), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, level).save(path)


def test_tiny_imagenet_as_it_is_unpacked(tmp_path):
    top = tmp_path / "tiny-imagenet-200"
    lines = []
    for i, wnid in enumerate(("n02", "n01")):
        for k in range(3):
            picture(top / "train" / wnid / "images" / f"{wnid}_{k}.JPEG", (100 * i, 50, 50), (64, 64))
        picture(top / "val" / "images" / f"val_{i}.JPEG", (100 * i, 50, 50), (64, 64))
        lines.append(f"val_{i}.JPEG\t{wnid}\t0\t0\t62\t62")
    (top / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    train, val = (data.load("tiny_imagenet", split, folder=tmp_path) for split in ("train", "val"))
    assert train.classes == val.classes == ("n01", "n02")
    assert train.x.shape == (6, 3, 64, 64)
    assert train.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert val.y.tolist() == [1, 0]
    # The first of the two was made black in the red channel.
    assert train.x[train.y == 1, 0].max() < 0.05 < 0.3 < train.x[train.y == 0, 0].min()
    assert data.load("tiny_imagenet", n=2, size=8, folder=tmp_path).x.shape == (2, 3, 8, 8)


def test_tiny_imagenet_from_its_home(tmp_path, monkeypatch, server):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name in ("a", "b"):
            image = io.BytesIO()
            Image.new("RGB", (64, 64), (9, 9, 9)).save(image, "JPEG")
            z.writestr(f"tiny-imagenet-200/train/{name}/images/{name}_0.JPEG", image.getvalue())
    server.files["tiny.zip"] = out.getvalue()
    home = Source((Web(f"{server.url}tiny.zip", sha256(out.getvalue()), len(out.getvalue())),))
    monkeypatch.setitem(SETS, "tiny_imagenet", replace(SETS["tiny_imagenet"], home=home))
    assert data.source_fingerprint("tiny_imagenet") == "absent"
    for _ in range(2):
        assert len(data.load("tiny_imagenet")) == 2
    assert len(server.requests) == 1
    assert data.source_fingerprint("tiny_imagenet").startswith("cache:")


def test_office31_has_three_domains(tmp_path, monkeypatch):
    for domain in ("amazon", "dslr", "webcam"):
        for name in ("mug", "pen"):
            picture(tmp_path / "office31" / domain / "images" / name / "frame_0001.jpg", (9, 9, 9))
    monkeypatch.setenv("REPALIGN_DATA", str(tmp_path))
    assert [len(data.load("office31", domain, size=16)) for domain in ("amazon", "dslr", "webcam")] == [
        2,
        2,
        2,
    ]
    with pytest.raises(ValueError, match="amazon, dslr, webcam"):
        data.load("office31", "train")


def test_imagenet_parts_into_natural_and_artificial_only_when_whole(tmp_path, monkeypatch):
    assert len(data.IMAGENET_NATURAL) == 449
    assert len(data.IMAGENET_ARTIFICIAL) == 551
    assert not set(data.IMAGENET_NATURAL) & set(data.IMAGENET_ARTIFICIAL)
    picture(tmp_path / "imagenet" / "val" / "n01" / "a.JPEG", (9, 9, 9), (300, 250))
    monkeypatch.setenv("REPALIGN_DATA", str(tmp_path))
    assert data.load("imagenet", "val").x.shape == (1, 3, 224, 224)
    with pytest.raises(ValueError, match="no group of classes 'natural'"):
        data.load("imagenet", "val", classes="natural")
    for i in range(2, 1001):
        picture(tmp_path / "imagenet" / "val" / f"n{i:04}" / "a.png", (9, 9, 9), (4, 4))
    natural = data.load("imagenet", "val", classes="natural", size=4)
    assert len(natural) == 449


def test_a_folder_of_other_things_is_not_imagenet(tmp_path, monkeypatch):
    picture(tmp_path / "holiday" / "beach.jpg", (9, 9, 9))
    monkeypatch.setenv("REPALIGN_DATA", str(tmp_path))
    with pytest.raises(data.DataError, match="has no directory val"):
        data.load("imagenet", "val")
    # torchvision's ImageNet lies right in the folder it is given.
    picture(tmp_path / "val" / "n01440764" / "a.JPEG", (9, 9, 9))
    assert data.load("imagenet", "val", size=8).classes == ("n01440764",)


def test_the_users_own_images_of_any_kind(tmp_path):
    picture(tmp_path / "cats" / "a.png", 128, mode="L")
    picture(tmp_path / "cats" / "b.gif", 1, mode="P")
    picture(tmp_path / "dogs" / "c.jpg", (0, 0, 0, 0), mode="CMYK")
    picture(tmp_path / "dogs" / "d.png", (255, 0, 0, 128), (10, 200), mode="RGBA")
    (tmp_path / "dogs" / "notes.txt").write_text("not an image")
    d = data.load("image_folder", "all", folder=tmp_path, size=32)
    assert d.classes == ("cats", "dogs")
    assert d.x.shape == (4, 3, 32, 32)
    assert str(tmp_path) in d.source
    assert d.fingerprint == data.load("image_folder", "all", folder=tmp_path, size=32).fingerprint
    before = d.fingerprint
    picture(tmp_path / "cats" / "a.png", 129, mode="L")
    assert data.load("image_folder", "all", folder=tmp_path, size=32).fingerprint != before
    (tmp_path / "dogs" / "e.jpg").write_bytes(b"torn")
    with pytest.raises(data.DataError, match=r"e\.jpg cannot be read as an image"):
        data.load("image_folder", "all", folder=tmp_path)


def images_of(d):
    return {x.numpy().tobytes() for x in d.x}


def own_images(place, **counts):
    """Images of different colors, so many of each class."""
    for c, (name, count) in enumerate(counts.items()):
        for i in range(count):
            picture(place / name / f"{i}.png", (i, 10 * c, 50), (8, 8))


def test_own_images_without_split_folders_are_split_and_never_shared(tmp_path):
    own_images(tmp_path, cats=40, dogs=20, train=3)  # a class may have a split's name
    whole = data.load("image_folder", "all", folder=tmp_path, size=8)
    parts = {
        split: data.load("image_folder", split, folder=tmp_path, size=8) for split in ("train", "val", "test")
    }
    assert {split: d.y.bincount().tolist() for split, d in parts.items()} == {
        "train": [28, 14, 1],
        "val": [4, 2, 1],
        "test": [8, 4, 1],
    }
    seen = [images_of(d) for d in parts.values()]
    assert sum(len(images) for images in seen) == len(set().union(*seen)) == len(whole) == 63
    assert all("split here by file name: of each class 70% train" in d.source for d in parts.values())
    assert "split here" not in whole.source
    # The seed of a sample does not move the border between the splits.
    samples = [
        data.load("image_folder", split, n=7, seed=seed, folder=tmp_path, size=8)
        for split, seed in (("train", 1), ("test", 2), ("val", 3))
    ]
    a, b, c = map(images_of, samples)
    assert not a & b
    assert not b & c
    assert not a & c
    assert len({d.fingerprint for d in [whole, *parts.values()]}) == 4


def test_new_images_leave_the_split_of_the_others_almost_alone(tmp_path):
    own_images(tmp_path, cats=50, dogs=50)
    before = images_of(data.load("image_folder", "test", folder=tmp_path, size=8))
    picture(tmp_path / "cats" / "new.png", (200, 0, 0), (8, 8))
    after = images_of(data.load("image_folder", "test", folder=tmp_path, size=8))
    assert len(before - after) <= 1


def test_split_folders_are_taken_as_they_are(tmp_path):
    own_images(tmp_path / "train", cats=3, dogs=2)
    own_images(tmp_path / "test", cats=1, dogs=1)
    assert len(data.load("image_folder", folder=tmp_path)) == 5
    test = data.load("image_folder", "test", folder=tmp_path)
    assert len(test) == 2
    assert "split here" not in test.source
    with pytest.raises(data.DataError, match="has train and test, but no directory val"):
        data.load("image_folder", "val", folder=tmp_path)


def test_too_few_images_to_split_are_refused(tmp_path):
    own_images(tmp_path, cats=5, dogs=2)
    with pytest.raises(data.DataError, match=r"at least 3 images to be split, but dogs has 2.*split=.all"):
        data.load("image_folder", folder=tmp_path)


def test_bad_trees_and_sizes_say_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(data.DataError, match="no directories of images, one per class"):
        data.load("image_folder", folder=tmp_path)
    with pytest.raises(ValueError, match="size is for sets of image files"):
        data.load("mnist", n=10, size=32)
    picture(tmp_path / "cats" / "a.png", (9, 9, 9))
    with pytest.raises(ValueError, match="has 1 samples of these classes"):
        data.load("image_folder", "all", folder=tmp_path, n=5)
    shrunk = data.load("image_folder", "all", folder=tmp_path, n=5, shrink=True)
    assert "5 samples were asked for, 1 are available" in shrunk.source
    monkeypatch.setattr(loading, "_memory", lambda: 1000.0)
    with pytest.raises(ValueError, match="Ask for fewer with n"):
        data.load("image_folder", "all", folder=tmp_path)


def own(folder, size=8):
    return data.load("image_folder", "all", folder=folder, size=size, dtype=torch.uint8)


def test_an_image_that_is_overwritten_in_place_gives_other_fingerprints(tmp_path):
    own_images(tmp_path, cats=3, dogs=3)
    path, where = tmp_path / "cats" / "1.png", dict(split="all", folder=tmp_path, size=8)

    def marks():
        tree = find.tree_in_folder("image_folder", "all", tmp_path)
        files = data.image_files("image_folder", **where)
        dogs = data.image_files("image_folder", classes=("dogs",), **where)
        return own(tmp_path).fingerprint, files.fingerprint, tree.mark, dogs.fingerprint

    before, stat = marks(), path.stat()
    assert marks() == before
    picture(path, (200, 10, 50), (8, 8))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = marks()
    assert all(a != b for a, b in zip(before[:3], after[:3], strict=True))
    assert before[3] == after[3]  # the other class is as it was


def test_source_fingerprint_sees_an_image_that_is_overwritten(tmp_path, monkeypatch):
    own_images(tmp_path / "image_folder", cats=5, dogs=5)
    monkeypatch.setenv("REPALIGN_DATA", str(tmp_path))
    before = data.source_fingerprint("image_folder", "train")
    for name in ("cats", "dogs"):
        for path in (tmp_path / "image_folder" / name).iterdir():
            picture(path, (200, 10, 50), (8, 8))
    assert data.source_fingerprint("image_folder", "train") != before


RAMP = np.linspace(0, 65535, 64).reshape(8, 8).round().astype(np.uint16)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_gray_of_16_bits_keeps_its_scale(tmp_path, name):
    (tmp_path / "gray").mkdir()
    if name == "a.pgm":
        (tmp_path / "gray" / name).write_bytes(b"P5 8 8 65535\n" + RAMP.astype(">u2").tobytes())
    else:
        Image.fromarray(RAMP).save(tmp_path / "gray" / name)
    d = data.load("image_folder", "all", folder=tmp_path, size=8)
    for channel in d.x[0]:
        np.testing.assert_allclose(channel, RAMP / 65535, atol=0.5 / 255 + 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_numbers_without_a_known_white_are_refused(tmp_path, dtype):
    (tmp_path / "gray").mkdir()
    Image.fromarray((RAMP / 65535).astype(dtype)).save(tmp_path / "gray" / "a.tif")
    with pytest.raises(data.DataError, match=r"a\.tif cannot be read .*no file says which one is white"):
        own(tmp_path)


@pytest.mark.parametrize("ending", ["png", "tif", "webp", "jpg"])
def test_images_are_turned_upright(tmp_path, ending):
    corners = np.zeros((8, 8, 3), np.uint8)
    corners[:4, :4], corners[:4, 4:], corners[4:, :4] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    upright = Image.fromarray(corners)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / "a" / f"{orientation}.{ending}"
        path.parent.mkdir(exist_ok=True)
        sensor = upright.copy()
        sensor.save(path, exif=exif, **({"lossless": True} if ending == "webp" else {}))
        with Image.open(path) as image:
            expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB")).transpose(2, 0, 1)
        found = own(tmp_path).x[orientation - 1].numpy()
        np.testing.assert_allclose(found.astype(int), expected.astype(int), atol=1)
    assert len({image.tobytes() for image in own(tmp_path).x.numpy()}) == 8


def test_the_middle_of_a_long_image_is_kept(tmp_path):
    long = np.zeros((8, 24, 3), np.uint8)
    long[:, 8:16] = 255
    (tmp_path / "a").mkdir()
    Image.fromarray(long).save(tmp_path / "a" / "a.png")
    assert own(tmp_path).x.min() == 255
    assert "the middle" in data.load.__doc__


def test_directories_inside_a_class_and_empty_classes_are_refused(tmp_path):
    own_images(tmp_path, cats=3, dogs=3)
    (tmp_path / "cats" / "notes").mkdir()
    (tmp_path / "cats" / "notes" / "readme.txt").write_text("no image")
    picture(tmp_path / "cats" / ".thumbnails" / "a.png", (1, 1, 1))
    (tmp_path / "cats" / "._0.png").write_bytes(b"what another system leaves behind")
    assert len(own(tmp_path)) == 6
    picture(tmp_path / "cats" / "young" / "more" / "a.png", (1, 1, 1))
    with pytest.raises(data.DataError, match=r"cats holds the directory young with images.*move them up"):
        own(tmp_path)
    (tmp_path / "cats" / "young").rename(tmp_path / "cats" / "images")
    with pytest.raises(data.DataError, match="cats holds the directory images with images"):
        own(tmp_path)
    (tmp_path / "cats" / "images").rename(tmp_path / ".hidden")
    assert len(own(tmp_path)) == 6
    (tmp_path / "birds").mkdir()
    with pytest.raises(data.DataError, match="birds has no images: remove it, or add some"):
        own(tmp_path)
