"""Sets of image files in the layouts their homes use."""

import io
import zipfile
from dataclasses import replace

import pytest
from made_files import sha256
from PIL import Image

from repalign import data
from repalign.data import loading
from repalign.data.acquire.fetch import Web
from repalign.data.row import Source
from repalign.data.sets import SETS


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
    d = data.load("image_folder", folder=tmp_path, size=32)
    assert d.classes == ("cats", "dogs")
    assert d.x.shape == (4, 3, 32, 32)
    assert str(tmp_path) in d.source
    assert d.fingerprint == data.load("image_folder", folder=tmp_path, size=32).fingerprint
    before = d.fingerprint
    picture(tmp_path / "cats" / "a.png", 129, mode="L")
    assert data.load("image_folder", folder=tmp_path, size=32).fingerprint != before
    (tmp_path / "dogs" / "e.jpg").write_bytes(b"torn")
    with pytest.raises(data.DataError, match=r"e\.jpg cannot be read as an image"):
        data.load("image_folder", folder=tmp_path)


def test_bad_trees_and_sizes_say_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(data.DataError, match="no directories of images, one per class"):
        data.load("image_folder", folder=tmp_path)
    with pytest.raises(ValueError, match="size is for sets of image files"):
        data.load("mnist", n=10, size=32)
    picture(tmp_path / "cats" / "a.png", (9, 9, 9))
    with pytest.raises(ValueError, match="has 1 samples of these classes"):
        data.load("image_folder", folder=tmp_path, n=5)
    assert (
        "5 samples were asked for, 1 are there"
        in data.load("image_folder", folder=tmp_path, n=5, shrink=True).source
    )
    monkeypatch.setattr(loading, "_memory", lambda: 1000.0)
    with pytest.raises(ValueError, match="Ask for fewer with n"):
        data.load("image_folder", folder=tmp_path)
