"""The reference evaluator of the `onnx` package, operator `Attention`, version 24, on a cache.

Keys and values are a cache, of which each batch element has its first `nonpad_kv_seqlen` ones. The
causal flag then ends at the last of these; without lengths it begins at the first key, in version
24 as in 23 (`onnx_reference`). So every call has lengths here, if need be those of the tensors.
"""

from dataclasses import replace
from typing import cast

from attnspec.implementations import onnx_reference
from attnspec.implementations.adapters.grouped_heads import from_grouped_shapes
from attnspec.implementations.onnx_operators import attention_on_cache
from attnspec.implementations.onnx_reference import found_by, has_one_row, repeats_first_row
from attnspec.spec import (
    Attention,
    Case,
    CausalAlignment,
    Deviation,
    Feature,
    KeyLengths,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
)

LAWS = (
    "a-batch-of-lengths-equals-separate-calls",
    "lengths-and-options-combine",
    "positions-count-from-the-length",
)
"""The laws of lengths that detect the known bug."""

EXAMPLE = Case(
    queries=4,
    keys=5,
    is_causal=True,
    mask=Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS),
)
"""Queries that read unequal numbers of the keys that the mask shows."""


def _from_the_end(deviation: Deviation) -> Deviation:
    """Return a deviation where positions count from the last key: one key suffices."""
    is_plain = deviation.example == onnx_reference.EXAMPLE
    return replace(
        deviation,
        example=EXAMPLE if is_plain else deviation.example,
        applies=has_one_row if deviation.applies is repeats_first_row else deviation.applies,
    )


ONE_KEY = Case(
    queries=2,
    is_causal=True,
    mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.KEYS),
)
"""A query without a key before one that reads the only key."""

PLAIN = onnx_reference.IMPLEMENTATION
IMPLEMENTATION = replace(
    PLAIN,
    name="onnx_reference_cache",
    # the evaluator would hide all keys but one for a mask of one column
    attention=cast(Attention, from_grouped_shapes(attention_on_cache("onnx", full_axes=1))),
    features=PLAIN.features | {Feature.KEY_LENGTHS},
    profile=replace(PLAIN.profile, causal_alignment=CausalAlignment.LOWER_RIGHT),
    deviations=(
        *map(_from_the_end, PLAIN.deviations),
        *found_by(("a-head-reads-its-own-group",), has_one_row, ONE_KEY),
        *found_by(LAWS, has_one_row, EXAMPLE.but(batch=2, key_lengths=KeyLengths.RAGGED)),
    ),
)
