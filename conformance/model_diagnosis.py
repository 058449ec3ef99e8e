"""The diagnosis of a broken GPT-2: which stage diverges first, and which planted bug it is like."""

from dataclasses import replace

from attnspec.conformance.diagnosis import PATIENCE, sentence
from attnspec.conformance.model_likeness import model_resembles
from attnspec.conformance.model_stage import diverges
from attnspec.conformance.mutants.registry import Mutant
from attnspec.conformance.record import Record
from attnspec.spec import ModelImplementation

REFUSING = frozenset({"EMB-3", "EMB-4"})
"""Clauses of what is refused, which no stage explains."""

_KEPT: dict[tuple[int, bool], tuple[ModelImplementation, list[Mutant]]] = {}
_MOST = 64


def model_diagnosed(record: Record, subject: ModelImplementation) -> Record:
    """Add to the record of a broken law the stage that diverges, and what the model looks like.

    Both are found out once for a subject, whatever number of laws it breaks.

    Args:
        record: of a law that failed.
        subject: on which it was tried.
    """
    if record.seconds.get("total", 0.0) > PATIENCE:
        return record
    is_refusal = bool(REFUSING.intersection(record.clauses))
    stage = None if is_refusal else diverges(subject)
    alike = resembled(subject, refusals=is_refusal)
    told = [record.message, *([str(stage)] if stage else []), *([sentence(alike)] if alike else [])]
    return replace(
        record,
        stage=stage.place if stage else "",
        looks_like=tuple(each.id for each in alike),
        message="\n\n".join(told),
    )


def resembled(subject: ModelImplementation, *, refusals: bool) -> list[Mutant]:
    """What `model_resembles` says of a subject, which it is asked once."""
    key = id(subject), refusals
    if key not in _KEPT:
        if len(_KEPT) >= _MOST:
            _KEPT.clear()
        # the subject is kept too, so that no other one gets its address
        _KEPT[key] = subject, model_resembles(subject, refusals=refusals)
    return _KEPT[key][1]
