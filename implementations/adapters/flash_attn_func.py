"""FlashAttention's functions: `flash_attn_func`, its packed forms, and its varlen form."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.grouped_heads import demand_flag
from attnspec.implementations.adapters.parameters import limited, parameters, require
from attnspec.implementations.adapters.window import spelled

NAMES = {
    "dropout_p": "dropout_p",
    "causal": "is_causal",
    "softmax_scale": "scale",
    "window_size": "window",
    "softcap": "softcap",
    "alibi_slopes": "alibi_slopes",
    "learnable_sink": "sinks",
    "return_attn_probs": "return_lse",
    "return_lse": "return_lse",
}
"""The contract's names of the options; versions 2, 3 and 4 have different ones of them."""


def from_flash_attn_func(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt `flash_attn_func` of FlashAttention 2, 3 or 4.

    Args:
        function: takes query (batch, queries, heads, d_head), key (batch, keys, kv_heads, d_head)
            and value (batch, keys, kv_heads, d_value), and options by keyword; returns
            (batch, queries, heads, d_value), and with `return_attn_probs` or `return_lse` a tuple
            whose second element is the log-sum-exp (batch, heads, queries).

    Returns:
        An attention of the contract with the options that the function names. Its causal diagonal
        and its window are aligned at the lower right.

    Raises:
        TypeError: if the function has no `causal`.
    """

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        enable_gqa: bool = False,
        **given: Any,
    ) -> Any:
        demand_flag(query, key, enable_gqa=enable_gqa)
        moved = (tensor.transpose(1, 2) for tensor in (query, key, value))
        out, lse = _parts(function(*moved, **_keywords(function, given)), given)
        return _result(out.transpose(1, 2), lse)

    return limited(attention, _options(function) | {"enable_gqa"}, function)


def from_flash_attn_varlen_func(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt `flash_attn_varlen_func`, for batches whose sequences are of one length.

    Args:
        function: takes query (tokens, heads, d_head), key (tokens of keys, kv_heads, d_head) and
            value (tokens of keys, kv_heads, d_value), `cu_seqlens_q`, `cu_seqlens_k`,
            `max_seqlen_q`, `max_seqlen_k`, and options by keyword; returns (tokens, heads,
            d_value), and a log-sum-exp (heads, tokens) as `flash_attn_func` does.

    Returns:
        An attention of the contract with the options that the function names.

    Raises:
        TypeError: if the function has no `causal`, or not these lengths.
    """
    require(function, "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        enable_gqa: bool = False,
        **given: Any,
    ) -> Any:
        demand_flag(query, key, enable_gqa=enable_gqa)
        batch, heads, queries, _ = query.shape
        keys = key.shape[2]
        joined = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
        result = function(
            *joined,
            cu_seqlens_q=_offsets(batch, queries, query.device),
            cu_seqlens_k=_offsets(batch, keys, key.device),
            max_seqlen_q=queries,
            max_seqlen_k=keys,
            **_keywords(function, given),
        )
        out, lse = _parts(result, given)
        out = out.unflatten(0, (batch, queries)).transpose(1, 2)
        if lse is not None:
            lse = lse.reshape(heads, batch, queries).transpose(0, 1)
        return _result(out, lse)

    return limited(attention, _options(function) | {"enable_gqa"}, function)


def from_flash_attn_kvpacked_func(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt `flash_attn_kvpacked_func`, which takes key and value in one tensor.

    Args:
        function: takes query (batch, queries, heads, d_head) and kv (batch, keys, 2, kv_heads,
            d_head), and options by keyword; returns what `flash_attn_func` does.

    Returns:
        An attention of the contract with the options that the function names, which raises
        `ValueError` if `d_value` is not `d_head`.

    Raises:
        TypeError: if the function has no `causal`.
    """

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_head"],
        enable_gqa: bool = False,
        **given: Any,
    ) -> Any:
        demand_flag(query, key, enable_gqa=enable_gqa)
        _demand_equal(key, value)
        packed = torch.stack([key.transpose(1, 2), value.transpose(1, 2)], dim=2)
        out = function(query.transpose(1, 2), packed, **_keywords(function, given))
        out, lse = _parts(out, given)
        return _result(out.transpose(1, 2), lse)

    return limited(attention, _options(function) | {"enable_gqa"}, function)


def from_flash_attn_qkvpacked_func(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt `flash_attn_qkvpacked_func`, which takes query, key and value in one tensor.

    Args:
        function: takes qkv (batch, length, 3, heads, d_head), and options by keyword; returns what
            `flash_attn_func` does.

    Returns:
        An attention of the contract with the options that the function names, which raises
        `ValueError` if query, key and value are not of one shape.

    Raises:
        TypeError: if the function has no `causal`.
    """

    def attention(
        query: Float[torch.Tensor, "batch heads length d_head"],
        key: Float[torch.Tensor, "batch heads length d_head"],
        value: Float[torch.Tensor, "batch heads length d_head"],
        **given: Any,
    ) -> Any:
        _demand_equal(query, key, value)
        packed = torch.stack([tensor.transpose(1, 2) for tensor in (query, key, value)], dim=2)
        out, lse = _parts(function(packed, **_keywords(function, given)), given)
        return _result(out.transpose(1, 2), lse)

    return limited(attention, _options(function), function)


def _options(function: Callable[..., Any]) -> set[str]:
    """Return the options of the contract that a function of FlashAttention names."""
    require(function, "causal")
    declared = parameters(function)
    return {contract for own, contract in NAMES.items() if own in declared}


def _keywords(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the options in the function's words; those that have no effect are left out."""
    declared = parameters(function)
    keywords = {}
    for own, contract in NAMES.items():
        value = given.get(contract)
        if own not in declared or value is None:
            continue
        # version 4 has None for a side without a bound, earlier ones -1
        unbounded = None if "learnable_sink" in declared else -1
        keywords[own] = spelled(value, unbounded) if contract == "window" else value
    return keywords


def _parts(result: Any, given: dict[str, Any]) -> tuple[Any, Any]:
    """Return the output and, if it was requested, the log-sum-exp."""
    if not given.get("return_lse"):
        return (result[0] if isinstance(result, tuple) else result), None
    out, lse, *_ = result
    return out, lse


def _result(out: Any, lse: Any) -> Any:
    return out if lse is None else (out, lse)


def _offsets(batch: int, length: int, device: torch.device) -> torch.Tensor:
    """Return the first token of each sequence, and the number of all tokens."""
    return torch.arange(batch + 1, dtype=torch.int32, device=device) * length


def _demand_equal(*tensors: torch.Tensor) -> None:
    """Refuse tensors that cannot be packed."""
    if len({tensor.shape for tensor in tensors}) > 1:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise ValueError(f"tensors that are packed must have one shape, got {shapes}")
