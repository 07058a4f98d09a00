"""The rendered book, as a reader meets it: in a browser, from the disk, without a network."""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from command import ROOT
from repalign.runner.pages import _toc_files

pytest_plugins = ["browsing"]

FILES = _toc_files(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))


class Links(HTMLParser):
    """The ids of a page, and where it points."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if found.get("id"):
            self.ids.add(found["id"])
        for name in ("href", "src"):
            if tag != "use" and found.get(name):
                self.links.append(found[name])


@cache
def parsed(page):
    return Links(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", FILES)
def test_every_link_inside_the_book_leads_somewhere(site, file):
    page = site / f"{file}.html"
    for link in parsed(page).links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        assert target.exists(), f"{file} links to {link}"
        if parts.fragment and target.suffix == ".html":
            assert unquote(parts.fragment) in parsed(target).ids, f"{file} links to {link}"


def test_the_site_tells_nothing_of_the_machine(site):
    """No page holds the path of the directory it was built in."""
    root = str(site.parents[1])
    for page in site.rglob("*.html"):
        assert root not in page.read_text(encoding="utf-8"), page


@pytest.fixture
def visit(browser, site):
    """Open a page of the book; collects console errors and requests that leave the disk."""
    contexts = []

    def go(file, **options):
        context = browser.new_context(**options)
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


@pytest.mark.parametrize("file", FILES)
def test_page_in_a_browser(visit, file):
    page = visit(file)
    assert page.trouble == []
    # Every figure is seen, except those in a tab that is not chosen.
    sizes = page.eval_on_selector_all(
        "article img, .ra-figure svg",
        """all => all.filter(e => !e.closest(".ra-panel ~ .ra-panel"))
          .map(e => [e, e.getBoundingClientRect()])
          .map(([e, box]) => [box.width, box.height, e.naturalWidth ?? 1])""",
    )
    assert all(min(size) > 0 for size in sizes)
    # Every formula in the source is set by MathJax, and none of them is an error.
    formulas = page.locator(".math").count()
    assert page.locator(".math mjx-container").count() >= formulas
    assert page.locator("mjx-merror, [data-mjx-error]").count() == 0
    assert "$" not in re.sub(r"\$[A-Z_]+", "", page.locator("article p").all_inner_texts().__str__())
    if file.startswith("notebooks/"):
        assert formulas
        assert sizes
        assert page.locator(".ra-card").count()


@pytest.mark.parametrize("file", FILES)
def test_page_fits_a_phone(visit, file):
    page = visit(file, viewport={"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def contrast(page, selector):
    """Contrast of an element's text with what is behind it."""
    return page.eval_on_selector(
        selector,
        """element => {
          const numbers = text => text.match(/[\\d.]+/g).map(Number);
          const f = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
          const light = ([r, g, b]) => {
            return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
          let back = element, behind = [255, 255, 255];
          while (back) { const c = numbers(getComputedStyle(back).backgroundColor);
            if (c.length == 3 || c[3] > 0.5) { behind = c; break; } back = back.parentElement; }
          const ink = light(numbers(getComputedStyle(element).color)), paper = light(behind);
          const low = Math.min(ink, paper), high = Math.max(ink, paper);
          return (high + 0.05) / (low + 0.05); }""",
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_cards_and_captions_are_readable(visit, scheme):
    page = visit(next(f for f in FILES if f.startswith("notebooks/")), color_scheme=scheme)
    assert page.get_attribute("html", "data-theme") == scheme
    for selector in (".ra-figure svg", "figcaption", ".ra-card dd", ".ra-verdict", ".ra-settings td"):
        assert contrast(page, selector) >= 4.5, selector


RECORDED = [f for f in FILES if (ROOT / "records" / f.removeprefix("notebooks/")).is_dir()]


@pytest.mark.parametrize("file", RECORDED)
def test_the_record_comes_first_and_this_run_second(visit, file):
    page = visit(file)
    count = page.locator(".ra-tabs").count()
    assert count > 1
    for i in range(count):
        tabs = page.locator(".ra-tabs").nth(i)
        panels = tabs.locator("> .ra-panel")
        assert [panels.nth(k).is_visible() for k in (0, 1)] == [True, False]
        assert tabs.locator("> label").nth(0).inner_text().startswith("record of")
        assert tabs.locator("> label").nth(1).inner_text() == "this run (smoke)"
    for i in range(count):
        tabs = page.locator(".ra-tabs").nth(i)
        tabs.locator("> label").nth(1).click()
        panels = tabs.locator("> .ra-panel")
        assert [panels.nth(k).is_visible() for k in (0, 1)] == [False, True]
        assert panels.nth(1).bounding_box()["height"] > 20


def test_search_works_from_the_disk(visit):
    page = visit("search")
    page.goto(page.url + "?q=alignment")
    page.wait_for_selector("#search-results li", timeout=10_000)
    assert page.locator("#search-results li").count()


def test_built_pages_are_those_of_the_table_of_contents(site):
    found = {p.relative_to(site).with_suffix("").as_posix() for p in Path(site).rglob("*.html")}
    built = {name for name in found if not name.startswith("_static/")}
    assert built - {"index", "genindex", "search"} == set(FILES)
