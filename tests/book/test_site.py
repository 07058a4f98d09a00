"""The rendered book, as a reader meets it: in a browser, from the disk, without a network."""

import json
import re
from functools import cache
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from command import ROOT
from pages import PAGES
from repalign.press import claims, project, records
from repalign.study import old_records

pytest_plugins = ["browsing"]

FILES = project.contents(ROOT)
NOTEBOOKS = {f"notebooks/{page.name}" for page in PAGES}
FIRST_EDITION = {f"notebooks/{page.name}" for page in PAGES if page.first_edition}
# What nobody should read in a book: a path of the machine that built it, a warning, a traceback.
NOISE = re.compile(
    r"(?<![\w.])/(?:root|home|Users|tmp|var|opt|usr)/[\w.-]+|site-packages"
    r"|Traceback \(most recent call last\)|\b\w*Warning: .*"
)


class Parsed(HTMLParser):
    """The ids of a page, where it points, and its text."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.texts = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if found.get("id"):
            self.ids.add(found["id"])
        for name in ("href", "src"):
            if tag != "use" and found.get(name):
                self.links.append(found[name])

    def handle_data(self, data):
        self.texts.append(data)


@cache
def parsed(page):
    return Parsed(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", FILES)
def test_links_lead_somewhere_and_nothing_tells_of_the_machine(site, file):
    page = site / f"{file}.html"
    for link in parsed(page).links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        assert target.exists(), f"{file} links to {link}"
        if parts.fragment and target.suffix == ".html":
            assert unquote(parts.fragment) in parsed(target).ids, f"{file} links to {link}"
    assert str(site.parents[1]) not in page.read_text(encoding="utf-8")
    if file in NOTEBOOKS:
        assert NOISE.findall("".join(parsed(page).texts)) == []


def test_the_site_is_small_and_whole(site):
    files = [path for path in site.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 60_000_000
    pages = [path for path in files if path.suffix == ".html"]
    assert [path.name for path in pages if path.stat().st_size > 3_000_000] == []
    built = {path.relative_to(site).with_suffix("").as_posix() for path in pages}
    built = {name for name in built if not name.startswith("_static/")}
    assert built - {"index", "genindex", "search"} == set(FILES)


@pytest.fixture
def visit(browser):
    """Open a page of a book; collects console errors and requests that leave the disk."""
    contexts = []

    def go(site, file):
        context = browser.new_context(color_scheme="light", viewport={"width": 1300, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.trouble = []
        page.on("console", lambda m: m.type in ("error", "warning") and page.trouble.append(m.text))
        page.on("pageerror", lambda error: page.trouble.append(str(error)))
        page.on(
            "request", lambda r: r.url.startswith(("file:", "data:", "blob:")) or page.trouble.append(r.url)
        )
        page.on("requestfailed", lambda r: page.trouble.append(f"not found: {r.url}"))
        page.goto((site / f"{file}.html").as_uri())
        page.evaluate("window.MathJax?.startup?.promise")  # formulas are set after the page has loaded
        return page

    yield go
    for context in contexts:
        context.close()


# Of each kind of text on cards, in tables and around figures: the lowest contrast with what is behind it.
CONTRAST = """selectors => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const linear = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const contrast = element => {
    let seen = 1, behind = null, at = element;
    while (at && !behind) {
      const style = getComputedStyle(at), color = numbers(style.backgroundColor);
      if (color.length == 3 || color[3] > 0.5) behind = color;
      else seen *= Number(style.opacity);
      at = at.parentElement;
    }
    behind ??= [255, 255, 255];
    const color = numbers(getComputedStyle(element).color);
    const alpha = seen * (color[3] ?? 1);
    const ink = [0, 1, 2].map(i => alpha * color[i] + (1 - alpha) * behind[i]);
    const [low, high] = [light(ink), light(behind)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const found = {};
  for (const selector of selectors) {
    const all = [...document.querySelectorAll(selector)].filter(e => e.textContent.trim());
    if (all.length) found[selector] = Math.min(...all.map(contrast));
  }
  return found;
}"""
READ = (
    *(".ra-says", ".ra-verdict", ".ra-note", ".ra-found", ".ra-unmet", ".ra-card dt", ".ra-card dd"),
    *(".ra-effects th", ".ra-effects td", ".ra-effects td:last-child", ".ra-deviations th"),
    *(".ra-table th", ".ra-table td", ".ra-table caption", ".ra-stamp", ".ra-data", "summary"),
    *(".ra-switch label", ".ra-figure figcaption", ".ra-figure svg", ".ra-note a", ".ra-table a"),
)


def too_wide(page):
    """How far the page is wider than the window, in pixels."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def sizes(page):
    """Width, height and natural width of each figure that is seen."""
    return page.eval_on_selector_all(
        "article img, .ra-figure svg",
        """all => all.filter(e => e.checkVisibility())
          .map(e => [e, e.getBoundingClientRect()])
          .map(([e, box]) => [box.width, box.height, e.naturalWidth ?? 1])""",
    )


def load_images(page):
    """Load also those that wait until they are scrolled to."""
    page.eval_on_selector_all(
        "article img", "all => Promise.all(all.map(e => { e.loading = 'eager'; return e.decode(); }))"
    )


@pytest.mark.parametrize("file", FILES)
def test_page_in_a_browser(visit, site, file):
    """One visit: formulas, figures, both themes, the switch, and a phone."""
    page = visit(site, file)
    load_images(page)
    shown = sizes(page)
    assert all(min(size) > 0 for size in shown)
    # Every formula in the source is set by MathJax, and none of them is an error.
    formulas = page.locator(".math").count()
    assert page.locator(".math mjx-container").count() >= formulas
    assert page.locator("mjx-merror, [data-mjx-error]").count() == 0
    assert "$" not in re.sub(r"\$[A-Z_]+", "", str(page.locator("article p").all_inner_texts()))
    if file in NOTEBOOKS:
        assert formulas
        assert shown
        assert page.locator(".ra-card").count()
        for answer in page.locator(".ra-opening").all():
            assert answer.bounding_box()["y"] < 700, "the answer is on the first screen"
        check_switch(page)

    for scheme in ("light", "dark"):
        page.evaluate("theme => document.documentElement.dataset.theme = theme", scheme)
        faint = {what: ratio for what, ratio in page.evaluate(CONTRAST, READ).items() if ratio < 4.5}
        assert faint == {}, scheme
        # No drawing is turned over or dimmed: its colors mean what its legend says.
        filters = page.locator(".ra-figure img").evaluate_all(
            "all => all.map(e => getComputedStyle(e).filter)"
        )
        assert set(filters) <= {"none"}

    assert too_wide(page) <= 0
    page.set_viewport_size({"width": 375, "height": 800})
    assert too_wide(page) <= 0
    assert page.trouble == []


def seen(page, kind):
    """How many panels of a kind are seen, and how many there are."""
    panels = page.locator(f".ra-of-{kind}")
    return panels.evaluate_all("all => all.filter(e => e.checkVisibility()).length"), panels.count()


def check_switch(page):
    """The record is chosen at first; one click shows this run in its place, everywhere on the page."""
    if not page.locator(".ra-switch").count():
        return
    labels = page.locator(".ra-switch label").all_inner_texts()
    assert labels[0].startswith("record of")
    assert labels[1] == "this run (smoke)"
    for chosen, other in (("record", "live"), ("live", "record")):
        page.locator(f".ra-switch label[for=ra-of-{chosen}]").click()
        count, every = seen(page, chosen)
        assert count == every > 1
        assert seen(page, other)[0] == 0
        assert all(min(size) > 0 for size in sizes(page))
    page.locator(".ra-switch label[for=ra-of-record]").click()


@pytest.mark.parametrize("file", sorted(FIRST_EDITION))
def test_tables_beside_the_records_figures_are_the_records(visit, site, file):
    name = file.removeprefix("notebooks/")
    record = old_records.newest(ROOT, name)
    if record is None:
        pytest.skip("no record of this page")
    page = visit(site, file)
    kept = {re.sub(r"\s+", " ", " ".join(Parsed(table).texts)).strip() for table in record.tables()}
    found = page.eval_on_selector_all(
        "article table[class='ra-table']",
        """all => all.filter(e => e.checkVisibility()).map(e => {
          const texts = [], walk = document.createTreeWalker(e, NodeFilter.SHOW_TEXT);
          while (walk.nextNode()) texts.push(walk.currentNode.data);
          return texts.join(" ").replace(/\\s+/g, " ").trim(); })""",
    )
    assert set(found) <= kept


def test_search_works_from_the_disk(visit, site):
    page = visit(site, "search")
    page.goto(page.url + "?q=alignment")
    page.wait_for_selector("#search-results li", timeout=10_000)


def test_the_book_can_be_read_from_the_records_alone(visit, read_site):
    """Every figure and verdict of the records is there, and nothing was trained for it."""
    assert {path.name for path in (read_site.parents[1] / "build").iterdir()} == {"read"}
    cache = read_site.parents[1] / "cache"
    assert [place for name in ("cells", "store") for place in cache.glob(f"{name}/**/*")] == []
    for page in PAGES:
        file = read_site / "notebooks" / f"{page.name}.html"
        text = file.read_text(encoding="utf-8")
        assert 'class="ra-switch"' not in text
        assert "ra-of-live" not in text
        kept = old_records.newest(ROOT, page.name) if page.first_edition else records.newest(ROOT, page.name)
        if kept:
            assert f"record of {kept.run['date']}" in text
            judged = kept.claims if page.first_edition else kept.run["claims"]
            ids = set(judged) & set(claims.of_page(ROOT, page.name))
            assert [id for id in ids if f'id="claim-{id}"' not in text] == []
    new = next(page for page in PAGES if not page.first_edition and records.newest(ROOT, page.name))
    run = json.loads((read_site.parents[1] / "build" / "read" / new.name / "run.json").read_text())
    opened = visit(read_site, f"notebooks/{new.name}")
    opening = run["opening"]
    assert opened.locator(".ra-opening .ra-answer").count() == bool(opening["answer"])
    assert opened.locator(".ra-opening svg").count() == bool(opening["figure"])
    assert opened.locator(".ra-figure svg").count() == len(run["figures"]) + bool(opening["figure"])
    assert opened.trouble == []
