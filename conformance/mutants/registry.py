"""The catalogue of mutants: implementations with one mistake each, killed by named laws."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """An implementation that is right but for one mistake.

    Attributes:
        id: of the public report it repeats (`MSK-01`), or a name of its own (`own-scale-squared`).
        title: the mistake in words, as a report says it: "causal mask aligned upper-left".
        subject: what a law judges; its claims are those of a correct implementation.
        kills: the names of laws that fail on it.
        source: the public thread that reported it, where there is one.
    """

    id: str
    title: str
    subject: Any
    kills: tuple[str, ...]
    source: str = ""


_MUTANTS: dict[str, Mutant] = {}


def plant(*, id: str, title: str, subject: Any, kills: tuple[str, ...], source: str = "") -> Mutant:
    """Add a mutant to the catalogue.

    Raises:
        ValueError: for an id that is taken, or a mutant that nothing kills.
    """
    if id in _MUTANTS:
        raise ValueError(f"{id}: two mutants of this id")
    if not kills:
        raise ValueError(f"{id}: a mutant names the laws that kill it")
    _MUTANTS[id] = Mutant(id=id, title=title, subject=subject, kills=kills, source=source)
    return _MUTANTS[id]


def planted() -> dict[str, Mutant]:
    """The mutants registered so far, by id; `attnspec.conformance.mutants` registers all."""
    return dict(_MUTANTS)
