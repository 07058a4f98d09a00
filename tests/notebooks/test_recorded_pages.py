"""What is recorded of each page agrees with its rows of claims.toml, and is small enough for git."""

import pytest

from command import ROOT
from pages import PAGES
from repalign.press import claims, records
from repalign.study import old_records


def newest(page):
    """The record of a page in the form of its edition."""
    return (old_records if page.first_edition else records).newest(ROOT, page.name)


RECORDED = [page for page in PAGES if newest(page)]


@pytest.mark.parametrize("page", RECORDED, ids=[page.name for page in RECORDED])
def test_record(page):
    record = newest(page)
    if page.first_edition:
        assert set(record.claims) == set(claims.of_page(ROOT, page.name))
        assert "UNTESTED" not in {claim["verdict"] for claim in record.claims.values()}
        assert record.figures()
    else:
        assert records.problems(ROOT, page.name) == []
    assert sum(file.stat().st_size for file in record.place.rglob("*")) < 4_000_000
