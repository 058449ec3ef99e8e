"""Sphinx: links from the names of works to their entries in the bibliography."""

import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.typing import ExtensionMetadata

PAGE = "bibliography"
STORED = Path(__file__).parents[1] / f"{PAGE}.md"
UNLINKED = (nodes.literal, nodes.literal_block, nodes.reference, nodes.title, nodes.term)
UNLINKED += (addnodes.pending_xref, nodes.math, nodes.math_block, nodes.raw)


def works(text: str) -> list[str]:
    """Return the names of the works in the glossary blocks of a page, the longest first."""
    blocks = re.findall(r"^```\{glossary\}\n(.*?)^```$", text, re.M | re.S)
    names = [line for block in blocks for line in block.splitlines() if line[:1].strip()]
    return sorted((name for name in names if name[0] != ":"), key=len, reverse=True)


class Cite(SphinxTransform):
    """Link each name of a work, on every page but the bibliography."""

    default_priority = 600

    def apply(self, **options: object) -> None:
        """Split the text around the names."""
        if self.env.docname == PAGE or not STORED.is_file():
            return
        names = works(STORED.read_text(encoding="utf-8"))
        pattern = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, names))})(?!\w)")
        for text in list(self.document.findall(nodes.Text)):
            parent, ancestor = text.parent, text.parent
            while ancestor is not None and not isinstance(ancestor, UNLINKED):
                ancestor = ancestor.parent
            parts = pattern.split(text.astext())
            if ancestor is None and len(parts) > 1:
                linked = [
                    _reference(part, self.env.docname) if n % 2 else nodes.Text(part)
                    for n, part in enumerate(parts)
                ]
                parent.replace(text, linked)


def _reference(name: str, page: str) -> addnodes.pending_xref:
    """Return a link to a work; a name without an entry causes a warning."""
    options = {"refdomain": "std", "reftype": "term", "reftarget": name, "refexplicit": False}
    return addnodes.pending_xref("", nodes.inline("", name), refwarn=True, refdoc=page, **options)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the transform."""
    app.add_transform(Cite)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
