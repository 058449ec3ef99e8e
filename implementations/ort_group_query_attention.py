"""ONNX Runtime's own operator `GroupQueryAttention`, with a cache of earlier keys."""

from typing import cast

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.grouped_heads import demand_flag
from attnspec.implementations.frameworks import missing
from attnspec.implementations.onnx_operators import MICROSOFT, joined, run, split
from attnspec.spec import (
    Attention,
    Case,
    CausalAlignment,
    Deviation,
    Feature,
    Implementation,
    MaskedNonfinite,
    Profile,
)


def attention(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch kv_heads keys d_head"],
    value: Float[torch.Tensor, "batch kv_heads keys d_head"],
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    softcap: float | None = None,
    window: tuple[int | None, int | None] | None = None,
) -> Float[torch.Tensor, "batch heads queries d_head"]:
    """Pass the keys before the queries as the cache, and the others as the new ones.

    Raises:
        ValueError: for a window with later keys, or for fewer keys than queries.
    """
    demand_flag(query, key, enable_gqa=enable_gqa)
    left = None
    if window is not None:
        left, right = window
        if not (is_causal or right == 0):
            raise ValueError(f"the window of GroupQueryAttention has no later keys, got {window}")
    batch, heads, queries, _ = query.shape
    kv_heads, keys = key.shape[1:3]
    before = keys - queries
    if before < 0:
        raise ValueError(f"GroupQueryAttention has no {keys} keys for {queries} queries")
    inputs = {
        "query": joined(query),
        "key": joined(key[:, :, before:]),
        "value": joined(value[:, :, before:]),
        "past_key": key[:, :, :before] if before else None,
        "past_value": value[:, :, :before] if before else None,
        "seqlens_k": torch.full((batch,), keys - 1, dtype=torch.int32),
        "total_sequence_length": torch.full((1,), keys, dtype=torch.int32),
    }
    out = run(
        "onnxruntime",
        "GroupQueryAttention",
        inputs,
        domain=MICROSOFT,
        # without these outputs the kernel does not read the cache
        outputs=("out", "present_key", "present_value"),
        num_heads=heads,
        kv_num_heads=kv_heads,
        causal=int(is_causal or window is not None),
        scale=scale,
        softcap=softcap,
        local_window_size=None if left is None else left + 1,
    )
    return split(out, heads)


def supports(case: Case) -> str | None:
    """Return the reason why the operator refuses a case, or None."""
    sizes = (case.batch, case.heads, case.queries, case.keys, case.d_head, case.d_value)
    if min(sizes) == 0:
        return "GroupQueryAttention takes no empty tensor"
    if case.queries > case.keys:
        return "GroupQueryAttention has no fewer keys than queries"
    if case.batch > 1 and 1 < case.queries < case.keys:
        return "GroupQueryAttention takes several queries after a cache for one element alone"
    if case.d_head != case.d_value or case.d_head % 8:
        return "GroupQueryAttention needs d_value = d_head, a multiple of 8"
    if case.window is not None and not (case.is_causal or case.window[1] == 0):
        return "the window of GroupQueryAttention has no later keys"
    if case.scale == 0:
        return "GroupQueryAttention takes a scale of 0 for none"
    return None


def reads_a_key(case: Case) -> bool:
    """Return whether a causal call has a key to read."""
    return case.is_causal and case.keys > 0


IMPLEMENTATION = Implementation(
    name="ort_group_query_attention",
    attention=cast(Attention, attention),
    features=frozenset({Feature.CAUSAL, Feature.GQA, Feature.WINDOW, Feature.SOFTCAP}),
    dtypes=(torch.float32, torch.float16),
    supports=supports,
    unavailable=lambda: missing("onnxruntime") or missing("onnx"),
    profile=Profile(
        causal_alignment=CausalAlignment.LOWER_RIGHT,
        masked_values=MaskedNonfinite.PROPAGATES,
    ),
    deviations=(
        Deviation(
            law="a-visible-nan-stays-visible",
            reason="in a causal call a query of NaN gives zeros (seen in onnxruntime 1.32.0)",
            link="docs/findings/onnxruntime.md#a-query-of-nan-gives-zeros-too",
            applies=reads_a_key,
            example=Case(
                queries=2, keys=2, d_head=8, d_value=8, dtype=torch.float32, is_causal=True
            ),
        ),
        Deviation(
            law="a-readable-nan-key-stays-visible",
            reason="in a causal call a row whose last score is NaN is zero (onnxruntime 1.32.0)",
            link="docs/findings/onnxruntime.md#a-query-of-nan-gives-zeros-too",
            applies=reads_a_key,
            example=Case(
                queries=2, keys=3, d_head=8, d_value=8, dtype=torch.float32, is_causal=True, seed=1
            ),
        ),
    ),
)
