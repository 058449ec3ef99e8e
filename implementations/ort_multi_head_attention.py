"""ONNX Runtime's own operator `MultiHeadAttention`."""

from typing import cast

import torch
from jaxtyping import Float

from attnspec.implementations.frameworks import missing
from attnspec.implementations.onnx_operators import MICROSOFT, joined, run, split
from attnspec.spec import (
    Attention,
    Case,
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
    if case.is_causal and case.queries < case.keys:
        # the last query reads every key: docs/findings/onnxruntime.md
        return "MultiHeadAttention has no earlier keys beside unidirectional"
    sizes = (case.batch, case.heads, case.queries, case.keys, case.d_head, case.d_value)
    if min(sizes) == 0:
        return "MultiHeadAttention ends the process for an empty tensor"
    if case.scale == 0:
        return "MultiHeadAttention takes a scale of 0 for none"
    return None


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
)
