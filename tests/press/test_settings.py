"""Settings: one table with a column for each profile, seeds that nobody has seen, stand-ins noticed."""

import pytest

from repalign.press.settings import PROFILES, choose, stand_ins

TABLE = dict(
    smoke=dict(n=1, runs=1), laptop=dict(n=2, runs=3), desktop=dict(n=3, runs=5), paper=dict(n=4, runs=5)
)


def chosen(profile, change=None, table=TABLE, **more):
    return choose(profile, change or {}, table, **more)[0]


def test_settings_are_the_column_of_the_profile():
    settings = chosen("desktop")
    assert (settings.n, settings.profile) == (3, "desktop")
    assert settings.as_dict() == {"n": 3, "runs": 5}
    assert settings.beside_paper() == {"n": [3, 4], "runs": [5, 5]}
    shown = settings._repr_html_()
    assert "<th>profile desktop</th><th>profile paper</th>" in shown
    assert "<tr><th>n</th><td>3</td><td>4</td></tr>" in shown


def test_a_change_replaces_an_entry_and_is_noted_when_it_is_one():
    settings, changed = choose("desktop", {"n": 7, "runs": 5}, TABLE)
    assert settings.n == 7
    assert changed == {"n": 7}


@pytest.mark.parametrize(
    ("profile", "change", "table", "message"),
    [
        ("huge", {}, TABLE, "choose one of smoke, laptop, desktop, paper"),
        ("laptop", {"m": 1}, TABLE, "unknown setting m: this page has first_seed, n, runs"),
        ("laptop", {}, {**TABLE, "laptop": dict(n=1, m=2, runs=3)}, "laptop and paper differ in m"),
        ("laptop", {}, {p: dict(profile=1) for p in PROFILES}, "cannot be called profile"),
        ("laptop", {}, {p: dict(runs=2, seeds=[1]) for p in PROFILES}, "cannot be called seeds"),
    ],
)
def test_settings_refuse_what_they_do_not_know(profile, change, table, message):
    with pytest.raises(ValueError, match=message):
        choose(profile, change, table)


def test_a_name_that_is_no_setting_lists_those_that_are():
    with pytest.raises(AttributeError, match="no setting 'm' on this page; there are n, runs"):
        _ = chosen("laptop").m


def test_seeds_of_recorded_runs_are_ones_that_nobody_has_seen():
    assert chosen("smoke").seeds == [0]
    assert chosen("laptop").seeds == [0, 1, 2]
    assert chosen("desktop").seeds == [200, 201, 202, 203, 204]
    assert chosen("paper").seeds == chosen("desktop").seeds


def test_a_redesigned_page_has_seeds_of_its_own_and_is_still_a_page_without_changes():
    settings, changed = choose("desktop", {}, TABLE, first_seed=300)
    assert settings.seeds == [300, 301, 302, 303, 304]
    assert changed == {}
    assert chosen("laptop", first_seed=300).seeds == [0, 1, 2]
    with pytest.raises(ValueError, match=r"first_seed should be at least 200, .* but is 100"):
        chosen("desktop", first_seed=100)


def test_other_seeds_by_hand_are_a_change():
    settings, changed = choose("desktop", {"first_seed": 0}, TABLE)
    assert settings.seeds == [0, 1, 2, 3, 4]
    assert changed == {"first_seed": 0}


@pytest.mark.parametrize(("profile", "runs"), [("laptop", 1), ("desktop", 1), ("smoke", 0), ("laptop", "3")])
def test_too_few_runs_for_an_interval_are_refused(profile, runs):
    with pytest.raises(
        ValueError, match=f"at least [12] at {profile}, but is {runs}: one run has no interval"
    ):
        _ = chosen(profile, {"runs": runs}).seeds


@pytest.mark.parametrize(
    ("desktop", "paper", "far"),
    [
        (dict(data="digits", n=5), dict(data="ImageNet", n=50), ["data"]),
        (dict(model="mlp", size=32), dict(model="vgg", size=224), ["model", "size"]),
        (dict(epochs=9), dict(epochs=90), []),
        (dict(epochs=8), dict(epochs=90), ["epochs"]),
        (dict(steps=1000), dict(steps=90), ["steps"]),
        (dict(data="digits"), dict(data="digits"), []),
    ],
)
def test_what_is_far_from_the_paper_needs_words(desktop, paper, far):
    assert stand_ins(desktop, paper) == far


def test_settings_are_shown_as_text_and_kept_as_plain_values():
    def train():
        return 0

    columns = {profile: {"<b>": "<script>", "fn": train, "shape": (1, range(2))} for profile in PROFILES}
    settings = chosen("laptop", table=columns)
    assert "<script>" not in settings._repr_html_()
    assert "<th>&lt;b&gt;</th>" in settings._repr_html_()
    assert settings.beside_paper()["fn"] == ["train", "train"]
    assert settings.beside_paper()["shape"][0] == [1, [0, 1]]
