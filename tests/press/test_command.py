"""The command: what it offers, what it says of mistakes, and the book that it renders."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

import toy_book
from repalign import cli
from repalign.press import project
from repalign.press.project import UserError
from toy_book import claims_of, edit, page_of, ran, record_of, refused, repalign, wait_for


@pytest.fixture
def said(monkeypatch, capsys):
    """The command in this process, for what ends before any page runs."""

    def call(root, *words):
        monkeypatch.chdir(root)
        monkeypatch.setattr(sys, "argv", ["repalign", *words])
        # The tests keep their own ways to be stopped.
        monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as end:
            cli.main()
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(words, end.value.code, shown.out, shown.err)

    return call


def test_help_names_every_command(tmp_path, said):
    done = said(tmp_path, "--help")
    assert done.returncode == 0
    for command in ("run", "record", "verify", "book", "claims", "data", "bench"):
        assert re.search(rf"^\W*{command} ", done.stdout, re.MULTILINE), command


@pytest.fixture
def bare(tmp_path):
    """A book of which nothing has run, without a copy of the package."""
    root = tmp_path / "bare"
    (root / "notebooks" / "toy").mkdir(parents=True)
    (root / "book" / "_static").mkdir(parents=True)
    (root / "book" / "intro.md").write_text("# Intro\n")
    (root / "_config.yml").write_text("title: toy\n")
    toy_book.write(root, "01_a")
    toy_book.list_pages(root)
    return root


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["run", "--profile", "huge"], ["unknown profile 'huge'", "smoke, laptop, desktop, paper"]),
        (["run", "nothing"], ["no notebook matches 'nothing'", "toy/01_a"]),
        (["run", "--set", "n"], ["--set takes NAME=VALUE"]),
        (["run", "--set", "x={1,2}"], ["--set takes numbers, texts, lists and dicts", "is a set"]),
        (["run", "--set", "x=1e999"], ["--set takes finite numbers, but 'x=1e999' is none"]),
        (["run", "--device", "tpu"], ["unknown device 'tpu'", "auto, cpu, cuda, mps"]),
        (["run", "--jobs", "-1"], ["--jobs should be 0 or more"]),
        (["run", "--limit", "-1"], ["--limit should be 0 or more seconds"]),
        (["run", "--cluster", "nonsense"], ["no Dask scheduler answers"]),
        (["run", "--fresh"], ["run it in a clone of the book"]),
        (["record"], ["toy/01_a has no finished run at desktop", "repalign run toy/01_a"]),
        (["record", "--profile", "smoke"], ["a run at smoke is no evidence"]),
        (["verify"], ["none of these pages has a record"]),
        (["claims"], ["nothing measured yet", "repalign run"]),
        (["book"], ["toy/01_a is not run yet", "repalign run toy/01_a --profile laptop"]),
        (["bench", "nothing"], ["no benchmark matches nothing"]),
    ],
)
def test_a_mistake_is_one_line_and_nothing_runs(bare, said, words, parts):
    if "--cluster" in words:
        pytest.importorskip("distributed")
    done = said(bare, *words)
    refused(done, *parts)
    assert done.stderr.count("\n") == 1
    assert not list(bare.glob("build/*"))


def test_no_book_here(tmp_path, said):
    refused(said(tmp_path, "run"), "no book here", "_toc.yml")


def test_an_unknown_option_is_explained(bare, said):
    done = said(bare, "run", "--prfile", "smoke")
    assert done.returncode == 2
    assert "No such option: --prfile" in done.stderr
    assert "Traceback" not in done.stderr


def test_claims_come_from_the_record_else_from_the_last_run(root):
    (line,) = [line for line in ran(root, "claims").stdout.splitlines() if "toy.01_a" in line]
    assert re.match(r" *toy.01_a +REPRODUCED +desktop", line)
    narrow = ran(root, "claims", COLUMNS="60").stdout.splitlines()
    assert narrow[0] == "toy.01_a  REPRODUCED  desktop"
    assert max(len(line) for line in narrow) <= 60
    (claim,) = json.loads(ran(root, "claims", "--json").stdout)
    assert (claim["id"], claim["profile"], claim["verdict"]) == ("toy.01_a", "desktop", "REPRODUCED")
    refused(repalign(root, "claims", "--profile", "laptop"), "nothing measured yet at laptop")
    (root / "build" / "desktop" / "toy" / "01_a" / "run.json").write_text("[]")
    refused(repalign(root, "claims", "--profile", "desktop"), "run.json of toy/01_a")


def test_check_says_what_does_not_agree(root):
    assert "1 claims on 1 pages: pages, criteria and records agree" in ran(root, "claims", "--check").stdout
    claims = json.loads((record_of(root) / "run.json").read_text())
    claims["claims"]["toy.01_a"]["verdict"] = "NOT REPRODUCED"
    (record_of(root) / "run.json").write_text(json.dumps(claims))
    edit(root / "_toc.yml", "01_a", "02_b")
    done = repalign(root, "claims", "--check")
    refused(done, "keeps toy.01_a as NOT REPRODUCED", "toy/01_a is not in _toc.yml", "02_b, which does not")


def test_disagreements_of_pages_claims_contents_and_records(bare):
    assert project.disagreements(bare) == []
    toy_book.write(bare, "02_b")
    edit(claims_of(bare), 'page = "01_a"', 'page = "03_c"')
    for place in ("04_d", "05_e/2026-01-01-desktop"):
        (bare / "records" / "toy" / place).mkdir(parents=True)
        (bare / "records" / "toy" / place / "run.json").write_text("{}")
    (bare / "_toc.yml").write_text("root: book/gone\nchapters:\n- file: notebooks/toy/01_a\n")
    assert project.disagreements(bare) == [
        "notebooks/toy/02_b is not in _toc.yml",
        "_toc.yml lists book/gone, which does not exist",
        "toy.01_a is for the page toy/03_c, which does not exist",
        "toy/01_a has no claim in notebooks/toy/claims.toml",
        "toy/02_b has no claim in notebooks/toy/claims.toml",
        "records/toy/04_d belongs to no page: record its page again, or delete it",
        "records/toy/05_e belongs to no page: record its page again, or delete it",
    ]
    claims_of(bare).write_text("[")
    assert any("claims.toml is not TOML" in found for found in project.disagreements(bare))


def test_a_broken_table_of_contents_is_one_line(bare):
    (bare / "_toc.yml").write_text("chapters: [")
    with pytest.raises(UserError, match=r"_toc\.yml cannot be read: "):
        project.disagreements(bare)
    (bare / "_toc.yml").write_bytes(b"\xff\xff")
    with pytest.raises(UserError, match=r"_toc\.yml cannot be read: "):
        project.disagreements(bare)


SCRIPT = "<script>alert(1)</script>"


def test_texts_of_a_record_are_texts_in_the_book(root):
    """Also what no command would write, such as a machine or a claim that is markup."""
    run = json.loads((record_of(root) / "run.json").read_text())
    run |= {"machine": SCRIPT, "history": [{**run, "verdicts": {"toy.01_a": SCRIPT}, "date": SCRIPT}]}
    run["versions"]["torch"] = SCRIPT
    (record_of(root) / "run.json").write_text(json.dumps(run))
    (record_of(root) / "verified.json").write_text(
        json.dumps(
            [{"date": SCRIPT, "commit": SCRIPT, "processor": SCRIPT, "cells": 1, "of": 1, "largest": 0.0}]
        )
    )
    edit(claims_of(root), "The mean lies above one half.", SCRIPT)
    edit(page_of(root), "A point for each run.", SCRIPT)
    (root / "_toc.yml").write_text((root / "_toc.yml").read_text() + "- file: book/scoreboard\n")
    done = ran(root, "book", "--records")
    site = root / "_build" / "html"
    assert str(site / "index.html") in done.stdout
    for page in ("notebooks/toy/01_a.html", "book/scoreboard.html"):
        text = (site / page).read_text()
        assert "&lt;script&gt;alert(1)" in text, page
        assert "<script>alert(1)" not in text, page


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_book_that_is_stopped_takes_sphinx_along(root, how):
    shutil.rmtree(root / "_build", ignore_errors=True)
    process = toy_book.started(root, "book", "--profile", "desktop")

    def rendering():
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        return process.poll() is not None or any("guarded" in " ".join(one.cmdline()) for one in family)

    wait_for(rendering)
    assert process.poll() is None, process.stderr.read()
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, how)
    _, said = process.communicate(timeout=120)
    _, left = psutil.wait_procs(family, timeout=60)
    assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []
    assert not (root / "_build" / "html").exists()
    if how == signal.SIGTERM:
        assert process.returncode == 130
        assert "Traceback" not in said
        assert not list((root / "build").glob(".scratch-*"))
