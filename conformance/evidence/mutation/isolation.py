"""Isolation: on a model with one mistake, only laws of the clauses that it breaks fail."""

from collections.abc import Sequence

from attnspec.conformance import laws, mutants
from attnspec.conformance.diagnosis.stages.names import WHOLE_MODEL
from attnspec.conformance.evidence.mutation.kills import Kills
from attnspec.conformance.subjects.kinds import SubjectKind


def stray_laws(result: Kills) -> tuple[str, ...]:
    """Return the laws that fail on a mutant of a model although their clauses are not broken.

    Args:
        result: the kills of a mutant of the catalogue.

    Returns:
        The broken laws that are decided and that cite neither a clause that the mutant declares
        broken, by the law that it names or in `breaks`, nor one about the whole model.
    """
    known = laws.load()
    mutant = mutants.load()[result.mutant]
    declared = WHOLE_MODEL.union(known[mutant.killed_by].clauses, mutant.breaks)
    return tuple(
        name
        for name in result.pinned
        if name in known
        and name not in result.undecided
        and declared.isdisjoint(known[name].clauses)
    )


def isolation(results: Sequence[Kills]) -> list[str]:
    """Return sentences: on how many models with one mistake no other law fails, and the rest."""
    models = [
        result
        for result in results
        if result.kind == SubjectKind.MODEL and result.mutant in mutants.load()
    ]
    if not models:
        return []
    strays = {result.mutant: stray_laws(result) for result in models}
    clean = sum(not names for names in strays.values())
    return [
        f"isolation: on {clean} of {len(models)} mutants of models, no law fails but those of the "
        f"clauses that the mutant breaks and of {', '.join(sorted(WHOLE_MODEL))}",
        *(
            f"also fails on {mutant}: {', '.join(names)}"
            for mutant, names in strays.items()
            if names
        ),
    ]
