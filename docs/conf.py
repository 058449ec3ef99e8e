"""Configuration of Sphinx."""

import doctest
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from attnspec import __version__
from attnspec.spec import SPEC_VERSION

sys.path[:0] = [str(Path(__file__).parent / folder) for folder in ("_ext", "examples", "figures")]

project = "attnspec"
author = "the attnspec authors"
version = SPEC_VERSION
release = f"{SPEC_VERSION} (package {__version__})"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
    "matplotlib.sphinxext.plot_directive",
    "api",
    "behaviour",
    "citations",
    "clause_index",
    "command_line",
    "comparison",
    "evidence",
    "exercise",
    "highlighting",
    "interactive",
    "laws",
    "libraries",
    "link_check",
    "mutants",
    "printed",
    "record_fields",
    "released",
    "tokenizer_tables",
    "reference_code",
    "search_terms",
    "smaller",
]
exclude_patterns = ["_build", "results"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
# Clauses have third-level headings whether or not a chapter is divided into sections; in the built
# page levels follow the nesting, and none is skipped.
suppress_warnings = ["myst.header"]

# Docstrings: names in single backticks are code; long signatures are broken into lines.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_custom_sections = ["Clauses", "Source"]
maximum_signature_line_length = 80
python_use_unqualified_type_names = True
toc_object_entries = False

plot_include_source = False
plot_working_directory = str(Path(__file__).parent)
plot_html_show_source_link = False
plot_html_show_formats = False
plot_formats = ["svg"]
# A figure has no background of its own, so that attnspec.css can invert it in dark mode. A figure
# of at most 3.8 inches is shown on a phone in its own size, with letters of 12 pixels.
plot_rcparams = {
    "svg.fonttype": "none",
    "font.size": 9,
    "font.family": "sans-serif",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
plot_apply_rcparams = True

pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_theme = "furo"
html_title = f"attnspec {SPEC_VERSION}"
html_static_path = ["_static"]
html_css_files = ["attnspec.css", "evidence.css", "tables.css"]
html_js_files = ["accessible.js"]
html_copy_source = False
html_show_copyright = False
html_use_index = False
html_show_search_summary = False  # a page from disk may not read the others
# Text has a contrast of 7 : 1 with its background, by day and by night.
html_theme_options = {
    "top_of_page_buttons": [],
    "light_css_variables": {
        "color-brand-primary": "#0b3da9",
        "color-brand-content": "#0b3da9",
        "color-brand-visited": "#6a1fb8",
        "color-foreground-secondary": "#50525a",
        "color-foreground-muted": "#50525a",
    },
    "dark_css_variables": {
        "color-brand-primary": "#8ab4ff",
        "color-brand-content": "#8ab4ff",
        "color-brand-visited": "#d3a4ff",
        "color-api-name": "#ff9c9c",
        "color-api-pre-name": "#ff9c9c",
        "color-foreground-secondary": "#b4b8bd",
        "color-foreground-muted": "#b4b8bd",
    },
}

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# A page must not depend on the print options that another has set.
doctest_global_setup = """
import torch
from attnspec.implementations.cpu_products import rows_are_apart
torch.set_printoptions(profile="default")
torch.set_default_dtype(torch.float32)
"""
# The text of an error is part of an example, so it is compared too.
doctest_default_flags = doctest.ELLIPSIS | doctest.DONT_ACCEPT_TRUE_FOR_1


def show_own_branch(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """List the pages below a page beside these alone: in every page, all took a megabyte."""
    if "toctree" in context:
        toctree = context["toctree"]
        context["toctree"] = lambda **options: toctree(**options | {"collapse": True})


def setup(app: Sphinx) -> None:
    """Change the list of pages before the theme makes it."""
    app.connect("html-page-context", show_own_branch, priority=100)
