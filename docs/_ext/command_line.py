"""Sphinx: the page of the command line, written by typer from the commands themselves."""

import re
import subprocess
import sys

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

COMMAND = [sys.executable, "-m", "typer", "attnspec.conformance.cli.app", "utils", "docs"]


def markdown() -> str:
    """Return typer's page: one section a command, without the title of the page."""
    run = subprocess.run(
        [*COMMAND, "--name", "attnspec"], capture_output=True, text=True, check=True
    )
    _, _, text = run.stdout.partition("\n")
    # leave out typer's own options, and link the commands to their sections of this page
    text = re.sub(r"^\* `--(install|show)-completion`.*\n", "", text, flags=re.M)
    text = re.sub(r"^\* `--help`: .*\n", "", text, flags=re.M)
    # the number of cores here is not the number on the reader's machine
    text = re.sub(r"(--workers .*\[default: )\d+", r"\1as many as there are cores", text)
    return re.sub(r"^\* `([a-z][a-z0-9-]*)`: ", r"* [`\1`](#attnspec-\1): ", text, flags=re.M)


class CommandLine(SphinxDirective):
    """`{command-line}`: every command with its arguments and options."""

    def run(self) -> list[nodes.Node]:
        """Parse typer's page as Markdown."""
        whole, *commands = re.split(r"\n(?=## )", markdown())
        parent = nodes.section()
        parent.document = self.state.document
        for text in (whole, "\n".join(commands)):
            lines = StringList(text.splitlines(), source="")
            self.state.nested_parse(lines, 0, parent, match_titles=text != whole)
        return parent.children


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("command-line", CommandLine)
    return {"version": "1", "parallel_read_safe": True}
