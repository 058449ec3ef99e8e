"""Encoder-decoders with one mistake each, as mutants."""

from collections.abc import Callable
from typing import Any

from attnspec.conformance.mutants.registry import plant
from attnspec.conformance.operators.encoder_decoder.steps import Steps
from attnspec.spec.encoder_decoder import EncoderDecoderImplementation


def correct(name: str = "correct", base: type[Steps] = Steps) -> EncoderDecoderImplementation:
    """Return the declaration of an encoder-decoder of a base, with every feature."""
    features = EncoderDecoderImplementation.FEATURES
    return EncoderDecoderImplementation(name=name, function=base, features=features)


def encoder_decoder_mistake(
    identifier: str, base: type[Steps], *, killed_by: str, source: str = ""
) -> None:
    """Plant a class as a mutant, whose title is that of the class."""
    plant(
        id=identifier,
        title=base.title,
        subject=correct(identifier, base),
        killed_by=killed_by,
        source=source,
    )


def cross_mistake(identifier: str, *, killed_by: str, source: str = "") -> Callable[[Any], Any]:
    """Plant the decorated class as a mutant, whose title is that of the class."""

    def register(base: type[Steps]) -> type[Steps]:
        encoder_decoder_mistake(identifier, base, killed_by=killed_by, source=source)
        return base

    return register
