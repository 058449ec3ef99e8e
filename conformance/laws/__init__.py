"""The laws: one folder for each chapter of the specification; `load` registers them all."""

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnspec.conformance.laws.law import Law


def load() -> dict[str, "Law"]:
    """Import every law, chapter by chapter, and return the registered laws by name."""
    from attnspec.conformance.laws.law import registered

    import_chapters(__name__)
    return registered()


@functools.cache
def import_chapters(package: str) -> None:
    """Import the modules of a package that has one folder for each chapter, in reading order.

    Args:
        package: the dotted name of the package. Folders that belong to no chapter are skipped.
    """
    from attnspec.spec.clauses import CHAPTERS

    folders = importlib.import_module(package).__path__
    present = {item.name for item in pkgutil.iter_modules(folders) if item.ispkg}
    for chapter in (name for name in CHAPTERS if name in present):
        folder = importlib.import_module(f"{package}.{chapter}")
        for module in sorted(item.name for item in pkgutil.iter_modules(folder.__path__)):
            importlib.import_module(f"{folder.__name__}.{module}")
