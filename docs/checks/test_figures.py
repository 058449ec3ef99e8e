"""The figures of the learner's path in a browser: in their own size on a phone, and by night."""

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

SITE = Path(os.environ.get("SITE", Path(__file__).parents[1] / "_build" / "html")).resolve()
PAGES = sorted(page.relative_to(SITE).as_posix() for page in SITE.glob("learn/*.html"))
STEPS = 12
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
FIGURES = """() => [...document.querySelectorAll("img.plot-directive")].map((image) => ({
  name: image.src.split("/").at(-1),
  alt: image.alt,
  shown: image.getBoundingClientRect().width / image.naturalWidth,
  filter: getComputedStyle(image).filter,
}))"""
INVERTED = "invert(1) hue-rotate(180deg)"

pytestmark = pytest.mark.skipif(not BROWSER, reason="no Chromium here to open the site with")


@pytest.fixture(scope="module")
def figures():
    """Return a function that lists the figures of a page in a colour scheme, width and theme."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])

        def listed(name, *, scheme, width, theme="auto"):
            page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 844})
            page.goto((SITE / name).as_uri())
            page.evaluate(f"document.body.dataset.theme = '{theme}'")
            result = page.evaluate(FIGURES)
            page.close()
            return result

        yield listed
        browser.close()


def test_every_step_has_a_figure(figures):
    without = [name for name in PAGES if not figures(name, scheme="light", width=1280)]
    assert len(PAGES) > STEPS
    assert set(without) <= {"learn/beyond.html", "learn/tokenizers.html"}


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_shows_figures_in_their_own_size(name, figures):
    for figure in figures(name, scheme="light", width=390):
        assert figure["shown"] > 0.95, figure["name"]
        assert len(figure["alt"]) > 40, figure["name"]


@pytest.mark.parametrize(
    ("scheme", "theme", "is_dark"),
    [
        ("light", "auto", False),
        ("dark", "auto", True),
        ("light", "dark", True),
        ("dark", "light", False),
    ],
)
def test_figures_follow_the_theme(scheme, theme, is_dark, figures):
    (figure,) = figures("learn/score.html", scheme=scheme, width=1280, theme=theme)
    assert figure["filter"] == (INVERTED if is_dark else "none")


def test_figures_have_no_background_of_their_own():
    texts = {path: path.read_text() for path in (SITE / "_images").glob("*.svg")}
    assert len(texts) > STEPS
    for path, text in texts.items():
        background = text.split('<g id="patch_1">')[1].split("</g>")[0]
        assert "fill: none" in background, path.name
