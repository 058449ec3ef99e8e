"""JAX's `jax.nn.dot_product_attention`, compiled by XLA for each shape."""

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.jax_arrays import from_jax
from attnspec.implementations.adapters.parameters import limited
from attnspec.implementations.frameworks import missing
from attnspec.implementations.known_bugs import deviations, has_keys
from attnspec.spec import (
    Attention,
    Case,
    Deviation,
    EmptyRow,
    Feature,
    Float64Precision,
    Implementation,
    KeyLengths,
    Mask,
    MaskedNonfinite,
    MaskKind,
    MaskPattern,
    MaskShape,
    Profile,
    Rounding,
    RoundingLevel,
)


@functools.cache
def _adapted() -> Callable[..., Any]:
    import jax

    return from_jax(jax.nn.dot_product_attention)


def _call(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch kv_heads keys d_head"],
    value: Float[torch.Tensor, "batch kv_heads keys d_head"],
    **options: Any,
) -> Any:
    """Import JAX on the first call, and call its function."""
    out = _adapted()(query, key, value, **options)
    if options.get("return_lse"):
        # JAX stops the gradient of its log-sum-exp: it is a constant
        return out[0], out[1].detach()
    return out


OPTIONS = (
    *("attn_mask", "is_causal", "scale", "enable_gqa", "window", "key_lengths", "return_lse"),
)
"""The options of the contract that the function has."""


def supports(case: Case) -> str | None:
    """Return the reason why the function refuses a case, or None."""
    if case.d_head != case.d_value:
        return "jax.nn.dot_product_attention needs d_value = d_head"
    if case.d_head == 0 and case.scale is None:
        return "jax.nn.dot_product_attention divides by d_head for its default scale"
    if case.return_lse and case.dtype == torch.bfloat16:
        # docs/findings/jax.md
        return "jax.nn.dot_product_attention rounds the log-sum-exp to 16 bits"
    sizes = (case.queries, case.keys, case.d_head)
    if case.dtype == torch.bfloat16 and case.batch * case.heads == 1 and sizes.count(1) > 1:
        # docs/findings/jax.md
        return "jax.nn.dot_product_attention raises for a product of one number in bfloat16"
    if case.dtype == torch.bfloat16 and case.d_head == 1 and case.queries * case.keys > 512:
        # docs/findings/jax.md
        return "XLA ends the process while it compiles a call of one channel in bfloat16"
    if case.keys == 0:
        return "jax.nn.dot_product_attention takes no call without keys"
    is_limited = case.is_causal or case.window is not None
    is_biased = case.mask is not None and case.mask.kind is MaskKind.FLOAT
    if case.backward and is_limited and is_biased and hides_rows(case):
        # docs/findings/jax.md
        return "a row of minus infinity reveals the keys that the flag or the window hides"
    return None


def hides_rows(case: Case) -> bool:
    """Return whether the mask of a case may hide all keys from some queries."""
    if case.mask is None:
        return False
    return case.mask.pattern is MaskPattern.EMPTY_ROWS or case.mask.shape is MaskShape.QUERIES


def may_read_nothing(case: Case) -> bool:
    """Return whether a row of a call with a log-sum-exp may read no key."""
    if not case.return_lse:
        return False
    if case.key_lengths is not None:
        is_empty = case.key_lengths is KeyLengths.EMPTY
        return is_empty or case.mask is not None or case.window is not None
    if case.mask is not None:
        # one that hides some keys may hide those that the flag or the window leaves
        is_limited = case.is_causal or case.window is not None
        return hides_rows(case) or case.keys == 1 or is_limited
    return case.window is not None and case.queries > case.keys


def hides_keys(case: Case) -> bool:
    """Return whether a row may read no key of some part of the keys."""
    return case.is_causal or case.window is not None or case.mask is not None


REASON = (
    "the log-sum-exp of a row that reads nothing is about -2.38e38, not minus infinity "
    "(seen in jax 0.10.2)"
)
LINK = "docs/findings/jax.md#the-log-sum-exp-of-a-row-without-keys-is-finite"
EXAMPLE = Case(queries=4, keys=3, dtype=torch.float32, window=(0, None), return_lse=True)

IMPLEMENTATION = Implementation(
    name="jax_attention",
    attention=cast(Attention, limited(_call, OPTIONS, _call)),
    features=frozenset(
        {
            *(Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.WINDOW),
            *(Feature.KEY_LENGTHS, Feature.LSE, Feature.BACKWARD),
        }
    ),
    # compiled for a CPU, it raises for float16: docs/findings/jax.md
    dtypes=(torch.float64, torch.float32, torch.bfloat16),
    supports=supports,
    unavailable=lambda: missing("jax"),
    profile=Profile(
        # a hidden score is a finite number, so without any other all keys weigh the same
        empty_row=EmptyRow.MEAN,
        empty_row_float_mask=EmptyRow.NAN,
        masked_keys=MaskedNonfinite.PROPAGATES,
        masked_values=MaskedNonfinite.PROPAGATES,
        # the softmax is in float32 for every type
        float64_precision=Float64Precision.FLOAT32,
        # weights are converted to the storage type, and so are their gradients on the way back
        rounding=Rounding(level=RoundingLevel.EAGER),
    ),
    deviations=(
        Deviation(
            law="an-empty-row-has-its-log-sum-exp",
            reason=REASON,
            link=LINK,
            applies=has_keys,
            example=Case(
                queries=2,
                keys=2,
                dtype=torch.float32,
                mask=Mask(pattern=MaskPattern.EMPTY_ROWS),
                return_lse=True,
            ),
        ),
        Deviation(
            law="a-part-without-readable-keys-has-weight-zero",
            reason=REASON,
            link=LINK,
            applies=has_keys,
            example=Case(keys=2, dtype=torch.float32, return_lse=True),
        ),
        *deviations(
            (
                *("log-sum-exp-equals-the-definition", "every-log-sum-exp-is-within-its-bound"),
                *("log-sum-exp-of-equal-scores-counts-the-keys", "options-combine"),
                *("log-sum-exp-shifts-with-all-scores", "log-sum-exp-normalises-the-weights"),
                *("log-sum-exp-shifts-with-the-bias", "every-two-regimes-equal-the-definition"),
                *("calls-of-models-equal-the-definition", "the-largest-calls-equal-the-definition"),
                "every-three-sizes-equal-the-definition",
            ),
            reason=REASON,
            link=LINK,
            applies=may_read_nothing,
            example=EXAMPLE,
        ),
        *deviations(
            ("gradients-in-every-two-regimes-equal-the-definition",),
            reason=REASON,
            link=LINK,
            applies=may_read_nothing,
            example=EXAMPLE.but(backward=True),
        ),
        *deviations(
            (
                "lengths-and-options-combine",
                "lengths-in-every-two-regimes-equal-the-definition",
            ),
            reason=REASON,
            link=LINK,
            applies=may_read_nothing,
            example=Case(
                batch=2,
                keys=2,
                dtype=torch.float32,
                key_lengths=KeyLengths.EMPTY,
                return_lse=True,
            ),
        ),
        *deviations(
            ("two-halves-merge-into-the-whole", "many-uneven-parts-merge-into-the-whole"),
            reason=REASON,
            link=LINK,
            applies=hides_keys,
            example=EXAMPLE,
        ),
    ),
    compiles_each_shape=True,
)
