"""Benchmarks: what is run, kept and shown."""

import json

import pytest

from repalign.press import bench
from repalign.press.project import UserError

SCRIPT = """
import json, sys
row = {{"work": "sorting", "against": "by hand", "ours": 0.5, "theirs": {theirs}, "aim": 2}}
json.dump({{"machine": {{}}, "rows": [row], "curves": []}}, open(sys.argv[1], "w"))
"""


@pytest.fixture
def root(tmp_path):
    (tmp_path / "benchmarks").mkdir()
    for name, theirs in (("first", 4), ("second", 1000)):
        (tmp_path / "benchmarks" / f"bench_{name}.py").write_text(SCRIPT.format(theirs=theirs))
    return tmp_path


def kept(place):
    return {k: v["rows"][0]["theirs"] for k, v in json.loads(place.read_text())["benchmarks"].items()}


def test_a_new_run_replaces_only_what_it_measured(root):
    place = bench.run(root, [])
    assert kept(place) == {"bench_first": 4, "bench_second": 1000}
    (root / "benchmarks" / "bench_first.py").write_text(SCRIPT.format(theirs=5))
    assert kept(bench.run(root, ["first"])) == {"bench_first": 5, "bench_second": 1000}


def test_a_ratio_that_falls_is_named(root, capfd):
    bench.run(root, [])
    assert "fell" not in capfd.readouterr().out
    (root / "benchmarks" / "bench_first.py").write_text(SCRIPT.format(theirs=3.7))
    bench.run(root, ["first"])
    assert "fell" not in capfd.readouterr().out  # by less than a tenth
    (root / "benchmarks" / "bench_first.py").write_text(SCRIPT.format(theirs=2))
    bench.run(root, ["first"])
    assert "fell: sorting, against by hand: 7.4× to 4×" in capfd.readouterr().out
    (root / "benchmarks" / "bench_first.py").write_text(SCRIPT.format(theirs="None"))
    bench.run(root, ["first"])
    assert "4× to 0×" in capfd.readouterr().out


def test_benchmarks_run_in_plain_processes(root, monkeypatch):
    """What the project sets for its own kernels would help the others too, and nobody has it."""
    monkeypatch.delenv("MALLOC_TOP_PAD_", raising=False)
    report = SCRIPT.format(theirs="float('MALLOC_TOP_PAD_' in __import__('os').environ) + 1")
    (root / "benchmarks" / "bench_first.py").write_text(report)
    assert kept(bench.run(root, ["first"])) == {"bench_first": 1.0}


def test_a_failing_benchmark_keeps_the_others_and_is_named(root):
    (root / "benchmarks" / "bench_second.py").write_text("raise SystemExit(3)")
    with pytest.raises(UserError, match=r"bench_second\.py failed"):
        bench.run(root, [])
    assert kept(next((root / "records" / "bench").glob("*.json"))) == {"bench_first": 4}


def test_an_unknown_name_lists_those_there_are(root):
    with pytest.raises(UserError, match=r"no benchmark matches third\. There are: bench_first, bench_second"):
        bench.run(root, ["third"])


def row(**changed):
    return {"work": "sorting", "against": "by hand", "ours": 0.5, "theirs": 1000.0, "aim": 2} | changed


def page(root, rows, curves=()):
    (root / "records" / "bench").mkdir(parents=True)
    record = {"date": "2026-01-01", "machine": "a machine"}
    record["benchmarks"] = {"bench_sorts": {"rows": rows, "curves": list(curves), "commit": "abc"}}
    (root / "records" / "bench" / "2026-01-01.json").write_text(json.dumps(record))
    return bench.page(root)


def test_the_page_shows_ratio_aim_bound_and_memory(tmp_path):
    memory = {"ours": 10, "theirs": 300, "aim": 20}
    text = page(tmp_path, [row(memory=memory, times_bound=2.345), row(against="another", theirs=0.75)])
    assert "<td>2,000×, memory 1/30</td><td>2×, memory 1/20</td><td>2.3</td>" in text
    assert "<td>another</td><td>500 ms</td><td>750 ms</td><td>1.5×</td><td>2×</td><td>–</td>" in text
    assert text.count(">sorting</th>") == 1
    assert 'data-figure="ratios"' in text
    assert "At commit abc." in text


def test_a_day_with_one_benchmark_does_not_hide_the_others(tmp_path):
    page(tmp_path, [row()])
    later = {"bench_searches": {"rows": [row(work="searching")], "commit": "def"}}
    record = {"date": "2026-01-02", "machine": "a machine", "benchmarks": later}
    (tmp_path / "records" / "bench" / "2026-01-02.json").write_text(json.dumps(record))
    text = bench.page(tmp_path)
    assert "At commit abc." in text
    assert "At commit def." in text
    assert "Last measured on 2026-01-02" in text


def test_what_did_not_run_says_why(tmp_path):
    text = page(tmp_path, [row(theirs=None), row(theirs=None, why="does not fit in memory")])
    assert "<td>not installed</td>" in text
    assert "<td>does not fit in memory</td>" in text
    assert "data-figure" not in text


def test_curves_are_drawn_with_their_exponents(tmp_path):
    curve = {"work": "sort", "against": "n", "sizes": [1, 10], "seconds": [0.1, 1.0], "exponent": 1.0}
    assert 'data-figure="scaling"' in page(tmp_path, [], [curve])


def test_without_a_record_the_page_says_how_to_make_one(tmp_path):
    assert "repalign bench" in bench.page(tmp_path)


def test_nothing_in_a_record_becomes_markup(tmp_path):
    script = "<script>alert(1)</script>"
    rows = [row(work=script, against=script), row(work=script, theirs=None, why=script)]
    assert "<script" not in page(tmp_path, rows)


@pytest.mark.parametrize("content", ["{", "[]", '{"benchmarks": []}', '{"benchmarks": {"bench_first": {}}}'])
def test_a_record_that_cannot_be_read_is_named(root, content):
    (root / "records" / "bench").mkdir(parents=True)
    (root / "records" / "bench" / "2026-01-01.json").write_text(content)
    with pytest.raises(UserError, match=r"2026-01-01\.json cannot be read: take it back from git"):
        bench.run(root, ["first"])
