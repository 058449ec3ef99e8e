"""Laws respect restrictions and profiles of correct attentions: no false alarm, no error."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.reference.implementation import REFERENCE, scaled_dot_product_attention
from attnspec.spec import CausalAlignment, EmptyRow, MaskKind

LAWS = laws.load()


def without_scale(*operands, **options):
    if options.get("scale") is not None:
        raise TypeError("got an unexpected keyword argument 'scale'")
    return scaled_dot_product_attention(*operands, **options)


def one_kind_of_mask(dtype_is_bool, *operands, **options):
    mask = options.get("attn_mask")
    if mask is not None and (mask.dtype == torch.bool) != dtype_is_bool:
        raise TypeError(f"got a mask of {mask.dtype}")
    return scaled_dot_product_attention(*operands, **options)


def only(kind):
    """Declare the reference with masks of one kind, which raises for the other."""
    return replace(
        REFERENCE,
        attention=partial(one_kind_of_mask, kind is MaskKind.BOOL),
        supports=lambda case: (
            "a mask of another kind"
            if case.mask is not None and case.mask.kind is not kind
            else None
        ),
    )


SUBJECTS = {
    "without_scale": replace(
        REFERENCE,
        attention=without_scale,
        supports=lambda case: "no parameter scale" if case.scale is not None else None,
    ),
    "bool_masks": only(MaskKind.BOOL),
    "float_masks": only(MaskKind.FLOAT),
    "lower_right_mean": replace(
        REFERENCE,
        attention=partial(
            scaled_dot_product_attention,
            causal_alignment=CausalAlignment.LOWER_RIGHT,
            empty_row=EmptyRow.MEAN,
        ),
        profile=replace(
            REFERENCE.profile,
            causal_alignment=CausalAlignment.LOWER_RIGHT,
            empty_row=EmptyRow.MEAN,
        ),
    ),
}
NAMES = (
    "true-means-readable",
    "the-causal-flag-equals-its-triangle",
    "finite-later-keys-change-nothing",
    "large-later-keys-change-nothing",
    "a-readable-nan-value-stays-visible",
    "a-readable-infinite-value-stays-visible",
    "every-attention-call-inside-gpt2-is-within-its-bound",
)
NOT_CLAIMED = {
    ("without_scale", "every-attention-call-inside-gpt2-is-within-its-bound"),
    ("float_masks", "true-means-readable"),
}


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_correct_attention_with_fewer_claims_is_not_rejected(subject, name):
    record = check(LAWS[name], Subject(SUBJECTS[subject]), None)
    expected = Outcome.NOT_CLAIMED if (subject, name) in NOT_CLAIMED else Outcome.PASSED
    assert record.outcome is expected, record.message
