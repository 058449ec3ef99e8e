"""Sphinx: what the search finds: terms where they are taught, and no sources of laws.

`search_terms.toml` lists the terms of each page. They become entries of the index, which the search
ranks first; the index itself is not built. The pages of `UNSEARCHED` keep their titles only.
"""

import tomllib
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata

STORED = Path(__file__).parents[1] / "search_terms.toml"
UNSEARCHED = ("laws/", "api/", "changelog")
"""Beginnings of the names of pages with sources and signatures, in which every term occurs."""

logger = logging.getLogger(__name__)


def terms() -> dict[str, list[str]]:
    """Return the terms of each page."""
    pages = tomllib.loads(STORED.read_text(encoding="utf-8"))
    return {name: list(page["terms"]) for name, page in pages.items()}


def add(app: Sphinx, document: nodes.document) -> None:
    """Add the terms of a page below its title, or leave the page out of the search."""
    page = app.env.docname
    if page.startswith(UNSEARCHED):
        app.env.metadata[page]["nosearch"] = "true"
    section = next(iter(document.findall(nodes.section)), None)
    if section is not None and page in (known := terms()):
        identifier = section["ids"][0]
        entries = [("single", term, identifier, "main", None) for term in known[page]]
        section.insert(1, addnodes.index(entries=entries))


def check(app: Sphinx) -> None:
    """Warn of pages with terms that do not exist."""
    for page in sorted(terms().keys() - app.env.found_docs):
        logger.warning("%s: there is no page %s", STORED.name, page, type="attnspec")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Add the terms when a page is read."""
    app.connect("doctree-read", add)
    app.connect("env-check-consistency", lambda app, env: check(app))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
