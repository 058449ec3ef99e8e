"""torch's `flex_attention`: options become functions of an index and of a score."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float

from attnspec.implementations.adapters.mask_routing import of_rank_4
from attnspec.implementations.adapters.parameters import limited, parameters, require

MOST_BLOCK_MASKS = 4096
"""Block masks of a call that take less than a gigabyte while torch makes them."""


def from_flex_attention(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt `torch.nn.attention.flex_attention.flex_attention`, or a compiled form of it.

    What hides keys (a bool mask, the causal flag, a window) becomes a block mask, and what changes
    scores (softcap, then a float mask and ALiBi) becomes a `score_mod`. Both read a mask as
    ``mask[batch, head, query, key]``.

    Args:
        function: takes query (batch, heads, queries, d_head), key (batch, kv_heads, keys, d_head)
            and value (batch, kv_heads, keys, d_value), and by keyword `score_mod`, `block_mask`,
            `scale`, `enable_gqa`, and `return_aux` if it returns a log-sum-exp.

    Returns:
        An attention of the contract with mask, causal flag, scale, grouped heads, window, softcap,
        ALiBi, and log-sum-exp. The diagonal and the window are aligned at the upper left.

    Raises:
        TypeError: if the function lacks one of the keywords.
    """
    require(function, "score_mod", "block_mask", "scale", "enable_gqa")
    names = {
        *("attn_mask", "is_causal", "scale", "enable_gqa"),
        *("window", "softcap", "alibi_slopes"),
    }
    if "return_aux" in parameters(function):
        names.add("return_lse")

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        alibi_slopes: Float[torch.Tensor, " heads"] | None = None,
        return_lse: bool = False,
    ) -> Any:
        if query.shape[2] == 0:
            # no query reads a mask, a position or a slope, and torch reads them for the first one
            attn_mask = alibi_slopes = window = None
            is_causal = False
        mask = None
        if attn_mask is not None:
            mask = _written_out(of_rank_4(attn_mask).expand(*query.shape[:3], key.shape[2]))
        is_bool = mask is not None and mask.dtype == torch.bool
        # nor does it compile code that reads every second number
        slopes = None if alibi_slopes is None else alibi_slopes.contiguous()
        keywords: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
        if return_lse:
            from torch.nn.attention.flex_attention import AuxRequest

            keywords["return_aux"] = AuxRequest(lse=True)
        result = function(
            query,
            key,
            value,
            score_mod=_score_mod(None if is_bool else mask, softcap, slopes, query),
            block_mask=_block_mask(query, key, mask if is_bool else None, is_causal, window),
            **keywords,
        )
        return (result[0], result[1].lse) if return_lse else result

    return limited(attention, names, function)


def _written_out(numbers: torch.Tensor) -> torch.Tensor:
    """Return a tensor with memory for each number if all of them are one number in memory.

    torch 2.13 does not compile code that reads such a tensor: docs/findings/flex_attention.md.
    """
    return numbers if any(numbers.stride()) else numbers.contiguous()


def _score_mod(
    bias: torch.Tensor | None,
    softcap: float | None,
    slopes: torch.Tensor | None,
    query: torch.Tensor,
) -> Callable[..., Any] | None:
    """Return the function of a scaled score, or None if scores stay as they are."""
    if bias is None and softcap is None and slopes is None:
        return None
    # a number would be compiled into the code, and torch 2.13 raises for a second one
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    cap = None if softcap is None else torch.tensor(softcap, dtype=wide, device=query.device)

    def modified(score: Any, batch: Any, head: Any, q_index: Any, k_index: Any) -> Any:
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if bias is not None:
            score = score + bias[batch, head, q_index, k_index]
        if slopes is not None:
            score = score - slopes[head] * (q_index - k_index).abs()
        return score

    return modified


def _block_mask(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    window: tuple[int | None, int | None] | None,
) -> Any:
    """Return the block mask of the visible pairs, or None if all are."""
    from torch.nn.attention.flex_attention import create_block_mask

    left, right = window or (None, None)
    if is_causal:
        right = 0 if right is None else min(right, 0)
    if mask is None and left is None and right is None:
        return None

    first, last = (
        None if side is None else torch.tensor(side, device=query.device) for side in (left, right)
    )

    def visible(batch: Any, head: Any, query: Any, key: Any) -> Any:
        readable = key >= 0
        if mask is not None:
            readable = readable & mask[batch, head, query, key]
        if first is not None:
            readable = readable & (key >= query - first)
        if last is not None:
            readable = readable & (key <= query + last)
        return readable

    batch, heads, queries, _ = query.shape
    return create_block_mask(
        visible,
        None if mask is None else batch,
        None if mask is None else heads,
        queries,
        key.shape[2],
        device=query.device,
    )
