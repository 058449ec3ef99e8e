"""The mutants, i.e. planted bugs: one folder for each chapter; `load` registers them all."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnspec.conformance.mutants.registry import Mutant


def load() -> dict[str, "Mutant"]:
    """Import every mutant, chapter by chapter, and return the catalogue by id."""
    from attnspec.conformance.laws import import_chapters
    from attnspec.conformance.mutants.registry import planted

    import_chapters(__name__)
    return planted()
