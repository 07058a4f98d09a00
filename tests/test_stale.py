"""A record is stale when code, settings or criteria have changed since, and for no other reason."""

from pathlib import Path

import pytest

import repalign as repalign_package
from command import ROOT, repalign
from repalign._code.source import Sources
from repalign.runner import pages, records, stale
from repalign.runner.records import Kept, counts, in_words, summary

PAGE = '''# %% [markdown]
# # A toy page

# %%
import matplotlib.pyplot as plt

from repalign import alignment, study

study.begin("toy/01_a")

# %% tags=["hide-input"]
study.claims(dict(id="toy.a", paper="it rises", criterion="the mean is above 0"))

# %% tags=["parameters"]
profile = "laptop"
device = "auto"
change = {}

# %%
s = study.settings(
    profile, change, smoke=dict(n=1), laptop=dict(n=2), desktop=dict(n=3), paper=dict(n=4)
)


# %%
def cell(seed):
    """One run."""
    return [dict(value=1.0 + seed / 1000, n=s.n)]


runs = study.sweep(cell, study.grid(seed=study.seeds(3)))

# %%
fig, ax = plt.subplots()
ax.plot(runs.value)
study.show(fig, "toy.fig", "What to see.", table=runs)

# %%
study.table(runs, "All runs.")

# %%
study.claim("toy.a", effects={"rise": study.above(runs.value)})
study.stamp()
'''


@pytest.fixture
def root(tmp_path):
    (tmp_path / "notebooks" / "toy").mkdir(parents=True)
    (tmp_path / "_toc.yml").write_text("root: book/intro\n")
    (tmp_path / "README.md").write_text("<!-- scoreboard -->\n<!-- /scoreboard -->\n")
    (tmp_path / "notebooks/toy/01_a.py").write_text(PAGE)
    return tmp_path


def made(root, text=PAGE, profile="desktop"):
    return stale.made_by(text, profile)


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("# # A toy page", "# # Another title", []),
        ('"""One run."""', '"""A run."""', []),
        ("What to see.", "Where to look.", []),
        ("ax.plot(runs.value)", "ax.plot(runs.value, '.')", []),
        ("laptop=dict(n=2)", "laptop=dict(n=9)", []),
        ("paper=dict(n=4)", "paper=dict(n=9)", []),
        ('profile = "laptop"', 'profile = "smoke"', []),
        ('paper="it rises"', 'paper="it grows"', []),
        ("desktop=dict(n=3)", "desktop=dict(n=9)", ["settings"]),
        ("seed / 1000", "seed / 100", ["code"]),
        ("seeds(3)", "seeds(4)", ["code"]),
        ("study.above(runs.value)", "study.above(runs.value, -1)", ["code"]),
        ("above 0", "above -1", ["criteria"]),
        ("import alignment, study", "import alignment, kernels, study", []),
        ("return [dict", "alignment.spectrum\n    return [dict", ["code"]),
        # A drawing on which a claim depends counts after all.
        (
            'ax.plot(runs.value)\nstudy.show(fig, "toy.fig", "What to see.", table=runs)',
            'runs = runs * 2\nstudy.show(fig, "toy.fig", "What to see.")',
            ["code"],
        ),
    ],
)
def test_what_makes_a_record_stale(root, old, new, changed):
    assert old in PAGE
    claim = {"criterion": "the mean is above 0"}
    record = Kept(root, {"profile": "desktop", "made_by": made(root)}, {"toy.a": claim})
    (page,) = pages.find(root)
    assert stale.reasons(page, record) == []
    page.source.write_text(PAGE.replace(old, new))
    (page,) = pages.find(root)
    assert stale.reasons(page, record) == changed


def edited(path, old, new):
    """The package with one file changed."""
    place = Path(repalign_package.__file__).parent
    files = {p.relative_to(place).as_posix(): p.read_bytes() for p in place.rglob("*.py")}
    assert old in files[path].decode()
    return Sources({**files, path: files[path].replace(old.encode(), new.encode())}, refusals=False)


@pytest.mark.parametrize(
    ("path", "old", "new", "same"),
    [
        ("data/sets.py", "SETS: dict[str, Set] = {", 'SETS: dict[str, Set] = {\n    "new": None,', True),
        ("models/__init__.py", '"rbf": RBFNetwork,', '"rbf": RBFNetwork, "new": VGG,', True),
        ("models/resnet11.py", "ReLU", "SiLU", True),
        ("models/resnet.py", "skip + self", "self", False),
        ("models/t2t.py", "depth", "deep", False),
        ("alignment/spectra.py", "return", "return 1 *", False),
    ],
)
def test_a_new_set_or_network_makes_no_record_stale(monkeypatch, path, old, new, same):
    """What the data are is in the record, and this page names the networks that it builds."""
    page = (ROOT / "notebooks/imani/09_natural_and_artificial.py").read_text(encoding="utf-8")
    before = stale.made_by(page, "desktop")
    package = edited(path, old, new)
    monkeypatch.setattr(stale, "on_disk", lambda refusals: package)
    assert (stale.made_by(page, "desktop") == before) is same


CHECKED = """
import warnings

def measure(x, rows):
    if x.ndim != 2:
        raise ValueError(f"two axes, not {x.ndim}")
    if rows:
        x = x[rows]
    else:
        raise TypeError("no rows")
    try:
        if x.ndim > 9:
            raise ValueError("many axes")
    except ValueError:
        return 0
    return x.sum()
"""


def before_rows(*lines):
    """Lines more, in front of ``if rows:``."""
    return "    if rows:", "\n".join(f"    {line}" for line in (*lines, "if rows:"))


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("two axes, not", "x should have two axes, but has", True),
        ('"no rows"', '"rows, please", told(x)', True),
        ("x.ndim != 2", "x.ndim not in (2, 3)", True),
        (*before_rows("if len(rows) == 0:", "    raise ValueError(rows)"), True),
        (*before_rows("if x.isnan().any():", "    n = len(x)", "    raise ValueError(n)"), True),
        (*before_rows("if not x.any():", "    warnings.warn('all zero')"), True),
        (*before_rows("warnings.warn('slow')"), True),
        (
            *before_rows("for row in rows:", "    if not row:", "        raise TypeError('an empty row')"),
            False,
        ),
        # What does more than to stop or to tell.
        ("TypeError", "ValueError", False),
        ("x.sum()", "x.mean()", False),
        (*before_rows("if rows is None:", "    rows = []"), False),
        (*before_rows("if not x.any():", "    x = 1", "    warnings.warn('all zero')"), False),
        (*before_rows("if next(rows):", "    raise ValueError"), False),
        (*before_rows("if x.abs_().any():", "    raise ValueError"), False),
        (*before_rows("if (rows := 1):", "    raise ValueError"), False),
        # What may be waited for.
        (*before_rows("if len(rows) == 0:", "    raise DivergedError(rows)"), False),
        ("x.ndim > 9", "x.ndim > 8", False),
    ],
)
def test_checks_and_words_of_errors_make_no_record_stale(old, new, same):
    assert old in CHECKED
    then, now = (
        Sources({"a.py": text.encode()}, refusals=False).digest(["repalign.a:measure"])
        for text in (CHECKED, CHECKED.replace(old, new))
    )
    assert (then == now) is same
    # The store has them: what is refused now should not come out of it.
    strict = [Sources({"a.py": text.encode()}) for text in (CHECKED, CHECKED.replace(old, new))]
    assert len({sources.digest(["repalign.a:measure"]) for sources in strict}) == 2


@pytest.mark.parametrize(("parameter", "same"), [("data", True), ("sample", False)])
def test_a_parameter_is_not_the_module_of_its_name(monkeypatch, parameter, same):
    """A page that hands all of ``data`` to something depends on all of it, one with such a parameter not."""
    page = f"from repalign import data\n\ndef cell({parameter}, seed):\n    return data\n\ncell(1, 2)\n"
    before = stale.made_by(page, "desktop")
    monkeypatch.setattr(stale, "on_disk", lambda refusals: edited("data/subsets.py", "return", "return 1 *"))
    assert (stale.made_by(page, "desktop") == before) is same


def test_code_is_not_compared_across_versions_of_python(root):
    then = {**made(root), "code": "other", "python": "3.9"}
    claim = {"criterion": "the mean is above 0"}
    (page,) = pages.find(root)
    assert stale.reasons(page, Kept(root, {"profile": "desktop", "made_by": then}, {"toy.a": claim})) == []


def test_stale_records_are_listed_and_marked(root):
    assert repalign("criteria", "--lock", cwd=root).returncode == 0
    assert "toy/01_a: has no record" in repalign("record", "--stale", cwd=root).stdout
    done = repalign("run", "--profile", "desktop", cwd=root)
    assert done.returncode == 0, done.stderr
    assert repalign("record", cwd=root).returncode == 0
    kept = records.newest(root, "toy/01_a")
    assert kept.claims["toy.a"]["seeds"] == [100, 101, 102]
    assert kept.table("toy.fig").read_text().startswith("seed,value,n\n100,1.1,3\n")
    (table,) = kept.tables
    assert "<caption>All runs.</caption>" in table
    assert "<td>100</td><td>1.1</td><td>3</td>" in table
    assert "none is stale" in repalign("record", "--stale", cwd=root).stdout
    assert "stale" not in repalign("claims", cwd=root).stdout
    page = root / "notebooks/toy/01_a.py"
    page.write_text(PAGE.replace("desktop=dict(n=3)", "desktop=dict(n=5)"))
    listed = repalign("record", "--stale", cwd=root).stdout
    assert "toy/01_a: settings changed since" in listed
    assert "repalign run toy/01_a --profile desktop" in listed
    assert "desktop (stale)" in repalign("claims", cwd=root).stdout

    # A criterion that is not the locked one: nothing runs.
    page.write_text(PAGE.replace("above 0", "above -1"))
    for words in (["run"], ["criteria"]):
        refused = repalign(*words, cwd=root)
        assert refused.returncode == 2
        assert "the criterion of toy.a differs" in refused.stderr
    page.write_text(PAGE.replace('criterion="the mean is above 0"', 'criterion=f"the mean is above {0}"'))
    assert "plain text" in repalign("run", cwd=root).stderr


def claim(verdict, stand_in="", effects=()):
    return dict(verdict=verdict, stand_in=stand_in, effects=list(effects), measured={"n": 3})


def test_counts_keep_kinds_of_evidence_apart():
    found = [claim("REPRODUCED"), claim("REPRODUCED", "a toy"), claim("PARTLY", "a toy"), claim("EXACT")]
    assert summary(found) == "1 exact, 1 reproduced, 1 reproduced on a stand-in, 1 partly"
    assert sum(counts(found).values()) == 4
    assert summary([]) == "no claim measured yet"


def test_a_claim_in_words_has_the_papers_number_beside_ours():
    effect = dict(name="lead", mean=0.51234, interval=[0.4, 0.6], paper=None, answer="yes")
    effect |= dict(side="above", bound=[0.0])
    theirs = {**effect, "name": "gap", "paper": 0.55, "answer": "open"}
    assert in_words(claim("PARTLY", effects=[effect])) == "lead: 0.512 [0.4, 0.6]"
    several = in_words(claim("PARTLY", effects=[effect, theirs]))
    assert several == "gap: 0.512 [0.4, 0.6] (paper 0.55), open; lead: 0.512 [0.4, 0.6]"
    # What keeps a claim from being reproduced comes first, with its bound.
    rest = [effect] * 3
    against = {**effect, "name": "rank", "side": "below", "bound": [0.5], "answer": "no"}
    assert in_words(claim("PARTLY", effects=[*rest, against])).startswith(
        "3 of 4 effects yes; rank: 0.512 [0.4, 0.6], claimed below 0.5, no; lead"
    )
    assert in_words(claim("EXACT")) == "n: 3"
