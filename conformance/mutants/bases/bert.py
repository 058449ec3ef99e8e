"""BERTs with one mistake each, as mutants."""

from collections.abc import Callable
from functools import partial
from typing import Any

from attnspec.conformance.mutants.registry import plant
from attnspec.conformance.operators.bert.steps import Steps
from attnspec.spec.encoder import BertImplementation, BertProfile

_DEFAULT = BertProfile()


def correct(
    name: str = "correct", base: type[Steps] = Steps, profile: BertProfile = _DEFAULT
) -> BertImplementation:
    """Return the declaration of a BERT of a base, with every feature."""
    # a class is found again by its name, and follows the default by itself
    function: Any = base if profile == BertProfile() else partial(base, profile=profile)
    return BertImplementation(
        name=name,
        function=function,
        features=BertImplementation.FEATURES,
        profile=profile,
    )


def bert_mistake(
    identifier: str,
    base: type[Steps],
    *,
    killed_by: str,
    source: str = "",
    profile: BertProfile = _DEFAULT,
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
