"""The laws: one folder for each chapter of the specification; `load` registers them all."""

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnspec.conformance.laws.law import Law


def load() -> dict[str, "Law"]:
    """Import every law, chapter by chapter, and return the registered laws by name.

    They are in reading order, also if something else has imported a later chapter before.
    """
    from attnspec.conformance.laws.law import registered

    places = {name: place for place, name in enumerate(import_chapters(__name__))}
    laws = registered().items()
    return dict(sorted(laws, key=lambda law: places.get(law[1].check.__module__, len(places))))


@functools.cache
def import_chapters(package: str) -> tuple[str, ...]:
    """Import the modules of a package that has one folder for each chapter, in reading order.

    Args:
        package: the dotted name of the package. Folders that belong to no chapter are skipped.

    Returns:
        The dotted names of the modules.
    """
    from attnspec.spec.clauses import CHAPTERS

    folders = importlib.import_module(package).__path__
    present = {item.name for item in pkgutil.iter_modules(folders) if item.ispkg}
    names = []
    for chapter in (name for name in CHAPTERS if name in present):
        folder = importlib.import_module(f"{package}.{chapter}")
        modules = sorted(item.name for item in pkgutil.iter_modules(folder.__path__))
        names += [f"{folder.__name__}.{module}" for module in modules]
    for name in names:
        importlib.import_module(name)
    return tuple(names)
