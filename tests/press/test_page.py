"""A page as a notebook drives it: its tables, figures and claims, of this run and of the record."""

import json
import re

import pandas as pd
import pytest
from matplotlib import pyplot as plt

from command import repalign
from repalign import press
from repalign._code import source
from repalign.machine import onednn
from repalign.press import provenance, records, style
from repalign.press import sweep as sweep_
from repalign.press.claims import TO_BE_WRITTEN, ClaimError
from repalign.press.page import MODE
from repalign.press.records import RecordError

NAME = "toy/01_page"
ROW = dict(
    page="01_page",
    says="It rises.",
    kind="paper",
    criterion="the mean rise is above 0",
    fixed="2026-11-01",
)
COLUMNS = dict(
    smoke=dict(runs=1, by=1.0),
    laptop=dict(runs=3, by=1.0),
    desktop=dict(runs=5, by=2.0),
    paper=dict(runs=5, by=2.0),
)
DISPLAY = style.display_html


def rises(seed, by):
    return {"rise": by + seed % 3 / 10}


def falls(seed, by):
    return {"rise": by, "fall": -by - seed % 3 / 10}


def breaks(seed, by):
    raise AssertionError("what is recorded is not computed")


class Toy:
    """A book with one page, in this process."""

    def __init__(self, root, shown, environment):
        self.root, self.shown, self._environment = root, shown, environment

    def rows(self, **rows):
        """Write claims.toml: for each id, without its paper, what differs from the usual row."""
        lines = []
        for id, changes in rows.items():
            lines.append(f'["toy.{id}"]')
            for key, value in {**ROW, **changes}.items():
                lines.append(f"{key} = {value if key in ('fixed', 'revised') else json.dumps(value)}")
        (self.root / "notebooks" / "toy" / "claims.toml").write_text("\n".join(lines))

    def begin(self, profile="laptop", change=None, *, mode="run", columns=COLUMNS, **more):
        """The page's first cells; what it leaves goes where the runner would put it."""
        self.shown.clear()
        self.out = self.root / "build" / (profile if mode == "run" else mode) / NAME
        self._environment.setenv(sweep_.OUT, str(self.out))
        self._environment.setenv(MODE, mode)
        page = press.page(NAME)
        return page, page.settings(profile, change, **columns, **more)

    def read_through(self, profile="laptop", *, mode="run", fn=rises, yields=None):
        """The whole page: a sweep, a figure and a claim."""
        page, settings = self.begin(profile, mode=mode)
        runs = page.sweep(fn, press.grid(seed=settings.seeds), name="rises", by=settings.by)
        page.figure("toy.fig", "Points that rise.", runs)(points)
        page.claim("toy.rises", runs)(yields or rise)
        page.end()
        return self.run()

    def run(self):
        return json.loads((self.out / "run.json").read_text())

    def record(self, fn=rises):
        """A record of the page, made as a user makes it: commit, run at desktop, keep."""
        commit(self.root)
        made = {"commit": head(self.root), "clean": True, "code": source.imported()}
        self._environment.setenv(provenance.VARIABLE, json.dumps(made))
        self.read_through("desktop", fn=fn)
        return records.keep(self.root, NAME, "desktop")

    def markup(self, **about):
        """What the page has shown under this label."""
        (found,) = [one for one, labels in self.shown if about.items() <= labels.items()]
        return found

    def panels(self, **about):
        """The same, by whose numbers they are, in the order of the page."""
        parts = re.split('<div class="ra-panel ra-of-(record|live)"', self.markup(**about))[1:]
        return dict(zip(parts[::2], parts[1::2], strict=True))


def points(runs):
    figure, ax = plt.subplots()
    ax.plot(runs["seed"], runs["rise"], "o")
    return figure


def rise(runs):
    yield press.above("rise", runs["rise"], paper=1.5)


def commit(root):
    provenance.git(root, "add", "-A")
    who = ["-c", "user.name=Toy", "-c", "user.email=toy@example.org", "-c", "commit.gpgsign=false"]
    provenance.git(root, *who, "commit", "-q", "--allow-empty", "-m", "toy")


def head(root):
    return provenance.git(root, "rev-parse", "HEAD")[:10]


@pytest.fixture
def toy(tmp_path, monkeypatch):
    root = tmp_path / "book"
    (root / "notebooks" / "toy").mkdir(parents=True)
    (root / "notebooks" / "toy" / "01_page.py").write_text("# %% [markdown]\n# # A toy\n")
    (root / "_toc.yml").write_text("format: jb-book\nroot: intro\nchapters:\n- file: notebooks/toy/01_page\n")
    (root / "intro.md").write_text("# Intro\n")
    (root / ".gitignore").write_text("build\n")
    provenance.git(root, "init", "-q", "-b", "main")
    monkeypatch.chdir(root)
    monkeypatch.setenv("REPALIGN_JOBS", "1")
    # This process is prepared, and would only ask again because each test has a cache of its own.
    monkeypatch.setattr(onednn, "prepare", lambda: None)
    shown = []
    monkeypatch.setattr(
        style, "display_html", lambda markup, _, about=None: shown.append((markup, about or {}))
    )
    made = Toy(root, shown, monkeypatch)
    made.rows(rises={})
    yield made
    plt.close("all")


# A run, a record, and both on one page


def test_a_page_without_a_record_shows_this_run_and_says_how_it_was_made(toy):
    run = toy.read_through()
    assert run["claims"]["toy.rises"].keys() == {"live"}
    found = run["claims"]["toy.rises"]["live"]
    assert (found["verdict"], found["profile"], found["runs"]) == ("REPRODUCED", "laptop", 3)
    assert found["effects"][0]["values"] == [1.0, 1.1, 1.2]
    assert (run["page"], run["figures"], run["sweeps"]["rises"]["rows"]) == (NAME, ["toy.fig"], 3)
    assert (toy.out / "figures" / "toy.fig.live.svg").read_text().startswith("<svg")
    table = pd.read_csv(toy.out / "tables" / "rises.live.csv")
    assert list(table.columns) == ["cell", "seed", "rise"]
    assert "REPRODUCED" in toy.markup(claim="toy.rises")
    assert "Points that rise." in toy.markup(figure="toy.fig")
    assert "profile laptop" in toy.shown[-1][0]


def test_smoke_proves_that_the_code_runs_and_gives_no_verdict(toy):
    found = toy.read_through("smoke")["claims"]["toy.rises"]["live"]
    assert found["verdict"] == "UNTESTED"
    assert "This run was too small to say." in toy.markup(claim="toy.rises")


def test_the_record_stands_first_and_is_judged_and_drawn_by_the_same_functions(toy):
    toy.rows(rises=dict(found="It rises by {rise.mean:.2f}.", found_for="REPRODUCED"))
    toy.record()
    run = toy.read_through()
    record, live = (run["claims"]["toy.rises"][kind] for kind in ("record", "live"))
    assert [round(one["effects"][0]["mean"], 2) for one in (record, live)] == [2.1, 1.1]
    assert (record["profile"], live["profile"]) == ("desktop", "laptop")
    cards = toy.panels(claim="toy.rises")
    assert list(cards) == ["record", "live"]
    assert "It rises by 2.10." in cards["record"]
    assert "It rises by" not in cards["live"]  # what was found is said of the record
    assert head(toy.root) in cards["record"]
    drawings = toy.panels(figure="toy.fig")
    assert list(drawings) == ["record", "live"]
    assert "(desktop)" in drawings["record"].partition(">")[0]
    assert "this run (laptop)" in drawings["live"].partition(">")[0]
    assert len(pd.read_csv(toy.out / "tables" / "rises.record.csv")) == 5
    assert len(pd.read_csv(toy.out / "tables" / "rises.live.csv")) == 3


def test_a_page_that_is_read_computes_nothing_and_shows_the_record_alone(toy):
    toy.record()
    run = toy.read_through("laptop", mode="read", fn=breaks)
    assert run["claims"]["toy.rises"].keys() == {"record"}
    assert run["profile"] == "desktop"
    assert "ra-of-" not in toy.markup(claim="toy.rises")  # there is nothing to choose from
    _, settings = toy.begin("laptop", {"runs": 2}, mode="read")
    assert settings.as_dict() == COLUMNS["desktop"]


def test_what_needs_no_table_is_there_whatever_the_switch_says(toy):
    toy.rows(
        rises={}, toy=dict(kind="exact", found="It is.", found_for="EXACT"), later=dict(kind="not tried")
    )

    def whole(profile):
        page, settings = toy.begin(profile)
        runs = page.sweep(rises, press.grid(seed=settings.seeds), by=settings.by)
        page.claim("toy.rises", runs)(rise)
        page.claim("toy.toy")(lambda: press.at_most("sum", [0.0], 1e-9))
        page.claim("toy.later")(lambda: None)
        page.table("A toy.")(lambda: pd.DataFrame({"a": [1]}))
        page.figure("toy.drawn", "A toy.")(lambda: plt.figure())
        page.end()

    commit(toy.root)
    made = {"commit": head(toy.root), "clean": True, "code": source.imported()}
    toy._environment.setenv(provenance.VARIABLE, json.dumps(made))
    whole("desktop")
    records.keep(toy.root, NAME, "desktop")
    whole("laptop")
    claims = toy.run()["claims"]
    assert [one["verdict"] for one in claims["toy.toy"].values()] == ["EXACT", "EXACT"]
    assert [one["verdict"] for one in claims["toy.later"].values()] == ["NOT TRIED", "NOT TRIED"]
    assert "It is." in toy.panels(claim="toy.toy")["record"]
    for markup in (toy.markup(caption="A toy."), *[one for one, about in toy.shown if "table" in about]):
        assert "ra-of-" not in markup


# Claims and their rows


def test_a_claim_without_a_row_is_refused(toy):
    page, settings = toy.begin()
    runs = page.sweep(rises, press.grid(seed=settings.seeds), by=1.0)
    with pytest.raises(ClaimError) as refused:
        page.claim("toy.other", runs)
    for part in (NAME, "toy.other", "page = '01_page'", "notebooks/toy/claims.toml", "it has toy.rises"):
        assert part in str(refused.value)


def test_a_row_without_a_claim_stops_the_page_at_its_end(toy):
    toy.rows(rises={}, falls={})
    with pytest.raises(ClaimError) as refused:
        toy.read_through()
    for part in (NAME, "does not judge toy.falls", "@page.claim('toy.falls', table)"):
        assert part in str(refused.value)
    assert not (toy.out / "run.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(fixed="9999-01-01"), "toy.rises has the date 9999-01-01, which lies in the future"),
        (dict(revised='[{ date = 2026-11-02, reason = "r" }]'), "toy.rises should have revised"),
    ],
)
def test_a_row_that_is_wrong_stops_the_page_at_its_beginning(toy, changes, message):
    toy.rows(rises=changes)
    with pytest.raises(ClaimError, match=message):
        press.page(NAME)


def test_an_exact_claim_that_does_not_hold_stops_the_page(toy):
    toy.rows(rises=dict(kind="exact"))
    for profile in press.PROFILES:
        with pytest.raises(
            AssertionError, match=r"toy\.rises is exact and does not hold: sum: 1, at most 1e-09"
        ):
            toy.read_through(profile, yields=lambda runs: [press.at_most("sum", [1.0], 1e-9)])
        assert not (toy.out / "run.json").exists()


def test_one_run_has_no_interval_and_no_verdict(toy):
    with pytest.raises(ClaimError, match=r"toy\.rises: 'rise' has one run"):
        toy.read_through(yields=lambda runs: [press.above("rise", runs["rise"][:1])])
    page, _ = toy.begin(change={"runs": 1})
    with pytest.raises(ValueError, match="at least 2 at laptop, but is 1"):
        _ = page._chosen.seeds


def test_a_condition_that_is_not_met_leaves_the_claim_open_and_says_why(toy):
    def tested(runs):
        yield press.condition("networks fit", runs["rise"] / 10, above=0.9)
        yield press.above("rise", runs["rise"])

    assert toy.read_through(yields=tested)["claims"]["toy.rises"]["live"]["verdict"] == "OPEN"
    assert "Not testable here. networks fit: 0.11" in toy.markup(claim="toy.rises")


def test_a_stand_in_needs_words(toy):
    columns = {profile: {**column, "data": "digits"} for profile, column in COLUMNS.items()}
    columns["paper"]["data"] = "ImageNet"

    def whole():
        page, settings = toy.begin(columns=columns)
        runs = page.sweep(rises, press.grid(seed=settings.seeds), by=1.0)
        page.claim("toy.rises", runs)(rise)
        page.end()

    with pytest.raises(ClaimError, match=r"differs from the paper in data.*set stand_in of toy\.rises"):
        whole()
    for said in (dict(stand_in="digits in place of ImageNet"), dict(kind="ours")):
        toy.rows(rises=said)
        whole()
    toy.rows(rises=dict(stand_in="digits in place of ImageNet"))
    whole()
    assert "on a stand-in: digits in place of ImageNet" in toy.markup(claim="toy.rises")


# What the record says today


def test_a_function_that_the_record_cannot_serve_names_page_id_columns_and_remedy(toy):
    toy.record()
    page, settings = toy.begin()
    runs = page.sweep(falls, press.grid(seed=settings.seeds), name="rises", by=1.0)
    uses = (
        (page.figure("toy.fall", "Points that fall.", runs), "the figure toy.fall"),
        (page.table("Falls.", runs), "the table <lambda>"),
        (page.claim("toy.rises", runs), "the claim toy.rises"),
    )
    for call, what in uses:
        with pytest.raises(RecordError) as refused:
            call(lambda runs: runs["fall"].plot())
        for part in (
            NAME,
            f"{what} fails on the record",
            "KeyError",
            "'fall'",
            "cell, seed, rise",
            "--fresh",
        ):
            assert part in str(refused.value)


def test_a_sweep_that_the_record_lacks_is_named_with_those_it_has(toy):
    toy.record()
    page, settings = toy.begin()
    runs = page.sweep(falls, press.grid(seed=settings.seeds), by=1.0)
    with pytest.raises(RecordError, match="the record of toy/01_page has no sweep falls: it has rises"):
        page.claim("toy.rises", runs)(rise)


def test_an_error_on_this_runs_table_is_the_functions_own(toy):
    page, settings = toy.begin()
    runs = page.sweep(rises, press.grid(seed=settings.seeds), by=1.0)
    with pytest.raises(KeyError, match="fall"):
        page.figure("toy.fall", "Points that fall.", runs)(lambda runs: runs["fall"].plot())


def test_what_was_found_for_another_verdict_is_to_be_written_and_the_check_fails(toy):
    toy.record()
    toy.rows(rises=dict(found="It does not.", found_for="NOT REPRODUCED"))
    toy.read_through()
    card = toy.panels(claim="toy.rises")["record"]
    assert TO_BE_WRITTEN in card
    assert "It does not." not in card
    done = repalign("claims", "--check", cwd=toy.root)
    assert done.returncode == 2
    assert (
        "what toy.rises found was written for NOT REPRODUCED, and its record says REPRODUCED" in done.stderr
    )


def test_a_finding_that_names_no_effect_stops_the_page_with_those_there_are(toy):
    toy.rows(rises=dict(found="It rises by {slope.mean:.2f}.", found_for="REPRODUCED"))
    toy.record()
    with pytest.raises(
        ClaimError, match=r"what toy\.rises found cannot be filled in .*There are: rise, each"
    ):
        toy.read_through()


# Misuse


def test_a_table_that_no_sweep_returned_is_refused(toy):
    page, settings = toy.begin()
    runs = page.sweep(rises, press.grid(seed=settings.seeds), by=1.0)
    for use in (page.figure("toy.fig", "c", runs[runs["rise"] > 1]), page.claim("toy.rises", runs.copy())):
        with pytest.raises(
            ValueError, match=r"toy/01_page: the .* toy\.\w+ takes tables as page\.sweep returned"
        ):
            use(points)


def test_functions_get_copies_of_the_table(toy):
    page, settings = toy.begin()
    runs = page.sweep(rises, press.grid(seed=settings.seeds), by=1.0)

    def greedy(runs):
        runs["rise"] = 0.0
        return plt.figure()

    page.figure("toy.fig", "c", runs)(greedy)
    assert runs["rise"].tolist() == [1.0, 1.1, 1.2]


def test_nothing_is_computed_drawn_or_judged_twice_under_one_name(toy):
    page, settings = toy.begin()
    runs = page.sweep(rises, press.grid(seed=settings.seeds), by=1.0)
    page.figure("toy.fig", "c", runs)(points)
    page.claim("toy.rises", runs)(rise)
    with pytest.raises(ValueError, match="two sweeps called rises: give one of them another name="):
        page.sweep(rises, press.grid(seed=settings.seeds), by=2.0)
    with pytest.raises(ValueError, match=r"toy/01_page draws toy\.fig twice"):
        page.figure("toy.fig", "c", runs)
    with pytest.raises(ClaimError, match=r"toy/01_page judges toy\.rises twice"):
        page.claim("toy.rises", runs)


def test_by_hand_a_cell_may_be_run_again_and_the_last_time_counts(toy, monkeypatch):
    toy.begin()
    monkeypatch.delenv(sweep_.OUT)
    monkeypatch.chdir(toy.root / "notebooks" / "toy")  # where JupyterLab has opened it
    page = press.page(NAME)
    settings = page.settings("laptop", **COLUMNS)
    for by in (1.0, 3.0):
        runs = page.sweep(rises, press.grid(seed=settings.seeds), by=by)
        page.figure("toy.fig", "c", runs)(points)
        page.claim("toy.rises", runs)(rise)
    page.end()
    run = json.loads((toy.root / "build" / "by-hand" / NAME / "run.json").read_text())
    assert run["figures"] == ["toy.fig"]
    assert run["claims"]["toy.rises"]["live"]["effects"][0]["mean"] == pytest.approx(3.1)


@pytest.mark.parametrize("id", ["../toy.fig", "toy/fig", "toy fig", '"><script>'])
def test_a_figures_id_is_the_name_of_a_file(toy, id):
    page, _ = toy.begin()
    with pytest.raises(ValueError, match=r"a figure's id is a file's name, such as lou\.fig3, not"):
        page.figure(id, "c")


def test_a_function_that_draws_nothing_is_named(toy):
    page, _ = toy.begin()
    with pytest.raises(TypeError, match=r"under toy\.fig should return a figure or axes, not NoneType"):
        page.figure("toy.fig", "c")(lambda: None)


def test_a_sweep_needs_configurations_and_a_claim_settings(toy):
    page, _ = toy.begin()
    with pytest.raises(ValueError, match="the sweep rises of toy/01_page has no configuration"):
        page.sweep(rises, [])
    with pytest.raises(RuntimeError, match=r"toy/01_page should call page\.settings\(\.\.\.\) before"):
        press.page(NAME).claim("toy.rises")(lambda: None)


def test_a_page_belongs_to_a_book_and_is_read_from_its_record(toy, tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="toy/01_page has no record yet: repalign run toy/01_page"):
        toy.begin(mode="read")
    monkeypatch.setenv(MODE, "run")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match=r"toy/01_page belongs to a book: .*_toc\.yml"):
        press.page(NAME)


# What goes into HTML and CSV

SCRIPT = "<script>alert(1)</script>"


def scripted(seed, by):
    return {"rise": by + seed / 10, "name": SCRIPT, "formula": "=HYPERLINK(0)"}


def test_markup_in_records_claims_and_captions_is_shown_not_run(toy):
    texts = dict(says=SCRIPT, where=SCRIPT, criterion=SCRIPT, stand_in=SCRIPT, found=SCRIPT)
    revised = f'[{{ date = 2026-11-01, reason = "{SCRIPT}", was = "{SCRIPT}" }}]'
    toy.rows(rises=dict(**texts, found_for="REPRODUCED", revised=revised))
    toy.record(fn=scripted)
    page, settings = toy.begin()
    runs = page.sweep(scripted, press.grid(seed=settings.seeds), name="rises", by=1.0)

    def labelled(runs):
        figure, ax = plt.subplots()
        for name, part in runs.groupby("name"):
            ax.plot(part["seed"], part["rise"], label=name)
        ax.legend(title=SCRIPT)
        ax.set(title=SCRIPT)
        return figure

    def named(runs):
        for name, part in runs.groupby("name"):
            yield press.above(name, part["rise"], unit=SCRIPT)

    page.figure("toy.fig", SCRIPT, runs)(labelled)
    page.table(SCRIPT, runs)(lambda runs: runs.set_index("name"))
    page.claim("toy.rises", runs)(named)
    page.end()
    labels = [about for _, about in toy.shown]
    assert sum("figure" in about or "table" in about or "claim" in about for about in labels) == 3
    for markup, _ in toy.shown:
        assert "<script" not in markup
    for path in (toy.out / "figures").glob("*.svg"):
        assert "<script" not in path.read_text()
    for kind in ("record", "live"):
        assert "'=HYPERLINK(0)" in (toy.out / "tables" / f"rises.{kind}.csv").read_text()


def test_outside_of_a_notebook_a_page_speaks_in_lines(toy, monkeypatch, capsys):
    monkeypatch.setattr(style, "display_html", DISPLAY)
    page, settings = toy.begin()
    runs = page.sweep(rises, press.grid(seed=settings.seeds), by=1.0)
    page.table("All runs.", runs)(lambda runs: runs)
    page.claim("toy.rises", runs)(rise)
    said = capsys.readouterr().out
    assert "All runs.\n   cell  seed  rise" in said
    assert "toy.rises: live: REPRODUCED" in said


def test_a_page_opens_with_what_it_says_it_opens_with(toy):
    toy.rows(rises={})
    with pytest.raises(ClaimError, match=r"answered by toy\.other"):
        press.page(NAME, answer="toy.other")
    page = press.page(NAME, answer="toy.rises", figure="toy.never")
    page.settings("laptop", **COLUMNS)
    runs = page.sweep(rises, press.grid(seed=[0, 1]), by=1.0)
    page.claim("toy.rises", runs)(rise)
    with pytest.raises(ValueError, match=r"opens with the figure toy\.never"):
        page.end()
