"""Sphinx: the files of the exercise to download, the skeleton and the small model, as archives."""

import tempfile
import zipfile
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

from attnspec.conformance.exercise.small_model import write

FIRST_DATE = (1980, 1, 1, 0, 0, 0)
"""The date of each file in an archive, so that equal files make equal archives."""


def archive(folder: Path, target: Path) -> None:
    """Write the files of a folder into an archive, in a folder of the archive's name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(each for each in folder.iterdir() if each.is_file()):
            entry = zipfile.ZipInfo(f"{target.stem}/{path.name}", FIRST_DATE)
            packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


def make_archives(app: Sphinx) -> None:
    """Make the archives that the page of the exercise links, beside the built pages."""
    if app.builder.name != "html":
        return
    made = Path(app.outdir, "exercise")
    archive(Path(app.srcdir, "exercise", "gpt2"), made / "gpt2.zip")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        archive(Path(folder), made / "small_gpt2.zip")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Make the archives before the pages are written."""
    app.connect("builder-inited", make_archives)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
