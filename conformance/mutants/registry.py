"""The catalogue of mutants: implementations with one mistake each."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """An implementation that is correct except for one mistake.

    Attributes:
        id: of the public report that it repeats (`MSK-01`), or a name (`own-scale-squared`).
        title: the mistake in words, as a report says it: "causal mask aligned upper-left".
        subject: the implementation under test, with the claims of a correct one.
        killed_by: the name of a law that fails on it by its pinned cases, the one that states what
            it gets wrong; the stored kill matrix has all such laws.
        breaks: the clauses that the mistake breaks beside those of this law and those about the
            whole model; of models, whose laws fail on no other clause.
        source: the address of the public report; empty if there is none.
    """

    id: str
    title: str
    subject: Any
    killed_by: str
    breaks: tuple[str, ...] = ()
    source: str = ""


_MUTANTS: dict[str, Mutant] = {}


def plant(
    *,
    id: str,
    title: str,
    subject: Any,
    killed_by: str,
    breaks: tuple[str, ...] = (),
    source: str = "",
) -> Mutant:
    """Add a mutant to the catalogue.

    Raises:
        ValueError: if the id is taken.
    """
    if id in _MUTANTS:
        raise ValueError(f"{id}: two mutants of this id")
    _MUTANTS[id] = Mutant(
        id=id, title=title, subject=subject, killed_by=killed_by, breaks=breaks, source=source
    )
    return _MUTANTS[id]


def planted() -> dict[str, Mutant]:
    """Return the mutants registered so far, by id; `mutants.load` registers all."""
    return dict(_MUTANTS)
