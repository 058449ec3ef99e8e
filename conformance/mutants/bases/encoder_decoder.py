"""Encoder-decoders with one mistake each, as mutants."""

from collections.abc import Callable
from functools import partial
from typing import Any

from attnspec.conformance.mutants.registry import plant
from attnspec.conformance.operators.encoder_decoder.steps import Steps
from attnspec.spec.encoder_decoder import EncoderDecoderImplementation, EncoderDecoderProfile


def correct(
    name: str = "correct",
    base: type[Steps] = Steps,
    profile: EncoderDecoderProfile | None = None,
) -> EncoderDecoderImplementation:
    """Return the declaration of an encoder-decoder of a base, with every feature."""
    # a class is found again by its name, and follows the default by itself
    function: Any = base if profile is None else partial(base, profile=profile)
    return EncoderDecoderImplementation(
        name=name,
        function=function,
        features=EncoderDecoderImplementation.FEATURES,
        profile=profile or EncoderDecoderProfile(),
    )


def encoder_decoder_mistake(
    identifier: str,
    base: type[Steps],
    *,
    killed_by: str,
    source: str = "",
    profile: EncoderDecoderProfile | None = None,
) -> None:
    """Plant a class as a mutant, whose title is that of the class, and which declares a profile."""
    plant(
        id=identifier,
        title=base.title,
        subject=correct(identifier, base, profile),
        killed_by=killed_by,
        source=source,
    )


def cross_mistake(identifier: str, *, killed_by: str, source: str = "") -> Callable[[Any], Any]:
    """Plant the decorated class as a mutant, whose title is that of the class."""

    def register(base: type[Steps]) -> type[Steps]:
        encoder_decoder_mistake(identifier, base, killed_by=killed_by, source=source)
        return base

    return register
