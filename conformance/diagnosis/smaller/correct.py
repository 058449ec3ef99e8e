"""A correct counterpart of a subject: it tells cases of a law from cases outside of its domain.

A law is written for its own cases. On another one, such as a smaller, it may reject every
implementation, and so a failure there says nothing.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from attnspec.conformance.attention.subject import Subject
from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.spec import ModelImplementation, Profile


def correct_counterpart(subject: Any) -> Any | None:
    """Return the reference with the claims and the profile of a subject.

    Args:
        subject: an attention, or a model.

    Returns:
        The counterpart; None for a subject of another kind.
    """
    if isinstance(subject, Subject):
        attention: Any = partial(_attention, subject.implementation.profile)
        return replace(subject, implementation=replace(subject.implementation, attention=attention))
    if isinstance(subject, ModelImplementation):
        from attnspec.reference.model import MODEL

        return replace(subject, build=MODEL.build)
    return None


def _attention(
    profile: Profile,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    **options: Any,
) -> Any:
    """Compute attention in float64 as a profile demands."""
    mask = options.get("attn_mask")
    kind = "bool" if mask is not None and mask.dtype == torch.bool else "float"
    return scaled_dot_product_attention(
        query,
        key,
        value,
        causal_alignment=profile.causal_alignment,
        causal_single_query=profile.causal_single_query,
        empty_row=profile.empty_row if mask is None else profile.empty_row_answers[kind],
        grouping=profile.grouping,
        softcap_order=profile.softcap_order,
        **options,
    )
