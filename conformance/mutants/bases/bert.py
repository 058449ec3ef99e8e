"""BERTs with one mistake each, as mutants."""

from collections.abc import Callable
from functools import partial
from typing import Any

from attnspec.conformance.mutants.registry import plant
from attnspec.conformance.operators.bert.steps import Steps
from attnspec.spec.encoder import BertImplementation, BertProfile


def correct(
    name: str = "correct", base: type[Steps] = Steps, profile: BertProfile | None = None
) -> BertImplementation:
    """Return the declaration of a BERT of a base, with every feature."""
    return BertImplementation(
        name=name,
        function=partial(base, profile=profile) if profile else base,
        features=BertImplementation.FEATURES,
        profile=profile or BertProfile(),
    )


def bert_mistake(
    identifier: str,
    base: type[Steps],
    *,
    killed_by: str,
    source: str = "",
    profile: BertProfile | None = None,
) -> None:
    """Plant a class as a mutant, whose title is that of the class, and which declares a profile."""
    plant(
        id=identifier,
        title=base.title,
        subject=correct(identifier, base, profile),
        killed_by=killed_by,
        source=source,
    )


def encoder_mistake(identifier: str, *, killed_by: str, source: str = "") -> Callable[[Any], Any]:
    """Plant the decorated class as a mutant, whose title is that of the class."""

    def register(base: type[Steps]) -> type[Steps]:
        bert_mistake(identifier, base, killed_by=killed_by, source=source)
        return base

    return register
