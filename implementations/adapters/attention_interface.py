"""Attention functions of Hugging Face's transformers: those of its `AttentionInterface`."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float

from attnspec.implementations.adapters.grouped_heads import demand_flag
from attnspec.implementations.adapters.mask_routing import of_rank_4
from attnspec.implementations.adapters.parameters import limited, parameters, require
from attnspec.implementations.adapters.window import spelled

NAMES = {
    "scaling": "scale",
    "dropout": "dropout_p",
    "is_causal": "is_causal",
    "softcap": "softcap",
    "sliding_window": "window",
    "s_aux": "sinks",
}
"""The contract's names of the options that such a function may declare."""


def from_attention_interface(
    function: Callable[..., Any],
    *,
    mask_interface: Callable[..., Any] | None = None,
    float_masks: bool = True,
    bool_masks: bool = False,
    grouped: bool = True,
) -> Callable[..., Any]:
    """Adapt a function that `transformers` registers as an attention.

    It accepts all keywords and ignores those that it does not know, so only the options that it
    names are claimed: the eager functions name no `is_causal`.

    Args:
        function: ``function(module, query, key, value, attention_mask, **options)``, with query
            (batch, heads, queries, d_head), key (batch, kv_heads, keys, d_head) and value
            (batch, kv_heads, keys, d_value); returns out (batch, queries, heads, d_value) and
            attention weights, or None.
        mask_interface: the function of transformers that makes this attention's masks, such as
            `eager_mask`. If it is given, bool masks and the causal flag become masks as in a model:
            every key before the last query counts as cached, so a causal diagonal is lower right.
        float_masks: true if the function adds a float mask to its scores.
        bool_masks: true if the function takes a bool mask as it is; `sdpa` does, and `eager` adds
            it as a number.
        grouped: true if the function reads the number of groups from the module, or the shapes.

    Returns:
        An attention of the contract with the options that the function names. It raises
        `ValueError` for a mask together with `is_causal`, of which such a function ignores one.

    Raises:
        TypeError: if the function is not of this kind.
    """
    require(function, "module", "attention_mask")
    declared = parameters(function)
    names = {contract for own, contract in NAMES.items() if own in declared}
    if float_masks or bool_masks or mask_interface:
        names.add("attn_mask")
    if mask_interface:
        names.add("is_causal")
    if grouped:
        names.add("enable_gqa")

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
        enable_gqa: bool = False,
        is_causal: bool = False,
        **given: Any,
    ) -> Any:
        demand_flag(query, key, enable_gqa=enable_gqa)
        module: Any = torch.nn.Module()
        module.train(bool(given.get("dropout_p")))
        if grouped:
            module.num_key_value_groups = query.shape[1] // max(1, key.shape[1])
        mask = None if attn_mask is None else of_rank_4(attn_mask)
        if mask_interface is not None and (is_causal or (mask is not None and _is_bool(mask))):
            mask, is_causal = _as_in_a_model(mask_interface, query, key, mask, is_causal), is_causal
        elif mask is not None:
            _demand_kind(mask, is_bool=bool_masks, is_float=float_masks)
        if mask_interface is None and mask is not None and is_causal:
            raise ValueError("a mask and is_causal together: transformers ignores is_causal then")
        module.is_causal = is_causal
        keywords = {own: given[contract] for own, contract in NAMES.items() if contract in given}
        # a model passes its scale always: the eager functions have no default
        if keywords.get("scaling") is None:
            keywords["scaling"] = query.shape[3] ** -0.5 if query.shape[3] else 1.0
        if keywords.get("sliding_window") is not None:
            keywords["sliding_window"] = _keys_read(keywords["sliding_window"])
        if "is_causal" in declared:
            keywords["is_causal"] = is_causal
        out, _ = function(module, query, key, value, mask, **keywords)
        return out.transpose(1, 2)

    return limited(attention, names, function)


def _is_bool(mask: torch.Tensor) -> bool:
    return mask.dtype == torch.bool


def _demand_kind(mask: torch.Tensor, *, is_bool: bool, is_float: bool) -> None:
    """Refuse a mask of a kind that the function would misread."""
    if not (is_bool if _is_bool(mask) else is_float):
        raise TypeError(f"the function takes no mask of {mask.dtype}")


def _keys_read(window: tuple[int | None, int | None]) -> int | None:
    """Return the number of keys that a query reads, itself too; `None` for no bound."""
    left, right = spelled(window, None)
    if right not in (0, None) or (right is None and left is not None):
        raise ValueError(f"sliding_window has no later keys: the right side must be 0, not {right}")
    return None if left is None else left + 1


def _as_in_a_model(
    mask_interface: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
) -> Any:
    """Make a bool mask, a causal mask, or both, by the function that a model calls.

    Returns:
        A tensor or a block mask; None if the function's own causal flag takes its place.

    Raises:
        ValueError: if the mask differs between heads, if a float mask comes with the causal flag,
            or if a causal call has more queries than keys: no model makes such masks.
    """
    batch, _, queries, _ = query.shape
    keys = key.shape[2]
    if mask is not None and not _is_bool(mask):
        raise ValueError("a float mask and is_causal together: give both as one mask")
    if mask is not None and mask.shape[1] != 1:
        raise ValueError(f"the masks of a model are common to all heads, got {tuple(mask.shape)}")
    offset = keys - queries if is_causal else 0
    if offset < 0:
        raise ValueError(f"a model has no fewer keys than queries, got {keys} and {queries}")
    readable = None if mask is None else mask.expand(batch, 1, queries, keys)

    def function(batch_index: Any, head_index: Any, q_index: Any, kv_index: Any) -> Any:
        visible = kv_index <= q_index if is_causal else kv_index >= 0
        if readable is not None:
            visible = visible & readable[batch_index, 0, q_index - offset, kv_index]
        return visible

    return mask_interface(
        batch_size=batch,
        q_length=queries,
        kv_length=keys,
        q_offset=offset,
        mask_function=function,
        dtype=query.dtype,
        device=query.device,
        # a mask of its own cannot be replaced by the causal flag
        allow_is_causal_skip=mask is None,
    )
