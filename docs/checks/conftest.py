"""The browser that the checks of the built site share."""

import pytest
from built_site import BROWSER
from playwright.sync_api import sync_playwright


@pytest.fixture(scope="session")
def browser():
    """Yield one browser for all pages."""
    if not BROWSER:
        pytest.skip("no Chromium here to open the site with")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()
