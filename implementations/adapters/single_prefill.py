"""FlashInfer's `single_prefill_with_kv_cache`: one sequence in a call, a logarithm of base 2."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float

from attnspec.implementations.adapters.grouped_heads import demand_flag
from attnspec.implementations.adapters.mask_routing import of_rank_4
from attnspec.implementations.adapters.parameters import limited, parameters, require
from attnspec.implementations.adapters.window import spelled

NAMES = {
    "custom_mask": "attn_mask",
    "causal": "is_causal",
    "sm_scale": "scale",
    "window_left": "window",
    "logits_soft_cap": "softcap",
    "return_lse": "return_lse",
}
"""The contract's names of the options."""


def from_single_prefill(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt `flashinfer.single_prefill_with_kv_cache`, which is called for each batch element.

    Args:
        function: takes query (queries, heads, d_head), key (keys, kv_heads, d_head) and value
            (keys, kv_heads, d_value), and options by keyword; returns (queries, heads, d_value),
            and with `return_lse` a pair of it and (queries, heads), a logarithm of base 2.

    Returns:
        An attention of the contract with the options that the function names, and grouped heads.
        Its causal diagonal and its window are aligned at the lower right. It raises `TypeError`
        for a float mask, and `ValueError` for a mask that differs between heads, for a mask
        together with the causal flag, which would be ignored, and for a window that has a bound
        among the later keys.

    Raises:
        TypeError: if the function has no `causal` or no `sm_scale`.
    """
    require(function, "causal", "sm_scale")
    declared = parameters(function)
    names = {contract for own, contract in NAMES.items() if own in declared} | {"enable_gqa"}

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        attn_mask: Bool[torch.Tensor, "..."] | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        return_lse: bool = False,
    ) -> Any:
        demand_flag(query, key, enable_gqa=enable_gqa)
        given: dict[str, Any] = {"sm_scale": scale}
        if window is not None:
            left, right = spelled(window, None)
            if right == 0:
                is_causal = True
            elif right is not None and not is_causal:
                raise ValueError(f"the function's window has no bound among later keys: {window}")
            given["window_left"] = -1 if left is None else left
        if softcap is not None:
            given["logits_soft_cap"] = softcap
        if return_lse:
            given["return_lse"] = True
        masks: list[Any] = [None] * query.shape[0]
        if attn_mask is not None:
            if is_causal:
                raise ValueError("the function ignores the causal flag beside a mask")
            masks = _of_elements(attn_mask, query, key)
        outs, lses = [], []
        moved = (tensor.transpose(1, 2) for tensor in (query, key, value))
        for *operands, mask in zip(*moved, masks, strict=True):
            chosen = given if mask is None else given | {"custom_mask": mask}
            out = function(*operands, causal=is_causal, **chosen)
            if return_lse:
                out, lse = out
                lses.append(lse.transpose(0, 1) * math.log(2))
            outs.append(out.transpose(0, 1))
        return (torch.stack(outs), torch.stack(lses)) if return_lse else torch.stack(outs)

    return limited(attention, names, function)


def _of_elements(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> list[torch.Tensor]:
    """Return the mask (queries, keys) of each batch element, which is common to its heads."""
    if mask.dtype != torch.bool:
        raise TypeError(f"the function takes no mask of {mask.dtype}")
    mask = of_rank_4(mask)
    if mask.shape[1] > 1:
        raise ValueError("the function takes no mask that differs between heads")
    return list(mask[:, 0].expand(query.shape[0], query.shape[2], key.shape[2]))
