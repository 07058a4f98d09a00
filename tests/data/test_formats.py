"""Readers of published files, on small files in the same formats; archives and pickles that mean harm."""

import gzip
import io
import json
import lzma
import os
import pickle
import tarfile
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
from PIL import Image

from made_files import idx_bytes, tar_bytes
from repalign import data
from repalign.data.acquire import archives, formats
from repalign.data.acquire.pickles import load_arrays
from repalign.data.errors import UnavailableError
from repalign.data.row import Set
from repalign.data.sets import SETS

RNG = np.random.default_rng(0)


def small(monkeypatch, name, **splits):
    """The row of a set with other numbers of samples, and no network."""
    monkeypatch.setenv("REPALIGN_OFFLINE", "1")
    row = SETS[name]
    changed = {**row.__dict__, "splits": splits, "shipped": False}
    monkeypatch.setitem(SETS, name, Set(**changed))


def test_cifar10_is_the_same_from_pickles_and_from_rows_of_png(tmp_path):
    x = RNG.integers(0, 256, (6, 20, 3, 32, 32), dtype=np.uint8)
    y = RNG.integers(0, 10, (6, 20))
    labels = {"train": [], "test": []}
    for i in range(6):
        name, split = (f"data_batch_{i + 1}", "train") if i < 5 else ("test_batch", "test")
        batch = {"data": x[i].reshape(20, 3072), "labels": y[i].tolist()}
        (tmp_path / name).write_bytes(pickle.dumps(batch, protocol=2))
        rows = x[i].transpose(0, 2, 3, 1).reshape(20, 1024, 3)
        Image.fromarray(rows).save(tmp_path / f"{name}.png")
        labels[split] += y[i].tolist()
    for split, values in labels.items():
        (tmp_path / f"{split}_lables.json").write_text(json.dumps(values))
    for split, expected in (("train", x[:5]), ("test", x[5:])):
        for reader in (formats.cifar10_pickles, formats.cifar10_png_rows):
            read = reader(tmp_path, split)
            np.testing.assert_array_equal(read.x, expected.reshape(-1, 3, 32, 32))
            assert read.y.tolist() == labels[split]
    png = tmp_path / "test_batch.png"
    png.write_bytes(png.read_bytes()[:2000])
    with pytest.raises(UnavailableError, match=r"test_batch\.png cannot be read"):
        formats.cifar10_png_rows(tmp_path, "test")


def test_cifar100_from_torchvisions_folder(tmp_path, monkeypatch):
    small(monkeypatch, "cifar100", train=200, test=100)
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for split, n in (("train", 200), ("test", 100)):
        batch = {
            b"data": RNG.integers(0, 256, (n, 3072), dtype=np.uint8),
            b"fine_labels": list(range(100)) * (n // 100),
        }
        text = {key.decode(): value for key, value in batch.items()}
        (folder / split).write_bytes(pickle.dumps(text, protocol=2))
    monkeypatch.setenv("REPALIGN_DATA", str(tmp_path))
    d = data.load("cifar100", n=6, classes=("baby", "wolf", "apple"))
    assert d.y.bincount().tolist() == [2, 2, 2]
    assert len(SETS["cifar100"].classes) == 100


def test_kmnist_from_torchvisions_folder(tmp_path, monkeypatch):
    small(monkeypatch, "kmnist", train=20, test=20)
    folder = tmp_path / "KMNIST" / "raw"
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        images, labels = np.zeros((20, 28, 28), np.uint8), np.arange(20, dtype=np.uint8) % 10
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels)))
    assert data.load("kmnist", folder=tmp_path).y.bincount().tolist() == [2] * 10
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"\x1f\x8bnot gzip after all")
    with pytest.raises(data.DataError, match="cut short or altered"):
        data.load("kmnist", folder=tmp_path)
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"<html>not found</html>")
    with pytest.raises(data.DataError, match="not an IDX file of bytes: it begins with 3c 68 74 6d"):
        data.load("kmnist", folder=tmp_path)


def ct_csv(rows):
    names = ["patientId", *(f"value{i}" for i in range(384)), "reference"]
    lines = [",".join(f"{v:.6g}" for v in row) for row in rows]
    return "\n".join([",".join(names), *lines, ""])


def test_the_uci_table_of_ct_slices_as_csv_and_as_zip(tmp_path, monkeypatch):
    small(monkeypatch, "ct_position", train=30)
    rows = np.c_[np.arange(30) // 10, RNG.normal(size=(30, 384)), np.linspace(0, 180, 30)]
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "slice_localization_data.csv").write_text(ct_csv(rows))
    (tmp_path / "zip").mkdir()
    with zipfile.ZipFile(tmp_path / "zip" / "slice_localization_data.zip", "w") as z:
        z.writestr("slice_localization_data.csv", ct_csv(rows))
    a, b = (data.load("ct_position", folder=tmp_path / kind) for kind in ("csv", "zip"))
    assert a.name == "ct_position"
    assert a.x.shape == (30, 384)
    np.testing.assert_allclose(a.x, rows[:, 1:-1], rtol=1e-5)
    np.testing.assert_allclose(a.y, rows[:, -1], rtol=1e-5)
    assert a.fingerprint == b.fingerprint
    assert os.listdir(tmp_path / "zip") == ["slice_localization_data.zip"]  # a user's folder is only read


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda text: text.replace("value7,", "value_7,"), "columns are not"),
        (lambda text: text.replace("180\n", "181\n"), "from 0 to 180"),
        (lambda text: text[:-20], "not a table of numbers"),
        (lambda text: text.replace("180\n", "x\n"), "not a table of numbers"),
    ],
)
def test_a_spoilt_ct_table_is_refused(tmp_path, spoil, message):
    rows = np.c_[np.zeros(3), np.ones((3, 384)), np.linspace(0, 180, 3)]
    (tmp_path / "slice_localization_data.csv").write_text(spoil(ct_csv(rows)))
    with pytest.raises(UnavailableError, match=message):
        formats.ct_slices(tmp_path, "train")


def test_crime_leaves_names_and_targets_out_of_the_features(tmp_path):
    names = [
        "communityname",
        "fold",
        "population",
        "income",
        "ViolentCrimesPerPop",
        "state_1",
        ">0.06black",
        "high_crime",
    ]
    lines = ["Dovertown,1,0.01,0.5,0.2,1,1,0", "Elm,2,0.03,0.25,0.4,0,0,1"]
    (tmp_path / "crime.csv").write_text("\n".join([",".join(names), *lines]))
    read = formats.crime(tmp_path, "train")
    np.testing.assert_allclose(read.x, [[0.01, 0.5, 1], [0.03, 0.25, 0]])
    np.testing.assert_allclose(read.y, [0.2, 0.4])
    (tmp_path / "crime.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UnavailableError, match="lacks the columns"):
        formats.crime(tmp_path, "train")


def test_quickdraw_names_its_classes_by_its_files(tmp_path):
    for name, level in (("The Eiffel Tower", 0.5), ("ant", 1.0)):
        drawings = "\n".join(json.dumps([level] * 784) for _ in range(3))
        (tmp_path / f"{name}.ndjson.gz").write_bytes(gzip.compress(drawings.encode()))
    read = formats.quickdraw_lines(tmp_path, "train")
    assert read.classes == ("ant", "The Eiffel Tower")
    assert read.x.shape == (6, 1, 28, 28)
    assert read.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert set(read.x[read.y == 0].ravel()) == {255}
    assert set(read.x[read.y == 1].ravel()) == {128}


def test_debian_packages_are_opened_without_dpkg(tmp_path):
    inner = lzma.compress(tar_bytes({"./usr/share/x/data.gz": b"content"}, mode="w"))

    def part(name, content):
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        return head + content + b"\n" * (len(content) % 2)

    deb = tmp_path / "small.deb"
    raw = (
        b"!<arch>\n"
        + part("debian-binary", b"2.0")
        + part("control.tar.xz", b"abc")
        + part("data.tar.xz", inner)
    )
    deb.write_bytes(raw)
    archives.unpack(deb, tmp_path / "out", ["usr/share/x/data.gz"])
    assert (tmp_path / "out" / "data.gz").read_bytes() == b"content"
    for cut in (20, len(raw) - 30):
        deb.write_bytes(raw[:cut])
        with pytest.raises(UnavailableError, match="cut short"):
            archives.unpack(deb, tmp_path / "out", ["usr/share/x/data.gz"])


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "..", "C:evil", "a\\..\\evil"])
def test_archives_cannot_write_outside(tmp_path, name):
    bad = tmp_path / "bad.tar.gz"
    bad.write_bytes(tar_bytes({name: b"x"}))
    with pytest.raises(UnavailableError, match="refused"):
        archives.unpack_tree(bad, tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as z:
        z.writestr(name, "x")
    with pytest.raises(UnavailableError, match="refused"):
        archives.unpack_tree(tmp_path / "bad.zip", tmp_path / "out")
    assert not list(tmp_path.rglob("evil"))


def test_links_in_archives_are_not_followed(tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        link = tarfile.TarInfo("wanted")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    path = tmp_path / "link.tgz"
    path.write_bytes(out.getvalue())
    with pytest.raises(UnavailableError, match="lacks wanted"):
        archives.unpack(path, tmp_path / "out", ["wanted"])
    path.write_bytes(out.getvalue()[:40])
    with pytest.raises(UnavailableError, match="cut short or altered"):
        archives.unpack(path, tmp_path / "out", ["wanted"])


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


def test_pickles_give_arrays_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree = OrderedDict(a={"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}, b=[1, "two", b"three"])
    for protocol in (2, 4, 5):
        back = load_arrays(io.BytesIO(pickle.dumps(tree, protocol=protocol)))
        np.testing.assert_array_equal(back["a"]["kernel"], tree["a"]["kernel"])
        assert back["b"] == tree["b"]
    with pytest.raises(UnavailableError, match=r"it asks for \w+\.system"):
        load_arrays(io.BytesIO(pickle.dumps({"data": Evil()})))
    assert not (tmp_path / "evil").exists()
    # Arrays of objects are rebuilt by the same rules.
    with pytest.raises(UnavailableError, match="asks for"):
        load_arrays(io.BytesIO(pickle.dumps(np.array([Evil()], dtype=object))))
    with pytest.raises(UnavailableError, match="not a plain pickle"):
        load_arrays(io.BytesIO(pickle.dumps(tree)[:30]))
