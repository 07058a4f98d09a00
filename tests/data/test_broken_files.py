"""Files that are broken, or mean harm: one line that says which one, within a bound of time and memory."""

import gzip
import io
import json
import os
import struct
import tarfile
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from made_files import idx_bytes, tar_bytes
from repalign import data
from repalign.data.acquire import archives, formats, trees
from repalign.data.errors import UnavailableError

RNG = np.random.default_rng(0)
# One file is written again and again: an example does not need a directory of its own.
FEW = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=5)


def garbled(raw, changes, cut):
    changed = bytearray(raw)
    for place, byte in changes:
        changed[place % len(raw)] = byte
    return bytes(changed[: cut % len(raw)] if cut else changed)


def refusal(kind, function, *given):
    """The line with which a function refuses, or nothing when it does not."""
    try:
        function(*given)
    except kind as error:
        said = str(error)
    else:
        said = ""
    assert len(said.splitlines()) <= 1
    return said


# Images


def images():
    found = {}
    picture = Image.fromarray(RNG.integers(0, 256, (12, 9, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "made here"
    for ending in ("jpg", "png", "bmp", "gif", "webp", "tif", "ppm"):
        out = io.BytesIO()
        kind = {"jpg": "JPEG", "tif": "TIFF"}.get(ending, ending.upper())
        picture.save(out, kind, **({"exif": exif} if ending in ("jpg", "png", "webp") else {}))
        found[ending] = out.getvalue()
    out = io.BytesIO()
    Image.fromarray(np.arange(100, dtype=np.uint16).reshape(10, 10)).save(out, "TIFF", compression="tiff_lzw")
    found["tiff"] = out.getvalue()
    return found


IMAGES = images()


@pytest.mark.filterwarnings("ignore")
@settings(FEW, max_examples=400)
@given(st.sampled_from(sorted(IMAGES)), CHANGES, st.integers(0, 3000))
def test_a_garbled_image_is_read_or_named(tmp_path, ending, changes, cut):
    path = tmp_path / f"a.{ending}"
    path.write_bytes(garbled(IMAGES[ending], changes, cut if cut < 1000 else 0))
    said = refusal(data.DataError, trees.decode, [path], 8)
    assert not said or said.startswith(f"{path} cannot be read as an image")


def png_of_zeros(width, height):
    """An image whose rows were packed as far as possible."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    pack = zlib.compressobj(9)
    rows = b"".join(pack.compress(bytes(width + 1)) for _ in range(height)) + pack.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore")  # Pillow's own word on it
@pytest.mark.parametrize("side", [9_500, 20_000])
def test_a_small_picture_does_not_unpack_to_hundreds_of_megabytes(tmp_path, side):
    (tmp_path / "a").mkdir()
    raw = bytearray(png_of_zeros(side, 1))
    raw[20:24] = struct.pack(">I", side)  # the header alone counts: its height
    raw[29:33] = struct.pack(">I", zlib.crc32(bytes(raw[12:29])))
    (tmp_path / "a" / "a.png").write_bytes(raw)
    with pytest.raises(data.DataError, match=r"a\.png cannot be read as an image .*pixels"):
        data.load("image_folder", "all", folder=tmp_path)


def test_other_formats_under_an_image_name_are_not_opened(tmp_path):
    """Pillow runs another program for some of them."""
    (tmp_path / "a").mkdir()
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
    (tmp_path / "a" / "a.png").write_bytes(postscript)
    with pytest.raises(data.DataError, match="cannot identify image file"):
        data.load("image_folder", "all", folder=tmp_path)


# Places


def a_pipe(folder):
    os.mkfifo(folder / "pipe.png")


def a_circle(folder):
    (folder / "circle.png").symlink_to("circle.png")


def a_link_to_nothing(folder):
    (folder / "gone.png").symlink_to("nowhere.png")


def a_name_that_is_no_text(folder):
    open(os.fsencode(folder) + b"/\xff.png", "wb").close()


def a_link_to_the_class_itself(folder):
    (folder / "again").symlink_to(folder)


def a_circle_beside_it(folder):
    (folder.parent / "circle").symlink_to("circle")


def a_class_that_is_no_text(folder):
    os.mkdir(os.fsencode(folder.parent) + b"/\xff")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (a_pipe, r"pipe\.png is no file, but a pipe, a device or a broken link: remove it"),
        (a_circle, r"circle\.png is no file, but a pipe, a device or a broken link: remove it"),
        (a_link_to_nothing, r"gone\.png is no file, but a pipe, a device or a broken link: remove it"),
        (a_name_that_is_no_text, r"udcff\.png' is not a name in UTF-8: rename it"),
        (a_link_to_the_class_itself, "holds the directory again with images, or a link to one"),
        (a_circle_beside_it, "circle is a link that leads nowhere: remove it"),
        (a_class_that_is_no_text, "udcff' is not a name in UTF-8: rename it"),
    ],
)
def test_what_is_no_image_in_a_folder_of_images_is_named(tmp_path, make, message):
    folder = tmp_path / "image_folder" / "cats"
    folder.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    assert len(data.load("image_folder", "all", folder=tmp_path)) == 1
    make(folder)
    with pytest.raises(data.DataError, match=message):
        data.load("image_folder", "all", folder=tmp_path)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100", "crime", "quickdraw", "imagenet"])
def test_pipes_and_circles_in_a_folder_are_not_waited_for(tmp_path, name):
    for file in ("train-images-idx3-ubyte", "data_batch_1", "slice_localization_data.csv", "crime.csv"):
        os.mkfifo(tmp_path / file)
    (tmp_path / "train").symlink_to("train")
    (tmp_path / "ant.ndjson.gz").symlink_to("ant.ndjson.gz")
    with pytest.raises(data.DataError, match="is not available"):
        data.load(name, folder=tmp_path)
    with pytest.raises(UnavailableError, match=r"has neither slice_localization_data\.csv nor"):
        formats.ct_slices(tmp_path, "train")  # a stand-in is loaded in its place


def test_a_folder_whose_name_is_no_text_is_named(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(folder)
    for name in ("mnist", "image_folder"):
        with pytest.raises(data.DataError, match="is not a name in UTF-8: rename it"):
            data.load(name, folder=folder)


# IDX, tables, lines

IDX = gzip.compress(idx_bytes(RNG.integers(0, 256, (5, 4, 4), dtype=np.uint8)), mtime=0)


@FEW
@given(CHANGES, st.integers(0, 200))
def test_a_garbled_idx_is_read_or_named(tmp_path, changes, cut):
    path = tmp_path / "images.gz"
    path.write_bytes(garbled(IDX, changes, cut))
    said = refusal(UnavailableError, formats.idx, path)
    assert not said or str(path) in said


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\0\0\x08\x40" + struct.pack(">64I", *[2] * 64), "announces 64 axes"),
        (b"\0\0\x08\x00a", "announces 0 axes"),
        (b"\0\0\x08\x03\0\0", "announces 3 axes in 6 bytes"),
        (b"\0\0\x08\x04" + struct.pack(">4I", *[1 << 16] * 4), "announces 18446744073709551616 bytes"),
    ],
)
def test_an_idx_of_an_impossible_shape_is_refused(tmp_path, raw, message):
    (tmp_path / "images").write_bytes(raw)
    with pytest.raises(UnavailableError, match=message):
        formats.idx(tmp_path / "images")


def test_a_small_file_does_not_unpack_to_hundreds_of_megabytes(tmp_path, monkeypatch):
    zeros = bytes(1 << 25)
    (tmp_path / "images.gz").write_bytes(gzip.compress(zeros, mtime=0))
    with zipfile.ZipFile(tmp_path / "slice_localization_data.zip", "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("slice_localization_data.csv", zeros)
    (tmp_path / "tree.tgz").write_bytes(tar_bytes({"a": zeros, "b": b"wanted"}))
    monkeypatch.setattr(formats, "LARGEST", 1 << 21)
    monkeypatch.setattr(archives, "LARGEST", 1 << 21)
    del zeros
    tracemalloc.start()
    try:
        with pytest.raises(UnavailableError, match=r"images\.gz holds more than the 2,097,152 bytes"):
            formats.idx(tmp_path / "images.gz")
        for refused in (
            lambda: formats.ct_slices(tmp_path, "train"),
            lambda: archives.unpack(tmp_path / "tree.tgz", tmp_path / "out", ["b"]),
            lambda: archives.unpack_tree(tmp_path / "tree.tgz", tmp_path / "out"),
            lambda: archives.member(tmp_path / "slice_localization_data.zip", "slice_localization_data.csv"),
        ):
            with pytest.raises(UnavailableError, match="unpacks to more than 2 MB: refused"):
                refused()
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


NAMES = ["population", "ViolentCrimesPerPop", "communityname", "fold", ">0.06black", "high_crime"]
TABLE = (",".join(NAMES) + "\n0.1,0.2,Elm,1,0,1\n0.3,0.4,Dover,2,1,0\n").encode()


@FEW
@example([], 20)
@example([], 70)
@given(CHANGES, st.integers(0, 200))
def test_a_garbled_table_is_read_or_named(tmp_path, changes, cut):
    (tmp_path / "crime.csv").write_bytes(garbled(TABLE, changes, cut))
    said = refusal(UnavailableError, formats.crime, tmp_path, "train")
    assert not said or str(tmp_path) in said


VALUES = [0, 0.5, 1, 1.5, -1, None, 1e300, 1 << 2_000, float("nan"), float("inf"), "a", [], {}, True]
LINES = st.one_of(
    st.sampled_from([b"[" * 100_000, b"[" + b"9" * 5_000 + b"]", b"[1e999]", b"\xff", b"{}", b"[[]]"]),
    st.sampled_from([json.dumps([value] * 784).encode() for value in VALUES]),
    st.binary(max_size=20),
)


@settings(FEW, max_examples=60)
@given(st.lists(LINES, max_size=2))
def test_garbled_drawings_and_labels_are_read_or_named(tmp_path, lines):
    (tmp_path / "ant.ndjson.gz").write_bytes(b"\n".join(lines))
    said = refusal(UnavailableError, formats.quickdraw_lines, tmp_path, "train")
    assert not said or str(tmp_path) in said
    Image.new("RGB", (1024, 1)).save(tmp_path / "test_batch.png")
    (tmp_path / "test_lables.json").write_bytes(b"".join(lines))
    said = refusal(UnavailableError, formats.cifar10_png_rows, tmp_path, "test")
    assert not said or str(tmp_path) in said


# Archives


def zipped(kind):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as z:
        z.writestr("a/wanted", b"content" * 9)
        z.writestr("b", b"more")
    return out.getvalue()


def debian():
    inner = tar_bytes({"./a/wanted": b"content"}, mode="w:xz")
    head = f"{'data.tar.xz':<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(inner):<10}`\n".encode()
    return b"!<arch>\n" + head + inner


ARCHIVES = {
    "zip": zipped(zipfile.ZIP_DEFLATED),
    "zip by lzma": zipped(zipfile.ZIP_LZMA),
    "tar": tar_bytes({"a/wanted": b"content", "b": b"more"}, mode="w"),
    "tar by gz": tar_bytes({"a/wanted": b"content"}, mode="w:gz"),
    "tar by xz": tar_bytes({"a/wanted": b"content"}, mode="w:xz"),
    "tar by bz2": tar_bytes({"a/wanted": b"content"}, mode="w:bz2"),
    "Debian": debian(),
}


@pytest.mark.filterwarnings("ignore")
@settings(FEW, max_examples=250)
@given(st.sampled_from(sorted(ARCHIVES)), CHANGES, st.integers(0, 3000))
def test_a_garbled_archive_is_unpacked_or_named(tmp_path, kind, changes, cut):
    path = tmp_path / "archive"
    path.write_bytes(garbled(ARCHIVES[kind], changes, cut if cut < 1000 else 0))
    said = refusal(UnavailableError, archives.unpack, path, tmp_path / "out", ["*wanted"])
    assert not said or "archive" in said


def test_an_encrypted_zip_and_a_backward_member_are_named(tmp_path):
    raw = bytearray(zipped(zipfile.ZIP_STORED))
    raw[6] |= 1
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(raw)
    with pytest.raises(UnavailableError, match=r"a\.zip cannot be unpacked: .*encrypted"):
        archives.member(tmp_path / "a.zip", "a/wanted")
    head = f"{'debian-binary':<16}{0:<12}{0:<6}{0:<6}{100644:<8}{-60:<10}`\n".encode()
    (tmp_path / "a.deb").write_bytes(b"!<arch>\n" + head)
    with pytest.raises(UnavailableError, match=r"a\.deb has no data\.tar"):
        archives.member(tmp_path / "a.deb", "a/wanted")


def test_devices_in_an_archive_are_not_made(tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for kind in (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.LNKTYPE):
            info = tarfile.TarInfo("wanted")
            info.type = kind
            tar.addfile(info)
    (tmp_path / "a.tar").write_bytes(out.getvalue())
    with pytest.raises(UnavailableError, match="lacks wanted"):
        archives.unpack(tmp_path / "a.tar", tmp_path / "out", ["wanted"])
    assert not list((tmp_path / "out").iterdir())
