"""Skip what needs GPT-2's own vocabulary or weights if they are not available, and say so.

The weights are those of the folder that the environment variable ATTNSPEC_GPT2 names, or else the
hub's `gpt2`, from its cache or by download.
"""

import functools
import os

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.text.vocabularies import vocabulary
from attnspec.reference.weights import WeightsError, locate

FOLDER = "ATTNSPEC_GPT2"

logger = logging.getLogger(__name__)


def missing() -> bool:
    """Return whether the released vocabulary is unavailable; if it is, log a line."""
    try:
        vocabulary("gpt2")
    except NotClaimed as reason:
        logger.info("skipped an example: %s", reason, color="yellow")
        return True
    return False


@functools.cache
def folder() -> str | None:
    """Return the folder of GPT-2's weights, or None and log a line if there are none.

    Raises:
        WeightsError: if ATTNSPEC_GPT2 names a folder without weights.
    """
    named = os.environ.get(FOLDER)
    if named:
        return str(locate(named).parent)
    try:
        return str(locate("gpt2").parent)
    except WeightsError as reason:
        logger.info("skipped what needs GPT-2's weights: %s", reason, color="yellow")
        return None


def missing_weights() -> bool:
    """Return whether GPT-2's weights are unavailable."""
    return folder() is None


class Released(SphinxDirective):
    """A part of a page that needs GPT-2's weights; without them, a sentence in its place."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the part, or the sentence."""
        if not missing_weights():
            return self.parse_content_to_nodes()
        text = f"This page was built without GPT-2's weights. Set {FOLDER} to a folder that holds "
        text += "them, and build it again to see the figure."
        return [nodes.note("", nodes.paragraph("", text))]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("released", Released)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
