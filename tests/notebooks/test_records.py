"""What is recorded of each page agrees with its rows of claims.toml, and is small enough for git."""

import pytest

from command import ROOT
from pages import PAGES
from repalign.press import claims, records
from repalign.study import old_records

RECORDED = [page for page in PAGES if (ROOT / "records" / page.name).is_dir()]


@pytest.mark.parametrize("page", RECORDED, ids=[page.name for page in RECORDED])
def test_record(page):
    rows = set(claims.of_page(ROOT, page.name))
    if page.first_edition:
        record = old_records.newest(ROOT, page.name)
        found = {id: claim["verdict"] for id, claim in record.claims.items()}
        assert record.figures()
    else:
        record = records.newest(ROOT, page.name)
        found = {id: one["verdict"] for id, one in record.run["claims"].items()}
        assert records.problems(ROOT, page.name) == []
    assert set(found) == rows
    assert "UNTESTED" not in found.values()
    assert sum(file.stat().st_size for file in record.place.rglob("*")) < 4_000_000
