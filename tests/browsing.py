"""A browser, for the rendered book and for JupyterLab."""

import os
import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="session")
def browser():
    found = os.environ.get("REPALIGN_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        if os.environ.get("REPALIGN_REQUIRE_BROWSER"):
            pytest.fail("no browser found, and REPALIGN_REQUIRE_BROWSER is set: install chromium")
        pytest.skip("no Chromium or Chrome on this machine")
    from playwright.sync_api import sync_playwright

    quiet = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    quiet += ["--disable-component-update", "--disable-sync", "--disable-quic"]
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=found, args=quiet)
