"""Sphinx: commands of attnspec with the output that they print when the pages are built."""

import functools
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

EXAMPLES = Path(__file__).parents[1] / "examples"
COMMAND = [sys.executable, "-m", "attnspec.conformance.cli.app"]
SETTINGS = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "GITHUB_STEP_SUMMARY": ""}
OMITTED = "…"
SAMPLES = "samples"
"""The folder of the site for files that commands write."""


class Ran(NamedTuple):
    """What a command did: its exit status, its output, its errors, and the files it wrote."""

    status: int
    output: str
    errors: str
    files: dict[str, bytes]


@functools.cache
def ran(command: str, files: tuple[Path, ...]) -> Ran:
    """Run a command in a folder that holds copies of some files; equal commands run once.

    Raises:
        ValueError: if the command is not one of attnspec.
    """
    name, *words = shlex.split(command)
    if name != "attnspec":
        raise ValueError(f"{name} is not attnspec, whose commands alone are run for the pages")
    with tempfile.TemporaryDirectory() as folder:
        for path in files:
            Path(folder, path.name).write_bytes(path.read_bytes())
        run = subprocess.run(
            [*COMMAND, *words],
            cwd=folder,
            env=os.environ | SETTINGS,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        names = {path.name for path in files}
        written = {
            path.name: path.read_bytes()
            for path in Path(folder).iterdir()
            if path.is_file() and path.name not in names
        }
    return Ran(run.returncode, run.stdout, run.stderr, written)


def excerpt(output: str, start: str, end: str) -> str:
    """Return the lines from the first that begins with `start` to the next that begins with `end`.

    Without a start or an end the output is kept from its first or to its last line; three dots
    stand for lines that are left out.

    Raises:
        ValueError: if no line begins so; the message shows the output.
    """
    lines = [line.rstrip() for line in output.strip().splitlines()]
    first, last = 0, len(lines)
    for prefix, is_end in ((start, False), (end, True)):
        if not prefix:
            continue
        place = next(
            (n for n, line in enumerate(lines) if n >= first and line.startswith(prefix)), None
        )
        if place is None:
            raise ValueError(f"no line begins with {prefix!r}:\n{output}")
        first, last = (first, place) if is_end else (place, last)
    kept = "\n".join(lines[first:last]).strip().splitlines()
    return "\n".join([*[OMITTED] * (first > 0), *kept, *[OMITTED] * (last < len(lines))])


class Printed(SphinxDirective):
    """`{printed} attnspec ...`: the command, and what it prints.

    `files` are copied from the examples; `status` is the exit status that the command must have;
    `start-at` and `end-before` select lines of the output by how they begin. Files that the
    command writes are put into the folder `samples` of the site.
    """

    required_arguments = 1
    final_argument_whitespace = True
    samples: ClassVar[Path | None] = None
    """The folder for files that commands write, if the builder has one."""
    option_spec: ClassVar[dict[str, Any]] = {
        "files": directives.unchanged_required,
        "status": directives.nonnegative_int,
        "start-at": directives.unchanged_required,
        "end-before": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """Run the command; another exit status, or a lacking line, is an error."""
        command = " ".join(self.arguments[0].split())
        files = tuple(EXAMPLES / name for name in self.options.get("files", "").split())
        for path in files:
            self.env.note_dependency(str(path))
        result = ran(command, files)
        expected = self.options.get("status", 0)
        if result.status != expected:
            text = f"{result.output}{result.errors}"
            raise self.error(f"exit status {result.status}, not {expected}: {command}\n{text}")
        try:
            shown = excerpt(
                result.output,
                self.options.get("start-at", ""),
                self.options.get("end-before", ""),
            )
        except ValueError as error:
            raise self.error(f"{command}: {error}") from error
        if self.samples is not None and result.files:
            self.samples.mkdir(parents=True, exist_ok=True)
            for name, content in result.files.items():
                (self.samples / name).write_bytes(content)
        text = f"$ {command}\n{shown}"
        return [nodes.literal_block(text, text, language="console", classes=["printed"])]


def find_samples(app: Sphinx) -> None:
    """Set the folder for files that commands write."""
    Printed.samples = Path(app.outdir, SAMPLES) if app.builder.name == "html" else None


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.connect("builder-inited", find_samples)
    app.add_directive("printed", Printed)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
