"""The figures of the site in a browser: in their own size on a phone, and by night."""

import re

import pytest
from built_site import PAGES, SITE

LEARN = [name for name in PAGES if name.startswith("learn/")]
WITH_FIGURES = [name for name in PAGES if "plot-directive" in (SITE / name).read_text()]
STEPS = 12
FIGURES = """() => [...document.querySelectorAll("img.plot-directive")].map((image) => ({
  name: image.src.split("/").at(-1),
  alt: image.alt,
  shown: image.getBoundingClientRect().width / image.naturalWidth,
  filter: getComputedStyle(image).filter,
}))"""
INVERTED = "invert(1) hue-rotate(180deg)"


@pytest.fixture
def figures(browser):
    """Return a function that lists the figures of a page in a colour scheme, width and theme.

    Formulas are left as text: they change neither the figures nor the width of a page.
    """

    def listed(name, *, scheme, width, theme="auto"):
        page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 844})
        page.route("**/mathjax/**", lambda route: route.abort())
        page.goto((SITE / name).as_uri())
        page.evaluate(f"document.body.dataset.theme = '{theme}'")
        result = page.evaluate(FIGURES)
        page.close()
        return result

    return listed


def test_every_step_has_a_figure():
    without = [name for name in LEARN if "plot-directive" not in (SITE / name).read_text()]
    assert len(LEARN) > STEPS
    assert set(without) <= {"learn/beyond.html", "learn/tokenizers.html"}


@pytest.mark.parametrize("name", WITH_FIGURES)
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
        # the first path of a figure is its background, whose look is a class if others share it
        (background,) = re.findall(r"<path [^>]*>", text)[:1]
        (name,) = re.findall(r'class="(\w+)"', background) or [None]
        look = re.findall(rf"\.{name}{{([^}}]*)}}", text)[0] if name else background
        assert "fill:none" in look.replace(" ", ""), path.name
