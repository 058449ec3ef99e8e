"""ONNX Runtime's own operator `MultiHeadAttention`."""

from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float

from attnspec.implementations.frameworks import missing
from attnspec.implementations.known_bugs import deviations
from attnspec.implementations.onnx_operators import MICROSOFT, joined, run, split
from attnspec.spec import (
    Attention,
    Case,
    Deviation,
    EmptyRow,
    Feature,
    Implementation,
    MaskedNonfinite,
    MaskKind,
    Profile,
)


def attention(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch heads keys d_head"],
    value: Float[torch.Tensor, "batch heads keys d_value"],
    attn_mask: Float[torch.Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Float[torch.Tensor, "batch heads queries d_value"]:
    """Join the heads, run the operator with a float mask as its bias, and split the output.

    Raises:
        TypeError: for a bool mask.
        ValueError: for unequal numbers of heads.
    """
    heads = query.shape[1]
    if key.shape[1] != heads:
        raise ValueError(f"{heads} query heads, {key.shape[1]} key/value heads")
    bias = None
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            raise TypeError("MultiHeadAttention takes a float mask, not a bool one")
        bias = attn_mask.expand(query.shape[0], heads, query.shape[2], key.shape[2])
    inputs = {
        **{"query": joined(query), "key": joined(key), "value": joined(value)},
        **{"bias": None, "key_padding_mask": None, "attention_bias": bias},
    }
    out = run(
        "onnxruntime",
        "MultiHeadAttention",
        inputs,
        domain=MICROSOFT,
        num_heads=heads,
        unidirectional=int(is_causal) or None,
        scale=scale,
    )
    return split(out, heads)


def supports(case: Case) -> str | None:
    """Return the reason why the operator refuses a case, or None."""
    if case.mask is not None and case.mask.kind is MaskKind.BOOL:
        return "MultiHeadAttention takes no bool mask"
    if case.mask is not None and case.is_causal:
        # it hides later keys less than minus infinity does: docs/findings/onnxruntime.md
        return "a bias of minus infinity reveals later keys"
    sizes = (case.batch, case.heads, case.queries, case.keys, case.d_head, case.d_value)
    if min(sizes) == 0:
        return "MultiHeadAttention ends the process for an empty tensor"
    if case.scale == 0:
        return "MultiHeadAttention takes a scale of 0 for none"
    return None


def reads_the_future(case: Case) -> bool:
    """Return whether the last query of a call reads keys behind its own position."""
    return case.is_causal and case.queries < case.keys


def may_read_the_future(case: Case) -> bool:
    """Return likewise for a law that sets the causal flag itself."""
    return case.queries < case.keys


def grows_into_it(case: Case) -> bool:
    """Return likewise for a law that adds keys, or takes queries away, itself."""
    return case.is_causal


LAWS = (
    *("output-equals-the-definition", "every-output-is-within-its-bound", "options-combine"),
    *("every-two-regimes-equal-the-definition", "options-may-be-passed-by-position"),
    *("keys-of-zeros-are-keys", "output-lies-among-the-readable-values"),
    *("output-is-linear-in-the-values", "identity-values-reveal-the-weights"),
    *("zero-query-gives-the-mean", "finite-later-keys-change-nothing"),
    *("value-channels-are-independent", "batch-elements-are-independent"),
    *("heads-equal-separate-attentions", "rotating-queries-and-keys-changes-nothing"),
    *("adding-a-vector-to-every-key-changes-nothing", "scale-multiplies-the-scores"),
    *("default-scale", "negative-and-zero-scale", "a-power-of-four-moves-from-scale-to-queries"),
    *("a-causal-row-attends-its-prefix", "the-diagonal-lies-where-the-profile-says"),
    *("a-query-reads-exactly-its-keys", "a-key-affects-only-queries-that-read-it"),
    *("the-causal-flag-equals-its-triangle", "the-default-dtype-changes-nothing"),
    *("the-unused-part-of-a-buffer-changes-nothing", "a-shared-prefix-equals-its-copies"),
    *("threads-change-nothing", "other-calls-in-between-change-nothing"),
    "a-visible-nan-stays-visible",
    *("a-readable-nan-value-stays-visible", "a-readable-infinite-value-stays-visible"),
    "calls-without-gradients-are-right-and-change-no-later-call",
    "deterministic-algorithms-give-the-same",
    "a-lower-precision-of-products-changes-nothing-else",
    "the-largest-calls-equal-the-definition",
    "every-three-sizes-equal-the-definition",
)
"""The laws that detect the last query that reads the future in a case with the causal flag."""

LAWS_OF_SINGLE_QUERIES = (
    *("dominant-key-gives-its-value", "a-readable-nan-key-stays-visible"),
    *("large-later-keys-change-nothing", "an-extension-changes-no-earlier-row"),
)
"""Likewise, in a call of one query."""

LAWS_OF_OTHER_SIZES = (
    "repeated-calls-give-equal-results",
    "calls-of-other-sizes-in-between-change-nothing",
)
"""The laws that call other sizes as well."""


EXAMPLE = Case(queries=2, keys=3, d_head=3, d_value=3, dtype=torch.float32, is_causal=True)


def _found_by(
    laws: tuple[str, ...], applies: Callable[[Case], bool], example: Case = EXAMPLE
) -> tuple[Deviation, ...]:
    return deviations(
        laws,
        reason=(
            "in a causal call with more keys than queries the last query reads every key "
            "(seen in onnxruntime 1.32.0)"
        ),
        link="docs/findings/onnxruntime.md#the-last-query-reads-the-future",
        applies=applies,
        example=example,
    )


IMPLEMENTATION = Implementation(
    name="ort_multi_head_attention",
    attention=cast(Attention, attention),
    features=frozenset({Feature.MASK, Feature.CAUSAL}),
    dtypes=(torch.float32, torch.float16),
    supports=supports,
    unavailable=lambda: missing("onnxruntime") or missing("onnx"),
    profile=Profile(
        empty_row=EmptyRow.NAN,
        masked_keys=MaskedNonfinite.PROPAGATES,
        masked_values=MaskedNonfinite.PROPAGATES,
    ),
    deviations=(
        *_found_by(LAWS, reads_the_future),
        *_found_by(
            LAWS_OF_SINGLE_QUERIES,
            reads_the_future,
            EXAMPLE.but(batch=2, queries=1, keys=2, d_head=1, dtype=torch.float16),
        ),
        *_found_by(("a-changed-argument-changes-the-result",), may_read_the_future),
        *_found_by(LAWS_OF_OTHER_SIZES, grows_into_it),
    ),
)
