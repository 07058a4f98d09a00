"""Every notebook has run at smoke through papermill (the ``book`` fixture): what it left behind."""

import json

import pytest

from command import ROOT
from repalign.runner import pages, records
from repalign.study.claims import read

PAGES = pages.find(ROOT)
NAMES = [page.name for page in PAGES]


def test_toc_notebooks_and_claims_agree():
    assert pages.disagreements(ROOT) == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_page_measures_exactly_the_claims_it_declares(book, page):
    claims = read(book / "build/smoke" / page.name / "claims")
    assert {claim["id"] for claim in claims} == set(page.claims)
    for claim in claims:
        assert claim["verdict"] in ("UNTESTED", "EXACT", "SHOWN")
        assert claim["page"] == page.name


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_page_runs_without_warnings_and_draws_figures(book, page):
    notebook = json.loads((book / "build/smoke" / f"{page.name}.ipynb").read_text())
    outputs = [o for cell in notebook["cells"] for o in cell.get("outputs", [])]
    noise = [o["text"] for o in outputs if o["output_type"] == "stream" and o["name"] == "stderr"]
    assert noise == []
    assert list((book / "build/smoke" / page.name / "figures").glob("*.svg"))
    # Data came with the package: smoke needs no network.
    run = json.loads((book / "build/smoke" / page.name / "run.json").read_text())
    assert run["settings"].keys() == set(page.settings)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_page_has_its_parts_in_order(page):
    text = page.source.read_text(encoding="utf-8")
    parts = ["{cite:t}", "study.begin(", "## The idea", "toy", "study.claims(", 'tags=["parameters"]']
    parts += ["study.settings(", "## Data", "study.uses(", "study.show(", "study.claim("]
    parts += ["## What differs from the paper", "## Try it", "study.stamp()"]
    places = [text.find(part) for part in parts]
    assert -1 not in places, [part for part, place in zip(parts, places, strict=True) if place < 0]
    assert places == sorted(places)
    assert text.count("\n") <= 400


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_records_are_whole_and_speak_of_claims_that_exist(page):
    record = records.newest(ROOT, page.name)
    if record is None:
        pytest.skip("no record of this page yet")
    assert set(record.claims) == set(page.claims)
    for claim in record.claims.values():
        assert claim["profile"] == record.run["profile"]
        assert claim["verdict"] != "UNTESTED"
    assert sum(file.stat().st_size for file in record.place.rglob("*")) < 4_000_000


def test_readme_has_the_table_of_the_records(tmp_path):
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "records").symlink_to(ROOT / "records")
    records.write_readme(tmp_path, PAGES)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == (ROOT / "README.md").read_text(
        encoding="utf-8"
    )
