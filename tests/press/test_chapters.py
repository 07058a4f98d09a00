"""The opening page of a chapter: what runs decide is put in, and nothing of it is taken as markup."""

from repalign.press import chapters

TITLES = {"toy/01_a": "Does it rise?", "toy/02_b": "Why?"}


def found(**more):
    given = dict(
        id="toy.a",
        says="It rises.",
        verdict="REPRODUCED",
        kind="paper",
        stand_in="",
        found="It rises by half.",
        effects=[],
        settings={"n": [100, 1000], "seed_of_data": [1, 1]},
    )
    return given | more


def test_every_claim_stands_under_its_page_with_what_was_found():
    evidence = {
        "toy/01_a": {"toy.a": {"record": found(), "live": found(verdict="UNTESTED", found="")}},
        "toy/02_b": {"toy.b": {"live": found(id="toy.b", verdict="OPEN", says="It stays.", found="")}},
    }
    text = chapters.verdicts(evidence, TITLES)
    assert text.index("Does it rise?") < text.index("It rises by half.") < text.index("Why?")
    assert "1 reproduced, 1 open" in text
    assert 'href="01_a.html#claim-toy.a"' in text
    assert "UNTESTED" not in text


def test_a_chapter_opens_with_what_answers_its_pages():
    evidence = {
        "toy/01_a": {"toy.a": {"record": found(found="It <b>rises</b> by half."), "live": found(found="")}},
        "toy/02_b": {"toy.b": {"live": found(id="toy.b", verdict="OPEN", found="")}},
    }
    text = chapters.answers(evidence, TITLES, {"toy/01_a": "toy.a"})
    assert 'href="01_a.html">Does it rise?' in text
    assert "It &lt;b&gt;rises&lt;/b&gt; by half." in text
    assert "Why?" not in text


def test_settings_beside_the_papers_and_only_those_that_differ():
    text = chapters.settings({"toy/01_a": {"toy.a": {"record": found()}}}, TITLES)
    assert "n 100 (1000)" in text
    assert "seed" not in text
    in_words = found(stand_in="smaller <images>")
    text = chapters.settings({"toy/01_a": {"toy.a": {"record": in_words}}}, TITLES)
    assert "smaller &lt;images&gt;" in text
    assert "n 100" not in text
    costs = {"toy/01_a": "<about> 3 hours"}
    with_cost = chapters.settings({"toy/01_a": {"toy.a": {"record": found()}}}, TITLES, costs)
    assert "&lt;about&gt; 3 hours" in with_cost
    same = {"toy/02_b": {"toy.b": {"record": found(settings={"n": [5, 5]})}}}
    assert "as in the paper" in chapters.settings(same, TITLES)


def test_texts_of_claims_are_escaped():
    bad = found(says="<script>alert(1)</script>", found="<img onerror=x>", settings={"<b>": ["<i>", 2]})
    evidence = {"toy/01_a": {"toy.a": {"record": bad}}}
    for text in (chapters.verdicts(evidence, TITLES), chapters.settings(evidence, TITLES)):
        assert "<script" not in text
        assert "<img" not in text
        assert "<i>" not in text
