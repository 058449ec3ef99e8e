"""Sphinx: a warning for every broken link of the built pages."""

from pathlib import Path

from links import broken
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata

logger = logging.getLogger(__name__)


def check(app: Sphinx, error: Exception | None) -> None:
    """Read every page again after all are written."""
    if error is None and app.builder.name == "html":
        for page, reason in broken(Path(app.outdir)):
            logger.warning("%s: %s", page, reason, type="attnspec")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Check after everything else is written."""
    app.connect("build-finished", check, priority=950)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
