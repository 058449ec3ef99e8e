"""Sphinx: a smaller site, by leaving out what no page shows and what every page repeats.

A site on a disk is not compressed. This keeps the parts of MathJax that pages load, and moves the
styles and icons that the theme repeats in each page into two files; mark-up that changes nothing is
left out.
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import minify_html
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.typing import ExtensionMetadata

COMPONENTS = ("core", "input/tex", "output/chtml", "a11y/assistive-mml")
"""The components of MathJax that typeset TeX; the usual bundle adds a menu, which is as large."""
FONTS = ("output/chtml/fonts/tex.js", "output/chtml/fonts/woff-v2")
LOADED = ("startup.js", *(f"{each}.js" for each in COMPONENTS), *FONTS)
"""The parts of MathJax that a page loads; the bundled copy is ten times as large."""
COMMANDS = {
    "Calligraphic": "cal|mathcal|mathbfcal",
    "Fraktur": "frak|mathfrak|mathbffrak",
    "Script": "scr|mathscr|mathbfscr",
    "SansSerif-Regular": "sf|mathsf|textsf|mathsfup",
    "SansSerif-Bold": "mathbfsf|mathbfsfup|mathbfsfit",
    "SansSerif-Italic": "mathsfit|mathbfsfit",
    "Typewriter": "tt|mathtt|texttt",
}
"""The commands of TeX that need a font beside the usual ones, by the start of the font's name."""

VARIABLES = re.compile(r"<style>\s*body \{.*?</style>", re.DOTALL)
"""The colours of the theme, equal in every page."""
SYMBOL = re.compile(r'<symbol id="([^"]+)".*?</symbol>', re.DOTALL)
"""An icon of the theme."""
OF_THEMES = frozenset(f"svg-{name}" for name in ("sun", "moon", "sun-with-moon", "moon-with-sun"))
"""The icons of the button that only a script can make work."""

UNSTYLED = re.compile(r'<span class="(?:std std-(?:ref|doc|term)|doc)">([^<]*)</span>')
"""A span that no style sheet mentions."""
UNBROKEN = re.compile(r'<span class="pre">([\w.:,;()\[=*+<>&#~^$@%\'"`]*)</span>')
"""A span against line breaks, around text in which no line may be broken."""
UNCOLOURED = re.compile(r'<span class="(?:n|nx|p|pm|w)">([^<]*)</span>')
"""A part of code that has the colour of the code around it, by day and by night."""
UNUSED = re.compile(r'class="docutils literal notranslate"')
"""Code in text, with two classes that no style sheet names."""
STRIPED = re.compile(r'<tr class="row-(?:odd|even)">')
"""Rows of tables, which no style sheet tells apart."""
INTERNAL = re.compile(r'class="reference internal"')

NUMBER = re.compile(r"-?\d+\.\d{3,}")
STYLED = re.compile(r'(?: clip-path="(?P<clip>[^"]*)")? style="(?P<style>[^"]*)"')
"""The look of a part of a figure, which a hundred other parts may have."""
IDENTIFIER = re.compile(r' id="([^"]*)"')
REFERENCE = re.compile(r'(?:url\(|href=")#([^")]*)')
RECTANGLE = re.compile(r"M (\S+) (\S+) L (\S+) \2 L \3 (\S+) L \1 \4 (?:L \1 \2|z)")
COMMAND = re.compile(r" ?([MLCQz]) ?")
PATH = re.compile(r'(?<= d=")[^"]+(?=")|(?<= [xy]=")[^"]+(?=")')
BETWEEN = re.compile(r">\n\s*<")
METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


def shared(pages: list[str]) -> tuple[str, str]:
    """Return the styles and the script that stand for what pages repeat."""
    styles = next((found[0] for page in pages if (found := VARIABLES.search(page))), "")
    icons: dict[str, str] = {}
    for page in pages:
        icons |= {each[1]: each[0] for each in SYMBOL.finditer(page) if each[1] in OF_THEMES}
    sprite = minify_html.minify("".join(icons[name] for name in sorted(icons)))
    script = (
        "document.currentScript.insertAdjacentHTML('afterend', "
        f"`<svg xmlns='http://www.w3.org/2000/svg' style='display:none'>{sprite}</svg>`);"
    )
    return styles.removeprefix("<style>").removesuffix("</style>"), script


def smaller(page: str, root: str) -> str:
    """Return a page without what it repeats or does not need.

    Args:
        page: its HTML.
        root: the path from it to the folder of the site, empty or with a slash at the end.
    """

    def icon(symbol: re.Match[str]) -> str:
        is_shown = f'#{symbol[1]}"' in page and symbol[1] not in OF_THEMES
        return symbol[0] if is_shown else ""

    page, count = VARIABLES.subn(
        f'<link rel="stylesheet" href="{root}_static/variables.css">', page
    )
    page = SYMBOL.sub(icon, page)
    if count:
        page = page.replace("<svg ", f'<script src="{root}_static/icons.js"></script><svg ', 1)
    for span in (UNSTYLED, UNBROKEN, UNCOLOURED):
        page = span.sub(r"\1", page)
    page = INTERNAL.sub('class="reference"', page)
    page = UNUSED.sub('class="literal"', page)
    page = STRIPED.sub("<tr>", page)
    return minify_html.minify(page, keep_html_and_head_opening_tags=True)


def rounded(figure: str) -> str:
    """Return a figure whose coordinates have two decimals, a hundredth of a point.

    Looks that several parts share become classes, and paths and names lose what they do not need.
    """

    def short(number: re.Match[str]) -> str:
        return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")

    def shortened(path: re.Match[str]) -> str:
        numbers = " ".join(NUMBER.sub(short, path[0]).split())
        return COMMAND.sub(r"\1", RECTANGLE.sub(r"M\1 \2H\3V\4H\1z", numbers))

    figure = BETWEEN.sub("><", METADATA.sub("", figure))
    figure = PATH.sub(shortened, figure)
    used = set(REFERENCE.findall(figure))
    figure = IDENTIFIER.sub(lambda name: name[0] if name[1] in used else "", figure)
    return _with_classes(figure)


def _with_classes(figure: str) -> str:
    """Return a figure in which looks that several parts share are classes."""
    counts = Counter(found.groups() for found in STYLED.finditer(figure))
    shared_by_several = [look for look, count in counts.items() if count > 1]
    names = {look: f"a{number}" for number, look in enumerate(shared_by_several)}

    def named(found: re.Match[str]) -> str:
        name = names.get(found.groups())
        return found[0] if name is None else f' class="{name}"'

    rules = "".join(
        f".{name}{{{f'clip-path:{clip};' if clip else ''}{style.replace(': ', ':')}}}"
        for (clip, style), name in names.items()
    )
    return STYLED.sub(named, figure).replace("</style>", f"{rules}</style>", 1)


def prune(site: Path, pages: Iterable[str] = ()) -> Iterator[Path]:
    """Return the files and empty folders that no page loads, those inside a folder before it.

    Args:
        site: the folder of the site.
        pages: the HTML of all pages, whose formulas need fonts.
    """
    mathjax = site / "_static" / "mathjax"
    kept = [mathjax / part for part in LOADED]
    for path in sorted(mathjax.rglob("*"), reverse=True):
        if not any(path == file or file in path.parents or path in file.parents for file in kept):
            yield path
    written = "".join(pages)
    for font, commands in COMMANDS.items():
        if not re.search(rf"\\(?:{commands})(?![a-zA-Z])", written):
            yield from mathjax.rglob(f"MathJax_{font}*.woff")
    yield from (site / "_static").rglob("*.map")


def shrink(app: Sphinx, error: Exception | None) -> None:
    """Make the site smaller, once it is written."""
    if error is not None or app.builder.name != "html":
        return
    site = Path(app.outdir)
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    for path in dict.fromkeys(prune(site, pages.values())):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    # a page of an earlier build has lost its end tags, and cannot bear to lose any twice
    pages = {path: page for path, page in pages.items() if "</html>" in page}
    written = {path: page for path, page in pages.items() if VARIABLES.search(page)}
    if written:
        styles, script = shared([*written.values()])
        (site / "_static" / "variables.css").write_text(styles, encoding="utf-8")
        (site / "_static" / "icons.js").write_text(script, encoding="utf-8")
    for path, page in pages.items():
        root = "../" * (len(path.relative_to(site).parts) - 1)
        path.write_text(smaller(page, root), encoding="utf-8")
    for path in (site / "_images").rglob("*.svg"):
        path.write_text(rounded(path.read_text(encoding="utf-8")), encoding="utf-8")


def load_components(_app: Sphinx, config: Config) -> None:
    """Let pages load the components of MathJax that they use, in place of the usual bundle."""
    config.mathjax_path = "mathjax/startup.js"
    configured = config.mathjax3_config or {}
    config.mathjax3_config = configured | {"loader": {"load": list(COMPONENTS)}}


def setup(app: Sphinx) -> ExtensionMetadata:
    """Change the files after all others have."""
    app.connect("config-inited", load_components)
    app.connect("build-finished", shrink, priority=950)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
