"""Every page has run at smoke through papermill (the ``book`` fixture): what it left behind."""

import json

import pytest

from pages import PAGES
from repalign.press import claims

NAMES = [page.name for page in PAGES]


def verdicts(place, run):
    """By claim, the verdict of a run: in the run itself, or, of the first edition, in a file each."""
    if isinstance(run["claims"], dict):
        return {id: found["live"]["verdict"] for id, found in run["claims"].items()}
    kept = [json.loads(path.read_text()) for path in (place / "claims").glob("*.json")]
    return {claim["id"]: claim["verdict"] for claim in kept}


@pytest.mark.parametrize("name", NAMES)
def test_page_at_smoke(book, name):
    """It judges its rows of claims.toml and no others, draws, and prints no warning."""
    place = book / "build" / "smoke" / name
    run = json.loads((place / "run.json").read_text())
    found = verdicts(place, run)
    assert set(found) == set(claims.of_page(book, name))
    assert set(found.values()) <= {"UNTESTED", "EXACT", "SHOWN"}
    assert run["page"] == name
    assert run["profile"] == "smoke"
    assert list((place / "figures").glob("*.svg"))
    notebook = json.loads(place.with_suffix(".ipynb").read_text())
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    assert [output["text"] for output in outputs if output.get("name") == "stderr"] == []
