"""A smaller site shows the same: what is left out of pages and figures, and what is not."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pygments.styles import get_style_by_name
from pygments.token import STANDARD_TYPES, Token

DOCS = Path(__file__).parents[1]
sys.path.insert(0, str(DOCS / "_ext"))

import smaller  # noqa: E402  (found by the line above)

PAGE = """<!doctype html><html lang="en"><head><title>A page</title><style>
  body {
    --colour: #fff;
  }
</style></head><body>
<svg xmlns="http://www.w3.org/2000/svg" style="display: none;">
  <symbol id="svg-menu" viewBox="0 0 24 24"><svg><path d="M0 0"/></svg></symbol>
  <symbol id="svg-moon" viewBox="0 0 24 24"><svg><path d="M1 1"/></svg></symbol>
  <symbol id="svg-eye" viewBox="0 0 24 24"><svg><path d="M2 2"/></svg></symbol>
</svg>
<svg><use href="#svg-menu"></use></svg><svg><use href="#svg-moon"></use></svg>
<a class="reference internal" href="x.html"><span class="std std-ref">ATT-1</span></a>
<pre><span class="k">def</span><span class="w"> </span><span class="p">(</span></pre>
<code><span class="pre">a_name()</span> <span class="pre">in-two-lines</span></code>
</body></html>"""


def test_what_pages_repeat_is_in_files_of_its_own():
    styles, script = smaller.shared([PAGE, "<p>another</p>"])
    assert "--colour: #fff" in styles
    assert "<" not in styles
    assert "svg-moon" in script
    assert "svg-menu" not in script
    page = smaller.smaller(PAGE, "../")
    assert "--colour" not in page
    assert "../_static/variables.css" in page
    assert page.index("../_static/icons.js") < page.index("<svg")
    assert "id=svg-menu" in page
    assert "id=svg-moon" not in page
    assert "svg-eye" not in page


def test_mark_up_that_changes_nothing_is_left_out():
    page = smaller.smaller(PAGE, "")
    assert "<a class=reference href=x.html>ATT-1</a>" in page
    assert "<pre><span class=k>def</span> (</pre>" in page
    assert "<code>a_name() <span class=pre>in-two-lines</span></code>" in page


@pytest.mark.parametrize("name", ["a11y-high-contrast-light", "a11y-high-contrast-dark"])
def test_parts_of_code_without_a_colour_of_their_own(name):
    assert name in (DOCS / "conf.py").read_text()
    style = get_style_by_name(name)
    for token, short in STANDARD_TYPES.items():
        if smaller.UNCOLOURED.match(f'<span class="{short}">x</span>'):
            assert style.style_for_token(token) == style.style_for_token(Token.Text), token


def test_a_page_of_an_earlier_build_stays_as_it_is(tmp_path):
    app = SimpleNamespace(outdir=tmp_path, builder=SimpleNamespace(name="html"))
    (tmp_path / "_static").mkdir()
    page = tmp_path / "learn" / "page.html"
    page.parent.mkdir()
    page.write_text(PAGE)
    smaller.shrink(app, None)
    first = page.read_text()
    assert "../_static/icons.js" in first
    assert "svg-moon" in (tmp_path / "_static" / "icons.js").read_text()
    assert "--colour" in (tmp_path / "_static" / "variables.css").read_text()
    smaller.shrink(app, None)
    assert page.read_text() == first
    assert "svg-moon" in (tmp_path / "_static" / "icons.js").read_text()


def test_a_page_without_the_theme_gets_none_of_its_files():
    assert "_static" not in smaller.smaller("<!doctype html><p>report<svg></svg>", "")


def test_coordinates_are_rounded_and_nothing_else():
    figure = (
        '<svg>\n <metadata>of a tool</metadata><path d="M 23.386959 -36.018631 \nL 0.000123 5" '
        'style="stroke-width: 0.8125"/><text x="1.23456" transform="scale(0.015625)">3.14159</text>'
    )
    assert smaller.rounded(figure) == (
        '<svg><path d="M23.39 -36.02L0 5" style="stroke-width: 0.8125"/>'
        '<text x="1.23" transform="scale(0.015625)">3.14159</text>'
    )


def test_looks_that_parts_of_a_figure_share_are_classes():
    one = '<path d="M 0 0 L 1.5 0 L 1.5 2 L 0 2 L 0 0" clip-path="url(#p1)" style="fill: #fff"/>'
    other = '<path id="line" d="M 0 0 L 1 2" clip-path="url(#p1)" style="fill: #000"/>'
    figure = f'<svg><style>*{{}}</style><clipPath id="p1"/>{one}{one}{other}</svg>'
    drawn = '<path d="M0 0H1.5V2H0z" class="a0"/>'
    assert smaller.rounded(figure) == (
        "<svg><style>*{}.a0{clip-path:url(#p1);fill:#fff}</style>"
        f'<clipPath id="p1"/>{drawn}{drawn}'
        '<path d="M0 0L1 2" clip-path="url(#p1)" style="fill: #000"/></svg>'
    )
    assert smaller.rounded(smaller.rounded(figure)) == smaller.rounded(figure)


def test_unused_parts_of_mathjax_are_removed(tmp_path):
    mathjax = tmp_path / "_static" / "mathjax"
    fonts = "output/chtml/fonts/woff-v2"
    for name in (
        *("startup.js", "tex-svg.js", "input/tex.js", "input/x.js"),
        *(f"{fonts}/MathJax_{each}-Regular.woff" for each in ("Main", "Fraktur", "SansSerif")),
    ):
        path = mathjax / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "_static" / "furo.css.map").write_text("")
    removed = {
        path.relative_to(tmp_path / "_static").as_posix()
        for path in smaller.prune(tmp_path, [r"a formula \(x^\mathsf{T}\)"])
    }
    unused = {"mathjax/tex-svg.js", "mathjax/input/x.js", "furo.css.map"}
    assert removed == unused | {f"mathjax/{fonts}/MathJax_Fraktur-Regular.woff"}
