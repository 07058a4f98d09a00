"""The code that the book's prose shows runs as it stands."""

import re

import pytest

from command import ROOT, repalign


def blocks(name):
    text = (ROOT / "book" / name).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.S)


def test_your_own_model(capsys):
    scope = {}
    for block in blocks("own_model.md"):
        exec(block, scope)
    printed = capsys.readouterr().out
    assert printed.count("\n") > 6
    assert "nan" not in printed


def test_data(capsys):
    scope = {}
    for block in blocks("data.md"):
        exec(block, scope)
    assert "split here by file name" in capsys.readouterr().out
    assert scope["pair"].y.bincount().tolist() == [500, 500]
    seen = [{image.numpy().tobytes() for image in scope[part].x} for part in ("train", "test")]
    assert [len(images) for images in seen] == [30, 10]
    assert not seen[0] & seen[1]


def test_readme_counts_the_verdicts():
    """In its words, and as the records have them today."""
    done = repalign("claims", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    counted = done.stdout.strip().splitlines()[-1]
    assert counted in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_readme_example(capsys):
    """It prints what the README says it prints, up to how another processor rounds while a network trains."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    (said,) = re.findall(r"```text\n(.*?)```", text, flags=re.S)
    exec(block, {})
    printed = capsys.readouterr().out
    assert printed.count("\n") == said.count("\n")
    found, expected = ([float(number) for number in each.split()] for each in (printed, said))
    assert found == pytest.approx(expected, abs=0.05)
